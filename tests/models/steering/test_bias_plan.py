import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from salience_models.decoding.decode_state import Request
from salience_models.steering.bias_plan import (
    BiasPlan,
    Phase,
    QueryScope,
    SteeringMethod,
    TokenSpan,
    layers_of_depth,
)

Factory = Callable[..., Any]

A = TokenSpan(name="a", start=2, end=5, bias_nats=1.0, share=0.2)
B = TokenSpan(name="b", start=7, end=9, bias_nats=-1.0)
LENGTH = 12


@st.composite
def plans(draw: st.DrawFn, length: int = LENGTH) -> BiasPlan:
    """Any plan for a prompt of `length` tokens and a model of two layers with four heads."""
    cuts = sorted(draw(st.sets(st.integers(0, length - 1), max_size=6)))
    spans = tuple(
        TokenSpan(
            name=f"s{start}",
            start=start,
            end=end,
            bias_nats=draw(st.sampled_from([0.0, 1.5, -1.0])),
            share=draw(st.sampled_from([0.0, 0.2])),
        )
        for start, end in zip(cuts[::2], cuts[1::2], strict=False)
    )
    first = spans[-1].end if spans else 0
    return BiasPlan(
        spans=spans,
        method=draw(st.sampled_from(SteeringMethod)),
        layers=draw(st.sampled_from([None, (0,), (0, 1)])),
        heads=draw(st.sampled_from([None, ((0, 1),), ((0, 1), (1, 2))])),
        query_scope=draw(st.sampled_from(QueryScope)),
        phase=draw(st.sampled_from(Phase)),
        question_start=draw(st.sampled_from([None, *range(first, length)])),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spans": (B, A)}, "in order and not overlap"),
        ({"spans": (A, TokenSpan(name="b", start=4, end=6))}, "in order and not overlap"),
        ({"spans": (A, TokenSpan(name="a", start=6, end=7))}, "unique names"),
        ({"spans": (A,), "question_start": 4}, "question_start must be at or after"),
        ({"spans": (A, dataclasses.replace(B, share=0.8)), "method": "target_share"}, "sum to less than 1"),
        ({"layers": ()}, "layers must be None or a non-empty set"),
        ({"layers": (1, 1)}, "without repeats"),
        ({"heads": ()}, "heads must be None or a non-empty set"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_contradictory_plan_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BiasPlan(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 3, "end": 3}, "at least one token"),
        ({"start": -1, "end": 3}, "greater than or equal to 0"),
        ({"start": 0, "end": 3, "bias_nats": float("inf")}, "finite"),
        ({"start": 0, "end": 3, "share": 1.0}, "less than 1"),
        ({"start": 0, "end": 3, "share": -0.1}, "greater than or equal to 0"),
    ],
)
def test_impossible_span_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TokenSpan(name="a", **changes)


def test_shares_may_pass_1_under_logit_bias_which_ignores_them() -> None:
    spans = (dataclasses.replace(A, share=0.9), dataclasses.replace(B, share=0.9))
    assert BiasPlan(spans=spans).asks == (1.0, -1.0)


def test_asks_are_nats_or_shares_by_method() -> None:
    assert BiasPlan(spans=(A, B)).asks == (1.0, -1.0)
    assert BiasPlan(spans=(A, B), method=SteeringMethod.SHARE_CONTROL).asks == (0.2, 0.0)
    assert not BiasPlan(spans=(B,), method=SteeringMethod.TARGET_SHARE).is_steering


