"""A GGUF file makes the model that was written into it, or is refused by what would be left out."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from salience_models.errors import WeightsUnreadable
from salience_models.weights import gguf_cache, gguf_file
from salience_models.weights.gguf_cache import convert_gguf
from salience_models.weights.gguf_file import read_gguf
from salience_models.weights.loader import load_model

TOKENS = ["<|endoftext|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "ab"]
SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW = {"sliding_window": 8}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
HALF_ROTATED = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}, {}),
    "qwen2": ("qwen2", {"head_dim": 16}, {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen2moe": (
        "qwen2_moe",
        EXPERTS | {"head_dim": 16, "shared_expert_intermediate_size": 48},
        {"expert_shared_feed_forward_length": 48},
    ),
    "qwen3moe": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}, {}),
    "phi3": ("phi3", WINDOW | {"head_dim": 16, "pad_token_id": 0}, {"attention.sliding_window": 8}),
    "gemma": ("gemma", {"tie_word_embeddings": True}, {}),
    "gemma2": (
        "gemma2",
        WINDOW | {"query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        {"attention.sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3_text",
        WINDOW | {"query_pre_attn_scalar": 32, "num_hidden_layers": 7, "rope_parameters": GEMMA3_ROPE},
        {"attention.sliding_window": 8},
    ),
    "gemma3 with a pattern of its own": (
        "gemma3_text",
        WINDOW
        | {
            "query_pre_attn_scalar": 32,
            "rope_parameters": GEMMA3_ROPE,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [False, True]},
    ),
    "starcoder2": ("starcoder2", {"head_dim": 16, "use_bias": True, "norm_epsilon": 1e-4}, {}),
    "nemotron": (
        "nemotron",
        {"norm_eps": 1e-4, "rope_parameters": HALF_ROTATED},
        {"rope.dimension_count": 16},
    ),
    "gpt2": ("gpt2", {"n_inner": 96, "n_positions": 64, "layer_norm_epsilon": 1e-4}, {}),
}


def build(model_type: str, changes: dict[str, Any]) -> PreTrainedModel:
    config = AutoConfig.for_model(model_type, **(SIZES | changes))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide an offset or a loss
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def write(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """`model` as llama.cpp's converter would write it, with further keys and tensors."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    shape: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 96,
        "attention.head_count": config.num_attention_heads,
    }
    if architecture != "gpt2":
        width = config.head_dim if hasattr(config, "head_dim") else 16
        shape |= {"attention.head_count_kv": 2, "rope.freq_base": 5000.0, "rope.dimension_count": width}
        shape |= {"attention.key_length": width, "attention.value_length": width}
    if architecture in ("starcoder2", "nemotron", "gpt2"):
        shape["attention.layer_norm_epsilon"] = 1e-4
    else:
        shape["attention.layer_norm_rms_epsilon"] = 1e-5
    if architecture.endswith("moe"):
        shape |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    for key, value in (shape | (keys or {})).items():
        name = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            list: writer.add_array,
        }
        add.get(type(value), writer.add_string)(name, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    known = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    written: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module, _, leaf = name.rpartition(".")
        if ".experts.gate_up_proj" in name:
            gate, up = value.chunk(2, dim=1)
            layer = name.split(".")[2]
            written |= {f"blk.{layer}.ffn_gate_exps.weight": gate, f"blk.{layer}.ffn_up_exps.weight": up}
            continue
        if ".experts.down_proj" in name:
            written[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = value
            continue
        target = f"{names.get_name(module)}.{leaf}"
        if architecture == "llama" and (".attn_q." in target or ".attn_k." in target):
            heads = config.num_attention_heads if ".attn_q." in target else config.num_key_value_heads
            value = value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        if (architecture.startswith("gemma") or architecture == "nemotron") and target.endswith(
            "norm.weight"
        ):
            value = value + 1
        if architecture == "gpt2" and value.ndim == 2 and target.startswith("blk."):
            value = value.T
        if "ffn_gate_inp_shexp" in target:
            value = value[0]
        written[target] = value
    for name, value in written.items():
        writer.add_tensor(name, value.detach().contiguous().numpy())
    for name, value in (tensors or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(48)[None] % len(TOKENS)).logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_model_that_was_written(name: str, tmp_path: Path) -> None:
    model_type, changes, keys = MODELS[name]
    model = build(model_type, changes)
    path = write(tmp_path / "tiny.gguf", model, name.split()[0].rstrip(","), keys)
    loaded = load_model(path, device="cpu", cache_dir=tmp_path).model
    torch.testing.assert_close(logits_of(loaded), logits_of(model), atol=2e-5, rtol=1e-5)


def llama3_divisors() -> np.ndarray:
    """What llama.cpp's converter writes for a llama3 scaling by 8 that was trained on 16 tokens."""
    wavelengths = 2 * math.pi * 5000.0 ** (np.arange(0, 32, 2) / 32)
    smooth = np.clip((16 / wavelengths - 1.0) / (4.0 - 1.0), 0, 1)
    return (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)


def llama3(rope: dict[str, Any]) -> dict[str, Any]:
    return rope | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


SHORT = np.linspace(1, 2, 8, dtype=np.float32)
LONG = np.linspace(2, 9, 8, dtype=np.float32)
BASE = {"rope_type": "default", "rope_theta": 5000.0}
SCALINGS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], dict[str, np.ndarray]]] = {
    "llama3": (
        "llama",
        "llama",
        {"rope_parameters": llama3(BASE) | {"original_max_position_embeddings": 16}},
        {},
        {"rope_freqs.weight": llama3_divisors()},
    ),
    "linear": (
        "llama",
        "llama",
        {"rope_parameters": BASE | {"rope_type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    "linear, as older files say it": (
        "qwen3",
        "qwen3",
        {"rope_parameters": BASE | {"rope_type": "linear", "factor": 4.0}},
        {"rope.scale_linear": 4.0},
        {},
    ),
    "linear where windows do not slide": (
        "gemma3",
        "gemma3_text",
        WINDOW
        | {
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 6,
            "rope_parameters": GEMMA3_ROPE
            | {"full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}},
        },
        {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
        {},
    ),
    "yarn": (
        "qwen3",
        "qwen3",
        {
            "rope_parameters": BASE
            | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.finetuned": True,
        },
        {},
    ),
    **{
        f"longrope, {regime}": (
            "phi3",
            "phi3",
            {
                "head_dim": 16,
                "pad_token_id": 0,
                "original_max_position_embeddings": trained,
                "rope_parameters": BASE
                | {
                    "rope_type": "longrope",
                    "short_factor": SHORT.tolist(),
                    "long_factor": LONG.tolist(),
                    "attention_factor": 1.25,
                },
            },
            {"rope.scaling.original_context_length": trained, "rope.scaling.attn_factor": 1.25},
            {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG},
        )
        for regime, trained in (("beyond what was trained", 16), ("within", 60))
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rotary_positions_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    architecture, model_type, changes, keys, tensors = SCALINGS[name]
    model = build(model_type, changes)
    path = write(tmp_path / "tiny.gguf", model, architecture, keys, tensors)
    converted = convert_gguf(path, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(converted)
    torch.testing.assert_close(logits_of(loaded), logits_of(model), atol=2e-5, rtol=1e-5)
    without = build(
        model_type, changes | {"rope_parameters": MODELS[architecture][1].get("rope_parameters", BASE)}
    )
    assert (logits_of(without) - logits_of(model)).abs().max() > 1e-3


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., Path]:
    """Convert a tiny Llama (or another) with further keys and tensors."""

    def convert(
        keys: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
        architecture: str = "llama",
    ) -> Path:
        model_type, changes, own = MODELS[architecture]
        path = write(
            tmp_path / "tiny.gguf", build(model_type, changes), architecture, own | (keys or {}), tensors
        )
        return convert_gguf(path, tmp_path)

    return convert


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.scale", 0.5),
        ("logit_scale", 0.25),
        ("residual_scale", 0.2),
        ("embedding_scale", 12.0),
        ("final_logit_softcapping", 30.0),
        ("attention.sliding_window", 8),
        ("attention.causal", False),
        ("expert_count", 8),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.scaling.type", "longrope"),
        ("rope.dimension_count", 16),
        ("attention.value_length", 16),
        ("attention.head_count_kv", [2, 1]),
        ("a_key_of_next_year", "on"),
        ("tokenizer.ggml.add_eos_token", True),
    ],
)
def test_key_that_would_be_left_out_is_refused_by_name(
    convert: Callable[..., Path], key: str, value: object
) -> None:
    with pytest.raises(WeightsUnreadable, match=key.replace(".", r"\.")):
        convert({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", True),
        ("logit_scale", 1.0),
        ("expert_count", 0),
        ("rope.scaling.type", "none"),
        ("rope.scaling.finetuned", False),
        ("vocab_size", len(TOKENS)),
        ("general.author", "someone"),
    ],
)
def test_key_that_changes_nothing_is_taken(convert: Callable[..., Path], key: str, value: object) -> None:
    assert (convert({key: value}) / "model.safetensors").is_file()


ROW = np.ones(64, np.float32)


@pytest.mark.parametrize(
    ("architecture", "tensors", "named"),
    [
        (
            "llama",
            {"blk.2.attn_norm.weight": ROW},
            r"llama of 2 layers takes, got 1 .* first blk\.2\.attn_norm",
        ),
        ("llama", {"blk.1.attn_q.bias": np.ones(128, np.float32)}, r"first blk\.1\.attn_q\.bias"),
        ("llama", {"blk.0.attn_q.bias": np.ones(128, np.float32)}, "missing, first model.layers.0.self_attn"),
        ("llama", {"blk.0.attn_q_norm.weight": ROW}, r"first blk\.0\.attn_q_norm"),
        ("llama", {"blk.0.ffn_gate_inp.weight": np.ones((4, 64), np.float32)}, r"first blk\.0\.ffn_gate_inp"),
        ("llama", {"rope_factors_long.weight": LONG}, r"first rope_factors_long\.weight"),
        ("gemma3", {"rope_freqs.weight": llama3_divisors()}, r"first rope_freqs\.weight"),
        ("gpt2", {"rope_freqs.weight": llama3_divisors()}, r"first rope_freqs\.weight"),
        (
            "llama",
            {
                "rope_freqs.weight": llama3_divisors(),
                "rope_factors_long.weight": llama3_divisors(),
                "rope_factors_short.weight": llama3_divisors(),
            },
            "one way",
        ),
    ],
)
def test_tensor_that_would_be_left_out_is_refused_by_name(
    convert: Callable[..., Path], architecture: str, tensors: dict[str, np.ndarray], named: str
) -> None:
    with pytest.raises(WeightsUnreadable, match=named):
        convert(tensors=tensors, architecture=architecture)


def test_output_that_is_not_the_embedding_is_used(tmp_path: Path) -> None:
    """Gemma ties them unless a file says otherwise; the output of a tied file is the embedding."""
    tied = convert_gguf(write(tmp_path / "tied.gguf", build(*MODELS["llama, tied"][:2]), "llama"), tmp_path)
    own = convert_gguf(write(tmp_path / "own.gguf", build("llama", {}), "llama"), tmp_path)
    assert AutoConfig.from_pretrained(tied).tie_word_embeddings
    assert not AutoConfig.from_pretrained(own).tie_word_embeddings


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_quantised_tensors_are_unpacked_bit_for_bit_and_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_cache, "_JOB_VALUES", 1024)  # several jobs for the embedding, of several steps
    monkeypatch.setattr(gguf_file, "_UNPACKED_AT_ONCE", 256)
    model = build("llama", {})
    path = tmp_path / "tiny.gguf"
    quantised = gguf.GGMLQuantizationType[kind]
    stored = gguf.quantize(model.state_dict()["model.embed_tokens.weight"].numpy(), quantised)
    expected = torch.from_numpy(gguf.dequantize(stored, quantised))
    file_type = int(gguf.LlamaFileType[f"MOSTLY_{kind}"])

    class Writer(gguf.GGUFWriter):
        def add_tensor(self, name: str, tensor: np.ndarray, *_: Any, **__: Any) -> None:
            if name == "token_embd.weight":
                super().add_tensor(name, stored, raw_dtype=quantised)
            else:
                super().add_tensor(name, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Writer)
        write(path, model, "llama", {"general.file_type": file_type})
    loaded = load_model(path, device="cpu", cache_dir=tmp_path)
    assert torch.equal(loaded.model.state_dict()["model.embed_tokens.weight"], expected)
    assert (loaded.info.file_quantization, loaded.info.dtype) == (kind, "float32")


def test_quantisation_of_a_file_that_does_not_say_is_that_of_most_bytes(tmp_path: Path) -> None:
    assert read_gguf(write(tmp_path / "tiny.gguf", build("llama", {}), "llama")).quantization == "F32"
