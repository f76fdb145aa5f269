"""What the rest of Salience needs to know of a loaded model, in plain values."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from salience_models.weights.architecture import attention_modules, layer_windows, text_config

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 16


@dataclass(frozen=True)
class ModelInfo:
    """A loaded model's identity and shape.

    Attributes:
        source: As given to `load_model`.
        revision: Commit of a hub model; None otherwise.
        path: Folder the weights were read from; None for a model built in memory.
        architecture: transformers' `model_type`, such as "llama".
        head_dim: Width of a query and key head; the widest where layers differ.
        context_window: Most tokens a prompt and its answer may have together.
        layer_windows: For each layer, how many keys a query sees, itself included; None sees all before it.
        softcap: Bound of the attention scores (cap · tanh(score / cap)); None where scores are unbounded.
        dtype: Of the parameters, such as "float32".
        device: Of the input embedding, such as "cuda:0"; a device map may have put other layers elsewhere.
        quantization: "bnb-4bit", "bnb-8bit" or None: how the parameters lie in memory.
        file_quantization: Of the GGUF file that the parameters were unpacked from, such as "Q4_K_M"; None
            where they did not come from one. `dtype` is what is computed in.
        eos_token_ids: Tokens that end generation; several for some chat models, none for some base models.
        has_chat_template: Whether chat messages can be encoded; a base model has no template.
        weights_sha256: Of the GGUF file; else `fingerprint_folder`; empty for a model built in memory.
    """

    source: str
    revision: str | None
    path: Path | None
    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_window: int
    layer_windows: tuple[int | None, ...]
    softcap: float | None
    dtype: str
    device: str
    quantization: str | None
    file_quantization: str | None
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    weights_sha256: str


def info_from_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    source: str = "",
    revision: str | None = None,
    path: Path | None = None,
    quantization: str | None = None,
    file_quantization: str | None = None,
    weights_sha256: str = "",
) -> ModelInfo:
    """Read a model's shape from its configuration and modules; also for models built from a configuration."""
    text = text_config(model.config)
    n_heads = _widest(text, "num_attention_heads")
    names = ("qk_head_dim", "head_dim", "head_size", "attention_head_size")
    head_dims = [
        next((getattr(module, name) for name in names if hasattr(module, name)), 0)
        for module in attention_modules(model)
    ]
    return ModelInfo(
        source=source,
        revision=revision,
        path=path,
        architecture=model.config.model_type,
        n_layers=text.num_hidden_layers,
        n_heads=n_heads,
        n_kv_heads=_widest(text, "num_key_value_heads") or n_heads,
        head_dim=max(head_dims, default=0) or text.hidden_size // text.num_attention_heads,
        context_window=text.max_position_embeddings,
        layer_windows=layer_windows(model.config),
        softcap=getattr(text, "attn_logit_softcapping", None),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.get_input_embeddings().weight.device),
        quantization=quantization,
        file_quantization=file_quantization,
        eos_token_ids=read_eos_token_ids(model.generation_config, model.config, tokenizer),
        has_chat_template=bool(tokenizer is not None and tokenizer.chat_template),
        weights_sha256=weights_sha256,
    )


def fingerprint_folder(folder: Path) -> str:
    """sha256 over the names, sizes and 16 samples of 64 KiB of each weights file in `folder`.

    Cheap at any size. It tells checkpoints apart whose every tensor changed, as training does; a file patched
    between two samples keeps its fingerprint.
    """
    digest = hashlib.sha256()
    for path in weight_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for i in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The weights files transformers would read, by name: safetensors, else the older PyTorch format.

    Of each format the one whole file, else the shards that the format's index names, there or not; other
    precisions beside them (`model.fp16.safetensors`) and the other format's files do not count.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            return sorted({folder / shard for shard in json.loads(index.read_text())["weight_map"].values()})
    return []


def _widest(config: Any, name: str) -> Any:
    """An attribute of the configuration, its largest value where it differs by layer, or None."""
    by_layer = getattr(config, "per_layer_config", None)
    if by_layer:
        return max((getattr(layer, name, None) or 0 for layer in by_layer), default=None) or None
    return getattr(config, name, None)


def read_eos_token_ids(
    generation: GenerationConfig | None, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[int, ...]:
    """Generation settings first, then configuration and tokenizer: any of them ends a generation."""
    declared = [
        getattr(generation, "eos_token_id", None),
        getattr(text_config(config), "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ]
    ids: list[int] = []
    for value in declared:
        ids += value if isinstance(value, list | tuple) else [] if value is None else [value]
    return tuple(dict.fromkeys(ids))
