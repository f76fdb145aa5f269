from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, DynamicCache, StaticCache
from transformers.cache_utils import Cache

from salience_models.decoding.cache import (
    CacheKind,
    GrowingLayer,
    RowCache,
    build_cache,
    join_rows,
    split_rows,
)
from salience_models.decoding.decode_state import Request
from salience_models.steering.bias_plan import BiasPlan, Phase, QueryScope, SteeringMethod

Factory = Callable[..., Any]

METHODS = pytest.mark.parametrize("method", list(SteeringMethod)[1:])
ANSWER = (7, 9)


@settings(max_examples=40)
@given(st.integers(0, 12), st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_growing_layer_holds_all_that_was_appended(capacity: int, lengths: list[int]) -> None:
    layer = GrowingLayer(capacity)
    keys = torch.randn(2, 3, sum(lengths), 4)
    end = 0
    for length in lengths:
        start, end = end, end + length
        held, values = layer.update(keys[:, :, start:end], -keys[:, :, start:end])
        assert torch.equal(held, keys[:, :, :end])
        assert torch.equal(values, -keys[:, :, :end])
        assert layer.get_seq_length() == end


def test_growing_layer_does_not_move_within_its_capacity() -> None:
    layer = GrowingLayer(capacity=200)
    states = torch.randn(1, 2, 100, 4)
    first, _ = layer.update(states, states)
    second, _ = layer.update(states[:, :, :60], states[:, :, :60])
    assert first.data_ptr() == second.data_ptr()


def test_earlier_views_survive_later_appends() -> None:
    layer = GrowingLayer()
    states = torch.randn(1, 2, 10, 4)
    early, _ = layer.update(states, states)
    for _ in range(30):
        layer.update(-states, -states)
    assert torch.equal(early, states)


@pytest.mark.parametrize("change", ["reset", "crop", "reorder_cache", "batch_select_indices", "offload"])
def test_growing_layer_refuses_to_be_rearranged(change: str) -> None:
    layer = GrowingLayer()
    layer.update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    with pytest.raises(NotImplementedError, match="only appends"):
        getattr(layer, change)(-1)


def test_each_kind_builds_its_cache(tiny_name: str, language_model: Factory) -> None:
    config = language_model(tiny_name).model.config
    growing = build_cache(CacheKind.GROWING, config, 40)
    assert [type(layer) for layer in growing.layers] == [GrowingLayer] * config.num_hidden_layers
    assert isinstance(build_cache(CacheKind.DYNAMIC, config, 40), DynamicCache)
    static = build_cache(CacheKind.STATIC, config, 40)
    assert isinstance(static, StaticCache)
    assert static.layers[-1].get_max_length() == (16 if tiny_name == "mistral" else 40)


def test_growing_cache_has_a_layer_for_each_of_the_text_decoder() -> None:
    """A configuration with a vision part names its layers in its text part."""
    config = AutoConfig.for_model("gemma3", text_config={"num_hidden_layers": 3})
    assert len(build_cache(CacheKind.GROWING, config, 8).layers) == 3


def test_rows_split_and_joined_are_the_same() -> None:
    layers = [GrowingLayer(), GrowingLayer()]
    states = [torch.randn(2, 3, 9, 4) for _ in range(2)]
    for layer, state in zip(layers, states, strict=True):
        layer.update(state, -state)
    cache = Cache(layers=list(layers))
    parts = split_rows(cache, {0: slice(0, 6), 1: slice(4, 9)})
    assert torch.equal(parts[1][0][1], states[1][1, :, 4:9])
    rows = [RowCache((5,) * n, n, BiasPlan(), *part) for n, part in zip((6, 5), parts, strict=True)]
    joined = join_rows(rows, lengths=[5, 3], pads=[0, 2], capacity=20)
    again = split_rows(joined, {0: slice(0, 5), 1: slice(2, 5)})
    for (keys, values), row, length in zip(again, rows, (5, 3), strict=True):
        for layer in range(2):
            assert torch.equal(keys[layer], row.keys[layer][:, :length])
            assert torch.equal(values[layer], row.values[layer][:, :length])
    padding, _ = split_rows(joined, {1: torch.tensor([0, 1])})[0]
    assert bool((padding[0] == 0).all())


def test_rows_of_a_window_cache_cannot_be_taken_out(language_model: Factory, draw_tokens: Factory) -> None:
    state = language_model("mistral").prefill([Request(draw_tokens(9))], cache="dynamic")
    with pytest.raises(ValueError, match="cache must be 'growing' to take rows out"):
        state.rows()


def test_prefix_needs_a_growing_cache(language_model: Factory, draw_tokens: Factory) -> None:
    lm, request = language_model("llama"), Request(draw_tokens(9))
    row = lm.prefill([request]).rows()[0]
    with pytest.raises(ValueError, match="cache must be 'growing' to reuse a prefix, got 'static'"):
        lm.prefill([request], cache="static", prefix=row)


def make_row(tokens: tuple[int, ...], plan: BiasPlan = BiasPlan(), answer: int = 0) -> RowCache:
    return RowCache(tokens, len(tokens) - answer, plan, (), ())


def test_reuse_ends_where_tokens_differ_and_before_the_last_one() -> None:
    row = make_row((1, 2, 3, 4, 5))
    assert row.reusable((1, 2, 3, 4, 5), BiasPlan()) == 4
    assert row.reusable((1, 2, 3, 4, 5, 6), BiasPlan()) == 5
    assert row.reusable((1, 2, 9, 4, 5), BiasPlan()) == 2
    assert row.reusable((9,), BiasPlan()) == 0


def test_answer_tokens_are_not_reused_as_a_prompt() -> None:
    row = make_row((1, 2, 3, 4, 5), answer=2)
    assert row.reusable((1, 2, 3, 4, 5, 6), BiasPlan()) == 3


@METHODS
def test_prefix_reuse_changes_no_logits(
    method: SteeringMethod,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    """Every scope and phase, after a prefix of the same plan, of none, and of one that steers all rows."""
    lm, tokens = language_model("llama"), draw_tokens(32)
    for scope, phase in product(QueryScope, Phase):
        plan = plan_of(method, query_scope=scope, phase=phase)
        request = Request(tokens, plan)
        expected = step_logits(lm, [request], ANSWER)
        for other in (plan, BiasPlan(), plan_of("logit_bias")):
            prefix = lm.prefill([Request(tokens, other)]).rows()[0]
            assert_close(step_logits(lm, [request], ANSWER, prefix=prefix), expected)
        unsteered = lm.prefill([Request(tokens)]).rows()[0]
        assert unsteered.reusable(tokens, plan) >= 5  # all before the first block


@pytest.mark.parametrize(
    ("method", "scope", "phase", "expected"),
    [
        ("logit_bias", "all", "both", 5),
        ("logit_bias", "after_block", "both", 12),
        ("logit_bias", "question", "both", 25),
        ("logit_bias", "last", "both", 31),
        ("logit_bias", "all", "decode", 31),
        ("share_control", "all", "both", 5),
        ("share_control", "question", "both", 25),
        ("share_control", "last", "both", 25),
        ("share_control", "all", "decode", 25),
    ],
)
def test_unsteered_prefix_serves_up_to_the_first_row_a_plan_needs(
    method: str, scope: str, phase: str, expected: int, draw_tokens: Factory, plan_of: Factory
) -> None:
    tokens = draw_tokens(32)
    assert make_row(tokens).reusable(tokens, plan_of(method, query_scope=scope, phase=phase)) == expected


def test_one_prefix_serves_a_padded_batch_of_other_plans(
    tiny_name: str,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(45)
    prefix = lm.prefill([Request(tokens[:40])]).rows()[0]
    requests = [
        Request(tokens, plan_of("share_control", query_scope="question")),
        Request(tokens[:38], plan_of("target_share", query_scope="last")),
        Request((*tokens[:30], *draw_tokens(8, seed=3)), plan_of(query_scope="question")),
    ]
    reused = step_logits(lm, requests, ANSWER, prefix=prefix)
    assert_close(reused, step_logits(lm, requests, ANSWER))


def test_each_request_may_have_a_prefix_of_its_own(
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    lm = language_model("gemma3")
    requests = [
        Request(draw_tokens(45 - n, seed=n), plan_of(method, query_scope="question"))
        for n, method in enumerate(list(SteeringMethod)[1:])
    ]
    rows = lm.prefill([Request(r.token_ids[: 30 + n]) for n, r in enumerate(requests)]).rows()
    assert_close(step_logits(lm, requests, ANSWER, prefix=rows), step_logits(lm, requests, ANSWER))


def test_reused_positions_are_not_computed_again(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm, tokens = language_model("llama"), draw_tokens(32)
    prefix = lm.prefill([Request(tokens)]).rows()[0]
    fed: list[int] = []
    hook = lm.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: fed.append(args[0].shape[1])
    )
    try:
        lm.prefill([Request(tokens, plan_of(query_scope="question"))], prefix=prefix)
        lm.prefill([Request(draw_tokens(20, seed=5))], prefix=prefix)
    finally:
        hook.remove()
    assert fed == [32 - 25, 20]


def test_receipts_after_reuse_cover_all_question_rows(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm, request = language_model("llama"), Request(draw_tokens(32), plan_of(query_scope="last"))
    prefix = lm.prefill([Request(request.token_ids)]).rows()[0]
    question = lm.receipt(lm.prefill([request], with_mass=True, prefix=prefix), 0).question
    assert question.n_rows == 7


def test_chunks_and_prefix_together_change_nothing(
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    lm, tokens = language_model("gemma3"), draw_tokens(60)
    prefix = lm.prefill([Request(tokens[:20])]).rows()[0]
    for method in list(SteeringMethod)[1:]:
        request = Request(tokens, plan_of(method, query_scope="last", question_start=50))
        expected = step_logits(lm, [request], ANSWER)
        assert_close(step_logits(lm, [request], ANSWER, prefix=prefix, chunk_tokens=9), expected)
