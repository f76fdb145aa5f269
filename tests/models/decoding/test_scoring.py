from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from salience_models.decoding.decode_state import Request
from salience_models.decoding.generation import generate
from salience_models.decoding.sampling import Sampling
from salience_models.decoding.scoring import answer_with_draft, score
from salience_models.errors import PromptTooLong
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan, SteeringMethod

Factory = Callable[..., Any]


def logprobs_of(logits: Tensor, continuation: tuple[int, ...]) -> list[float]:
    return logits.log_softmax(-1)[torch.arange(len(continuation)), list(continuation)].tolist()


def test_score_is_the_log_softmax_of_a_full_pass(
    tiny_name: str,
    language_model: Factory,
    stock_model: Factory,
    dense_logits: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
) -> None:
    """A padded batch of plans and continuations of different lengths, one token among them."""
    requests = [
        Request(draw_tokens(32), plan_of()),
        Request(draw_tokens(45, seed=1), plan_of("target_share", query_scope="question")),
        Request(draw_tokens(28, seed=2)),
    ]
    continuations = [draw_tokens(9, seed=3), draw_tokens(1, seed=4), draw_tokens(4, seed=5)]
    scores = score(language_model(tiny_name), requests, continuations)
    for request, continuation, result in zip(requests, continuations, scores, strict=True):
        length = len(request.token_ids)
        tokens = (*request.token_ids, *continuation)
        logits = dense_logits(stock_model(tiny_name), tokens, request.plan, length)[length - 1 : -1]
        expected = logprobs_of(logits, continuation)
        assert result.logprobs == pytest.approx(expected, abs=1e-4)
        assert result.mean_logprob == pytest.approx(sum(expected) / len(expected), abs=1e-4)


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_score_is_that_of_decoding_token_by_token(
    method: SteeringMethod,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
) -> None:
    lm, request, continuation = (
        language_model("gemma3"),
        Request(draw_tokens(32), plan_of(method)),
        draw_tokens(6),
    )
    expected = logprobs_of(step_logits(lm, [request], continuation[:-1])[0], continuation)
    (plain,) = score(lm, [request], [continuation])
    assert plain.logprobs == pytest.approx(expected, abs=1e-4)
    prefix = lm.prefill([Request(request.token_ids)]).rows()[0]
    (reused,) = score(lm, [request], [continuation], prefix=prefix)
    assert reused.logprobs == pytest.approx(expected, abs=1e-4)
    (chunked,) = score(lm, [request], [continuation], chunk_tokens=9)
    assert chunked.logprobs == pytest.approx(expected, abs=1e-4)


def greedy(lm: LanguageModel, request: Request, n: int) -> tuple[int, ...]:
    """The naive loop: its answer without the end token."""
    (answer,) = generate(lm, [request], Sampling(max_new_tokens=n))
    return tuple(token for token in answer.token_ids if token not in lm.info.eos_token_ids)


def test_agreement_counts_the_leading_greedy_tokens(language_model: Factory, draw_tokens: Factory) -> None:
    lm, request = language_model("llama"), Request(draw_tokens(20))
    own = greedy(lm, request, 6)
    wrong = tuple((token + 1) % 256 for token in own)
    drafts = [own, (*own[:4], wrong[4], own[5]), wrong, own[:1]]
    assert [s.n_agreed for s in score(lm, [request] * 4, drafts)] == [6, 4, 0, 1]


@pytest.mark.parametrize("max_new_tokens", [1, 4, 7])
def test_answer_with_draft_is_that_of_the_greedy_loop(
    tiny_name: str, max_new_tokens: int, language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    """Right, wrong, partly right, too long and too short drafts of differently steered requests in one batch.

    An answer that agrees with its whole draft ends with it.
    """
    lm = language_model(tiny_name)
    requests = [
        Request(draw_tokens(32), plan_of("share_control")),
        Request(draw_tokens(45, seed=1), plan_of("target_share")),
        Request(draw_tokens(28, seed=2)),
        Request(draw_tokens(30, seed=3), plan_of()),
        Request(draw_tokens(26, seed=4), plan_of(query_scope="last")),
    ]
    own = [greedy(lm, request, 9) for request in requests]
    drafts = [
        own[0],
        tuple((token + 1) % 256 for token in own[1]),
        (*own[2][:3], (own[2][3] + 1) % 256, *own[2][4:]),
        own[3][:2],
        (*own[4][:1], 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210),
    ]
    expected = [tokens[:max_new_tokens] for tokens in own]
    expected[3] = expected[3][:2]
    answers = answer_with_draft(lm, requests, drafts, max_new_tokens)
    assert [answer.token_ids for answer in answers] == expected
    scores = score(lm, requests, drafts)
    for answer, alone in zip(answers, scores, strict=True):
        assert answer.draft.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        assert answer.draft.n_agreed == alone.n_agreed


def test_prefix_changes_no_drafted_answer(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm, tokens = language_model("qwen3"), draw_tokens(32)
    methods = list(SteeringMethod)[1:]
    requests = [Request(tokens, plan_of(method, query_scope="question")) for method in methods]
    prefix = lm.prefill([Request(tokens)]).rows()[0]
    drafts = [draw_tokens(5, seed=n) for n in range(4)]
    plain = answer_with_draft(lm, requests, drafts, 6, with_mass=True)
    reused = answer_with_draft(lm, requests, drafts, 6, with_mass=True, prefix=prefix)
    assert [a.token_ids for a in reused] == [a.token_ids for a in plain]
    assert [a.draft.receipt.shares() for a in reused] == [
        pytest.approx(a.draft.receipt.shares(), abs=1e-5) for a in plain
    ]


def test_end_token_in_a_draft_ends_the_answer_where_the_model_agrees(
    language_model: Factory, draw_tokens: Factory
) -> None:
    plain, request = language_model("llama"), Request(draw_tokens(20))
    own = greedy(plain, request, 8)
    end = next(token for at, token in enumerate(own) if at >= 2 and token not in own[:at])
    at = own.index(end)
    lm = LanguageModel(plain.model, plain.tokenizer, replace(plain.info, eos_token_ids=(end,)))
    early = (end, *own)
    drafts = [own, own[: at + 1], early]
    answers = answer_with_draft(lm, [request] * 3, drafts, 8)
    assert [answer.token_ids for answer in answers] == [own[:at]] * 3


def test_continuation_must_fit_the_window(language_model: Factory) -> None:
    lm = language_model("llama")
    with pytest.raises(PromptTooLong, match="which is 1 over"):
        score(lm, [Request((5,) * 2040)], [(6,) * 9])
    with pytest.raises(PromptTooLong, match="which is 1 over"):
        answer_with_draft(lm, [Request((5,) * 2040)], [(6,) * 9], max_new_tokens=2)


@pytest.mark.parametrize("function", [score, partial(answer_with_draft, max_new_tokens=3)])
def test_each_request_needs_a_continuation(function: Factory, language_model: Factory) -> None:
    lm, request = language_model("llama"), Request((5, 6), BiasPlan())
    with pytest.raises(ValueError, match=r"one per request \(2\), got 1"):
        function(lm, [request] * 2, [(7,)])
    with pytest.raises(ValueError, match=r"continuations\[1\] must hold at least one token"):
        function(lm, [request] * 2, [(7,), ()])
