import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from salience_experiments.statistics import (
    clustered_mean,
    family_size,
    holm,
    mcnemar_exact,
    paired_difference,
    sign_flip_test,
    unanimous_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_matches_newcombe_1998(hits, n, low, high):
    interval = wilson_interval(hits, n)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_within_zero_and_one(counts):
    hits, n = counts
    interval = wilson_interval(hits, n)
    assert 0 <= interval.low <= hits / n <= interval.high <= 1


@pytest.mark.parametrize(("hits", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(hits, n):
    with pytest.raises(ValueError, match="hits must be in"):
        wilson_interval(hits, n)


@pytest.mark.parametrize(
    ("gained", "lost", "tied"), [(8, 1, 20), (1, 8, 3), (5, 5, 0), (0, 6, 10), (0, 0, 4)]
)
def test_mcnemar_matches_scipys_binomial_test(gained, lost, tied):
    arm = [1] * gained + [0] * lost + [1] * tied
    baseline = [0] * gained + [1] * lost + [1] * tied
    result = mcnemar_exact(arm, baseline)
    expected = stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    assert (result.gained, result.lost) == (gained, lost)
    assert result.p == pytest.approx(expected)


def test_mcnemar_refuses_graded_scores():
    with pytest.raises(ValueError, match="must be 0 or 1"):
        mcnemar_exact([0.5, 1], [0, 1])


@pytest.mark.parametrize(("gained", "n", "end"), [(0, 16, "high"), (0, 1, "high"), (16, 16, "low")])
def test_unanimous_interval_ends_where_tangos_score_test_rejects(gained, n, end):
    delta = getattr(unanimous_interval(gained / n, n), end)
    minus_b = gained - (2 * n - gained) * delta  # of the quadratic a q² + b q + c = 0; no pair lost: c = 0
    lost_share = max(0.0, minus_b) / (2 * n)
    score = (gained - n * delta) / math.sqrt(n * (2 * lost_share + delta * (1 - delta)))
    assert abs(score) == pytest.approx(1.959964, abs=1e-5)


def test_unanimous_interval_is_symmetric_and_refuses_other_differences():
    none, all_gained, all_lost = (unanimous_interval(difference, 20) for difference in (0, 1, -1))
    assert none.low == -none.high
    assert (all_gained.low, all_gained.high) == (-all_lost.high, -all_lost.low)
    with pytest.raises(ValueError, match="difference must be -1, 0 or 1"):
        unanimous_interval(0.5, 20)


def test_a_family_is_every_contrast_at_every_scope():
    assert family_size(7, ("first", "middle", "last")) == 21


def test_holm_matches_the_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_nor_changes_their_order(p_values):
    adjusted = holm(p_values)
    assert all(0 <= raw <= new <= 1 for raw, new in zip(p_values, adjusted, strict=True))
    ranked = [new for _, new in sorted(zip(p_values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_holm_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="p_values must be in"):
        holm([0.1, float("nan")])


def test_sign_flip_equals_brute_force_over_clusters():
    rng = np.random.default_rng(3)
    differences = rng.normal(0.4, 1, size=21)
    clusters = [f"q{index // 3}" for index in range(21)]
    sums = differences.reshape(7, 3).sum(axis=1)
    totals = [abs(np.dot(signs, sums)) for signs in itertools.product((1, -1), repeat=7)]
    expected = np.mean(np.array(totals) >= abs(sums.sum()) - 1e-12)
    result = sign_flip_test(differences, clusters)
    assert result.is_exact
    assert result.n_clusters == 7
    assert result.p == pytest.approx(expected)


def test_sign_flip_of_unanimous_questions_is_two_in_two_to_the_k():
    assert sign_flip_test([1.0] * 6, list("abcdef")).p == pytest.approx(2 / 2**6)


def test_sign_flip_without_any_difference_gives_p_one():
    assert sign_flip_test([0.0, 0.0, 1.0, -1.0], ["a", "b", "c", "c"]).p == 1.0


def test_sampled_sign_flip_is_close_to_exact_seeded_and_never_zero():
    rng = np.random.default_rng(5)
    differences = rng.normal(0.35, 1, size=16)
    clusters = [str(index) for index in range(16)]
    signs = 1 - 2 * (np.arange(2**16)[:, None] >> np.arange(16) & 1)
    exact = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    sampled = sign_flip_test(differences, clusters, seed=1)
    assert not sampled.is_exact
    assert sampled.p == pytest.approx(exact, abs=0.02)
    assert sampled == sign_flip_test(differences, clusters, seed=1)
    assert sign_flip_test(np.ones(60), [str(i) for i in range(60)], n_resamples=999).p == pytest.approx(
        1 / 1000
    )


def test_repeating_a_question_adds_no_evidence():
    differences = np.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
    clusters = list("abcdef")
    once = sign_flip_test(differences, clusters)
    tenfold = sign_flip_test(np.repeat(differences, 10), list(np.repeat(clusters, 10)))
    assert tenfold.p == pytest.approx(once.p)
    wide = paired_difference(differences, np.zeros(6), clusters)
    same = paired_difference(np.repeat(differences, 10), np.zeros(60), list(np.repeat(clusters, 10)))
    assert same.interval == wide.interval
    assert (same.n, same.n_clusters) == (60, 6)


def test_bootstrap_covers_when_clustered_and_undercovers_when_not():
    rng = np.random.default_rng(11)
    covered = naive = 0
    n_runs = 200
    for _ in range(n_runs):
        effects = np.repeat(rng.normal(0.3, 1, size=40), 4)
        values = effects + rng.normal(0, 0.5, size=160)
        clustered = clustered_mean(values, [str(i // 4) for i in range(160)], n_resamples=400).interval
        alone = clustered_mean(values, [str(i) for i in range(160)], n_resamples=400).interval
        covered += clustered.low <= 0.3 <= clustered.high
        naive += alone.low <= 0.3 <= alone.high
    assert 0.90 <= covered / n_runs <= 0.985
    assert naive / n_runs < 0.80


def test_sign_flip_rejects_a_true_null_as_often_as_alpha_says():
    rng = np.random.default_rng(2)
    clusters = [str(index // 2) for index in range(24)]
    rejected = 0
    for _ in range(400):
        differences = np.repeat(rng.normal(size=12), 2) + rng.normal(size=24)
        rejected += sign_flip_test(differences, clusters).p <= 0.05
    assert 0.02 <= rejected / 400 <= 0.085


def test_bootstrap_is_seeded_and_weighs_items_not_clusters():
    values, clusters = [1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]
    result = clustered_mean(values, clusters, seed=4)
    assert result.estimate == 0.75
    assert result == clustered_mean(values, clusters, seed=4)
    assert (result.interval.low, result.interval.high) == (0.0, 1.0)


def test_large_samples_are_resampled_in_chunks_with_the_same_result_in_law():
    values = np.tile([0.0, 1.0], 1500)
    interval = clustered_mean(values, [str(i) for i in range(3000)], n_resamples=2000).interval
    half = 1.96 * 0.5 / np.sqrt(3000)
    assert interval.low == pytest.approx(0.5 - half, abs=0.002)
    assert interval.high == pytest.approx(0.5 + half, abs=0.002)


@pytest.mark.parametrize("values", [[1.0], [], [1.0, float("nan")]])
def test_missing_or_ragged_values_are_refused(values):
    with pytest.raises(ValueError, match="values must"):
        clustered_mean(values, ["a", "b"])
