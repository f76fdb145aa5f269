"""Dequantise a GGUF file once; later loads read safetensors.

transformers unpacks GGUF tensors one after the other into a model that has to be saved again: 105 s for Qwen
0.5B on one busy core. Here each goes from its place in the one file to its place in the other, in parallel.
The cache is in float32, bit for bit as dequantised (a Q4_1 value is scale times 4-bit integer plus offset, in
float32: bfloat16 would round it), beside the tokenizer with its chat template and special tokens. The folder
is an ordinary transformers checkpoint.
"""

import hashlib
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES
from tqdm import tqdm
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from salience_models.errors import ModelsError, WeightsUnreadable
from salience_models.weights.cache_folder import cache_writes, locked, new_folder
from salience_models.weights.gguf_file import (
    GgufFile,
    GgufTensor,
    match_tensors,
    read_config,
    read_gguf,
    read_tensor,
    shape_parameter,
)
from salience_models.weights.gguf_tokenizer import build_tokenizer, eos_token_ids
from salience_models.weights.quiet import quiet_transformers

FORMAT = 2
"""Part of the folder's name: raised when what the folder holds changes, so that old folders are not read."""

_STAMP = "salience_gguf.json"
_JOB_VALUES = 1 << 22
"""Values that one thread unpacks at a time of the two largest tensors: 16 MB of float32."""


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
        WeightsUnreadable: Not a GGUF file, a torn one, one that lacks parameters, or one with metadata or
            tensors that would be left out.
        UnknownArchitecture: None of those that `gguf_file` accounts for.
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
            with new_folder(folder) as partial, quiet_transformers():
                file = read_gguf(gguf_file)
                _convert(file, partial)
                sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
                stamp = {
                    "gguf_sha256": sha256,
                    "format": FORMAT,
                    "quantization": file.quantization,
                    "file_bytes": sizes,
                }
                (partial / _STAMP).write_text(json.dumps(stamp, indent=1))
    return folder


def hash_file(path: Path) -> str:
    """sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_quantization(folder: Path) -> str | None:
    """The quantisation of the GGUF file that `folder` was written from; None if it was not."""
    stamp = folder / _STAMP
    return json.loads(stamp.read_text())["quantization"] if stamp.is_file() else None


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


def _convert(file: GgufFile, folder: Path) -> None:
    try:
        config = read_config(file)
        sources = match_tensors(file, config)
        tokenizer = build_tokenizer(file.path, file.metadata)
    except (ModelsError, MemoryError):
        raise
    except Exception as error:  # transformers and tokenizers raise whatever a wrong value led to
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise WeightsUnreadable(f"{file.path.name} must be a whole GGUF file, got {error}") from error
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos_token_ids(file.metadata) or None,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Without indentation: 33 MB become 14 for Gemma, and parse in half the time.
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_weights(file, config, sources, folder / "model.safetensors")


def _write_weights(
    file: GgufFile,
    config: PretrainedConfig,
    sources: dict[str, tuple[torch.Size, tuple[GgufTensor, ...]]],
    path: Path,
) -> None:
    """Unpack every tensor to its place in one safetensors file, on as many threads as torch may use.

    The model is never built, and beside the page cache no more than a few tensors are in memory.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, _) in sources.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as sink:
        sink.write(len(encoded).to_bytes(8, "little") + encoded)
        data_start = sink.tell()
        sink.truncate(data_start + end)
    values = torch.from_numpy(np.memmap(path, np.float32, "r+", data_start, (end // 4,)))

    def unpack(name: str, blocks: slice) -> int:
        start = header[name]["data_offsets"][0] // 4
        tensors = sources[name][1]
        if blocks == slice(None):
            parts = {tensor.name: read_tensor(file, tensor) for tensor in tensors}
            part = shape_parameter(file.metadata["general.architecture"], config, parts).reshape(-1)
        else:
            part = read_tensor(file, tensors[0], blocks)
            start += blocks.start * GGML_QUANT_SIZES[tensors[0].kind][0]
        values[start : start + len(part)] = part
        return 4 * len(part)

    jobs: list[tuple[str, slice]] = []
    for name, (_, tensors) in sources.items():
        # Embedding and output are the largest and the same in both worlds: cut, they keep all threads busy.
        if tensors[0].name in ("token_embd.weight", "output.weight"):
            block_values, block_bytes = GGML_QUANT_SIZES[tensors[0].kind]
            n_blocks, step = tensors[0].n_bytes // block_bytes, max(1, _JOB_VALUES // block_values)
            jobs += [(name, slice(at, min(at + step, n_blocks))) for at in range(0, n_blocks, step)]
        else:
            jobs.append((name, slice(None)))
    with (
        ThreadPoolExecutor(torch.get_num_threads()) as pool,
        # On stderr; without a terminal (disable=None) nothing.
        tqdm(total=end, desc=f"unpacking {file.path.name}", unit="B", unit_scale=True, disable=None) as bar,
    ):
        for done in as_completed([pool.submit(unpack, *job) for job in jobs]):
            bar.update(done.result())
