from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from salience_models.decoding.decode_state import Request
from salience_models.decoding.greedy import PromptLookup, continue_greedily
from salience_models.steering.bias_plan import SteeringMethod

Factory = Callable[..., Any]


def test_longest_and_latest_run_is_continued() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3])
    assert lookup.propose(3) == [4, 9, 2]
    lookup.extend([7, 2, 3])
    assert lookup.propose(2) == [7, 2]
    lookup.extend([8])
    assert lookup.propose(2) == []


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_draft_is_what_a_search_from_the_end_finds(tokens: list[int], count: int) -> None:
    expected: list[int] = []
    for size in (2, 3):
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                expected = tokens[end : end + count]
    assert PromptLookup(tokens).propose(count) == expected


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
@pytest.mark.parametrize("model", ["llama", "qwen3", "gemma3"])
def test_drafts_change_no_greedy_answer(
    model: str,
    method: SteeringMethod,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows (Gemma 3) and target share cannot be trimmed: there they are decoded one by one."""
    lm, passes = language_model(model), []
    requests = [
        Request(draw_tokens(8) * 4, plan_of(method, phase="both")),
        Request(draw_tokens(9, seed=1) * 3, plan_of(method)),
        Request(draw_tokens(30, seed=2)),
        Request(draw_tokens(24, seed=3)),
    ]
    limits = [40, 33, 40, 5]
    expected = []
    for request, limit in zip(requests, limits, strict=True):
        state, tokens = lm.prefill([request], new_tokens=limit), []
        while len(tokens) < limit:
            tokens.append(int(state.logits.argmax()))
            if tokens[-1] in lm.info.eos_token_ids:
                del tokens[-1]
                break
            lm.decode(state, tokens[-1:])
        expected.append(tokens)
    state = lm.prefill(requests, new_tokens=40)
    monkeypatch.setattr(lm, "extend", lambda *given: passes.append(given) or type(lm).extend(lm, *given))
    assert continue_greedily(lm, state, state.logits.argmax(-1).tolist(), limits) == expected
    can_trim = model != "gemma3" and method in (SteeringMethod.LOGIT_BIAS, SteeringMethod.SHARE_CONTROL)
    assert bool(passes) == can_trim


def test_ended_request_may_pass_the_window_while_others_are_drafted(
    language_model: Factory, draw_tokens: Factory
) -> None:
    lm = language_model("llama")
    requests = [Request(draw_tokens(2044, seed=9)), *(Request(draw_tokens(12, seed=n)) for n in range(7))]
    limits = [4, *[38] * 7]
    state = lm.prefill(requests, new_tokens=limits)
    found = continue_greedily(lm, state, state.logits.argmax(-1).tolist(), limits)
    for request, limit, tokens in zip(requests[1:], limits[1:], found[1:], strict=True):
        alone = lm.prefill([request], new_tokens=limit)
        assert continue_greedily(lm, alone, [int(alone.logits.argmax())], [limit]) == [tokens]


def test_settled_answer_ends_inside_a_draft(language_model: Factory, draw_tokens: Factory) -> None:
    lm, request = language_model("llama"), Request(draw_tokens(8) * 4)
    state = lm.prefill([request], new_tokens=60)
    (whole,) = continue_greedily(lm, state, [int(state.logits.argmax())], [60])
    for length in (1, 7, 30):
        state = lm.prefill([request], new_tokens=60)
        first = int(state.logits.argmax())
        (cut,) = continue_greedily(lm, state, [first], [60], lambda _, tokens, n=length: len(tokens) >= n)
        assert cut == whole[:length]


@pytest.mark.parametrize("method", [SteeringMethod.LOGIT_BIAS, SteeringMethod.SHARE_CONTROL])
def test_trimmed_batch_goes_on_as_if_nothing_had_been_fed(
    method: SteeringMethod, language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    requests = [Request(draw_tokens(32), plan_of(method, phase="both")), Request(draw_tokens(29, seed=1))]
    state, fresh = (lm.prefill(requests, new_tokens=20) for _ in range(2))
    lm.extend(state, [(5, 6, 7, 8), (9,)])
    lm.trim(state, [34, 30])
    lm.extend(state, [(50, 51), ()])
    lm.trim(state, [33, 30])
    lm.decode(fresh, [5, 9])
    for _ in range(2):
        torch.testing.assert_close(lm.decode(state, [11, 12]), lm.decode(fresh, [11, 12]), atol=2e-5, rtol=0)
    assert state.token_ids == fresh.token_ids
    for ours, theirs in zip(state.rows(), fresh.rows(), strict=True):
        assert ours.token_ids == theirs.token_ids
        torch.testing.assert_close(ours.keys, theirs.keys, atol=2e-5, rtol=0)
        torch.testing.assert_close(ours.values, theirs.values, atol=2e-5, rtol=0)
    for i in range(2):
        assert lm.receipt(state, i).layers == lm.receipt(fresh, i).layers


def test_trim_is_refused_where_columns_cannot_be_hidden(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    plain, shared = Request(draw_tokens(32)), Request(draw_tokens(32), plan_of("target_share"))
    for model, request, options in (
        ("mistral", plain, {}),
        ("llama", shared, {}),
        ("llama", plain, {"with_mass": True}),
        ("llama", plain, {"cache": "dynamic"}),
        ("llama", plain, {"cache": "static", "new_tokens": 4}),
    ):
        lm = language_model(model)
        state = lm.prefill([request], **options)
        assert not lm.can_trim(state)
        with pytest.raises(ValueError, match=r"must be taken back by state\.rows\(\) and resume"):
            lm.trim(state, [32])
    state = language_model("llama").prefill([plain])
    for length in (31, 33):
        with pytest.raises(ValueError, match=rf"lengths\[0\] must lie in \[32, 32\], got {length}"):
            language_model("llama").trim(state, [length])
