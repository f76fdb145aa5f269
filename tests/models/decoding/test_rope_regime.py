"""longrope, here with other frequencies beyond 24 tokens: every answer is as if computed alone and anew."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from salience_models.decoding.cache import CacheKind
from salience_models.decoding.decode_state import Request
from salience_models.decoding.scoring import answer_with_draft, score
from salience_models.errors import PromptTooLong
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan, Phase, QueryScope, SteeringMethod
from salience_models.text.token_spans import TokenSpan

Factory = Callable[..., Any]

THRESHOLD = 24
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0],
    "original_max_position_embeddings": THRESHOLD,
}
CHANGING = {
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": THRESHOLD},
    "llama": {"rope_parameters": LONGROPE},
    "phimoe": {
        "rope_parameters": LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.3},
        "num_local_experts": 4,
    },
}
PLAN = BiasPlan(spans=(TokenSpan(name="a", start=3, end=9, bias_nats=1.5, share=0.3),), question_start=12)


def build(name: str, changes: dict[str, Any]) -> tuple[Any, LanguageModel]:
    """Stock with eager attention, and behind the seam with the same parameters."""
    models = []
    for _ in range(2):
        config = AutoConfig.for_model(name, **(SIZES | changes))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            models.append(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())
    return models[0], LanguageModel(models[1])


@pytest.fixture(scope="module", params=sorted(CHANGING))
def pair(request: pytest.FixtureRequest) -> tuple[Any, LanguageModel]:
    return build(request.param, CHANGING[request.param])


@pytest.fixture
def anew(dense_logits: Factory) -> Callable[..., Tensor]:
    """`anew(stock, request, answer)`: logits `[step, vocab]`, each from one pass over that sequence alone."""

    def run(stock: Any, request: Request, answer: tuple[int, ...]) -> Tensor:
        length = len(request.token_ids)
        sequences = [(*request.token_ids, *answer[:n]) for n in range(len(answer) + 1)]
        return torch.stack([dense_logits(stock, s, request.plan, length)[-1] for s in sequences])

    return run


@pytest.mark.parametrize("plan", [BiasPlan(), PLAN], ids=["plain", "steered"])
def test_rows_of_both_regimes_in_one_batch_equal_each_alone(
    monkeypatch: pytest.MonkeyPatch,
    pair: Any,
    plan: BiasPlan,
    draw_tokens: Factory,
    step_logits: Factory,
    anew: Factory,
    assert_close: Factory,
) -> None:
    """Two of them pass the threshold while they are decoded, at different steps."""
    monkeypatch.setattr("salience_models.language_model._CPU_PASS_TOKENS", 10**6)
    stock, lm = pair
    requests = [Request(draw_tokens(n, seed=n), plan) for n in (20, 40, 23, THRESHOLD, 14)]
    answer = draw_tokens(6, seed=3)
    together = step_logits(lm, requests, answer)
    for request, logits in zip(requests, together, strict=True):
        assert_close(logits, anew(stock, request, answer))


@pytest.mark.parametrize("n", [THRESHOLD, THRESHOLD + 1, 40])
def test_chunks_equal_the_whole(
    pair: Any, n: int, draw_tokens: Factory, step_logits: Factory, anew: Factory, assert_close: Factory
) -> None:
    stock, lm = pair
    request = Request(draw_tokens(n), PLAN)
    assert_close(step_logits(lm, [request], (5,), chunk_tokens=7)[0], anew(stock, request, (5,)))


@pytest.mark.parametrize(("of", "to"), [(20, 40), (40, 20), (40, 60), (15, 20)])
def test_a_prefix_serves_its_own_regime_only(
    pair: Any,
    of: int,
    to: int,
    draw_tokens: Factory,
    step_logits: Factory,
    anew: Factory,
    assert_close: Factory,
) -> None:
    stock, lm = pair
    tokens = draw_tokens(60)
    prefix = lm.prefill([Request(tokens[:of])]).rows()[0]
    request = Request(tokens[:to])
    assert_close(step_logits(lm, [request], (5,), prefix=prefix)[0], anew(stock, request, (5,)))
    reused = prefix.reusable(request.token_ids, request.plan, THRESHOLD if to > THRESHOLD else 0)
    assert reused == (min(of, to - 1) if (of > THRESHOLD) is (to > THRESHOLD) else 0)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("method", [SteeringMethod.LOGIT_BIAS, SteeringMethod.TARGET_SHARE])
def test_an_answer_fed_at_once_is_split_at_the_threshold(
    pair: Any,
    method: SteeringMethod,
    phase: Phase,
    draw_tokens: Factory,
    anew: Factory,
    assert_close: Factory,
) -> None:
    stock, lm = pair
    plan = PLAN.model_copy(update={"method": method, "phase": phase})
    requests = [Request(draw_tokens(n, seed=n), plan) for n in (20, 40, 22)]
    answers = [draw_tokens(n, seed=n) for n in (7, 3, 5)]
    state = lm.prefill(requests)
    first = state.logits
    rest = lm.extend(state, answers)
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        logits = torch.cat([first[row, None], rest[row, : len(answer)]])
        assert_close(logits, anew(stock, request, answer))


def test_share_control_solves_again_beyond_the_threshold(
    pair: Any, draw_tokens: Factory, dense_logits: Factory, solved_biases: Factory, assert_close: Factory
) -> None:
    """An answer that passed it is steered by biases found in the regime that it is now in."""
    stock, lm = pair
    span = TokenSpan(name="a", start=3, end=9, share=0.7)
    method, scope = SteeringMethod.SHARE_CONTROL, QueryScope.QUESTION
    plan = BiasPlan(spans=(span,), question_start=12, method=method, query_scope=scope)
    tokens = draw_tokens(23)
    state = lm.prefill([Request(tokens, plan)])
    before = lm.receipt(state, 0)
    logits = [lm.decode(state, [token]) for token in (5, 6)][-1]
    after = lm.receipt(state, 0)
    assert abs(after.bias_nats - before.bias_nats).max() > 1e-3
    expected = dense_logits(stock, (*tokens, 5, 6), plan, 23, solved_biases(after))
    assert_close(logits, expected[-1:])


def test_tokens_taken_back_return_to_the_regime_before(
    pair: Any, draw_tokens: Factory, anew: Factory, assert_close: Factory
) -> None:
    stock, lm = pair
    request = Request(draw_tokens(22))
    state = lm.prefill([request])
    lm.extend(state, [(5, 6, 7, 8)])
    lm.trim(state, [23])
    assert_close(lm.decode(state, [9]), anew(stock, request, (5, 9))[-1:])


def test_masses_are_those_of_the_regime_that_the_answer_ended_in(pair: Any, draw_tokens: Factory) -> None:
    _, lm = pair
    tokens = draw_tokens(26)
    state = lm.prefill([Request(tokens[:22], PLAN)], with_mass=True)
    lm.extend(state, [tokens[22:]])
    receipt = lm.receipt(state, 0)
    assert receipt.question is not None
    assert receipt.answer is not None
    assert (receipt.question.n_rows, receipt.answer.n_rows) == (10, 4)


def test_scores_and_drafted_answers_equal_plain_decoding(pair: Any, draw_tokens: Factory) -> None:
    _, lm = pair
    requests = [Request(draw_tokens(n, seed=n), PLAN) for n in (18, 22, 30)]
    plain = [greedy(lm, request, 12) for request in requests]
    drafts = [(*tokens[:3], 77, 78) for tokens in plain]
    assert [a.token_ids for a in answer_with_draft(lm, requests, drafts, 12)] == plain
    full = [a.token_ids for a in answer_with_draft(lm, requests, plain, 12)]
    assert full == plain
    scores = score(lm, requests, plain)
    assert all(s.n_agreed == 12 for s in scores)


def greedy(lm: LanguageModel, request: Request, n: int) -> tuple[int, ...]:
    """Each token from a fresh prefill of prompt and answer, whose rows are steered as the prompt's."""
    state, out = lm.prefill([request]), []
    for _ in range(n):
        out.append(int(state.logits[0].argmax()))
        state = lm.prefill([request])
        state.logits = lm.extend(state, [tuple(out)])[:, -1]
    return tuple(out)


