"""Dequantise a GGUF file once; later loads read safetensors.

transformers unpacks GGUF tensors in Python at every load: 15 s for SmolLM2 135M, 40 s for Gemma 3 270M on two
cores. The cache keeps the result in float32, bit for bit as dequantised (a Q4_1
value is scale times 4-bit integer plus offset, in float32: bfloat16 would round it), beside the tokenizer
with its chat template and special tokens. The folder is an ordinary transformers checkpoint.
"""

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from salience_models.errors import UnknownArchitecture, WeightsUnreadable
from salience_models.weights.cache_folder import cache_writes, locked, new_folder
from salience_models.weights.gguf_metadata import read_metadata
from salience_models.weights.gguf_tokenizer import build_tokenizer, eos_token_ids
from salience_models.weights.load_report import check_report
from salience_models.weights.quiet import quiet_transformers

FORMAT = 1
"""Part of the folder's name: raised when what the folder holds changes, so that old folders are not read."""

_STAMP = "salience_gguf.json"


def convert_gguf(
    gguf_file: Path,
    cache_dir: Path,
    *,
    sha256: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Return the safetensors folder of `gguf_file`, writing it at the first call.

    Args:
        gguf_file: One file; a model split over several is refused by its missing parameters.
        cache_dir: Root of the cache.
        sha256: The file's hash where the caller knows it, which saves reading the file.
        progress: Called with one line of text before a conversion.

    Raises:
        WeightsUnreadable: Not a GGUF file, a torn one, or one that lacks parameters.
        UnknownArchitecture: transformers cannot read this architecture from GGUF.
        CacheNotWritable: The cache folder refuses files, or the disk is full.
    """
    sha256 = sha256 or hash_file(gguf_file)
    folder = cache_dir / "gguf" / f"{sha256}-f{FORMAT}"
    if _is_complete(folder):
        return folder
    with cache_writes(cache_dir), locked(folder):
        if not _is_complete(folder):
            if progress is not None:
                progress(f"converting {gguf_file.name} to safetensors, once")
            with new_folder(folder) as partial:
                _convert(gguf_file, partial)
                sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
                stamp = {"gguf_sha256": sha256, "format": FORMAT, "file_bytes": sizes}
                (partial / _STAMP).write_text(json.dumps(stamp, indent=1))
    return folder


def hash_file(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_converted_tokenizer(folder: Path) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a folder that `convert_gguf` wrote; None if another hand wrote the folder.

    `AutoTokenizer` reads a large tokenizer.json in Python to learn its class and then again in Rust; the
    class of a converted one is known, which saves Gemma 2 s of 3.
    """
    if not (folder / _STAMP).is_file():
        return None
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    template = folder / "chat_template.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template=template.read_text() if template.is_file() else None,
        **{name: config[name] for name in names if config.get(name)},
    )


def _is_complete(folder: Path) -> bool:
    """Whether every file that the stamp lists has its full size: cheap, and catches a torn disk."""
    stamp = folder / _STAMP
    if not stamp.is_file():
        return False
    sizes: dict[str, int] = json.loads(stamp.read_text())["file_bytes"]
    files = [folder / name for name in sizes]
    return all(path.is_file() and path.stat().st_size == sizes[path.name] for path in files)


def _convert(gguf_file: Path, folder: Path) -> None:
    metadata = read_metadata(gguf_file)
    # The dequantising loop draws a bar on stderr that no setting of transformers silences.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        model, tokenizer = _read(gguf_file, metadata)
        # Newer transformers marks the model as GGUF-quantised and refuses to save it, dequantised or not.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=eos_token_ids(metadata) or None,
            pad_token_id=tokenizer.pad_token_id,
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        # Without indentation: 33 MB become 14 for Gemma, and parse in half the time.
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def _read(gguf_file: Path, metadata: dict[str, Any]) -> tuple[Any, PreTrainedTokenizerFast]:
    # Where a matmul kernel is installed, newer versions would leave the weights packed.
    packed = getattr(transformers, "GgufConfig", None)
    unpack = {} if packed is None else {"quantization_config": packed(dequantize=True)}
    try:
        tokenizer = build_tokenizer(gguf_file, metadata)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent,
            gguf_file=gguf_file.name,
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **unpack,
        )
    except MemoryError:
        raise
    except Exception as error:  # transformers and gguf raise whatever a torn byte led to
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if "not supported" in str(error):
            raise UnknownArchitecture(
                f"architecture of {gguf_file.name} must be one that transformers reads from GGUF, "
                f"got {metadata.get('general.architecture')!r}"
            ) from error
        raise WeightsUnreadable(f"{gguf_file.name} must be a whole GGUF file, got {error}") from error
    model, report = loaded
    check_report(gguf_file.name, report)
    return model, tokenizer
