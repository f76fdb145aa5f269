"""Read a GGUF file and account for all of it: metadata, tensors, and the model that they make.

A key or a tensor that nobody reads is a model that answers differently from the file's without a word. So
every key below the architecture's own name and every tensor is used here, is known to change nothing, or is
refused by name.

Source: GGUF specification, versions 2 and 3, little-endian; meaning of the keys as in llama.cpp.
"""

import math
import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    LlamaFileType,
    dequantize,
    get_tensor_name_map,
)
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from salience_models.errors import UnknownArchitecture, WeightsUnreadable

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_UNPACKED_AT_ONCE = 1 << 18
"""Values: what numpy passes over twenty times for one block type stays in a core's cache."""


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies in the file: shape in torch's order, bytes counted from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    n_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """A file's metadata and tensor table; the tensors themselves are read by `read_tensor`."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    @property
    def quantization(self) -> str:
        """Such as "Q4_K_M": as the file says, else the type that most of its bytes have."""
        try:
            return LlamaFileType(self.metadata["general.file_type"]).name.removeprefix("MOSTLY_")
        except (KeyError, ValueError):
            n_bytes = Counter[str]()
            for tensor in self.tensors.values():
                n_bytes[tensor.kind.name] += tensor.n_bytes
            return n_bytes.most_common(1)[0][0]


