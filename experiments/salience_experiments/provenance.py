"""Where a result comes from: commit, versions, device and threads."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from salience_models import LanguageModel

__all__ = ["describe_commit", "describe_device", "describe_model", "describe_versions"]

_DISTRIBUTIONS = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "sentence-transformers",
    "faiss-cpu",
    "faiss-gpu",
    "llguidance",
    "xgrammar",
)


def describe_commit() -> tuple[str, bool]:
    """Commit of this source tree, and whether its files differ from it; ("unknown", True) outside git."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        root = git("rev-parse", "--show-toplevel")
        if not (Path(root) / "experiments" / "salience_experiments").is_dir():
            return "unknown", True
        status = git("status", "--porcelain", "--", root, f":(exclude){root}/experiments/results")
        return git("rev-parse", "HEAD"), bool(status)
    except (OSError, subprocess.SubprocessError):
        return "unknown", True


def describe_versions() -> dict[str, str]:
    """Python and the libraries that results depend on."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def describe_device(device: torch.device) -> str:
    """The device in words: the GPU's name, or the processor and its threads."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads)"


def describe_model(lm: LanguageModel) -> dict[str, object]:
    """The model's identity, without the path it was read from."""
    info = lm.info
    return {
        "source": info.source,
        "revision": info.revision,
        "architecture": info.architecture,
        "weights_sha256": info.weights_sha256,
        "dtype": str(info.dtype).removeprefix("torch."),
        "quantization": info.quantization,
        "file_quantization": info.file_quantization,
        "n_layers": info.n_layers,
        "n_heads": info.n_heads,
        "context_window": info.context_window,
    }
