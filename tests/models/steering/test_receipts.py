import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from salience_models.decoding.decode_state import Request
from salience_models.decoding.scoring import score
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan, SteeringMethod, TokenSpan
from salience_models.steering.receipts import MassLedger, MassTable, Receipt

Factory = Callable[..., Any]


@torch.inference_mode()
def stock_mass(stock: PreTrainedModel, tokens: tuple[int, ...], plan: BiasPlan, rows: slice) -> np.ndarray:
    """Mean mass by block over `rows` of stock attention, `[layer, head, block + 1]`."""
    layers = stock(torch.tensor([tokens]), output_attentions=True).attentions
    masses = []
    for weights in layers:
        blocks = [weights[0, :, rows, s.start : s.end].sum(-1).mean(-1) for s in plan.spans]
        masses.append(torch.stack([1 - torch.stack(blocks).sum(0), *blocks], dim=-1))
    return torch.stack(masses).numpy()


def receipt_of(lm: LanguageModel, request: Request, **options: Any) -> Receipt:
    return lm.receipt(lm.prefill([request], with_mass=True, **options), 0)


def neutral(plan: BiasPlan) -> BiasPlan:
    """The same blocks, asking for nothing."""
    spans = tuple(dataclasses.replace(s, bias_nats=0.0, share=0.0) for s in plan.spans)
    return plan.model_copy(update={"spans": spans})