def read_gguf(path: Path) -> GgufFile:
    """Metadata (arrays as lists) and tensor table of `path`.

    The `gguf` package reads the same in 20 s for a vocabulary of 150,000: it maps every string to an array.

    Raises:
        WeightsUnreadable: Not a GGUF file, of another version, torn, or one part of several.
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise WeightsUnreadable(f"{path.name} must start with b'GGUF', got {magic!r}")
        try:
            version, n_tensors, n_keys = _unpack(file, "IQQ")
            if version not in (2, 3):
                raise WeightsUnreadable(
                    f"{path.name} must be GGUF 2 or 3, little-endian, got version {version}"
                )
            metadata: dict[str, Any] = {}
            for _ in range(n_keys):
                key = _read_string(file)
                metadata[key] = _read_value(file, *_unpack(file, "I"))
            table: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]] = []
            for _ in range(n_tensors):
                name = _read_string(file)
                # ggml names the dimension that moves fastest first, torch last.
                shape = _unpack(file, f"{_unpack(file, 'I')[0]}Q")[::-1]
                kind, offset = _unpack(file, "IQ")
                table.append((name, shape, GGMLQuantizationType(kind), offset))
        except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
            raise WeightsUnreadable(f"{path.name} must be a whole GGUF file, got {error!r}") from error
        alignment = metadata.get("general.alignment", 32)
        data_start = -(-file.tell() // alignment) * alignment
    if metadata.get("split.count", 1) > 1:
        raise WeightsUnreadable(
            f"{path.name} must be the whole model, got one part of {metadata['split.count']} "
            "(join them with llama.cpp's gguf-split --merge)"
        )
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in table:
        block_values, block_bytes = GGML_QUANT_SIZES[kind]
        n_bytes = math.prod(shape) // block_values * block_bytes
        tensors[name] = GgufTensor(name, shape, kind, data_start + offset, n_bytes)
    end = max((tensor.start + tensor.n_bytes for tensor in tensors.values()), default=data_start)
    if path.stat().st_size < end:
        raise WeightsUnreadable(
            f"{path.name} must be a whole GGUF file of {end} bytes, got {path.stat().st_size}"
        )
    return GgufFile(path, metadata, tensors)


def _read_value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return _read_string(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    item_kind, length = _unpack(file, "IQ")
    if item_kind in _SCALARS:
        return list(_unpack(file, f"{length}{_SCALARS[item_kind]}"))
    return [_read_value(file, item_kind) for _ in range(length)]


def _read_string(file: IO[bytes]) -> str:
    (length,) = _unpack(file, "Q")
    return _read_bytes(file, length).decode("utf-8")


def _unpack(file: IO[bytes], fields: str) -> tuple[Any, ...]:
    layout = struct.Struct("<" + fields)
    return layout.unpack(_read_bytes(file, layout.size))


def _read_bytes(file: IO[bytes], count: int) -> bytes:
    if count > 1 << 30:
        raise struct.error(f"a field of {count} bytes")
    data = file.read(count)
    if len(data) < count:
        raise struct.error(f"{len(data)} bytes where {count} should follow")
    return data


@dataclass(frozen=True)
class _Architecture:
    """How one of llama.cpp's architectures becomes one of transformers'.

    Attributes:
        keys: Metadata key below the architecture's name → configuration field, beside `_SHAPE_KEYS`.
        constants: What llama.cpp's code fixes and no file says.
        rotates_part: Whether rotary positions may cover only the first dimensions of a head.
        norm_offset: What llama.cpp's converter added to every norm, because its kernel does not.
        permutes_rope: Whether query and key rows were interleaved for llama.cpp's rotation of neighbours.
        transposes: Whether transformers keeps projections the other way round (GPT-2's Conv1D).
    """

    model_type: str
    keys: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    rotates_part: bool = False
    norm_offset: int = 0
    permutes_rope: bool = False
    transposes: bool = False


_SHAPE_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_GEMMA_KEYS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_ARCHITECTURES = {
    "llama": _Architecture("llama", permutes_rope=True),
    "qwen2": _Architecture("qwen2"),
    "qwen3": _Architecture("qwen3"),
    "qwen2moe": _Architecture(
        "qwen2_moe",
        _EXPERT_KEYS | {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        {"norm_topk_prob": False},
    ),
    "qwen3moe": _Architecture("qwen3_moe", _EXPERT_KEYS, {"norm_topk_prob": True}),
    "phi3": _Architecture("phi3", {"attention.sliding_window": "sliding_window"}, rotates_part=True),
    "gemma": _Architecture("gemma", norm_offset=1),
    "gemma2": _Architecture("gemma2", _GEMMA_KEYS, norm_offset=1),
    "gemma3": _Architecture("gemma3_text", _GEMMA_KEYS, norm_offset=1),
    "starcoder2": _Architecture("starcoder2", {"attention.layer_norm_epsilon": "norm_epsilon"}),
    "nemotron": _Architecture(
        "nemotron", {"attention.layer_norm_epsilon": "norm_eps"}, rotates_part=True, norm_offset=1
    ),
    "gpt2": _Architecture(
        "gpt2",
        {
            "context_length": "n_positions",
            "feed_forward_length": "n_inner",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        transposes=True,
    ),
}

_NEUTRAL: dict[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_gating_func": 1,  # softmax, as every mixture above
    "expert_used_count": 0,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "nextn_predict_layers": 0,
    "pooling_type": 0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "tensor_data_layout": "Meta AI original pth",  # of the file the converter read, not of this one
}
"""Keys that no architecture above reads, at the value that changes nothing; any other value is refused."""

_HARMLESS_TENSORS = re.compile(r"blk\.\d+\.attn_rot_embd\.weight")  # rotary frequencies, computed anyway


def read_config(file: GgufFile) -> PretrainedConfig:
    """transformers' configuration of the model in `file`.

    Raises:
        UnknownArchitecture: One that is not in the table above.
        WeightsUnreadable: Naming a key that nothing here reads or a value that transformers cannot express.
    """
    prefix = f"{file.metadata.get('general.architecture')}."
    architecture = _ARCHITECTURES.get(prefix[:-1])
    if architecture is None:
        raise UnknownArchitecture(
            f"architecture of {file.path.name} must be one of {', '.join(_ARCHITECTURES)}, "
            f"got {prefix[:-1]!r}"
        )
    left = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    values: dict[str, Any] = dict(architecture.constants)
    for key, name in (_SHAPE_KEYS | architecture.keys).items():
        if key in left:
            values[name] = left.pop(key)
            if isinstance(values[name], list):
                raise WeightsUnreadable(
                    f"{prefix}{key} must be one number for all layers, got {values[name]}"
                )
    try:
        # The embedding's rows decide, as in llama.cpp; the key only repeats them.
        left.pop("vocab_size", None)
        values["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
        hidden_size, n_heads = values["hidden_size"], values["num_attention_heads"]
        n_layers = values["num_hidden_layers"]
    except KeyError as error:
        raise WeightsUnreadable(f"{file.path.name} must hold {error}, got none") from error
    head_dim = left.pop("attention.key_length", hidden_size // n_heads)
    if left.pop("attention.value_length", head_dim) != head_dim:
        raise WeightsUnreadable(f"{prefix}attention.value_length must be that of the keys, {head_dim}")
    names = set(file.tensors)
    values["tie_word_embeddings"] = "output.weight" not in names
    for special in ("bos", "eos", "padding"):
        token = file.metadata.get(f"tokenizer.ggml.{special}_token_id")
        values["pad_token_id" if special == "padding" else f"{special}_token_id"] = token

    kind = architecture.model_type
    if kind != "gpt2":
        values["head_dim"] = head_dim
        share = left.pop("rope.dimension_count", head_dim) / head_dim
        if share != 1 and not architecture.rotates_part:
            raise WeightsUnreadable(f"{prefix}rope.dimension_count must be that of a head, {head_dim}")
        rope = _read_rope(file, left, values["max_position_embeddings"])
        if architecture.rotates_part:
            rope["partial_rotary_factor"] = share
        if kind == "gemma3_text":
            local = {"rope_type": "default", "rope_theta": left.pop("rope.freq_base_swa", 10_000.0)}
            values["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
        else:
            values["rope_parameters"] = rope
        if "original_max_position_embeddings" in rope and kind == "phi3":
            values["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    if kind in ("gemma2", "gemma3_text"):
        # llama.cpp knows Gemma's 27B by its layers: only there the scores are scaled by another width.
        is_27b = n_layers == (46 if kind == "gemma2" else 62)
        values["query_pre_attn_scalar"] = hidden_size // n_heads if is_27b else head_dim
        pattern = left.pop("attention.sliding_window_pattern", 2 if kind == "gemma2" else 6)
        slides = pattern if isinstance(pattern, list) else [(i + 1) % pattern > 0 for i in range(n_layers)]
        values["layer_types"] = ["sliding_attention" if s else "full_attention" for s in slides[:n_layers]]
    if kind == "phi3":
        values["sliding_window"] = values.get("sliding_window") or None
    # A bias that one layer has, every layer has: what is missing then is refused when tensors are matched.
    if kind == "starcoder2":
        values["use_bias"] = "blk.0.attn_q.bias" in names
    elif kind == "qwen2_moe":
        values["qkv_bias"] = "blk.0.attn_q.bias" in names
    elif kind not in ("qwen2", "gpt2"):
        values["attention_bias"] = "blk.0.attn_q.bias" in names
        values["mlp_bias"] = "blk.0.ffn_up.bias" in names

    if file.metadata.get("tokenizer.ggml.add_eos_token"):
        raise WeightsUnreadable(
            f"tokenizer.ggml.add_eos_token of {file.path.name} must be false, got true: "
            "a prompt that ends with the end of text cannot be continued"
        )
    for key, value in left.items():
        if key not in _NEUTRAL or _NEUTRAL[key] != value:
            raise WeightsUnreadable(
                f"{file.path.name} must hold only keys of {prefix[:-1]} that are read here, got "
                f"{prefix}{key} = {value!r}, which would be left out"
            )
    return AutoConfig.for_model(kind, **values, dtype="float32")


def _read_rope(file: GgufFile, left: dict[str, Any], context_length: int) -> dict[str, Any]:
    """transformers' rotary parameters; what is read is taken out of `left`, the keys still unread."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": left.pop("rope.freq_base", 10_000.0)}
    factor = left.pop("rope.scaling.factor", 0.0) or left.pop("rope.scale_linear", 0.0) or 1.0
    # A factor without a type is linear in llama.cpp; with the type "none" it is not used.
    kind = left.pop("rope.scaling.type", "linear")
    left.pop("rope.scaling.finetuned", None)
    by_length = [file.tensors.get(f"rope_factors_{length}.weight") for length in ("short", "long")]
    divisors = file.tensors.get("rope_freqs.weight")
    if all(by_length) or divisors is not None:
        # Both kinds divide each frequency by a number of the file; transformers has one type that does so.
        short, long = by_length if divisors is None else (divisors, divisors)
        if (divisors is not None and any(by_length)) or (kind in ("linear", "yarn") and factor != 1.0):
            raise WeightsUnreadable(
                f"{file.path.name} must scale rotary positions in one way, got "
                f"{kind} with factor {factor} and tensors of two kinds or beside it"
            )
        return rope | {
            "rope_type": "longrope",
            "factor": 1.0,
            "short_factor": read_tensor(file, cast(GgufTensor, short)).tolist(),
            "long_factor": read_tensor(file, cast(GgufTensor, long)).tolist(),
            "original_max_position_embeddings": left.pop(
                "rope.scaling.original_context_length", context_length
            ),
            "attention_factor": left.pop("rope.scaling.attn_factor", 1.0),
        }
    if kind == "yarn" and factor != 1.0:
        # 0.1 · ln(factor) + 1 is yarn's own correction of the scores; a file may multiply it.
        correction = left.pop("rope.scaling.attn_factor", left.pop("rope.scaling.yarn_attn_factor", 1.0))
        return rope | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": left.pop(
                "rope.scaling.original_context_length", context_length
            ),
            "attention_factor": correction * (0.1 * math.log(factor) + 1),
            "beta_fast": left.pop("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": left.pop("rope.scaling.yarn_beta_slow", 1.0),
        }
    left.pop("rope.scaling.original_context_length", None)
    if kind == "linear" and factor != 1.0:
        return rope | {"rope_type": "linear", "factor": factor}
    if kind not in ("none", "linear", "yarn"):
        raise WeightsUnreadable(
            f"rope.scaling.type of {file.path.name} must be none, linear or yarn, or come with its tensors, "
            f"got {kind!r}"
        )
    return rope