@given(plans())
def test_plan_survives_json_and_equal_plans_have_equal_hashes(plan: BiasPlan) -> None:
    again = BiasPlan.model_validate_json(plan.model_dump_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.fingerprint() == plan.fingerprint()


def test_fingerprints_tell_plans_apart() -> None:
    pairs = itertools.product(list(SteeringMethod)[1:], Phase)
    plain = [BiasPlan(spans=(A,), method=method, phase=phase) for method, phase in pairs]
    assert len({plan.fingerprint() for plan in plain}) == len(plain)


def test_plan_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        BiasPlan().phase = Phase.DECODE  # type: ignore[misc]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (QueryScope.ALL, [(True, True)] * 12),
        (QueryScope.AFTER_BLOCK, [(False, False)] * 5 + [(True, False)] * 4 + [(True, True)] * 3),
        (QueryScope.QUESTION, [(False, False)] * 10 + [(True, True)] * 2),
        (QueryScope.LAST, [(False, False)] * 11 + [(True, True)]),
    ],
)
def test_scope_says_which_prompt_rows_steer_which_span(
    scope: QueryScope, expected: list[tuple[bool, bool]]
) -> None:
    both = BiasPlan(spans=(A, B), query_scope=scope, question_start=10)
    assert [both.active_spans(row, LENGTH) for row in range(LENGTH)] == expected
    assert both.active_spans(LENGTH, LENGTH) == (True, True)
    prefill, decode = (both.model_copy(update={"phase": phase}) for phase in (Phase.PREFILL, Phase.DECODE))
    assert [prefill.active_spans(row, LENGTH) for row in range(LENGTH)] == expected
    assert prefill.active_spans(LENGTH, LENGTH) == (False, False)
    assert not any(any(decode.active_spans(row, LENGTH)) for row in range(LENGTH))
    assert decode.active_spans(LENGTH, LENGTH) == (True, True)


def test_span_that_asks_for_nothing_is_never_active() -> None:
    plan = BiasPlan(spans=(A, TokenSpan(name="c", start=9, end=10)))
    assert plan.active_spans(11, LENGTH) == (True, False)


@pytest.mark.parametrize(
    ("layers", "heads", "steered"),
    [
        (None, None, [0, 1, 2]),
        ((0, 2), None, [0, 2]),
        (None, ((1, 3),), [1]),
        ((0, 2), ((1, 3), (2, 0)), [2]),
    ],
)
def test_heads_restrict_the_steered_layers(
    layers: tuple[int, ...] | None, heads: tuple[tuple[int, int], ...] | None, steered: list[int]
) -> None:
    plan = BiasPlan(spans=(A,), layers=layers, heads=heads)
    assert [layer for layer in range(3) if plan.steers_layer(layer)] == steered


def test_plan_that_asks_for_nothing_steers_no_layer() -> None:
    assert not BiasPlan(spans=(TokenSpan(name="a", start=0, end=1),)).steers_layer(0)


@given(plans())
def test_steered_spans_change_only_at_row_cuts(plan: BiasPlan) -> None:
    cuts = set(plan.row_cuts(LENGTH))
    for row in range(1, LENGTH + 3):
        if row not in cuts:
            assert plan.active_spans(row, LENGTH) == plan.active_spans(row - 1, LENGTH)


@given(plans())
def test_first_affected_row_is_the_first_that_sees_a_span_it_steers(plan: BiasPlan) -> None:
    def sees_steered_span(row: int) -> bool:
        active = plan.active_spans(row, LENGTH)
        return any(on and span.start <= row for on, span in zip(active, plan.spans, strict=True))

    expected = next((row for row in range(LENGTH) if sees_steered_span(row)), LENGTH)
    assert plan.first_affected_row(LENGTH) == expected


def test_share_control_needs_its_question_rows_in_one_pass_with_what_it_steers() -> None:
    early = BiasPlan(
        spans=(A,), method=SteeringMethod.SHARE_CONTROL, query_scope=QueryScope.ALL, question_start=10
    )
    assert early.one_pass_start(LENGTH) == 2
    late = early.model_copy(update={"query_scope": QueryScope.LAST})
    assert late.one_pass_start(LENGTH) == 10
    assert BiasPlan(spans=(A,), query_scope=QueryScope.ALL).one_pass_start(LENGTH) == LENGTH


def test_names_and_neutral_spans_do_not_hinder_agreement() -> None:
    renamed = BiasPlan(spans=(dataclasses.replace(A, name="z"), TokenSpan(name="c", start=6, end=7)))
    assert BiasPlan(spans=(A,)).agreement(renamed, LENGTH, LENGTH) == LENGTH
    assert BiasPlan().agreement(BiasPlan(spans=(TokenSpan(name="c", start=6, end=7),)), LENGTH, 9) == 9


