"""What steering must never change, and what it must, against stock eager attention with dense masks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from salience_models.decoding.cache import CacheKind
from salience_models.decoding.decode_state import Request
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan, Phase, QueryScope, SteeringMethod, TokenSpan
from salience_models.weights.architecture import attention_modules

Factory = Callable[..., Any]

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
STEERING = [method for method in SteeringMethod if method is not SteeringMethod.NONE]
METHODS = pytest.mark.parametrize("method", STEERING)
ANSWER = (7, 9, 30)


@pytest.fixture
def check_request(
    stock_model: Factory, dense_logits: Factory, assert_close: Factory, assert_as_close_as_stock: Factory
) -> Callable[..., None]:
    """`check_request(name, dtype, request, answer, logits)`: compare with dense stock attention.

    In bfloat16 the dense float32 computation with the same parameters is the truth, stock's own distance from
    it the measure.
    """

    def check(
        name: str,
        dtype: torch.dtype,
        request: Request,
        answer: tuple[int, ...],
        logits: Tensor,
        solved: dict[int, tuple[float, ...]] | None = None,
    ) -> None:
        length = len(request.token_ids)
        case = ((*request.token_ids, *answer), request.plan, length, solved)
        stock = dense_logits(stock_model(name, dtype), *case)[length - 1 :]
        if dtype == torch.float32:
            assert_close(logits, stock)
        else:
            exact = dense_logits(stock_model(name, dtype, exact=True), *case)[length - 1 :]
            assert_as_close_as_stock(logits, stock, exact)

    return check


def mixed_requests(draw_tokens: Factory, plan_of: Factory) -> list[Request]:
    """Six prompts of different lengths: one for each method, one that needs one pass, one without a plan."""
    scopes = (QueryScope.ALL, QueryScope.AFTER_BLOCK, QueryScope.LAST, QueryScope.QUESTION)
    requests = [
        Request(draw_tokens(length, seed=length), plan_of(method, query_scope=scope))
        for length, method, scope in zip((32, 45, 28, 40), STEERING, scopes, strict=True)
    ]
    early = plan_of(SteeringMethod.SHARE_CONTROL, query_scope=QueryScope.ALL)
    return [*requests, Request(draw_tokens(35), early), Request(draw_tokens(1))]


@DTYPES
def test_unsteered_model_is_the_stock_model(
    tiny_name: str,
    dtype: torch.dtype,
    language_model: Factory,
    draw_tokens: Factory,
    step_logits: Factory,
    check_request: Factory,
) -> None:
    request = Request(draw_tokens(32))
    logits = step_logits(language_model(tiny_name, dtype), [request], ANSWER)[0]
    check_request(tiny_name, dtype, request, ANSWER, logits)


@DTYPES
def test_plan_of_zeros_is_bit_identical_to_no_plan(
    tiny_name: str, dtype: torch.dtype, language_model: Factory, draw_tokens: Factory, step_logits: Factory
) -> None:
    lm, tokens = language_model(tiny_name, dtype), draw_tokens(32)
    plain = step_logits(lm, [Request(tokens)], ANSWER)
    spans = (TokenSpan(name="a", start=5, end=12), TokenSpan(name="b", start=16, end=22))
    for method in STEERING:
        neutral = Request(tokens, BiasPlan(spans=spans, method=method))
        assert torch.equal(step_logits(lm, [neutral], ANSWER), plain)


@METHODS
@DTYPES
def test_steered_logits_match_dense_stock_attention(
    tiny_name: str,
    dtype: torch.dtype,
    method: SteeringMethod,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    solved_biases: Factory,
    check_request: Factory,
) -> None:
    lm, request = language_model(tiny_name, dtype), Request(draw_tokens(32), plan_of(method))
    state = lm.prefill([request])
    logits = [state.logits, *(lm.decode(state, [token]) for token in ANSWER)]
    solved = solved_biases(lm.receipt(state, 0)) if method is SteeringMethod.SHARE_CONTROL else None
    check_request(tiny_name, dtype, request, ANSWER, torch.cat(logits), solved)


@METHODS
@pytest.mark.parametrize("scope", list(QueryScope))
@pytest.mark.parametrize("phase", list(Phase))
def test_only_rows_in_scope_and_phase_are_steered(
    method: SteeringMethod,
    scope: QueryScope,
    phase: Phase,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    solved_biases: Factory,
    check_request: Factory,
) -> None:
    lm = language_model("gemma3")
    request = Request(draw_tokens(32), plan_of(method, query_scope=scope, phase=phase))
    state = lm.prefill([request])
    logits = [state.logits, *(lm.decode(state, [token]) for token in ANSWER)]
    solved = solved_biases(lm.receipt(state, 0)) if method is SteeringMethod.SHARE_CONTROL else None
    check_request("gemma3", torch.float32, request, ANSWER, torch.cat(logits), solved)


@METHODS
def test_only_layers_and_heads_of_the_plan_are_steered(
    tiny_name: str,
    method: SteeringMethod,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    solved_biases: Factory,
    check_request: Factory,
) -> None:
    lm = language_model(tiny_name)
    request = Request(draw_tokens(32), plan_of(method, layers=(1,), heads=((0, 2), (1, 0), (1, 3))))
    state = lm.prefill([request])
    logits = [state.logits, *(lm.decode(state, [token]) for token in ANSWER)]
    receipt = lm.receipt(state, 0)
    assert receipt.layers == (1,)
    solved = solved_biases(receipt) if method is SteeringMethod.SHARE_CONTROL else None
    check_request(tiny_name, torch.float32, request, ANSWER, torch.cat(logits), solved)


@METHODS
def test_head_edits_touch_only_those_heads(
    tiny_name: str, method: SteeringMethod, language_model: Factory, draw_tokens: Factory
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    plain = head_outputs(lm, Request(tokens))
    steered = head_outputs(lm, Request(tokens, one_block(method, 0.6, heads=((0, 1), (0, 2)))))
    is_moved = [bool((steered[:, head] != plain[:, head]).any()) for head in range(4)]
    assert is_moved == [False, True, True, False]


@torch.inference_mode()
def head_outputs(lm: LanguageModel, request: Request) -> Tensor:
    """What the first layer's heads hand to the output projection, `[query, head, head_dim]`."""
    seen: list[Tensor] = []
    attention = attention_modules(lm.model)[0]
    projection: nn.Module = attention.o_proj if hasattr(attention, "o_proj") else attention.dense
    hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
    try:
        lm.prefill([request])
    finally:
        hook.remove()
    return seen[0].unflatten(-1, (4, -1))