def match_tensors(
    file: GgufFile, config: PretrainedConfig
) -> dict[str, tuple[torch.Size, tuple[GgufTensor, ...]]]:
    """Each parameter's shape and the tensors that it is made of, in the order in which they are joined.

    Raises:
        WeightsUnreadable: Naming a parameter that the file lacks or has in another shape, or a tensor that
            no parameter takes.
    """
    architecture = file.metadata["general.architecture"]
    (known,) = (kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(known, config.num_hidden_layers)
    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config).state_dict()
    if config.tie_word_embeddings:
        del parameters["lm_head.weight"]
    matched: dict[str, tuple[torch.Size, tuple[GgufTensor, ...]]] = {}
    missing: list[str] = []
    for parameter, value in parameters.items():
        experts = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj", parameter)
        if experts is not None:
            parts = experts[2].split("_")
            wanted = [f"blk.{experts[1]}.ffn_{part}_exps.weight" for part in parts]
        else:
            module, _, leaf = parameter.rpartition(".")
            wanted = [f"{names.get_name(module)}.{leaf}"]
        if any(name not in file.tensors for name in wanted):
            missing.append(parameter)
            continue
        matched[parameter] = value.shape, tuple(file.tensors[name] for name in wanted)
        hollow = {name: torch.empty(file.tensors[name].shape, device="meta") for name in wanted}
        found = list(shape_parameter(architecture, config, hollow).shape)
        # A file drops axes of length one (the gate of a shared expert).
        if [n for n in found if n > 1] != [n for n in value.shape if n > 1]:
            raise WeightsUnreadable(
                f"{file.path.name} must hold parameters of the shape that its metadata implies, "
                f"got {parameter} {found} instead of {list(value.shape)}"
            )
    if missing:
        raise WeightsUnreadable(
            f"{file.path.name} must hold every parameter of its architecture, got {len(missing)} missing, "
            f"first {min(missing)}"
        )
    used = {tensor.name for _, tensors in matched.values() for tensor in tensors}
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope":
        by_length = {"rope_factors_short.weight", "rope_factors_long.weight"}
        used |= by_length if by_length <= set(file.tensors) else {"rope_freqs.weight"}
    unused = sorted(
        name for name in file.tensors if name not in used and not _HARMLESS_TENSORS.fullmatch(name)
    )
    if unused:
        raise WeightsUnreadable(
            f"{file.path.name} must hold only tensors that {architecture} of {config.num_hidden_layers} "
            f"layers takes, got {len(unused)} that would be left out, first {unused[0]}"
        )
    return matched


