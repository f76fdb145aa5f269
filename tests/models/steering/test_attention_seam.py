"""The seam to transformers with nothing installed, what it refuses, and models with sinks or a softcap."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from salience_models.decoding.decode_state import Request
from salience_models.errors import (
    BiasNotApplied,
    InvalidPlan,
    PromptTooLong,
    UnsupportedAttention,
    UnsupportedMask,
)
from salience_models.language_model import LanguageModel
from salience_models.steering import attention
from salience_models.steering.attention import AttentionCall, plain_attention, steered_by
from salience_models.steering.batch_steering import SteeringRun
from salience_models.steering.bias_plan import BiasPlan, QueryScope, SteeringMethod, TokenSpan
from salience_models.steering.request_steering import RequestSteering
from salience_models.weights.architecture import attention_modules

Factory = Callable[..., Any]

SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
}


@pytest.fixture(scope="module")
def gpt_oss() -> PreTrainedModel:
    """A random GPT-OSS: attention sinks, one window layer and one full layer, four experts."""
    extras = {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_scaling": None}
    model = build("gpt_oss", **extras)
    for module in attention_modules(model):
        torch.nn.init.normal_(module.sinks, mean=1.0)
    return model


@pytest.fixture(scope="module")
def gemma2() -> PreTrainedModel:
    """A random Gemma 2 whose softcap of 2 bends most scores."""
    return build("gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=None, query_pre_attn_scalar=16)


def build(model_type: str, **changes: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(model_type, **(SMALL | changes))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def padded_batch(draw_tokens: Factory) -> tuple[Tensor, Tensor]:
    """Ids and mask `[batch, key]` of a prompt of 24 tokens and one of 17 left-padded to it."""
    rows = [draw_tokens(24), (0,) * 7 + draw_tokens(17, seed=1)]
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, :7] = 0
    return torch.tensor(rows), mask


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_transformers_generate_through_the_seam_equals_eager(
    tiny_name: str, cache: str, language_model: Factory, stock_model: Factory, draw_tokens: Factory
) -> None:
    ids, mask = padded_batch(draw_tokens)
    options = {
        "attention_mask": mask,
        "max_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache,
        "eos_token_id": None,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    seam, stock = (
        model.generate(ids, **options) for model in (language_model(tiny_name).model, stock_model(tiny_name))
    )
    assert torch.equal(seam.sequences, stock.sequences)
    torch.testing.assert_close(torch.stack(seam.logits), torch.stack(stock.logits), rtol=0, atol=2e-5)


@torch.inference_mode()
def test_model_without_mask_or_cache_equals_eager(
    tiny_name: str, language_model: Factory, stock_model: Factory, draw_tokens: Factory, assert_close: Factory
) -> None:
    ids = torch.tensor([draw_tokens(24), draw_tokens(24, seed=1)])
    seam = language_model(tiny_name).model(ids, use_cache=False).logits
    assert_close(seam, stock_model(tiny_name)(ids, use_cache=False).logits)


@pytest.mark.parametrize(
    "mask",
    [
        [[1, 1, 1, 1, 1, 0]],
        [[0, 1, 1, 0, 1, 1]],
        [[1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 1]],
    ],
    ids=["right padding", "hole", "hole in the second row"],
)
def test_mask_other_than_left_padding_is_refused(
    mask: list[list[int]], language_model: Factory, draw_tokens: Factory
) -> None:
    ids = torch.tensor([draw_tokens(6)] * len(mask))
    with pytest.raises(UnsupportedMask, match="left padding only"):
        language_model("llama").model(ids, attention_mask=torch.tensor(mask))


@pytest.mark.parametrize("length", [6, 30, 210])
@pytest.mark.parametrize("row", [0, 1])
def test_packed_sequences_are_refused(
    tiny_name: str, length: int, row: int, language_model: Factory, draw_tokens: Factory
) -> None:
    """Positions that start anew mean several sequences in one row, wherever the second begins."""
    positions = torch.arange(length).repeat(2, 1)
    positions[row, length // 2 :] -= length // 2
    ids = torch.tensor([draw_tokens(length)] * 2)
    with pytest.raises(UnsupportedMask, match="packed sequences"):
        language_model(tiny_name).model(ids, position_ids=positions, use_cache=False)


def test_dense_mask_is_refused(language_model: Factory, draw_tokens: Factory) -> None:
    dense = torch.zeros(1, 1, 6, 6)
    with pytest.raises(UnsupportedMask, match=r"give the model a 2-D mask.*float32 of shape \[1, 1, 6, 6\]"):
        language_model("llama").model(torch.tensor([draw_tokens(6)]), attention_mask=dense)


@pytest.mark.parametrize(
    "pattern",
    [
        lambda batch, head, row, key: (key <= row) | (key < 3),
        lambda batch, head, row, key: (key <= row) & (row // 4 == key // 4),
        lambda batch, head, row, key: (key <= row) | ((key == 5) & (row == 4) & (batch == 1)),
        sliding_window_causal_mask_function(7),
    ],
    ids=["prefix", "chunks", "bidirectional pair", "narrower window"],
)
def test_pattern_other_than_causal_or_window_is_refused(pattern: Callable[..., Tensor]) -> None:
    with pytest.raises(UnsupportedMask, match="other than causal or sliding-window"):
        attention._mask(2, 12, 12, mask_function=pattern, local_size=8)
    if pattern.__name__ == "<lambda>":
        with pytest.raises(UnsupportedMask, match="other than causal or sliding-window"):
            attention._mask(2, 12, 12, mask_function=pattern)


@pytest.mark.parametrize(("start", "offset"), [(0, 0), (20, 13), (20, 0)])
def test_mask_card_says_where_rows_keys_and_padding_lie(start: int, offset: int) -> None:
    padding = torch.tensor([[0] * 3 + [1] * 29, [1] * 32])
    sliding = sliding_window_causal_mask_function(8)
    counter = torch.tensor(start)
    card = attention._mask(2, 12, 32 - offset, counter, offset, sliding, padding, 8)
    counter += 1  # a static cache counts on
    assert card[:, 0, :, 0].tolist() == [[3, start, offset, 8], [0, start, offset, 8]]
    assert attention._mask(2, 1, 32, 31, 0, causal_mask_function)[:, 0, :, 0].tolist() == [[0, 31, 0, 0]] * 2


def test_dropout_is_refused(tiny_model: Factory, draw_tokens: Factory) -> None:
    lm = LanguageModel(copy.deepcopy(tiny_model("llama")))
    lm.model.train()
    for module in attention_modules(lm.model):
        module.attention_dropout = 0.1
    with pytest.raises(ValueError, match=r"dropout must be 0 \(inference only\), got 0.1"):
        lm.model(torch.tensor([draw_tokens(6)]))


def test_scores_with_a_position_bias_are_refused() -> None:
    heads = torch.zeros(1, 2, 3, 8)
    with pytest.raises(UnsupportedAttention, match="position bias"):
        attention._attention(
            torch.nn.Identity(), heads, heads, heads, None, position_bias=torch.zeros(1, 2, 3, 3)
        )


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices"])
def test_selections_of_keys_are_refused(name: str) -> None:
    heads = torch.zeros(1, 2, 3, 8)
    with pytest.raises(UnsupportedAttention, match=r"selection of keys|got sinks"):
        attention._attention(torch.nn.Identity(), heads, heads, heads, None, **{name: torch.zeros(1)})


@pytest.mark.parametrize(
    ("n_rows", "n_keys", "start", "changes", "expected"),
    [
        (12, 12, 0, {}, True),
        (12, 40, 0, {}, True),
        (1, 40, 11, {}, True),
        (1, 12, 11, {"window": 12}, True),
        (1, 16, 40, {"key_offset": 25, "window": 16}, True),
        (1, 12, 11, {"window": 11}, False),
        (4, 12, 8, {}, False),
        (12, 12, 0, {"window": 8}, False),
        (12, 12, 0, {"softcap": 2.0}, False),
        (12, 12, 0, {"sinks": torch.zeros(4)}, False),
        (12, 12, 0, {"key_start": torch.tensor([3])}, False),
    ],
)
def test_maskless_attention_is_chosen_only_where_it_is_exact(
    n_rows: int,
    n_keys: int,
    start: int,
    changes: dict[str, Any],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU here, by the helper that CUDA takes; the kernels' own attention is the truth."""
    query, key = torch.randn(1, 4, n_rows, 8), torch.randn(1, 2, n_keys, 8)
    fields = {"layer": 0, "query_start": start, "key_offset": 0, "key_start": None, "scale": 0.5}
    fields |= {"window": None, "softcap": None, "sinks": None} | changes
    call = AttentionCall(query=query, key=key, value=key.flip(2), **fields)
    assert attention.is_maskless(call) == expected
    assert attention.fused_attention(call) is None
    if expected:
        torch.testing.assert_close(attention.maskless_attention(call), plain_attention(call))