@DTYPES
def test_one_bias_on_all_keys_changes_nothing(
    tiny_name: str,
    dtype: torch.dtype,
    language_model: Factory,
    draw_tokens: Factory,
    stock_model: Factory,
    step_logits: Factory,
    assert_close: Factory,
    assert_as_close_as_stock: Factory,
) -> None:
    tokens = draw_tokens(32)
    everything = BiasPlan(spans=(TokenSpan(name="all", start=0, end=32, bias_nats=3.0),))
    logits = step_logits(language_model(tiny_name, dtype), [Request(tokens, everything)])[0]
    with torch.inference_mode():
        stock = stock_model(tiny_name, dtype)(torch.tensor([tokens])).logits[0, -1:]
        exact = stock_model(tiny_name, dtype, exact=True)(torch.tensor([tokens])).logits[0, -1:]
    if dtype == torch.float32:
        assert_close(logits, stock)
    else:
        assert_as_close_as_stock(logits, stock, exact)


def test_ln_2_doubles_the_odds_of_a_block(
    tiny_name: str, language_model: Factory, draw_tokens: Factory
) -> None:
    """In the first layer, whose inputs steering cannot have changed, on one row; the others' odds stay."""
    lm, tokens = language_model(tiny_name), draw_tokens(32)

    def odds(bias_nats: float, table: str) -> np.ndarray:
        spans = (
            TokenSpan(name="a", start=18, end=20),
            TokenSpan(name="b", start=22, end=26, bias_nats=bias_nats),
        )
        state = lm.prefill([Request(tokens, BiasPlan(spans=spans, question_start=31))], with_mass=True)
        question = lm.receipt(state, 0).question
        assert question is not None
        assert question.n_rows == 1
        mass = getattr(question, table)[0]
        return mass / (1 - mass)

    plain, doubled = odds(0.0, "achieved"), odds(math.log(2), "achieved")
    np.testing.assert_allclose(doubled[:, 2], 2 * plain[:, 2], rtol=1e-4)
    np.testing.assert_allclose(odds(math.log(2), "unbiased"), plain, rtol=1e-4)


