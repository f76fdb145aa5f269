"""Projections: what can be built again from the store's rows, and how one is kept on disk."""

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from salience_memory.store.rows import Change, ProjectionRow, VectorBatch

__all__ = ["ProjectedStore", "Projection", "forgotten_since", "is_of_store", "replace_file", "write_sealed"]

_CHANGES_AT_ONCE = 10_000
_COMPARED_ROWS = 64


class ProjectedStore(Protocol):
    """What a projection reads of a store. `MemoryStore` is one."""

    def latest_seq(self) -> int: ...

    def changes_since(self, seq: int, *, limit: int = 1000) -> Sequence[Change]: ...

    def iter_rows(self, after_seq: int = 0) -> Iterable[ProjectionRow]: ...

    def iter_vectors(self, fingerprint: str, *, after_seq: int = 0) -> Iterable[VectorBatch]: ...


class Projection(Protocol):
    """An index over the store's rows. Never the truth: what it finds is looked up in the rows."""

    @property
    def applied_seq(self) -> int:
        """The store's `seq` that this holds everything up to."""
        ...

    @property
    def fingerprint(self) -> str:
        """The embedding, or the way of cutting text, that this was built with."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of the content, in hex: equal rows give equal hashes, whatever order they came in."""
        ...

    def newest(self, count: int) -> dict[str, int]:
        """The `seq`s of the rows applied last, by id."""
        ...

    def catch_up(self, store: ProjectedStore) -> None:
        """Apply what changed since `applied_seq`."""
        ...

    def rebuild(self, store: ProjectedStore) -> None:
        """Forget everything and read all rows."""
        ...

    def find_differences(self, store: ProjectedStore) -> list[str]:
        """Ids of the memories that this holds otherwise than the rows do, or lacks, or holds too much."""
        ...


def forgotten_since(store: ProjectedStore, seq: int, until: int) -> list[str]:
    """Memories deleted by the changes after `seq`, up to `until`, that were not stored again."""
    found: list[str] = []
    while seq < until:
        changes = store.changes_since(seq, limit=_CHANGES_AT_ONCE)
        found += [change.memory_id for change in changes if change.kind == "delete"]
        if len(changes) < _CHANGES_AT_ONCE:
            break
        seq = changes[-1].seq
    return found


def is_of_store(projection: Projection, store: ProjectedStore) -> bool:
    """Whether the rows applied last are the store's: not if it was restored from a copy or is another one."""
    newest = projection.newest(_COMPARED_ROWS)
    if not newest:
        return True
    seq, now = min(newest.values()) - 1, dict[str, int]()
    while changes := store.changes_since(seq, limit=_CHANGES_AT_ONCE):
        now |= {change.memory_id: change.seq for change in changes if change.memory_id in newest}
        seq = changes[-1].seq
    return store.latest_seq() >= projection.applied_seq and all(
        now.get(memory_id) == applied or now.get(memory_id, 0) > projection.applied_seq
        for memory_id, applied in newest.items()
    )


@contextmanager
def replace_file(path: Path) -> Generator[Path]:
    """A path to write to; when the block ends the file there takes `path`'s place, on disk and at once.

    On an exception `path` is as it was and nothing else is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        _sync(temporary, os.O_RDONLY)
        os.replace(temporary, path)
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        temporary.unlink(missing_ok=True)


def write_sealed(path: Path, parts: Callable[[], Iterator[bytes | memoryview]]) -> None:
    """Write a file that begins with the SHA-256 of what follows, by `replace_file`."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with replace_file(path) as temporary, os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(bytes(hashlib.sha256().digest_size))
        digest = hashlib.sha256()
        for part in parts():
            digest.update(part)
            file.write(part)
        file.seek(0)
        file.write(digest.digest())


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