class Recorder:
    """A steerer that only counts, and fails in the layer `broken`."""

    def __init__(self, broken: int | None = None) -> None:
        self.layers: list[int] = []
        self.broken = broken

    def attend(self, call: AttentionCall) -> Tensor:
        self.layers.append(call.layer)
        if call.layer == self.broken:
            raise RuntimeError("broken")
        return plain_attention(call)


@torch.inference_mode()
def test_steerer_acts_within_its_context_only(language_model: Factory, draw_tokens: Factory) -> None:
    model, ids = language_model("gemma3").model, torch.tensor([draw_tokens(6)])
    outer, inner = Recorder(), Recorder(broken=2)
    with steered_by(outer):
        model(ids)
        with pytest.raises(RuntimeError, match="broken"), steered_by(inner):
            model(ids)
        model(ids)
    model(ids)
    assert outer.layers == [0, 1, 2, 3] * 2
    assert inner.layers == [0, 1, 2]


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
@pytest.mark.parametrize("impl", ["reference", "chunked", "auto"])
def test_rows_without_a_key_give_zeros(method: SteeringMethod, impl: str) -> None:
    """Five columns of padding before the second request: its first five rows see nothing."""
    torch.manual_seed(0)
    span = TokenSpan(name="a", start=1, end=3, bias_nats=50.0, share=0.3)
    plan = BiasPlan(spans=(span,), method=method, query_scope=QueryScope.ALL)
    run = SteeringRun(
        [RequestSteering(plan, 12), RequestSteering(plan, 7)],
        [0, 5],
        torch.device("cpu"),
        with_mass=True,
        impl=impl,
    )
    run.fed_ends = [12, 12]
    call = AttentionCall(
        layer=0,
        query=torch.randn(2, 4, 12, 8),
        key=torch.randn(2, 2, 12, 8),
        value=torch.randn(2, 2, 12, 8),
        query_start=0,
        key_offset=0,
        key_start=torch.tensor([0, 5]),
        scale=0.5,
        window=None,
        softcap=None,
        sinks=None,
    )
    out = run.attend(call)
    assert bool(out.isfinite().all())
    assert bool((out[1, :, :5] == 0).all())
    assert bool((out[1, :, 5:] != 0).all())
    assert bool((out[0] != 0).all())


