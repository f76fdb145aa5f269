"""`salience doctor`: what this machine and this installation will run, and why."""

import platform
from importlib import metadata

import torch
import typer
from rich.console import Console
from rich.table import Table

from salience.config import load_settings
from salience.errors import ConflictingInstall
from salience_kernels import ImplUnavailable, KeyBiasImpl, key_bias_attention
from salience_models.weights.cache_folder import default_cache_dir

__all__ = ["add_commands"]

_LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "sentence-transformers",
    "pydantic",
    "faiss-cpu",
    "faiss-gpu",
)


_WHY = {
    "cpu": "auto takes native, torch's fused CPU kernel with a bias row: as fast as plain attention. Where\n"
    "its self-test fails, or scores are soft-capped, auto takes chunked; for mass of all rows, segmented.",
    "cuda": "auto takes chunked: exact, linear in memory, slower than plain attention; native is CPU only.",
}


def add_commands(app: typer.Typer) -> None:
    """Add `doctor`."""
    app.command()(doctor)


def doctor() -> None:
    """Show device, versions, and which attention implementation will run here and why the others will not.

    Fails where faiss-cpu and faiss-gpu are both installed: they overwrite each other's files.
    """
    console = Console(highlight=False)
    settings = load_settings()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table(show_header=False, box=None)
    table.add_row("device", _device(device))
    table.add_row("salience", _version("salience") or "not installed")
    table.add_row("python", platform.python_version())
    installed = {name: _version(name) for name in _LIBRARIES}
    for name, version in installed.items():
        table.add_row(name, version or "not installed")
    table.add_row("cache", str(settings.cache_dir or default_cache_dir()))
    table.add_row("data", str(settings.data_dir or "not set (SALIENCE_DATA)"))
    console.print(table)
    dtypes = [torch.float32, torch.bfloat16]
    impls = Table("attention", *(str(d).removeprefix("torch.") for d in dtypes), title="Implementations")
    for impl in KeyBiasImpl:
        impls.add_row(impl.value, *(_trial(impl, device, dtype) for dtype in dtypes))
    console.print(impls)
    console.print(_WHY[device])
    if installed["faiss-cpu"] and installed["faiss-gpu"]:
        raise ConflictingInstall(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other: uninstall both, then "
            "install the extra 'cpu' or 'gpu'"
        )
    if not (installed["faiss-cpu"] or installed["faiss-gpu"]):
        console.print("recall needs FAISS: install the extra 'cpu', or 'gpu' beside an NVIDIA driver")


def _device(device: str) -> str:
    if device == "cuda":
        return f"cuda ({torch.cuda.get_device_name()})"
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads; no CUDA device found)"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _trial(impl: KeyBiasImpl, device: str, dtype: torch.dtype) -> str:
    """Run a small biased prefill: "runs", which one auto chose, or the reason it cannot."""
    query = torch.ones(1, 4, 8, 16, device=device, dtype=dtype)
    key = torch.ones(1, 2, 8, 16, device=device, dtype=dtype)
    bias = torch.zeros(1, 1, 8, device=device)
    try:
        result = key_bias_attention(query, key, key, key_bias=bias, scale=0.25, causal=True, impl=impl)
    except ImplUnavailable as error:
        return str(error)
    return f"chooses {result.impl}" if impl is KeyBiasImpl.AUTO else "runs"
