from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience_models import Request, SteeringMethod
from salience_models.decoding.decode_state import group_by_length


def cost(groups, lengths, pass_tokens):
    return sum(len(group) * max(lengths[i] for i in group) + pass_tokens for group in groups)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(0, 60))
def test_no_split_into_neighbours_costs_less_and_none_is_lost(lengths, pass_tokens):
    groups = group_by_length(lengths, pass_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    cheapest = min(
        cost([order[a:b] for a, b in zip((0, *cuts), (*cuts, len(order)), strict=True)], lengths, pass_tokens)
        for n in range(len(order))
        for cuts in combinations(range(1, len(order)), n)
    )
    assert cost(groups, lengths, pass_tokens) == cheapest


def test_a_group_stays_whole_when_grouped_alone():
    lengths = [256, 360, 464, 568, 672, 776, 880, 1024]
    for group in group_by_length(lengths, 256):
        assert len(group_by_length([lengths[i] for i in group], 256)) == 1


def test_equal_lengths_and_dear_passes_keep_one_group():
    assert group_by_length([7, 7, 7], 1) == [[0, 1, 2]]
    assert group_by_length([1, 9, 5], 100) == [[0, 1, 2]]
    assert group_by_length([9, 1, 9], 1) == [[1], [0, 2]]


def test_receipts_of_prompts_prefilled_apart_are_those_of_each_alone(
    monkeypatch, language_model, draw_tokens, plan_of
):
    lm = language_model("llama")
    requests = [Request(draw_tokens(n), plan_of(SteeringMethod.SHARE_CONTROL)) for n in (45, 32, 40)]
    alone = [lm.receipt(lm.prefill([r], with_mass=True), 0) for r in requests]
    monkeypatch.setattr("salience_models.language_model._CPU_PASS_TOKENS", 0)
    state = lm.prefill(requests, with_mass=True)
    for row, expected in enumerate(alone):
        found = lm.receipt(state, row)
        assert (found.layers, found.impls) == (expected.layers, expected.impls)
        assert found.shares() == pytest.approx(expected.shares(), abs=1e-6)
        assert found.unbiased_shares() == pytest.approx(expected.unbiased_shares(), abs=1e-6)