@pytest.fixture
def bypassed(tiny_model: Factory, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A Llama whose second layer computes its attention outside the seam."""
    lm = LanguageModel(copy.deepcopy(tiny_model("llama")))
    second = attention_modules(lm.model)[1]
    config = copy.deepcopy(second.config)
    config._attn_implementation = "eager"
    monkeypatch.setattr(second, "config", config)
    through_seam = second.forward
    monkeypatch.setattr(
        second, "forward", lambda *args, **kw: through_seam(*args, **kw | {"attention_mask": None})
    )
    return lm


def test_layer_that_bypasses_the_seam_is_found_out(
    bypassed: LanguageModel, draw_tokens: Factory, plan_of: Factory
) -> None:
    tokens = draw_tokens(32)
    with pytest.raises(BiasNotApplied, match=r"these layers did not apply it: \[1\]"):
        bypassed.prefill([Request(tokens, plan_of())])
    bypassed.prefill([Request(tokens, plan_of(layers=(0,)))])
    bypassed.prefill([Request(tokens)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": (0, 2)}, r"layers must lie in \[0, 2\), got \[0, 2\]"),
        ({"layers": (-1,)}, r"layers must lie in \[0, 2\), got \[-1\]"),
        ({"heads": ((2, 0),)}, r"layers must lie in \[0, 2\)"),
        ({"heads": ((0, 4),)}, r"heads must lie in \[0, 4\), got \[4\]"),
        ({"layers": (0,), "heads": ((1, 0),)}, "heads must include a head of a steered layer"),
        ({"question_start": 33}, "within the prompt's 32 tokens.*question_start 33"),
        ({"spans": (TokenSpan(name="z", start=30, end=33),), "question_start": None}, "'z' ending at 33"),
        (
            {"phase": "prefill", "query_scope": "question", "question_start": 32},
            "one of its 32 rows, got none",
        ),
        ({"method": "share_control", "question_start": 32}, "share_control needs rows after the blocks"),
    ],
)
def test_plan_that_does_not_fit_model_or_prompt_is_refused(
    changes: dict[str, Any], message: str, language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    with pytest.raises(InvalidPlan, match=message):
        language_model("llama").prefill([Request(draw_tokens(32), plan_of(**changes))])


def test_prompt_over_the_window_says_by_how_much(language_model: Factory) -> None:
    lm = language_model("llama")
    with pytest.raises(
        PromptTooLong, match=r"2040 tokens and 11 more are asked for, which is 3 over the .* 2048"
    ):
        lm.prefill([Request((5,)), Request((5,) * 2040)], new_tokens=[2000, 11])


@pytest.mark.parametrize(
    ("requests", "options", "message"),
    [
        ([], {}, "at least one request, got none"),
        ([Request((5,)), Request(())], {}, r"requests\[1\].token_ids must hold at least one token"),
        ([Request((5,))], {"cache": "paged"}, "cache must be one of growing, dynamic, static, got 'paged'"),
        ([Request((5,))], {"chunk_tokens": 0}, "chunk_tokens must be at least 1, got 0"),
        ([Request((5,))], {"impl": "magic"}, "impl must be one of .* got 'magic'"),
    ],
)
def test_wrong_arguments_of_prefill_are_refused(
    requests: list[Request], options: dict[str, Any], message: str, language_model: Factory
) -> None:
    with pytest.raises(ValueError, match=message):
        language_model("llama").prefill(requests, **options)


@pytest.mark.parametrize("name", ["gpt_oss", "gemma2"])
@torch.inference_mode()
def test_sinks_and_softcaps_are_honoured(
    name: str,
    request: pytest.FixtureRequest,
    draw_tokens: Factory,
    plan_of: Factory,
    dense_logits: Factory,
    step_logits: Factory,
    assert_close: Factory,
) -> None:
    stock = request.getfixturevalue(name)
    lm, tokens = LanguageModel(copy.deepcopy(stock)), draw_tokens(32)
    for plan in (BiasPlan(), plan_of(), plan_of("target_share")):
        if plan.method is SteeringMethod.TARGET_SHARE and name == "gpt_oss":
            continue  # eager attention drops the sink's column, so that the dense reference cannot see it
        dense = dense_logits(stock, (*tokens, 7, 9), plan, 32)[31:]
        assert_close(step_logits(lm, [Request(tokens, plan)], (7, 9))[0], dense)
        assert_close(step_logits(lm, [Request(tokens, plan)], (7, 9), cache="static")[0], dense)


def test_sink_is_part_of_the_rest_of_the_mass(gpt_oss: PreTrainedModel, draw_tokens: Factory) -> None:
    lm, tokens = LanguageModel(copy.deepcopy(gpt_oss)), draw_tokens(32)
    spans = (TokenSpan(name="a", start=18, end=22, share=0.3),)
    plan = BiasPlan(spans=spans, method=SteeringMethod.TARGET_SHARE, only_raise=False, question_start=25)
    question = lm.receipt(lm.prefill([Request(tokens, plan)], with_mass=True), 0).question
    assert question is not None
    np.testing.assert_allclose(question.achieved.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(question.achieved[..., 1], 0.3, atol=1e-5)


def test_with_sinks_a_constant_bias_does_change_the_output(
    gpt_oss: PreTrainedModel, draw_tokens: Factory, step_logits: Factory
) -> None:
    """The documented exception: the sink gets no bias, so that the keys together gain on it."""
    lm, tokens = LanguageModel(copy.deepcopy(gpt_oss)), draw_tokens(32)
    everything = BiasPlan(spans=(TokenSpan(name="all", start=0, end=32, bias_nats=3.0),))
    moved = step_logits(lm, [Request(tokens, everything)]) - step_logits(lm, [Request(tokens)])
    assert float(moved.abs().max()) > 0.01
