"""What a batch refuses between two passes, and what each request knows of its steering after each."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from salience_models.decoding.decode_state import Request
from salience_models.decoding.generation import generate
from salience_models.decoding.sampling import Sampling
from salience_models.decoding.scoring import score
from salience_models.errors import PromptTooLong, UnsupportedAttention
from salience_models.language_model import LanguageModel
from salience_models.steering.attention import AttentionCall
from salience_models.steering.batch_steering import SteeringRun
from salience_models.steering.bias_plan import BiasPlan, SteeringMethod, TokenSpan
from salience_models.steering.request_steering import RequestSteering

Factory = Callable[..., Any]

FAR = TokenSpan(name="far", start=2, end=8, bias_nats=1.0, share=0.2)
"""Outside a window of 16 for rows from 23 on."""


def test_uneven_extend_must_be_resumed(language_model: Factory, draw_tokens: Factory) -> None:
    lm = language_model("llama")
    state = lm.prefill([Request(draw_tokens(9)), Request(draw_tokens(7))], new_tokens=9)
    lm.extend(state, [(5, 6), (7,)])
    assert state.logits.numel() == 0
    for go_on in (lambda: lm.decode(state, [5, 5]), lambda: lm.extend(state, [(5,), (5,)])):
        with pytest.raises(ValueError, match=r"must all end at column 11 .* got request 1 ending at 10"):
            go_on()
    resumed = lm.resume(state.rows(), state.requests, new_tokens=1, like=state.run)
    alone = lm.prefill([Request((*draw_tokens(7), 7))])
    torch.testing.assert_close(lm.decode(resumed, [5, 5])[1], lm.decode(alone, [5])[0], atol=2e-5, rtol=0)


def test_even_extend_leaves_the_last_logits(language_model: Factory, draw_tokens: Factory) -> None:
    lm = language_model("llama")
    state = lm.prefill([Request(draw_tokens(9)), Request(draw_tokens(7))], new_tokens=3)
    logits = lm.extend(state, [(5, 6), (7, 8)])
    assert torch.equal(state.logits, logits[:, -1])
    with pytest.raises(ValueError, match="at least one, got none"):
        lm.extend(state, [(), ()])


def test_full_static_cache_takes_no_more(language_model: Factory, draw_tokens: Factory) -> None:
    lm = language_model("llama")
    state = lm.prefill([Request(draw_tokens(9))], cache="static", new_tokens=1)
    lm.decode(state, [5])
    with pytest.raises(ValueError, match="it holds 10 columns, got 11"):
        lm.decode(state, [5])


def test_only_a_finished_request_may_pass_the_window(language_model: Factory, draw_tokens: Factory) -> None:
    lm = language_model("llama")
    state = lm.prefill([Request((5,) * 2048), Request(draw_tokens(7))])
    with pytest.raises(PromptTooLong, match=r"request 0 must stay within .* of 2048, got 2049 tokens"):
        lm.decode(state, [5, 5])
    with pytest.raises(PromptTooLong, match="got 2050 tokens"):
        lm.extend(state, [(5, 6), (7,)])
    after = lm.decode(state, [None, 5])
    alone = lm.decode(lm.prefill([Request(draw_tokens(7))]), [5])
    torch.testing.assert_close(after[1], alone[0], atol=2e-5, rtol=0)


def test_plan_for_answers_is_applied_once_an_answer_row_is_fed(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    state = lm.prefill([Request(draw_tokens(32), plan_of(phase="decode"))])
    assert lm.receipt(state, 0).layers == ()
    assert not lm.receipt(state, 0).bias_nats.any()
    lm.decode(state, [5])
    assert lm.receipt(state, 0).layers == (0, 1)


@pytest.mark.parametrize("heads", [None, ((0, 1), (1, 0))])
@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_answer_rows_one_by_one_are_steered_like_all_at_once(
    model: str,
    method: SteeringMethod,
    heads: tuple[tuple[int, int], ...] | None,
    language_model: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
) -> None:
    """A step knows from the one before what it applies in each layer."""
    lm, answer = language_model(model), draw_tokens(5, seed=7)
    requests = [
        Request(draw_tokens(32), plan_of(method, phase="both", heads=heads)),
        Request(draw_tokens(27, seed=1), plan_of(phase="decode")),
        Request(draw_tokens(30, seed=2)),
    ]
    stepwise, at_once = (lm.prefill(requests, new_tokens=5) for _ in range(2))
    expected = lm.extend(at_once, [answer] * 3)
    for row, token in enumerate(answer):
        logits = lm.decode(stepwise, [token] * 3)
        torch.testing.assert_close(logits, expected[:, row], atol=2e-5, rtol=0)
    for i in range(3):
        ours, theirs = lm.receipt(stepwise, i), lm.receipt(at_once, i)
        assert (ours.layers, ours.unreached) == (theirs.layers, theirs.unreached)


def test_padding_beside_a_longer_continuation_counts_as_no_row(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    """The continuation of one token is predicted by the prompt's last row: no answer row is fed."""
    requests = [Request(draw_tokens(32), plan_of(phase="decode"))] * 2
    one, several = score(language_model("llama"), requests, [(5,), (5, 6, 7)])
    assert one.receipt.layers == ()
    assert several.receipt.layers == (0, 1)


