"""Where a model goes and in what form: device, dtype, quantisation, and whether it fits."""

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import torch

from salience_models.errors import (
    DeviceUnavailable,
    ModelDoesNotFit,
    QuantizationUnavailable,
    WeightsUnreadable,
)
from salience_models.weights.model_info import weight_files

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_QUANTIZED_BYTES = {"bnb-4bit": 0.6, "bnb-8bit": 1.1}
"""Bytes a parameter takes, its scales and the layers left in 16 bit included; approximate."""

_GIB = 2**30


def resolve_device(device: str) -> torch.device:
    """The torch device for "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:N".

    Raises:
        DeviceUnavailable: CUDA is asked for and this machine or this build of torch has none, or fewer.
        ValueError: Any other text.
    """
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return torch.device("cpu")
    name, _, index = device.partition(":")
    if name != "cuda" or not (index.isdecimal() or device == "cuda"):
        raise ValueError(f'device must be "auto", "cpu", "cuda" or "cuda:N", got {device!r}')
    if not torch.cuda.is_available():
        built = "this machine shows no CUDA device" if torch.version.cuda else "torch was built without CUDA"
        raise DeviceUnavailable(f"device must be available, got {device!r} ({built})")
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise DeviceUnavailable(f"device must be below cuda:{count}, got {device!r}")
    return torch.device("cuda", int(index or 0))


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The parameters' dtype; "auto" is bfloat16 on a CUDA device that computes in it, float32 elsewhere.

    A CPU gets float32 because it decodes 5 to 7 times slower in bfloat16; a GPU without bfloat16 gets float32
    because Gemma's activations overflow float16. Name float16 to halve the memory there.
    """
    if dtype == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be auto, {', '.join(_DTYPES)}, got {dtype!r}")
    return _DTYPES[dtype]


def resolve_quantization(quantization: str | None, device: torch.device, dtype: torch.dtype) -> Any:
    """transformers' settings for a quantisation, or None.

    Raises:
        QuantizationUnavailable: No CUDA device, or bitsandbytes is not installed.
        ValueError: An unknown name.
    """
    if quantization is None:
        return None
    if quantization not in _QUANTIZED_BYTES:
        raise ValueError(f"quantization must be None, {', '.join(_QUANTIZED_BYTES)}, got {quantization!r}")
    if device.type != "cuda":
        raise QuantizationUnavailable(f"quantization {quantization} needs a CUDA device, got device {device}")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise QuantizationUnavailable(
            f"quantization {quantization} needs the package bitsandbytes, got none (pip install bitsandbytes)"
        )
    from transformers import BitsAndBytesConfig

    if quantization == "bnb-8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def check_fits(folder: Path, device: torch.device, dtype: torch.dtype, quantization: str | None) -> None:
    """Compare the weights with the device's free memory before reading them.

    Activations and the key/value cache come on top and are not counted.

    Raises:
        ModelDoesNotFit: With both figures in GiB.
    """
    bytes_each = _QUANTIZED_BYTES[quantization] if quantization else dtype.itemsize
    needed = count_parameters(folder) * bytes_each
    free = free_bytes(device)
    if free is not None and needed > free:
        raise ModelDoesNotFit(
            f"free memory on {device} must be at least {needed / _GIB:.1f} GiB for the weights of "
            f"{folder.name}, got {free / _GIB:.1f} GiB"
        )


def count_parameters(folder: Path) -> int:
    """Parameters in a folder's weights files, from the safetensors headers alone.

    The older PyTorch format has no header to read: half its size in bytes, as if in 16 bit.
    """
    total = 0
    for path in weight_files(folder):
        if path.suffix == ".bin":
            total += path.stat().st_size // 2
            continue
        for name, tensor in read_header(path).items():
            if name != "__metadata__":
                total += torch.Size(tensor["shape"]).numel()
    return total


def read_header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file: tensor names, dtypes, shapes and offsets.

    Raises:
        WeightsUnreadable: The file has no such header.
    """
    with path.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            return json.loads(file.read(min(length, path.stat().st_size)))
        except (struct.error, ValueError) as error:
            raise WeightsUnreadable(f"{path.name} must be a safetensors file, got {error}") from error


def free_bytes(device: torch.device) -> int | None:
    """Memory that a load could take, in bytes; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