def read_tensor(file: GgufFile, tensor: GgufTensor, blocks: slice = slice(None)) -> Tensor:
    """A tensor's values in float32, exactly as the blocks of its quantisation say; of some `blocks`, flat.

    Raises:
        WeightsUnreadable: A quantisation that the `gguf` package does not unpack.
    """
    block_values, block_bytes = GGML_QUANT_SIZES[tensor.kind]
    stored = np.memmap(file.path, np.uint8, "r", tensor.start, (tensor.n_bytes // block_bytes, block_bytes))
    stored = stored[blocks]
    values = np.empty((len(stored), block_values), np.float32)
    step = _UNPACKED_AT_ONCE // block_values
    try:
        for at in range(0, len(stored), step):
            part = stored[at : at + step]
            values[at : at + step] = dequantize(part.reshape(1, -1), tensor.kind).reshape(len(part), -1)
    except NotImplementedError as error:
        raise WeightsUnreadable(
            f"{tensor.name} of {file.path.name} must have a quantisation that can be unpacked, got {error}"
        ) from error
    return torch.from_numpy(values.reshape(tensor.shape if blocks == slice(None) else -1))


def shape_parameter(architecture: str, config: PretrainedConfig, parts: dict[str, Tensor]) -> Tensor:
    """A parameter as transformers wants it: what llama.cpp's converter did to the tensors `parts`, undone."""
    known = _ARCHITECTURES[architecture]
    (name, value), *others = parts.items()
    if others:  # gate, then up, of every expert
        value = torch.cat([value, others[0][1]], dim=1)
    if known.norm_offset and "norm.weight" in name:
        value = value - known.norm_offset
    if known.permutes_rope and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        # Rows of a head: pairs that rotate together stand side by side in the file, half a head apart here.
        value = value.reshape(heads, -1, 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)
    if known.transposes and re.search(r"(attn_qkv|attn_output|ffn_up|ffn_down)\.weight", name):
        value = value.T
    return value
