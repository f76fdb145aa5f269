"""Changing memories: new versions, and marks that make none."""

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import MemoryNotFound, VersionConflict
from salience_memory.records import Memory, MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store.bodies import complete_tags, decode_body, encode_body, with_status_tag
from salience_memory.store.store_part import can_see
from salience_memory.store.versioning import ChangeOrigin, VersionWriting, refuse_read_only

__all__ = ["MemoryChanging"]

_FIXED = ("memory_id", "scope", "user_id", "session_id", "freshness")
"""What an update leaves: whose and which memory it is, and what is computed on reading."""


class MemoryChanging(VersionWriting):
    """What changes stored memories. Nothing here destroys: what a version said stays in the history."""

    def update(
        self,
        memory_id: str,
        viewer: Viewer,
        *,
        changes: Mapping[str, object],
        reason: str,
        actor: str = "",
        expected_version: int | None = None,
        vector: NDArray[np.float32] | None = None,
        fingerprint: str | None = None,
    ) -> StoredMemory:
        """Change fields of a memory by a new version; what it said before stays in the history.

        New content or a new value counts as verified now; new content drops the vectors.

        Args:
            memory_id: Which.
            viewer: On whose behalf.
            changes: New values by field name; all but the id, the scope and the owner can change.
            reason: For the history.
            actor: For the history.
            expected_version: Refuse unless this is the current one: what others did since then stays.
            vector: The embedding of the new content, float32 [embed]; with a `fingerprint`.
            fingerprint: Names the embedding.

        Returns:
            The new version, or the current one if nothing differs.

        Raises:
            ValueError: A field that cannot change or a value that a declaration may not have.
            MemoryNotFound: No such memory, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
            VersionConflict: Another version than the expected one is stored.
        """
        _refuse_fixed(changes)
        vectors = None if vector is None else np.asarray(vector, dtype=np.float32)[None]
        checked = self._checked_vectors([memory_id], vectors, fingerprint)
        statement = ChangeOrigin(reason, actor, self._clock())
        durable = changes.get("type") == MemoryType.CONSTRAINT
        with self._changing(memory_id, viewer, durable, expected_version) as (connection, row):
            after = _apply_changes(self._memory_of(row), changes, MemoryState(row["state"]))
            self._refuse_rule(after)
            if encode_body(after) != row["body"]:
                self._replace(connection, row, after, statement, MemoryState(row["state"]))
            if checked is not None:
                self._attach_vectors(connection, [memory_id], {memory_id}, checked)
            return self._stored(self._row(connection, memory_id), statement.now_ns)

    def rollback(
        self, memory_id: str, version: int, viewer: Viewer, *, reason: str = "", actor: str = ""
    ) -> StoredMemory:
        """Make a memory say what a version of it said, by a new version; the state comes back with it.

        Raises:
            MemoryNotFound: No such memory or version, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
        """
        statement = ChangeOrigin(reason or f"rolled back to version {version}", actor, self._clock())
        with self._changing(memory_id, viewer) as (connection, row):
            old = connection.execute(
                "SELECT * FROM old_versions WHERE memory_id = ? AND version = ?", (memory_id, version)
            ).fetchone()
            if old is None and version != row["version"]:
                raise MemoryNotFound(f"memory {memory_id!r} has no version {version}")
            if old is not None:
                memory = decode_body(old["body"], memory_id)
                self._refuse_rule(memory)
                self._replace(connection, row, memory, statement, MemoryState(old["state"]))
            return self._stored(self._row(connection, memory_id), statement.now_ns)

    def archive(
        self, memory_id: str, viewer: Viewer, *, reason: str = "archived", actor: str = ""
    ) -> StoredMemory:
        """Set a memory aside by a new version: it is recalled only on request.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
        """
        return self._set_state(memory_id, viewer, MemoryState.ARCHIVED, reason, actor)

    def unarchive(
        self, memory_id: str, viewer: Viewer, *, reason: str = "unarchived", actor: str = ""
    ) -> StoredMemory:
        """Bring an archived memory back, by a new version that counts as verified now.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
        """
        return self._set_state(memory_id, viewer, MemoryState.ACTIVE, reason, actor)

    def _set_state(
        self, memory_id: str, viewer: Viewer, state: MemoryState, reason: str, actor: str
    ) -> StoredMemory:
        statement = ChangeOrigin(reason, actor, self._clock())
        with self._changing(memory_id, viewer) as (connection, row):
            if row["state"] != state:
                memory = with_status_tag(self._memory_of(row), state)
                is_back = state is MemoryState.ACTIVE
                self._replace(connection, row, memory, statement, state, confirms=is_back)
            return self._stored(self._row(connection, memory_id), statement.now_ns)

    def verify(self, memory_id: str, viewer: Viewer) -> StoredMemory:
        """Confirm that a memory still holds: no new version, a new `seq`. Read-only ones can be verified.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
        """
        now_ns = self._clock()
        with self._database.writing(durable=False) as connection:
            self._visible_row(connection, memory_id, viewer)
            connection.execute(
                "UPDATE memories SET seq = ?, verified_ns = MAX(verified_ns, ?) WHERE memory_id = ?",
                (self._database.take_seq(), now_ns, memory_id),
            )
            return self._stored(self._row(connection, memory_id), now_ns)

    def touch(self, memory_ids: Sequence[str], viewer: Viewer) -> int:
        """Note that an answer referred to memories now: neither a new version nor a new `seq`.

        Returns:
            How many there were; unknown ids and ones that are not the viewer's are passed over.
        """
        now_ns = self._clock()
        with self._database.writing(durable=False) as connection:
            rows = [self._find_row(connection, memory_id) for memory_id in dict.fromkeys(memory_ids)]
            seen = [row["memory_id"] for row in rows if row is not None and can_see(viewer, row)]
            connection.executemany(
                "UPDATE memories SET used_ns = MAX(IFNULL(used_ns, ?1), ?1) WHERE memory_id = ?2",
                [(now_ns, memory_id) for memory_id in seen],
            )
        return len(seen)

    @contextmanager
    def _changing(
        self, memory_id: str, viewer: Viewer, durable: bool = False, expected_version: int | None = None
    ) -> Generator[tuple[sqlite3.Connection, sqlite3.Row]]:
        """A transaction around one row that the viewer may change; durable if it is a constraint."""
        with self._database.reading() as connection:
            kind = self._visible_row(connection, memory_id, viewer)["type"]
        with self._database.writing(durable=durable or kind == MemoryType.CONSTRAINT) as connection:
            row = self._visible_row(connection, memory_id, viewer)
            if expected_version is not None and row["version"] != expected_version:
                raise VersionConflict(
                    f"expected_version of memory {memory_id!r} must be its current {row['version']}, "
                    f"got {expected_version}"
                )
            refuse_read_only(self._memory_of(row))
            yield connection, row


def _refuse_fixed(changes: Mapping[str, object]) -> None:
    if fixed := [name for name in changes if name in _FIXED]:
        raise ValueError(f"changes must leave {', '.join(_FIXED)} as they are, got {', '.join(fixed)}")
    if unknown := [name for name in changes if name not in Memory.model_fields]:
        raise ValueError(f"changes must name fields of a memory, got {', '.join(unknown)}")


def _apply_changes(memory: Memory, changes: Mapping[str, object], state: MemoryState) -> Memory:
    """The changed declaration, validated as a whole, its tags completed."""
    declared = {name: getattr(memory, name) for name in Memory.model_fields}
    if "type" in changes and "tags" not in changes:
        declared["tags"] = tuple(tag for tag in memory.tags if tag != f"type:{memory.type.value}")
    return complete_tags(Memory.model_validate(declared | dict(changes)), state)
