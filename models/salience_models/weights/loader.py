"""Load a model and its tokenizer from any source, ready for inference.

Everything is resolved to one folder of safetensors first (a bundled model is pulled, a GGUF file dequantised,
a hub repository fetched), checked, and then read by transformers without remote code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from salience_models.constraints.vocabulary import Vocabulary, read_vocabulary
from salience_models.errors import (
    ModelDoesNotFit,
    SourceNotFound,
    UnknownArchitecture,
    WeightsUnreadable,
)
from salience_models.weights.architecture import check_config, check_implementation, check_model, text_config
from salience_models.weights.bundled import pull
from salience_models.weights.bundled_catalog import find_bundled
from salience_models.weights.cache_folder import default_cache_dir
from salience_models.weights.gguf_cache import (
    convert_gguf,
    file_quantization,
    hash_file,
    load_converted_tokenizer,
)
from salience_models.weights.model_info import (
    ModelInfo,
    fingerprint_folder,
    info_from_model,
    read_eos_token_ids,
)
from salience_models.weights.placement import check_fits, resolve_device, resolve_dtype, resolve_quantization
from salience_models.weights.quiet import quiet_transformers
from salience_models.weights.sources import (
    ModelSource,
    SourceKind,
    check_folder,
    fetch_hub,
    parse_source,
    read_config,
)


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode without gradients, its tokenizer, and what is known of them."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    info: ModelInfo


def load_model(
    source: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | dict[str, Any] | None = None,
    quantization: str | None = None,
    cache_dir: Path | None = None,
    attn_implementation: str = "eager",
    progress: Callable[[str], None] | None = None,
) -> LoadedModel:
    """Load a causal language model whose attention can be steered.

    Args:
        source: `bundled:NAME`, a hub id, a folder, or a `.gguf` file.
        revision: Branch, tag or commit of a hub id.
        device: "auto" (CUDA where there is one), "cpu" or "cuda:N".
        dtype: "auto" (bfloat16 on CUDA, float32 on CPU), "float32", "bfloat16" or "float16".
        device_map: accelerate's placement of the layers, such as "auto"; then `device` stays "auto".
        quantization: "bnb-4bit" or "bnb-8bit", on CUDA, with bitsandbytes installed.
        cache_dir: Root of Salience's cache; hub models stay in the hub's own.
        attn_implementation: A name in transformers' attention interface, registered before.
        progress: Called with one line before a download or a conversion.

    Returns:
        The tokenizer pads on the left, and with EOS where it has no padding token.

    Raises:
        ModelsError: The branches from `SourceNotFound` to `QuantizationUnavailable` in `errors.py`.
        ValueError: An argument outside its choices.
    """
    if device_map is not None and device != "auto":
        raise ValueError(f'device must be "auto" beside a device_map, got {device!r}')
    parsed = parse_source(source, revision)
    target = resolve_device(device)
    parameter_dtype = resolve_dtype(dtype, target)
    settings = resolve_quantization(quantization, target, parameter_dtype)
    folder, commit, sha256 = _resolve_folder(parsed, cache_dir or default_cache_dir(), progress)
    with quiet_transformers():
        config = _read_config(folder)
        check_config(config)
        if device_map is None:
            check_fits(folder, target, parameter_dtype, quantization)
        with _load_errors(folder, target):
            tokenizer = _load_tokenizer(folder)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=parameter_dtype,
                attn_implementation=attn_implementation,
                device_map=device_map or (None if target.type == "cpu" else {"": target}),
                quantization_config=settings,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    model, report = loaded
    # transformers only warns when it fills parameters with noise.
    if missing := sorted(report["missing_keys"]):
        raise WeightsUnreadable(
            f"{folder.name} must hold every parameter of its architecture, got {len(missing)} missing, "
            f"first {missing[0]}"
        )
    # Nor does it do more where the configuration leaves out layers or biases that the file has. Towers of
    # other senses are left out on purpose: only the text decoder is loaded.
    towers = ("vision", "visual", "image", "audio", "speech")
    left_out = [n for n in sorted(report["unexpected_keys"]) if not any(tower in n for tower in towers)]
    if left_out:
        raise WeightsUnreadable(
            f"{folder.name} must hold only parameters that its config.json has a place for, "
            f"got {len(left_out)} that would be left out, first {left_out[0]}"
        )
    if mismatched := sorted(report["mismatched_keys"]):
        parameter, found, expected = mismatched[0]
        raise WeightsUnreadable(
            f"{folder.name} must hold parameters of the shape that config.json implies, "
            f"got {parameter} {list(found)} instead of {list(expected)}"
        )
    check_implementation(model, attn_implementation)
    model.eval().requires_grad_(False)
    check_model(model)
    info = info_from_model(
        model,
        tokenizer,
        source=parsed.text,
        revision=commit,
        path=folder,
        quantization=quantization,
        file_quantization=file_quantization(folder),
        weights_sha256=sha256,
    )
    return LoadedModel(model, tokenizer, info)


def load_vocabulary(
    source: str | Path, *, revision: str | None = None, cache_dir: Path | None = None
) -> Vocabulary:
    """What rules are compiled for, without the weights: they are neither read nor fetched.

    Equal to the `vocabulary` of the loaded model. A bundled model or a GGUF file is converted at its first
    use; a folder may hold config.json and a tokenizer alone.

    Raises:
        ModelsError: As `load_model`, and where the tokenizer's text is not the concatenation of its tokens.
    """
    parsed = parse_source(source, revision)
    if parsed.kind is SourceKind.HUB:
        folder, _ = fetch_hub(parsed, with_weights=False)
    elif parsed.path is not None and parsed.kind is SourceKind.FOLDER:
        folder = parsed.path
    else:
        folder, _, _ = _resolve_folder(parsed, cache_dir or default_cache_dir(), None)
    check_folder(folder, with_weights=False)
    with quiet_transformers():
        config, tokenizer, generation = _read_config(folder), _load_tokenizer(folder), None
        if (folder / "generation_config.json").is_file():
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return read_vocabulary(
        tokenizer,
        n_vocab=text_config(config).vocab_size,
        eos_token_ids=read_eos_token_ids(generation, config, tokenizer),
    )


def _resolve_folder(
    source: ModelSource, cache_dir: Path, progress: Callable[[str], None] | None
) -> tuple[Path, str | None, str]:
    """The folder to load, the hub commit and the weights' hash."""
    if source.kind is SourceKind.BUNDLED:
        bundled = find_bundled(source.name)
        if not bundled.is_language_model:
            raise SourceNotFound(f"source must be a language model, got the embedder {source.text}")
        gguf_file, sha256 = pull(source.name, cache_dir, progress), bundled.weights_sha256
        return convert_gguf(gguf_file, cache_dir, sha256=sha256, progress=progress), None, sha256
    if source.kind is SourceKind.HUB:
        folder, commit = fetch_hub(source)
        check_folder(folder)
        return folder, commit, fingerprint_folder(folder)
    assert source.path is not None
    if source.kind is SourceKind.GGUF:
        sha256 = hash_file(source.path)
        return convert_gguf(source.path, cache_dir, sha256=sha256, progress=progress), None, sha256
    check_folder(source.path)
    return source.path, None, fingerprint_folder(source.path)


def _read_config(folder: Path) -> PretrainedConfig:
    model_type = read_config(folder)["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise UnknownArchitecture(
            f"model_type must be one that this transformers knows, got {model_type!r} "
            "(code shipped inside a model folder is never run)"
        )
    return AutoConfig.from_pretrained(folder, local_files_only=True)


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    tokenizer = load_converted_tokenizer(folder)
    if tokenizer is None:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _load_errors(folder: Path, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelDoesNotFit(f"free memory on {device} must hold {folder.name}, got: {error}") from error
    except SafetensorError as error:
        raise WeightsUnreadable(f"weights of {folder.name} must be whole safetensors, got {error}") from error
    except RuntimeError as error:
        if "not enough memory" in str(error) or "can't allocate memory" in str(error):
            raise ModelDoesNotFit(f"free memory on {device} must hold {folder.name}, got: {error}") from error
        raise