def test_unsteered_mass_is_that_of_stock_attention(
    tiny_name: str, language_model: Factory, stock_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    tokens, plan = draw_tokens(32), neutral(plan_of())
    receipt = receipt_of(language_model(tiny_name), Request(tokens, plan))
    expected = stock_mass(stock_model(tiny_name), tokens, plan, slice(25, 32))
    assert receipt.question is not None
    assert receipt.question.n_rows == 7
    np.testing.assert_allclose(receipt.question.achieved, expected, atol=1e-5)
    np.testing.assert_array_equal(receipt.question.unbiased, receipt.question.achieved)
    assert receipt.answer is None
    assert (receipt.method, receipt.layers) == ("none", ())
    assert not receipt.bias_nats.any()


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_unbiased_mass_of_the_first_layer_is_that_of_stock_attention(
    tiny_name: str,
    method: SteeringMethod,
    language_model: Factory,
    stock_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
) -> None:
    """Its inputs are the unsteered model's, so that its counterfactual is the unsteered model's mass."""
    spans = (TokenSpan(name="b", start=16, end=22, bias_nats=1.5, share=0.6),)
    tokens, plan = draw_tokens(32), plan_of(method, spans=spans)
    question = receipt_of(language_model(tiny_name), Request(tokens, plan)).question
    assert question is not None
    expected = stock_mass(stock_model(tiny_name), tokens, plan, slice(25, 32))
    np.testing.assert_allclose(question.unbiased[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(question.achieved.sum(-1), 1.0, atol=1e-5)
    assert np.abs(question.achieved[0] - expected[0]).max() > 0.01


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_mass_does_not_depend_on_batch_or_chunks(
    tiny_name: str, method: SteeringMethod, language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    """With 75 question rows, of which the last 64 count, and a neighbour whose plan cuts the pass too."""
    lm = language_model(tiny_name)
    request = Request(draw_tokens(100), plan_of(method, query_scope="question"))
    neighbour = Request(draw_tokens(120, seed=1), plan_of(query_scope="last", question_start=90))
    alone = receipt_of(lm, request)
    batched = lm.receipt(lm.prefill([neighbour, request], with_mass=True), 1)
    chunked = receipt_of(lm, request, chunk_tokens=13)
    assert alone.question is not None
    for other in (batched, chunked):
        assert other.question is not None
        assert other.question.n_rows == alone.question.n_rows == 64
        np.testing.assert_allclose(other.question.achieved, alone.question.achieved, atol=1e-5)
        np.testing.assert_allclose(other.question.unbiased, alone.question.unbiased, atol=1e-5)


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_answer_mass_is_the_same_decoded_or_scored(
    method: SteeringMethod, language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    """Seventy answer rows beside three in one batch: all of the real ones count, the padding does not."""
    lm = language_model("mistral")
    requests = [Request(draw_tokens(32), plan_of(method)), Request(draw_tokens(40, seed=1), plan_of())]
    answers = [draw_tokens(71, seed=2), draw_tokens(4, seed=3)]
    scored = [s.receipt.answer for s in score(lm, requests, answers, with_mass=True)]
    for request, answer, table in zip(requests, answers, scored, strict=True):
        state = lm.prefill([request], with_mass=True)
        for token in answer[:-1]:
            lm.decode(state, [token])
        decoded = lm.receipt(state, 0).answer
        assert decoded is not None
        assert table is not None
        assert decoded.n_rows == table.n_rows == len(answer) - 1
        np.testing.assert_allclose(table.achieved, decoded.achieved, atol=1e-5)
        np.testing.assert_allclose(table.unbiased, decoded.unbiased, atol=1e-5)


def test_bias_is_reported_per_layer_and_block(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm, tokens = language_model("gemma3"), draw_tokens(32)
    biased = receipt_of(lm, Request(tokens, plan_of(layers=(1, 3))))
    assert biased.layers == (1, 3)
    np.testing.assert_array_equal(biased.bias_nats, [[0] * 3, [1.5, -1.0, 0.0], [0] * 3, [1.5, -1.0, 0.0]])
    shared = receipt_of(lm, Request(tokens, plan_of("target_share", layers=(3,))))
    np.testing.assert_array_equal(shared.bias_nats[3], [math.nan, math.nan, 0.0])
    controlled = receipt_of(lm, Request(tokens, plan_of("share_control", layers=(3,))))
    assert (controlled.bias_nats[3] >= 0).all()
    assert controlled.bias_nats[3, 2] == 0


def test_share_control_bias_is_that_of_an_equal_logit_bias(
    tiny_name: str,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    plan = plan_of("share_control", layers=(1,), query_scope="question")
    nats = receipt_of(lm, Request(tokens, plan)).bias_nats[1]
    spans = tuple(
        dataclasses.replace(s, bias_nats=b) for s, b in zip(plan.spans, nats.tolist(), strict=True)
    )
    same = plan.model_copy(update={"spans": spans, "method": SteeringMethod.LOGIT_BIAS})
    logits = (step_logits(lm, [Request(tokens, p)], (7, 9)) for p in (plan, same))
    assert_close(*logits)


def test_receipt_names_what_ran(language_model: Factory, draw_tokens: Factory, plan_of: Factory) -> None:
    lm, tokens = language_model("llama"), draw_tokens(32)
    assert receipt_of(lm, Request(tokens, plan_of()), impl="reference").impls == ("reference",)
    mixed = receipt_of(lm, Request(tokens, plan_of("target_share", layers=(1,))), impl="chunked")
    assert mixed.impls == ("chunked", "target_share:chunked")
    assert set(receipt_of(lm, Request(tokens, plan_of())).impls) <= {"native", "chunked", "segmented"}


def test_receipt_names_nothing_that_ran_for_a_neighbour_only(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    requests = [Request(draw_tokens(32), plan_of()), Request(draw_tokens(40), plan_of("target_share"))]
    state = lm.prefill(requests, impl="chunked")
    assert lm.receipt(state, 0).impls == ("chunked",)
    assert "target_share:chunked" in lm.receipt(state, 1).impls


def test_named_implementation_runs_or_raises(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    request = Request(draw_tokens(32), plan_of("target_share"))
    with pytest.raises(ValueError, match="got 'native'"):
        language_model("llama").prefill([request], impl="native")


def make_receipt(question: MassTable | None, layers: tuple[int, ...] = (1,)) -> Receipt:
    return Receipt(
        blocks=("a", "b"),
        method="logit_bias",
        plan_fingerprint="0123456789abcdef",
        layers=layers,
        impls=("native",),
        bias_nats=np.zeros((2, 2)),
        question=question,
        answer=None,
        unreached=((1, "b"),),
    )


def test_shares_are_means_over_steered_layers_and_heads() -> None:
    achieved = np.array([[[0.9, 0.1, 0.0]] * 2, [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2]]])
    table = MassTable(achieved, achieved / 2, n_rows=4)
    assert make_receipt(table).shares() == pytest.approx({"a": 0.4, "b": 0.2})
    assert make_receipt(table).unbiased_shares() == pytest.approx({"a": 0.2, "b": 0.1})
    assert make_receipt(table, layers=()).shares() == pytest.approx({"a": 0.25, "b": 0.1})
    assert make_receipt(None).shares() == {}


def test_summary_is_small_and_fit_for_json() -> None:
    achieved = np.full((2, 2, 3), 1 / 3)
    summary = json.loads(json.dumps(make_receipt(MassTable(achieved, achieved, n_rows=4)).summary()))
    assert summary == {
        "method": "logit_bias",
        "plan": "0123456789abcdef",
        "layers": [1],
        "impls": ["native"],
        "shares": {"a": 0.333333, "b": 0.333333},
        "unbiased": {"a": 0.333333, "b": 0.333333},
        "unreached": [[1, "b"]],
    }


def test_ledger_averages_rows_by_layer_and_phase() -> None:
    ledger = MassLedger()

    def rows(*values: float) -> Tensor:
        return torch.tensor(values)[None, :, None].expand(2, -1, 3)

    ledger.add(0, False, rows(0.1, 0.2), rows(0.0, 0.0))
    ledger.add(0, False, rows(0.6), rows(0.3))
    ledger.add(1, False, rows(0.4, 0.5, 0.6), rows(0.4, 0.5, 0.6))
    table = ledger.table(is_answer=False)
    assert table is not None
    assert table.n_rows == 3
    assert table.achieved.shape == (2, 2, 3)
    np.testing.assert_allclose(table.achieved[:, 0, 0], [0.3, 0.5], atol=1e-7)
    np.testing.assert_allclose(table.unbiased[:, 0, 0], [0.1, 0.5], atol=1e-7)
    assert ledger.table(is_answer=True) is None


def test_request_without_blocks_has_no_shares(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    """Beside one with blocks, in one batch."""
    lm = language_model("llama")
    requests = [Request(draw_tokens(32)), Request(draw_tokens(40), plan_of())]
    state = lm.prefill(requests, with_mass=True)
    assert lm.receipt(state, 0).shares() == {}
    assert set(lm.receipt(state, 1).shares()) == {"a", "b", "c"}


def test_without_mass_a_receipt_has_no_tables(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    receipt = lm.receipt(lm.prefill([Request(draw_tokens(32), plan_of())]), 0)
    assert receipt.question is None
    assert receipt.answer is None
    assert receipt.layers == (0, 1)


def test_mass_survives_a_heavy_bias(language_model: Factory, draw_tokens: Factory) -> None:
    """At 40 nats the rest holds 1e-17 of the mass; its unbiased part is still known."""
    lm, tokens = language_model("llama"), draw_tokens(32)
    tables = []
    for bias_nats in (0.0, 40.0):
        spans = (TokenSpan(name="a", start=5, end=12, bias_nats=bias_nats),)
        tables.append(receipt_of(lm, Request(tokens, BiasPlan(spans=spans, question_start=25))).question)
    plain, heavy = tables
    assert plain is not None
    assert heavy is not None
    np.testing.assert_allclose(heavy.achieved[0, :, 1], 1.0, atol=1e-6)
    np.testing.assert_allclose(heavy.unbiased[0], plain.achieved[0], atol=1e-4)
