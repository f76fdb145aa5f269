from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertLMHeadModel, PreTrainedModel

from salience_models.errors import UnknownArchitecture, UnsupportedAttention
from salience_models.weights.architecture import check_config, check_model, layer_windows
from salience_models.weights.model_info import info_from_model

TinyModel = Callable[..., PreTrainedModel]


def test_info_tells_shape_heads_and_windows(tiny_model: TinyModel, tiny_name: str) -> None:
    windows = {"mistral": (16, 16), "gemma3": (16, 16, 16, None)}
    info = info_from_model(tiny_model(tiny_name))
    assert info.layer_windows == windows.get(tiny_name, (None, None))
    assert info.n_layers == len(info.layer_windows)
    assert (info.n_heads, info.head_dim, info.context_window) == (4, 16, 2048)
    assert info.n_kv_heads == (4 if tiny_name in ("gpt_neox", "phi") else 2)
    assert info.eos_token_ids == (2,)
    assert (info.path, info.weights_sha256, info.has_chat_template) == (None, "", False)


def test_qwen_window_counts_only_where_it_is_used() -> None:
    sizes: dict[str, Any] = {"num_hidden_layers": 3, "sliding_window": 8, "max_window_layers": 1}
    used = AutoConfig.for_model("qwen3", use_sliding_window=True, **sizes)
    unused = AutoConfig.for_model("qwen3_moe", use_sliding_window=False, **sizes)
    assert layer_windows(used) == (None, 8, 8)
    assert layer_windows(unused) == (None, None, None)


def test_softcap_and_several_eos_are_reported() -> None:
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = AutoConfig.for_model("gemma2", eos_token_id=[1, 7], vocab_size=32, **heads, **sizes)
    config.attn_logit_softcapping = 50.0
    info = info_from_model(AutoModelForCausalLM.from_config(config))
    assert info.softcap == 50.0
    assert info.eos_token_ids == (1, 7)


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("t5", "encoder-decoder t5"),
        ("bart", "encoder-decoder bart"),
        ("mamba", "linear_attention"),
        ("rwkv", "RwkvForCausalLM"),
        ("bloom", "BloomForCausalLM"),
        ("mpt", "MptForCausalLM"),
        ("roberta", "positions must count from 0, got roberta"),
        ("xlm-roberta", "positions must count from 0"),
        ("llama4_text", "chunked_attention"),
        ("recurrent_gemma", "linear_attention|recurrent"),
        ("qwen3_next", "linear_attention"),
        ("minimax", "linear_attention"),
        ("falcon_h1", "hybrid|FalconH1ForCausalLM"),
        ("jamba", "linear_attention|JambaForCausalLM"),
    ],
)
def test_attention_that_cannot_be_steered_is_named(model_type: str, named: str) -> None:
    with pytest.raises(UnsupportedAttention, match=named):
        check_config(AutoConfig.for_model(model_type))


@pytest.mark.parametrize("model_type", ["vit", "clip"])
def test_model_without_a_language_head_is_unknown(model_type: str) -> None:
    with pytest.raises(UnknownArchitecture, match=model_type):
        check_config(AutoConfig.for_model(model_type))


def test_bidirectional_attention_is_refused() -> None:
    sizes: dict[str, Any] = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    check_model(BertLMHeadModel(BertConfig(is_decoder=True, vocab_size=16, **sizes)))
    with pytest.raises(UnsupportedAttention, match="bert must be causal"):
        check_model(BertLMHeadModel(BertConfig(is_decoder=False, vocab_size=16, **sizes)))


def test_tiny_models_are_all_steerable(tiny_model: TinyModel, tiny_name: str) -> None:
    check_config(tiny_model(tiny_name).config)
    check_model(tiny_model(tiny_name))
