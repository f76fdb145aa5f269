"""The bundled models with steered blocks, against stock eager attention with dense masks.

The differences are printed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from salience_models.decoding.decode_state import Request
from salience_models.decoding.generation import generate
from salience_models.decoding.sampling import Sampling
from salience_models.decoding.scoring import answer_with_draft, score
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan, QueryScope, SteeringMethod, TokenSpan
from salience_models.text.prompt import TextSpan, encode_text

pytestmark = pytest.mark.model

Twins = tuple[PreTrainedModel, LanguageModel]
Factory = Callable[..., Any]

FACTS = (
    "The harbour master of Tolm is called Ines Varga; she has kept the lights for eleven years.",
    "The ferry from Tolm to Krell leaves at six in the morning and takes four hours in calm weather.",
    "The lighthouse was painted green in the spring, after the storm had stripped it to the bare stone.",
    "The inn by the quay serves soup, black bread and a beer that is brewed in the cellar of the mill.",
)
QUESTION = (
    "\nQuestion: What colour was the lighthouse painted in the spring?\nAnswer: The lighthouse was painted"
)


def steered_request(lm: LanguageModel, repeats: int, nats: tuple[float, ...], **changes: Any) -> Request:
    """The facts `repeats` times, each a block with its bias, then the question."""
    assert lm.tokenizer is not None
    text, spans = "Documents:\n", []
    for n in range(repeats * len(FACTS)):
        start = len(text)
        text += FACTS[n % len(FACTS)]
        spans.append(TextSpan(f"fact {n}", start, len(text)))
        text += "\n"
    prompt = encode_text(lm.tokenizer, text + QUESTION, spans)
    blocks = tuple(
        TokenSpan(name=s.name, start=s.start, end=s.end, bias_nats=nats[n % len(nats)])
        for n, s in enumerate(prompt.spans)
    )
    return Request(prompt.token_ids, BiasPlan(spans=blocks, **changes))


def dense_mask(request: Request, n: int, window: int | None = None) -> Tensor:
    """`[1, 1, query, key]` in float32: the plan's bias on every row, the dtype's least value where hidden."""
    row, key = torch.arange(n)[:, None], torch.arange(n)
    visible = (key <= row) & (key > row - (window or n))
    bias = torch.zeros(n)
    for span in request.plan.spans:
        bias[span.start : span.end] = span.bias_nats
    return torch.where(visible, bias, torch.finfo(torch.float32).min)[None, None]


@torch.inference_mode()
def largest_differences(
    stock: PreTrainedModel, lm: LanguageModel, request: Request, masks: Any
) -> tuple[float, float]:
    """Of the logits after prompt and answer: ours from stock's, and stock's with a bias from without."""
    answer = request.token_ids[5:11]  # any tokens
    n = len(request.token_ids) + len(answer)
    ids = torch.tensor([[*request.token_ids, *answer]])
    keep = len(answer) + 1
    expected = stock(ids, attention_mask=masks(n), logits_to_keep=keep).logits[0]
    plain = stock(ids, logits_to_keep=keep).logits[0]
    state = lm.prefill([request], chunk_tokens=100)
    logits = torch.cat([state.logits, *(lm.decode(state, [token]) for token in answer)])
    return float((logits - expected).abs().max()), float((plain - expected).abs().max())


def test_biased_smollm2_is_stock_with_a_dense_mask(smollm2: Twins) -> None:
    """Logits are of size 30; the prototype was off by 6e-5 at this length."""
    stock, lm = smollm2
    request = steered_request(lm, 2, (1.5, -1.0, 0.0, 2.0))
    off, moved = largest_differences(stock, lm, request, lambda n: dense_mask(request, n))
    print(f"SmolLM2, {len(request.token_ids)} tokens: off by {off:.1e}, moved by {moved:.1f}")
    assert off <= 2e-4
    assert moved > 1.0


def test_biased_gemma3_is_stock_with_dense_masks(gemma3: Twins) -> None:
    """Windows of 64 keys; the prototype was off by 8e-4 at this length."""
    stock, lm = gemma3
    request = steered_request(lm, 3, (1.5, -1.0, 0.0, 2.0))

    def masks(n: int) -> dict[str, Tensor]:
        return {
            "full_attention": dense_mask(request, n),
            "sliding_attention": dense_mask(request, n, window=64),
        }

    off, moved = largest_differences(stock, lm, request, masks)
    print(f"Gemma 3 270M, {len(request.token_ids)} tokens: off by {off:.1e}, moved by {moved:.1f}")
    assert off <= 2e-3
    assert moved > 1.0


def test_share_control_on_smollm2_reaches_its_share_in_the_upper_half(smollm2: Twins) -> None:
    lm = smollm2[1]
    request = steered_request(lm, 1, (0.0,))
    spans = tuple(
        dataclasses.replace(s, share=0.2 if s.name == "fact 2" else 0.0) for s in request.plan.spans
    )
    plan = BiasPlan(
        spans=spans,
        method=SteeringMethod.SHARE_CONTROL,
        layers=tuple(range(15, 30)),
        query_scope=QueryScope.QUESTION,
    )
    receipt = lm.receipt(lm.prefill([Request(request.token_ids, plan)], with_mass=True), 0)
    assert receipt.question is not None
    below = receipt.question.unbiased[15:, :, 3].mean(1) < 0.2
    assert below.any()
    np.testing.assert_allclose(receipt.question.achieved[15:, :, 3].mean(1)[below], 0.2, atol=1e-4)
    assert receipt.unreached == ()


def test_padded_smollm2_batch_answers_as_each_alone(smollm2: Twins) -> None:
    lm = smollm2[1]
    requests = [steered_request(lm, 2, (0.0, 0.0, 1.0)), steered_request(lm, 1, (0.0, 0.0, 1.0, 0.0))]
    sampling = Sampling(max_new_tokens=12, stop=("\n",))
    together = generate(lm, requests, sampling)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = generate(lm, [request], sampling)
        assert (answer.text, answer.token_ids) == (alone.text, alone.token_ids)
    print([answer.text for answer in together])
    assert "green" in together[1].text


def test_drafts_and_prefixes_on_smollm2_give_the_greedy_answer(smollm2: Twins) -> None:
    lm = smollm2[1]
    assert lm.tokenizer is not None
    request = steered_request(lm, 1, (0.0, 0.0, 1.0, 0.0), query_scope="question")
    (greedy,) = generate(lm, [request], Sampling(max_new_tokens=8, ignore_eos=True))
    prefix = lm.prefill([Request(request.token_ids)]).rows()[0]
    right, wrong = greedy.token_ids, tuple(lm.tokenizer(" purple in the autumn")["input_ids"])
    answers = answer_with_draft(lm, [request] * 2, [right, wrong], 8, prefix=prefix)
    assert [answer.token_ids for answer in answers] == [greedy.token_ids] * 2
    assert answers[0].draft.n_agreed == 8
    (alone,) = score(lm, [request], [wrong])
    assert answers[1].draft.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