def test_phi3_answers_as_its_own_generate_does(draw_tokens: Factory) -> None:
    stock, lm = build("phi3", CHANGING["phi3"])
    for n in (18, 23, 24, 25):
        tokens = draw_tokens(n, seed=n)
        theirs = stock.generate(
            torch.tensor([tokens]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, n:]
        state, ours = lm.prefill([Request(tokens)]), []
        for _ in range(12):
            ours.append(int(state.logits[0].argmax()))
            lm.decode(state, ours[-1:])
        assert ours == theirs.tolist()


@pytest.mark.parametrize("kind", [CacheKind.DYNAMIC, CacheKind.STATIC])
def test_other_caches_refuse_to_pass_the_threshold(pair: Any, kind: CacheKind, draw_tokens: Factory) -> None:
    _, lm = pair
    request = Request(draw_tokens(22))
    with pytest.raises(ValueError, match="cache must be 'growing' for a request to pass 24 tokens"):
        lm.prefill([request], cache=kind, new_tokens=3)
    lm.decode(lm.prefill([request], cache=kind, new_tokens=2), [5])
    if kind is CacheKind.DYNAMIC:
        state = lm.prefill([request], cache=kind)
        for token in (5, 6):
            lm.decode(state, [token])
        with pytest.raises(ValueError, match="cache must be 'growing'"):
            lm.decode(state, [7])


def test_calls_of_the_model_by_others_choose_as_transformers_does(pair: Any, draw_tokens: Factory) -> None:
    stock, lm = pair
    lm.prefill([Request(draw_tokens(40))])
    for n in (20, 40):
        ids = torch.tensor([draw_tokens(n)])
        with torch.inference_mode():
            theirs, ours = stock(ids).logits, lm.model(ids).logits
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_dynamic_scaling_has_one_regime_within_the_window(
    draw_tokens: Factory, step_logits: Factory, anew: Factory, assert_close: Factory
) -> None:
    """It begins after the window, where requests are refused; what a longer call left behind is not kept."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    stock, lm = build("llama", {"rope_parameters": rope, "max_position_embeddings": 32})
    with torch.inference_mode():
        lm.model(torch.tensor([draw_tokens(48)]))
    request = Request(draw_tokens(30))
    assert_close(step_logits(lm, [request], (5, 6))[0], anew(stock, request, (5, 6)))
    with pytest.raises(PromptTooLong, match="context window of 32"):
        lm.prefill([Request(draw_tokens(33))])


def test_yarn_is_static(
    draw_tokens: Factory, step_logits: Factory, anew: Factory, assert_close: Factory
) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": THRESHOLD,
    }
    stock, lm = build("llama", {"rope_parameters": rope, "max_position_embeddings": 96})
    request = Request(draw_tokens(22), PLAN)
    assert_close(
        step_logits(lm, [request], (5, 6, 7, 8), chunk_tokens=5)[0], anew(stock, request, (5, 6, 7, 8))
    )