@pytest.mark.parametrize("pass_tokens", [0, 10**6], ids=["each length apart", "one pass"])
@METHODS
def test_left_padded_batch_of_different_plans_equals_each_alone(
    monkeypatch: pytest.MonkeyPatch,
    tiny_name: str,
    method: SteeringMethod,
    pass_tokens: int,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    monkeypatch.setattr("salience_models.language_model._CPU_PASS_TOKENS", pass_tokens)
    lm = language_model(tiny_name)
    mixed = mixed_requests(draw_tokens, plan_of)
    requests = [*mixed, Request(draw_tokens(37, seed=1), plan_of(method, query_scope="all", phase="decode"))]
    together = step_logits(lm, requests, ANSWER)
    for request, logits in zip(requests, together, strict=True):
        assert_close(logits, step_logits(lm, [request], ANSWER)[0])


def test_left_padded_batch_in_bf16_is_as_exact_as_stock(
    tiny_name: str,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    check_request: Factory,
) -> None:
    requests = [
        Request(draw_tokens(length), plan_of(query_scope=scope, phase=phase))
        for length, scope, phase in ((45, "all", "both"), (28, "question", "prefill"), (32, "last", "decode"))
    ]
    together = step_logits(language_model(tiny_name, torch.bfloat16), requests, ANSWER)
    for request, logits in zip(requests, together, strict=True):
        check_request(tiny_name, torch.bfloat16, request, ANSWER, logits)


@pytest.mark.parametrize("kind", list(CacheKind))
def test_cached_decode_equals_full_recompute(
    tiny_name: str,
    kind: CacheKind,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    check_request: Factory,
) -> None:
    """Twenty steps, so that windows of 16 leave the prompt behind."""
    request, answer = Request(draw_tokens(32), plan_of()), draw_tokens(20, seed=2)
    logits = step_logits(language_model(tiny_name), [request], answer, cache=kind)[0]
    check_request(tiny_name, torch.float32, request, answer, logits)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16])
