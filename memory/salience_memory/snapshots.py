"""Snapshots: memories with their histories as a file of JSON lines that carries its own hash.

    {"format": "salience-memory-snapshot", "version": 1}
    {"memory_id": ..., "created_ns": ..., "used_ns": ..., "versions": [...]}      one line a memory, by id
    {"memories": n, "sha256": "..."}                                              of all lines above

Vectors are left out, as they are computed anew; so are episodes, tasks and audit events.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from salience_memory.clock import Clock, from_ns, system_clock
from salience_memory.errors import SnapshotInvalid
from salience_memory.index.projection import replace_file
from salience_memory.scopes import Viewer
from salience_memory.store.memory_store import MemoryStore
from salience_memory.store.restoring import ImportReport, MemoryRecord
from salience_memory.store.rows import describe_fault, encode_json

__all__ = ["export_snapshot", "import_snapshot"]

_HEADER = {"format": "salience-memory-snapshot", "version": 1}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE_NAME = re.compile(r".+_\d{8}_sha256_([0-9a-f]{8})\.jsonl")


def export_snapshot(
    store: MemoryStore,
    folder: Path,
    *,
    viewer: Viewer | None = None,
    name: str = "memories",
    clock: Clock = system_clock,
) -> Path:
    """Write `name_YYYYMMDD_sha256_xxxxxxxx.jsonl`: one state, the same bytes whenever and by whomever.

    Args:
        store: What is exported, archived and expired memories too.
        folder: Where to; it is made.
        viewer: Only what this viewer sees; default, everything.
        name: How the file's name begins.
        clock: For the day, in UTC, in the file's name; nothing of it is in the file.

    Returns:
        The file; the eight digits are of the SHA-256 of its bytes.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be up to 64 letters, digits and ._- of ASCII, got {name!r}")
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    partial = folder / f"{name}.{os.getpid()}.partial"
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            for line in _lines(store, viewer):
                digest.update(line)
                file.write(line)
        day = from_ns(clock()).strftime("%Y%m%d")
        path = folder / f"{name}_{day}_sha256_{digest.hexdigest()[:8]}.jsonl"
        with replace_file(path) as temporary:
            partial.replace(temporary)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _lines(store: MemoryStore, viewer: Viewer | None) -> Iterator[bytes]:
    digest, count = hashlib.sha256(), 0
    line = _line(_HEADER)
    digest.update(line)
    yield line
    for record in store.iter_records(viewer):
        line = _line(
            record.model_dump(mode="json", exclude={"versions": {"__all__": {"memory": {"freshness"}}}})
        )
        digest.update(line)
        count += 1
        yield line
    yield _line({"memories": count, "sha256": digest.hexdigest()})


def _line(fields: dict[str, Any]) -> bytes:
    return encode_json(fields, "a snapshot's line").encode() + b"\n"


def import_snapshot(
    store: MemoryStore, path: Path, *, viewer: Viewer | None = None, restore_forgotten: bool = False
) -> ImportReport:
    """Take a snapshot's memories into a store, all or none. What the store has is never overwritten.

    A memory that follows on the store's version is brought up to date; one with another history is left out
    and reported; one that was forgotten here stays forgotten unless asked for.

    Args:
        store: Where to.
        path: A file of `export_snapshot`.
        viewer: Refuse a snapshot that holds anything this viewer may not see.
        restore_forgotten: Bring back what was forgotten.

    Raises:
        SnapshotInvalid: The file is cut off, changed or of another format, or not the viewer's alone.
        ValueError: A constraint's rule cannot be enforced.
    """
    records = _read(path)
    if viewer is not None:
        for record in records:
            memory = record.current.memory
            if not viewer.can_see(memory.scope, memory.user_id, memory.session_id):
                raise SnapshotInvalid(f"{path} must hold this viewer's memories alone, got others' as well")
    return store.restore(records, restore_forgotten=restore_forgotten)


def _read(path: Path) -> list[MemoryRecord]:
    data = path.read_bytes()
    named = _FILE_NAME.fullmatch(path.name)
    if named and hashlib.sha256(data).hexdigest()[:8] != named.group(1):
        raise SnapshotInvalid(f"{path} must have the hash its name says, got another")
    *lines, last = data.splitlines(keepends=True) or [b""]
    trailer = {"memories": len(lines) - 1, "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    if not lines or _json_of(lines[0]) != _HEADER:
        raise SnapshotInvalid(f"{path} must begin with {json.dumps(_HEADER)}, got another line")
    if _json_of(last) != trailer:
        raise SnapshotInvalid(
            f"{path} must end with the number and the hash of its lines: cut off or changed"
        )
    try:
        records = [MemoryRecord.model_validate_json(line) for line in lines[1:]]
    except ValueError as error:
        raise SnapshotInvalid(f"{path} must hold valid memories: {describe_fault(error)}") from error
    if len({record.memory_id for record in records}) != len(records):
        raise SnapshotInvalid(f"{path} must hold each memory once")
    return records


def _json_of(line: bytes) -> object:
    """A line's value; None for what is no JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None
