import math

import numpy as np
import pytest

from salience_experiments.pairing import PairedSet
from salience_experiments.statistics import Interval, MeanDifference, paired_difference
from salience_experiments.verdict import (
    Verdict,
    compare,
    detectable_effect,
    equivalence_questions,
    judge,
)


def make_difference(estimate, half_95, half_90=None, n=400, sd=0.3):
    half_90 = half_95 * 0.84 if half_90 is None else half_90
    return MeanDifference(
        estimate=estimate,
        interval=Interval(estimate - half_95, estimate + half_95, 0.95),
        interval_90=Interval(estimate - half_90, estimate + half_90, 0.90),
        sd=sd,
        n=n,
        n_clusters=n,
    )


def make_pair(
    arm_values, baseline_values, name="steer", measure="metric", positions=("first", "middle", "last")
):
    n = len(arm_values)
    return PairedSet(
        arm=name,
        baseline="none",
        measure=measure,
        items=tuple(map(str, range(n))),
        clusters=tuple(map(str, range(n))),
        positions=positions,
        arm_values=np.asarray(arm_values, dtype=float),
        baseline_values=np.asarray(baseline_values, dtype=float),
        has_same_prompts=True,
    )


@pytest.mark.parametrize(
    ("difference", "p", "expected"),
    [
        (make_difference(0.05, 0.03), 0.01, Verdict.IMPROVED),
        (make_difference(-0.05, 0.03), 0.01, Verdict.WORSE),
        (make_difference(0.05, 0.03), 0.20, Verdict.INCONCLUSIVE),
        (make_difference(0.05, 0.06), 0.01, Verdict.INCONCLUSIVE),
        (make_difference(0.002, 0.012), 0.70, Verdict.EQUIVALENT),
        (make_difference(0.012, 0.012), 0.06, Verdict.INCONCLUSIVE),
        (make_difference(0.0, 0.019, half_90=0.0201), 1.0, Verdict.INCONCLUSIVE),
    ],
)
def test_verdict_follows_p_and_intervals(difference, p, expected):
    assert judge(difference, p, margin=0.02) is expected


def test_nothing_is_equivalent_without_a_margin():
    assert judge(make_difference(0, 0.001), 1.0, margin=None) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("n", "expected"), [(9, "inconclusive"), (132, "inconclusive"), (133, "equivalent")])
def test_few_questions_that_all_agree_do_not_prove_equivalence(n, expected):
    ones = np.ones(n)
    difference = paired_difference(ones, ones, [str(i) for i in range(n)], n_resamples=200)
    assert difference.interval_90.lies_within(0.0)
    assert str(judge(difference, 1.0, margin=0.02)) == expected


def test_equivalence_needs_as_many_questions_as_the_margin_is_small():
    assert [equivalence_questions(margin) for margin in (0.02, 0.1, 0.5)] == [133, 25, 10]


def test_unanimous_outcomes_get_a_score_interval_not_certainty():
    ones = np.ones((16, 3))
    (same,) = compare([make_pair(ones, ones)], ["all"])
    assert same.difference.interval.high == pytest.approx(1.96**2 / (16 + 1.96**2), abs=1e-4)
    assert same.verdict is Verdict.INCONCLUSIVE
    (gained,) = compare([make_pair(ones, 0 * ones)], ["first"])
    assert (gained.verdict, gained.difference.interval.high) == (Verdict.IMPROVED, 1.0)
    assert gained.difference.interval.low == pytest.approx(0.613, abs=1e-3)
    (graded,) = compare([make_pair(0.75 * ones, 0.25 * ones)], ["all"])
    assert not graded.difference.interval.has_width


def test_detectable_effect_follows_the_spread_and_the_exact_tests_floor():
    assert detectable_effect(make_difference(0, 0.1, n=400, sd=0.3)) == pytest.approx(
        0.3 * 2.8016 / 20, rel=1e-3
    )
    assert detectable_effect(make_difference(0, 0.1, n=40, sd=0.0)) == pytest.approx(6 / 40)
    assert math.isinf(detectable_effect(make_difference(0, 0.1, n=5)))


def test_compare_adjusts_over_the_whole_family_and_names_its_tests():
    rng = np.random.default_rng(0)
    baseline = rng.integers(0, 2, size=(120, 3))
    better = np.where(rng.random((120, 3)) < 0.4, 1, baseline)
    pairs = [make_pair(better, baseline, "better"), make_pair(baseline, baseline, "same")]
    results = compare(pairs, ["first", "middle", "last"])
    assert len(results) == 6
    assert {result.test for result in results} == {"McNemar"}
    assert [result.verdict for result in results[:3]] == [Verdict.IMPROVED] * 3
    assert all(
        r.p_holm == pytest.approx(min(1, r.p * 6)) for r in results if r.p == min(x.p for x in results)
    )
    assert [result.p_holm for result in results[3:]] == [1.0] * 3
    pooled = compare(pairs, ["all"])
    assert (pooled[0].test, pooled[0].difference.n, pooled[0].difference.n_clusters) == (
        "sign-flip",
        360,
        120,
    )


def test_u_falls_when_only_the_middle_gains():
    rng = np.random.default_rng(1)
    baseline = (rng.random((150, 3)) < [0.8, 0.4, 0.8]).astype(float)
    arm = baseline.copy()
    arm[:, 1] = np.maximum(arm[:, 1], rng.random(150) < 0.5)
    (result,) = compare([make_pair(arm, baseline)], ["U"])
    assert result.difference.estimate < -0.2
    assert result.verdict is Verdict.WORSE
    assert result.test == "sign-flip"


def test_log_probabilities_use_the_callers_margin_and_sign_flips():
    rng = np.random.default_rng(2)
    baseline = rng.normal(-3, 1, size=(200, 3))
    arm = baseline + rng.normal(0, 0.05, size=(200, 3))
    pair = make_pair(arm, baseline, measure="gold_logprob")
    assert compare([pair], ["all"], margin=0.05)[0].verdict is Verdict.EQUIVALENT
    assert compare([pair], ["all"], margin=None)[0].verdict is Verdict.INCONCLUSIVE
    assert compare([pair], ["first"], margin=0.05)[0].test == "sign-flip"