def test_chunked_prefill_equals_one_shot(
    tiny_name: str,
    chunk_tokens: int,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    """The first chunks hold nothing but padding in the short requests: rows without a key."""
    lm, requests = language_model(tiny_name), mixed_requests(draw_tokens, plan_of)
    chunked = step_logits(lm, requests, ANSWER, chunk_tokens=chunk_tokens)
    assert bool(chunked.isfinite().all())
    assert_close(chunked, step_logits(lm, requests, ANSWER))


@pytest.mark.parametrize("kind", [CacheKind.DYNAMIC, CacheKind.STATIC])
def test_chunked_prefill_equals_one_shot_in_other_caches(
    tiny_name: str,
    kind: CacheKind,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    lm, requests = language_model(tiny_name), mixed_requests(draw_tokens, plan_of)
    chunked = step_logits(lm, requests, ANSWER, chunk_tokens=11, cache=kind)
    assert_close(chunked, step_logits(lm, requests, ANSWER))


@pytest.mark.parametrize("method", [SteeringMethod.LOGIT_BIAS, SteeringMethod.TARGET_SHARE])
def test_rows_before_a_block_never_see_its_bias(
    tiny_name: str, method: SteeringMethod, language_model: Factory, draw_tokens: Factory
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    heavy = TokenSpan(name="a", start=20, end=24, bias_nats=50.0, share=0.9)
    steered = lm.prefill([Request(tokens, BiasPlan(spans=(heavy,), method=method))]).rows([20])[0]
    plain = lm.prefill([Request(tokens)]).rows([20])[0]
    for name in ("keys", "values"):
        for mine, theirs in zip(getattr(steered, name), getattr(plain, name), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_a_window_hides_a_block_whatever_its_bias(
    language_model: Factory, draw_tokens: Factory, step_logits: Factory
) -> None:
    lm, tokens = language_model("mistral"), draw_tokens(32)
    heavy = TokenSpan(name="a", start=5, end=14, bias_nats=50.0)
    plan = BiasPlan(spans=(heavy,), query_scope=QueryScope.QUESTION, question_start=29)
    state = lm.prefill([Request(tokens, plan)], with_mass=True)
    torch.testing.assert_close(state.logits, step_logits(lm, [Request(tokens)])[:, 0], rtol=0, atol=1e-5)
    assert lm.receipt(state, 0).shares() == {"a": 0.0}


def test_padding_stays_hidden_beside_a_heavy_bias(
    tiny_name: str,
    language_model: Factory,
    draw_tokens: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    """A bias of -50 on all keys of a padded request would lift its padding, were padding a bias too."""
    lm = language_model(tiny_name)
    light = BiasPlan(spans=(TokenSpan(name="a", start=0, end=28, bias_nats=-50.0),))
    short, long = Request(draw_tokens(28), light), Request(draw_tokens(45))
    assert_close(step_logits(lm, [short, long])[0], step_logits(lm, [Request(short.token_ids)])[0])


def test_model_is_as_it_was_after_an_exception(
    tiny_name: str, language_model: Factory, draw_tokens: Factory, plan_of: Factory, step_logits: Factory
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    before = step_logits(lm, [Request(tokens)], ANSWER)
    steered = Request(tokens, plan_of())
    expected = step_logits(lm, [steered], ANSWER)

    def fail(*_: object) -> None:
        raise RuntimeError("a layer fails")

    hook = attention_modules(lm.model)[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="a layer fails"):
        lm.prefill([steered])
    hook.remove()
    with torch.inference_mode():
        unsteered = lm.model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1]
    assert torch.equal(unsteered, before[0, 0])
    assert torch.equal(step_logits(lm, [Request(tokens)], ANSWER), before)
    assert torch.equal(step_logits(lm, [steered], ANSWER), expected)


def question_table(lm: LanguageModel, request: Request) -> Any:
    return lm.receipt(lm.prefill([request], with_mass=True), 0).question


def one_block(method: SteeringMethod, share: float, **changes: Any) -> BiasPlan:
    """A block that a window of 16 shows whole to every question row of a prompt of 32."""
    return BiasPlan(
        spans=(TokenSpan(name="a", start=16, end=22, bias_nats=1.0, share=share),),
        method=method,
        question_start=25,
        **changes,
    )


def test_target_share_is_reached_in_every_layer_and_head(
    tiny_name: str, language_model: Factory, draw_tokens: Factory
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    exact = question_table(lm, Request(tokens, one_block(SteeringMethod.TARGET_SHARE, 0.3, only_raise=False)))
    np.testing.assert_allclose(exact.achieved[..., 1], 0.3, atol=1e-5)
    raised = question_table(lm, Request(tokens, one_block(SteeringMethod.TARGET_SHARE, 0.3)))
    assert (raised.achieved[..., 1] >= 0.3 - 1e-5).all()
    assert (raised.achieved[..., 1] >= raised.unbiased[..., 1] - 1e-5).all()


def test_published_share_rule_falls_short(
    tiny_name: str, language_model: Factory, draw_tokens: Factory
) -> None:
    """From mass p, ln(t / p) reaches t / (t + 1 - p); a block of one token starts low."""
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    spans = (TokenSpan(name="a", start=18, end=19, share=0.5),)
    plan = BiasPlan(
        spans=spans, method=SteeringMethod.TARGET_SHARE_PAPER, question_start=31, only_raise=False
    )
    table = question_table(lm, Request(tokens, plan))
    assert (table.achieved[..., 1] < 0.5).all()
    reached = 0.5 / (0.5 + 1 - table.unbiased[..., 1])
    np.testing.assert_allclose(table.achieved[..., 1], reached, rtol=1e-4)


def test_share_control_reaches_the_head_mean_in_every_layer(
    tiny_name: str, language_model: Factory, draw_tokens: Factory
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    state = lm.prefill([Request(tokens, one_block(SteeringMethod.SHARE_CONTROL, 0.6))], with_mass=True)
    receipt = lm.receipt(state, 0)
    assert receipt.question is not None
    means = receipt.question.achieved[..., 1].mean(axis=1)
    np.testing.assert_allclose(means, 0.6, atol=1e-4)
    assert (receipt.bias_nats > 0).all()
    assert receipt.unreached == ()
    assert receipt.question.achieved[..., 1].std(axis=1).min() > 0.005  # heads keep their differences


def test_share_control_solves_on_the_steered_heads(
    tiny_name: str, language_model: Factory, draw_tokens: Factory
) -> None:
    lm, tokens = language_model(tiny_name), draw_tokens(32)
    plan = one_block(SteeringMethod.SHARE_CONTROL, 0.6, heads=((0, 1), (0, 3)))
    table = question_table(lm, Request(tokens, plan))
    np.testing.assert_allclose(table.achieved[0, [1, 3], 1].mean(), 0.6, atol=1e-4)
    np.testing.assert_allclose(table.achieved[0, [0, 2]], table.unbiased[0, [0, 2]], atol=1e-6)


def test_share_control_names_blocks_out_of_reach(language_model: Factory, draw_tokens: Factory) -> None:
    spans = (
        TokenSpan(name="far", start=2, end=8, share=0.2),
        TokenSpan(name="near", start=18, end=22, share=0.2),
    )
    plan = BiasPlan(spans=spans, method=SteeringMethod.SHARE_CONTROL, question_start=25)
    lm = language_model("gemma3")
    receipt = lm.receipt(lm.prefill([Request(draw_tokens(32), plan)]), 0)
    assert receipt.unreached == ((0, "far"), (1, "far"), (2, "far"))  # layer 3 has no window
    assert (receipt.bias_nats[:3, 0] == 0).all()
    assert receipt.bias_nats[3, 0] > 0
