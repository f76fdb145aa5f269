import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience_models.steering.bias_plan import Phase, QueryScope, SteeringMethod
from salience_models.steering.plan_weights import (
    Steering,
    length_normalised,
    plan_from_weights,
    shares_from_weights,
    weight_to_bias,
)
from salience_models.text.prompt import TokenSpan

WEIGHTS = st.floats(0.01, 0.99)
SPANS = (TokenSpan("a", 2, 5), TokenSpan("b", 7, 9), TokenSpan("c", 9, 17))


def test_weight_becomes_log_odds() -> None:
    assert weight_to_bias(0.5) == 0.0
    assert weight_to_bias(0.75) == pytest.approx(math.log(3))
    assert weight_to_bias(0.99, strength=2.0) == pytest.approx(2 * 4.59512)


@given(WEIGHTS, st.floats(0.0, 10.0))
def test_opposite_weights_give_opposite_biases(weight: float, strength: float) -> None:
    assert weight_to_bias(weight, strength) == pytest.approx(-weight_to_bias(1 - weight, strength), abs=1e-9)


@given(WEIGHTS, WEIGHTS)
def test_greater_weight_never_gets_a_smaller_bias(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert weight_to_bias(low) <= weight_to_bias(high)


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.2, 1.3, float("nan")])
def test_weight_outside_the_open_interval_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        weight_to_bias(weight)


def test_length_normalisation_leaves_neutral_blocks_alone() -> None:
    assert length_normalised([1.0, 0.0, 2.0], [4, 100, 16]) == pytest.approx(
        [1.0 + math.log(2), 0.0, 2.0 - math.log(2)]
    )
    assert length_normalised([0.0, 0.0], [4, 16]) == [0.0, 0.0]


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 500)), min_size=1, max_size=8))
def test_length_normalisation_keeps_the_mean_bias_and_undoes_size(blocks: list[tuple[float, int]]) -> None:
    """A block's keys together gain its length in odds; afterwards that product is even."""
    biases, lengths = [b for b, _ in blocks], [n for _, n in blocks]
    after = length_normalised(biases, lengths)
    biased = [i for i, b in enumerate(biases) if b != 0.0]
    assert sum(after) == pytest.approx(sum(biases), abs=1e-6)
    gains = [after[i] + math.log(lengths[i]) - biases[i] for i in biased]
    assert gains == pytest.approx([gains[0]] * len(gains) if gains else [], abs=1e-9)


def test_shares_grow_with_the_weight_from_nothing_at_a_half() -> None:
    shares = shares_from_weights([0.75, 0.5, 0.6, 0.2], share=0.2, max_total_share=0.4)
    assert shares == pytest.approx([0.1, 0.0, 0.04, 0.0])
    assert shares_from_weights([0.501], share=0.2, max_total_share=0.4) == pytest.approx([0.0004])
    assert shares_from_weights([0.99], share=0.2, max_total_share=0.4) == pytest.approx([0.196])
    assert shares_from_weights([0.5, 0.1], share=0.2, max_total_share=0.4) == [0.0, 0.0]
    assert shares_from_weights([], share=0.2, max_total_share=0.4) == []


_STEERED = [method for method in SteeringMethod if method is not SteeringMethod.NONE]


@pytest.mark.parametrize("method", _STEERED)
@given(low=st.floats(0.5, 0.99), high=st.floats(0.5, 0.99), beside=st.floats(0.5, 0.99))
def test_what_a_block_asks_for_grows_with_its_weight_alone(
    method: SteeringMethod, low: float, high: float, beside: float
) -> None:
    """Continuous, strictly increasing, zero at a half, and the same whatever stands beside it."""
    steering = Steering(method=method, share=0.2, max_total_share=0.5)

    def asked(weight: float, *others: float) -> float:
        weights = dict(zip("abc", (weight, *others), strict=False))
        return plan_from_weights(SPANS, weights, steering, n_layers=4).asks[0]

    low, high = sorted((low, high))
    assert asked(0.5, beside) == 0.0
    assert asked(low, beside) == asked(low)
    assert asked(high) >= asked(low)
    if high - low > 1e-6:
        assert asked(high) > asked(low)
    # A step of the weight moves what is asked by at most the slope's bound: 2 * share, or 1 / (w * (1 - w)).
    assert asked(high) - asked(low) <= max(0.4, 1 / (0.99 * 0.01)) * (high - low) + 1e-12


def test_no_steering_measures_every_block_and_asks_for_nothing() -> None:
    plan = plan_from_weights(SPANS, {"a": 0.99}, Steering(method=SteeringMethod.NONE), n_layers=4)
    assert not plan.is_steering
    assert [span.name for span in plan.spans] == ["a", "b", "c"]


@given(st.lists(WEIGHTS, min_size=1, max_size=20), st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_shares_never_pass_their_bounds(weights: list[float], share: float, bound: float) -> None:
    shares = shares_from_weights(weights, share, bound)
    assert max(shares) <= share + 1e-12
    assert sum(shares) <= bound + 1e-12


def test_plan_carries_biases_or_shares_by_method() -> None:
    weights = {"a": 0.9, "c": 0.25}
    biased = plan_from_weights(SPANS, weights, Steering(method=SteeringMethod.LOGIT_BIAS), n_layers=4)
    assert [s.bias_nats for s in biased.spans] == pytest.approx([math.log(9), 0.0, -math.log(3)])
    assert [s.share for s in biased.spans] == [0.0, 0.0, 0.0]
    shared = plan_from_weights(SPANS, weights, Steering(), n_layers=4)
    assert [s.share for s in shared.spans] == pytest.approx([0.16, 0.0, 0.0])
    assert [s.bias_nats for s in shared.spans] == [0.0, 0.0, 0.0]


def test_plan_takes_layers_scope_and_question_from_the_steering() -> None:
    steering = Steering(
        depth=(0.25, 0.75),
        heads=((1, 0), (2, 3)),
        query_scope=QueryScope.LAST,
        phase=Phase.PREFILL,
        only_raise=False,
    )
    plan = plan_from_weights(SPANS, {"a": 0.9}, steering, n_layers=8, question_start=20)
    assert plan.layers == (2, 3, 4, 5)
    assert plan.heads == ((1, 0), (2, 3))
    assert (plan.query_scope, plan.phase, plan.only_raise) == (QueryScope.LAST, Phase.PREFILL, False)
    assert plan.first_question_row == 20
    assert [(s.name, s.start, s.end) for s in plan.spans] == [(s.name, s.start, s.end) for s in SPANS]


def test_length_normalised_plan_shifts_biases_by_block_length() -> None:
    steering = Steering(method=SteeringMethod.LOGIT_BIAS, length_normalised=True)
    plan = plan_from_weights(SPANS, {"b": 0.9, "c": 0.9}, steering, n_layers=4)
    expected = [0.0, math.log(9) + math.log(2), math.log(9) - math.log(2)]
    assert [s.bias_nats for s in plan.spans] == pytest.approx(expected)


def test_weight_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights must name blocks of the prompt, got \['x', 'y'\]"):
        plan_from_weights(SPANS, {"y": 0.9, "a": 0.9, "x": 0.9}, Steering(), n_layers=4)


@pytest.mark.parametrize("method", list(SteeringMethod))
def test_infinite_odds_are_refused_under_every_method(method: SteeringMethod) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        plan_from_weights(SPANS, {"a": 1.0}, Steering(method=method), n_layers=4)