def test_chunk_that_steers_nothing_yet_is_no_failure(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    request = Request(draw_tokens(32), plan_of(query_scope="last"))
    state = language_model("gemma3").prefill([request, Request(draw_tokens(20))], chunk_tokens=4)
    assert language_model("gemma3").receipt(state, 0).layers == (0, 1, 2, 3)


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_block_outside_a_window_is_unreached_there(
    method: SteeringMethod, language_model: Factory, draw_tokens: Factory
) -> None:
    """Gemma 3's last layer alone has no window; Mistral has windows only, and nothing fails."""
    plan = BiasPlan(spans=(FAR,), method=method, query_scope="question", question_start=25)
    for name, applied in (("gemma3", (3,)), ("mistral", ())):
        lm = language_model(name)
        for chunk_tokens in (None, 5):
            state = lm.prefill([Request(draw_tokens(32), plan)], chunk_tokens=chunk_tokens)
            receipt = lm.receipt(state, 0)
            assert receipt.layers == applied
            assert {layer for layer, _ in receipt.unreached} == set(range(lm.info.n_layers)) - set(applied)


def test_rows_of_a_reused_prefix_count_as_steered(language_model: Factory, draw_tokens: Factory) -> None:
    """The last row, the only one computed, does not see the block; the rows before it did."""
    lm, request = language_model("mistral"), Request(draw_tokens(32), BiasPlan(spans=(FAR,)))
    first = lm.prefill([request])
    again = lm.prefill([request, request], prefix=first.rows()[0])
    for state in (first, again):
        assert lm.receipt(state, 0).layers == (0, 1)
        assert lm.receipt(state, 0).unreached == ()


def test_branches_of_a_request_do_not_share_their_receipts(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    state = lm.prefill([Request(draw_tokens(32), plan_of())], with_mass=True)
    branches = [lm.resume(state.rows(), state.requests, new_tokens=2, like=state.run) for _ in range(2)]
    lm.decode(branches[0], [5])
    assert lm.receipt(branches[0], 0).answer.n_rows == 1
    assert lm.receipt(branches[1], 0).answer is None
    assert lm.receipt(state, 0).answer is None


def test_implementation_must_serve_every_method_of_the_batch(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    requests = [Request(draw_tokens(32)), Request(draw_tokens(32), plan_of("target_share"))]
    calls: list[object] = []
    hook = lm.model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        with pytest.raises(ValueError, match=r"reference, chunked, .* for target_share, got 'native'"):
            lm.prefill(requests, impl="native")
        assert not calls
    finally:
        hook.remove()
    lm.prefill(requests[:1], impl="native")


def test_blocks_and_biases_lie_on_the_layers_own_device() -> None:
    """A device map may put a layer on another device than the input."""
    plan = BiasPlan(spans=(FAR,))
    run = SteeringRun([RequestSteering(plan, 12)], [0], torch.device("cpu"))
    values = torch.tensor([[[0.0, 1.0]]])
    for device in ("cpu", "meta", "cpu"):
        heads = torch.zeros(1, 2, 12, 8, device=device)
        call = AttentionCall(0, heads, heads, heads, 0, 0, None, 1.0, None, None, None)
        assert run._blocks(call).device.type == device
        assert run._key_bias(call, [0], values).device.type == device


def test_model_that_computes_its_own_attention_is_refused() -> None:
    sizes: dict[str, Any] = {"vocab_size": 256, "hidden_size": 64, "n_layer": 1, "n_head": 4}
    bloom = AutoModelForCausalLM.from_config(AutoConfig.for_model("bloom", **sizes))
    with pytest.raises(UnsupportedAttention, match="BloomForCausalLM, which computes its own"):
        LanguageModel(bloom)


def test_model_that_keeps_its_attention_is_refused(
    tiny_model: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(tiny_model("llama"))
    model.set_attn_implementation("eager")
    monkeypatch.setattr(model, "set_attn_implementation", lambda _: None)
    with pytest.raises(UnsupportedAttention, match="llama must run as 'salience', got 'eager'"):
        LanguageModel(model)


def test_generation_takes_a_prefix_for_each_request(language_model: Factory, draw_tokens: Factory) -> None:
    lm = language_model("llama")
    requests = [Request(draw_tokens(20)), Request(draw_tokens(24, seed=1))]
    sampling = Sampling(max_new_tokens=3, ignore_eos=True)
    rows = lm.prefill(requests).rows()
    reused, plain = generate(lm, requests, sampling, prefix=rows), generate(lm, requests, sampling)
    assert [a.token_ids for a in reused] == [a.token_ids for a in plain]


@pytest.fixture(scope="module")
def gemma4() -> LanguageModel:
    """A random Gemma 4 whose third and fourth layer attend to the keys of the first two."""
    config = AutoConfig.for_model(
        "gemma4_text",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=16,
        num_kv_shared_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=2,
        head_dim=16,
        global_head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.15,
        pad_token_id=0,
        vocab_size_per_layer_input=256,
        hidden_size_per_layer_input=8,
        final_logit_softcapping=None,
    )
    torch.manual_seed(0)
    return LanguageModel(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("cache", ["growing", "dynamic", "static"])
def test_layers_that_share_keys_change_nothing(
    cache: str, gemma4: LanguageModel, draw_tokens: Factory, step_logits: Factory, assert_close: Factory
) -> None:
    tokens = draw_tokens(32)
    stock = copy.deepcopy(gemma4.model)
    stock.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = stock(torch.tensor([tokens]), use_cache=False).logits[:, 27:]
    requests = [Request(tokens[:28]), Request(draw_tokens(20, seed=1))]
    logits = step_logits(gemma4, requests, tokens[28:], cache=cache)
    assert_close(logits[:1], expected)
    if cache == "growing":
        prefix = gemma4.prefill([Request(tokens[:24])]).rows()[0]
        reused = step_logits(gemma4, [Request(tokens[:28])] * 2, tokens[28:], prefix=prefix)
        assert_close(reused[1:], expected)
