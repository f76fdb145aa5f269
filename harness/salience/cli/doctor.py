"""`salience doctor`: what this machine and this installation will run, and why."""

import platform
from importlib import metadata
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from salience.cli.models import describe_models
from salience.cli.options import JsonOption
from salience.cli.terminal import print_json
from salience.config import load_settings
from salience.errors import ConflictingInstall
from salience_models.weights.cache_folder import default_cache_dir

if TYPE_CHECKING:
    import torch

    from salience_kernels import KeyBiasImpl

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


def doctor(json: JsonOption = False) -> None:
    """Show device, versions, and which attention implementation will run here and why the others will not.

    Of each bundled language model the quantisation of its file and the dtype it is computed in. Fails where
    faiss-cpu and faiss-gpu are both installed: they overwrite each other's files.
    """
    import torch

    from salience_kernels import KeyBiasImpl
    from salience_models.weights.placement import resolve_device, resolve_dtype

    settings = load_settings()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        words = f"cuda ({torch.cuda.get_device_name()})"
    else:
        words = f"cpu ({platform.machine()}, {torch.get_num_threads()} threads; no CUDA device found)"
    versions: dict[str, str | None] = {}
    for name in ("salience", *_LIBRARIES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    attention = {
        impl.value: {name: _trial(impl, device, dtype) for name, dtype in dtypes.items()}
        for impl in KeyBiasImpl
    }
    computed_in = str(resolve_dtype("auto", resolve_device("auto"))).removeprefix("torch.")
    models = [
        {"computed_in": computed_in, **model}
        for model in describe_models()
        if model["what"] == "language model"
    ]
    if versions["faiss-cpu"] and versions["faiss-gpu"]:
        raise ConflictingInstall(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other: uninstall both, then "
            "install the extra 'cpu' or 'gpu'"
        )
    if json:
        print_json(
            {
                "device": words,
                "python": platform.python_version(),
                "versions": versions,
                "cache": str(settings.cache_dir or default_cache_dir()),
                "data": None if settings.data_dir is None else str(settings.data_dir),
                "attention": attention,
                "models": models,
            }
        )
        return
    console = Console(highlight=False)
    table = Table(show_header=False, box=None)
    table.add_row("device", words)
    table.add_row("python", platform.python_version())
    for name, version in versions.items():
        table.add_row(name, version or "not installed")
    table.add_row("cache", str(settings.cache_dir or default_cache_dir()))
    table.add_row("data", str(settings.data_dir or "not set (SALIENCE_DATA)"))
    console.print(table)
    impls = Table("attention", *dtypes, title="Implementations")
    for impl, outcomes in attention.items():
        impls.add_row(impl, *outcomes.values())
    console.print(impls)
    console.print(_WHY[device])
    for model in models:
        state = "in the cache" if model["path"] else "not pulled yet"
        console.print(
            f"{model['name']}: a {model['file_quantization']} file, computed in {computed_in}; {state}"
        )
    if not (versions["faiss-cpu"] or versions["faiss-gpu"]):
        console.print("recall needs FAISS: install the extra 'cpu', or 'gpu' beside an NVIDIA driver")


def _trial(impl: "KeyBiasImpl", device: str, dtype: "torch.dtype") -> str:
    """Run a small biased prefill: "runs", which one auto chose, or the reason it cannot."""
    import torch

    from salience_kernels import ImplUnavailable, KeyBiasImpl, key_bias_attention

    query = torch.ones(1, 4, 8, 16, device=device, dtype=dtype)
    key = torch.ones(1, 2, 8, 16, device=device, dtype=dtype)
    bias = torch.zeros(1, 1, 8, device=device)
    try:
        result = key_bias_attention(query, key, key, key_bias=bias, scale=0.25, causal=True, impl=impl)
    except ImplUnavailable as error:
        return str(error)
    return f"chooses {result.impl}" if impl is KeyBiasImpl.AUTO else "runs"
