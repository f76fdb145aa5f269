"""Declaring memories: new ones, known ones, and ones that supersede."""

import sqlite3
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import MemoryExists
from salience_memory.records import Memory, MemoryState, MemoryType, StoredMemory, derive_memory_id
from salience_memory.store.bodies import complete_tags, encode_body
from salience_memory.store.reading import has_expired
from salience_memory.store.versioning import (
    ChangeOrigin,
    VersionWriting,
    find_tombstone,
    refuse_outdated,
    refuse_read_only,
)

__all__ = ["MemoryDeclaring"]

_ROWS_OF_KEY = """
SELECT * FROM memories
WHERE key = ? AND scope = ? AND user_id IS ? AND session_id IS ? AND type = ? AND state = 'active'
ORDER BY verified_ns DESC, seq DESC
"""


class MemoryDeclaring(VersionWriting):
    """How memories come into the store."""

    def declare(
        self,
        memories: Sequence[Memory],
        *,
        vectors: NDArray[np.float32] | None = None,
        fingerprint: str | None = None,
        reason: str = "declared",
        actor: str = "",
        supersede: bool = False,
        stated_ns: int | None = None,
    ) -> list[StoredMemory]:
        """Store memories, all or none; once it returns they outlast the death of the process.

        Constraints outlast a power cut too. Declaring again what is stored changes nothing, so two
        processes that declare one fact make one row. A row that is archived or past its `valid_until` is
        revived as a new version by a declaration of its id.

        Args:
            memories: Each with a scope; tags are completed and sorted, the freshness is not stored.
            vectors: Their embeddings, float32 [record, embed]; with a `fingerprint`.
            fingerprint: Names the embedding, as `Embedder.fingerprint` does.
            reason: For the history.
            actor: For the history: who declared it.
            supersede: A memory replaces the live one of its owner, type and key, as a new version of that
                row; should there be several, the others are archived. Constraints never replace each other.
            stated_ns: When the statement was made, for writers that come late: then it neither replaces
                what was stated or confirmed later nor brings back what was forgotten since.

        Returns:
            What is stored for each declaration, in order.

        Raises:
            ValueError: A declaration without a scope, a rule that cannot be enforced, content that is no
                JSON or Unicode.
            EmbeddingMismatch: Vectors that do not fit the memories or the fingerprint's dimension.
            MemoryExists: An id is taken by a live memory that says something else.
            MemoryReadOnly: What would be superseded is read-only.
            MemoryForgotten: Forgotten after `stated_ns`.
            StatementOutdated: What would be superseded was stated or confirmed after `stated_ns`.
        """
        checked = self._checked_vectors([memory.memory_id for memory in memories], vectors, fingerprint)
        durable = any(memory.type is MemoryType.CONSTRAINT for memory in memories)
        statement = ChangeOrigin(reason, actor, self._clock(), stated_ns)
        with self._database.writing(durable=durable) as connection:
            changed: dict[str, Memory] = {}
            ids = [
                self._declare_one(connection, memory, statement, supersede, changed) for memory in memories
            ]
            if checked is not None:
                self._attach_vectors(connection, ids, changed, checked)
            return [
                self._stored(self._row(connection, memory_id), statement.now_ns, changed.get(memory_id))
                for memory_id in ids
            ]

    def _declare_one(
        self,
        connection: sqlite3.Connection,
        declared: Memory,
        statement: ChangeOrigin,
        supersede: bool,
        changed: dict[str, Memory],
    ) -> str:
        """Insert, replace or leave; returns the id of the row that now says it, noted if it changed."""
        if declared.scope is None:
            raise ValueError(f"scope must be given to store memory {declared.memory_id!r}, got None")
        memory = complete_tags(declared)
        self._refuse_rule(memory)
        rivals = self._rivals(connection, memory, statement) if supersede else []
        row = self._find_row(connection, memory.memory_id)
        if row is None:
            find_tombstone(connection, memory.memory_id, statement)
            row = rivals[0] if rivals else _find_twin(connection, memory)
        elif not _may_replace(row, memory, statement, rivals):
            raise MemoryExists(f"memory_id {memory.memory_id!r} is taken by a memory that says otherwise")
        if row is None:
            self._insert(connection, memory, statement)
            changed[memory.memory_id] = memory
            return memory.memory_id
        memory_id: str = row["memory_id"]
        memory = memory.model_copy(update={"memory_id": memory_id})
        if row["state"] == MemoryState.ARCHIVED or encode_body(memory) != row["body"]:
            refuse_read_only(self._memory_of(row))
            refuse_outdated(row, statement)
            self._replace(connection, row, memory, statement, confirms=True)
            changed[memory_id] = memory
        for loser in self._retire(connection, rivals, memory_id, statement):
            changed.pop(loser, None)  # its row no longer says what was declared
        return memory_id

    def _rivals(
        self, connection: sqlite3.Connection, memory: Memory, statement: ChangeOrigin
    ) -> list[sqlite3.Row]:
        """Live rows of the memory's owner, type and key, the one verified last first."""
        if memory.key is None or memory.scope is None or memory.type is MemoryType.CONSTRAINT:
            return []
        bound = (memory.key, memory.scope.value, memory.user_id, memory.session_id, memory.type.value)
        rows = connection.execute(_ROWS_OF_KEY, bound).fetchall()
        return [row for row in rows if not has_expired(row, statement.now_ns)]

    def _retire(
        self,
        connection: sqlite3.Connection,
        rivals: Sequence[sqlite3.Row],
        winner: str,
        statement: ChangeOrigin,
    ) -> list[str]:
        """Archive what else is live of the key, so that one memory remains; returns what was archived."""
        because = ChangeOrigin(
            f"superseded by {winner}", statement.actor, statement.now_ns, statement.stated_ns
        )
        losers = [rival for rival in rivals if rival["memory_id"] != winner]
        for loser in losers:
            refuse_read_only(self._memory_of(loser))
            refuse_outdated(loser, statement)
            self._archive(connection, loser, because)
        return [loser["memory_id"] for loser in losers]


def _find_twin(connection: sqlite3.Connection, memory: Memory) -> sqlite3.Row | None:
    """The live row that says this already under another id, as one does that superseded; given ids count."""
    derived = derive_memory_id(memory.content, memory.scope, memory.user_id, memory.session_id)
    if memory.key is None or memory.scope is None or memory.memory_id != derived:
        return None
    bound = (memory.key, memory.scope.value, memory.user_id, memory.session_id, memory.type.value)
    for row in connection.execute(_ROWS_OF_KEY, bound):
        if encode_body(memory.model_copy(update={"memory_id": row["memory_id"]})) == row["body"]:
            return row
    return None


def _may_replace(
    row: sqlite3.Row, memory: Memory, statement: ChangeOrigin, rivals: Sequence[sqlite3.Row]
) -> bool:
    """Whether a row may come to say what is declared under its id: it says so, is dead, or is superseded."""
    owner = (memory.scope, memory.user_id, memory.session_id)
    if (row["scope"], row["user_id"], row["session_id"]) != owner:
        return False
    if _is_dead(row, statement.now_ns) or encode_body(memory) == row["body"]:
        return True
    return any(rival["memory_id"] == memory.memory_id for rival in rivals)


def _is_dead(row: sqlite3.Row, now_ns: int) -> bool:
    """Whether a row is recalled no more: declaring it again revives it."""
    return row["state"] == MemoryState.ARCHIVED or has_expired(row, now_ns)