def test_last_row_moves_with_the_prompts_length() -> None:
    last = BiasPlan(spans=(A,), query_scope=QueryScope.LAST)
    assert last.agreement(last, LENGTH, LENGTH) == LENGTH
    assert last.agreement(last, LENGTH, 9) == 8


@settings(max_examples=40)
@given(data=st.data(), ours=plans(), other_length=st.integers(LENGTH - 3, LENGTH))
def test_agreement_never_passes_the_first_row_that_differs(
    data: st.DataObject, ours: BiasPlan, other_length: int, language_model: Factory, draw_tokens: Factory
) -> None:
    """By the keys and values of a model under both plans; half of the pairs differ in one field only."""
    theirs = data.draw(st.one_of(plans(other_length), changed(ours)), label="theirs")
    if not (is_valid(ours, LENGTH) and is_valid(theirs, other_length)):
        return
    lm, tokens = language_model("llama"), draw_tokens(LENGTH)
    mine = lm.prefill([Request(tokens, ours)]).rows()[0]
    others = lm.prefill([Request(tokens[:other_length], theirs)]).rows()[0]
    agreed = ours.agreement(theirs, LENGTH, other_length)
    assert agreed == theirs.agreement(ours, other_length, LENGTH)
    assert agreed <= other_length
    for here, there in zip((*mine.keys, *mine.values), (*others.keys, *others.values), strict=True):
        assert bool(((here[:, :agreed] - there[:, :agreed]).abs() <= 1e-5).all())


def changed(plan: BiasPlan) -> st.SearchStrategy[BiasPlan]:
    """The same plan with another scope, phase, method, set of layers or heads, or the same one."""
    fields: dict[str, Sequence[Any]] = {
        "query_scope": list(QueryScope),
        "phase": list(Phase),
        "method": list(SteeringMethod),
        "layers": [None, (1,)],
        "heads": [None, ((1, 3),)],
    }
    choices = [{name: value} for name, values in fields.items() for value in values]
    return st.sampled_from(choices).map(lambda change: plan.model_copy(update=change))


def is_valid(plan: BiasPlan, length: int) -> bool:
    """Whether a prompt of `length` tokens can be steered so, by a model of two layers."""
    if not plan.spans or not plan.is_steering:
        return not plan.spans or plan.first_question_row <= length
    has_rows = plan.first_question_row < length and plan.first_affected_row(length) < length
    return has_rows and any(plan.steers_layer(layer) for layer in range(2))


@pytest.mark.parametrize(
    ("n_layers", "start", "end", "expected"),
    [
        (30, 0.5, 1.0, range(15, 30)),
        (18, 0.0, 1.0, range(18)),
        (5, 0.5, 1.0, range(3, 5)),
        (4, 0.25, 0.5, [1]),
        (25, 0.28, 1.0, range(7, 25)),
        (25, 0.0, 0.28, range(7)),
    ],
)
def test_depth_picks_layers_by_fraction(
    n_layers: int, start: float, end: float, expected: Sequence[int]
) -> None:
    assert layers_of_depth(n_layers, start, end) == tuple(expected)


@given(st.integers(1, 80), st.integers(1, 9))
def test_halves_of_the_depth_share_no_layer_and_leave_none(n_layers: int, tenth: int) -> None:
    cut = tenth / 10
    parts = []
    for bounds in ((0.0, cut), (cut, 1.0)):
        try:
            parts += layers_of_depth(n_layers, *bounds)
        except ValueError:
            continue
    assert parts == list(range(n_layers))


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [(0.5, 0.5, "0 <= start < end <= 1"), (-0.1, 1.0, "0 <= start"), (0.9, 0.95, "holds no layer")],
)
def test_depth_without_layers_is_refused(start: float, end: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layers_of_depth(4, start, end)
