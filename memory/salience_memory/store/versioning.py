"""How a version comes to be: a first one, or one in place of another that goes to the history."""

import sqlite3
from dataclasses import dataclass

from salience_memory.errors import MemoryForgotten, MemoryReadOnly, StatementOutdated
from salience_memory.records import Memory, MemoryState
from salience_memory.store.bodies import encode_body, with_status_tag
from salience_memory.store.vector_rows import VectorRows

__all__ = ["ChangeOrigin", "VersionWriting", "find_tombstone", "refuse_outdated", "refuse_read_only"]

_INSERT = """
INSERT INTO memories VALUES (
    :seq, :memory_id, :version, :content_version, :type, :scope, :user_id, :session_id, :key, :pinned,
    :valid_until, :state, :created_ns, :updated_ns, :verified_ns, :used_ns, :reason, :actor, :body
)
"""

_INSERT_OLD = """
INSERT INTO old_versions VALUES (
    :memory_id, :version, :seq, :state, :created_ns, :updated_ns, :verified_ns, :used_ns, :reason, :actor,
    :body
)
"""

_KEEP_OLD = """
INSERT INTO old_versions
SELECT memory_id, version, seq, state, created_ns, updated_ns, verified_ns, used_ns, reason, actor, body
FROM memories WHERE memory_id = ?
"""

_REPLACE = """
UPDATE memories SET
    seq = :seq, version = :version, content_version = :content_version, type = :type, key = :key,
    pinned = :pinned, valid_until = :valid_until, state = :state, updated_ns = :updated_ns,
    verified_ns = :verified_ns, reason = :reason, actor = :actor, body = :body
WHERE memory_id = :memory_id
"""


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """How and when something came to be said. `stated_ns` None: now, not by a writer that comes late."""

    reason: str
    actor: str
    now_ns: int
    stated_ns: int | None = None

    @property
    def ns(self) -> int:
        return self.now_ns if self.stated_ns is None else self.stated_ns


class VersionWriting(VectorRows):
    """Rows as they are written, inside a writing transaction."""

    def _row(self, connection: sqlite3.Connection, memory_id: str) -> sqlite3.Row:
        row = self._find_row(connection, memory_id)
        assert row is not None  # written or found in this very transaction
        return row

    def _insert(self, connection: sqlite3.Connection, memory: Memory, statement: ChangeOrigin) -> None:
        """The first version; of an id that was forgotten, the one after its last.

        Counting on keeps what was computed from the forgotten one (a vector, an index entry) from fitting.
        """
        grave = find_tombstone(connection, memory.memory_id, statement)
        version = 1 if grave is None else grave["version"] + 1
        if grave is not None:
            connection.execute("DELETE FROM tombstones WHERE memory_id = ?", (memory.memory_id,))
        times = {"created_ns": statement.ns, "updated_ns": statement.now_ns, "verified_ns": statement.ns}
        row = self._columns(memory, MemoryState.ACTIVE, version, version, statement)
        self._insert_columns(connection, row | times | {"used_ns": None})

    def _insert_columns(self, connection: sqlite3.Connection, columns: dict[str, object]) -> None:
        connection.execute(_INSERT, columns)

    def _insert_old(self, connection: sqlite3.Connection, columns: dict[str, object]) -> None:
        connection.execute(_INSERT_OLD, columns)

    def _replace(
        self,
        connection: sqlite3.Connection,
        row: sqlite3.Row,
        memory: Memory,
        statement: ChangeOrigin,
        state: MemoryState = MemoryState.ACTIVE,
        *,
        confirms: bool = False,
    ) -> None:
        """The next version of a row. One that says something else has no vector, and is verified by that.

        `confirms`: it is verified whatever it says, as somebody has just stated it.
        """
        before = self._memory_of(row)
        version = row["version"] + 1
        has_new_content = memory.content != before.content
        is_verified = confirms or has_new_content or memory.value != before.value
        columns = self._columns(
            memory, state, version, version if has_new_content else row["content_version"], statement
        )
        columns["verified_ns"] = max(row["verified_ns"], statement.ns) if is_verified else row["verified_ns"]
        columns["updated_ns"] = statement.now_ns
        connection.execute(_KEEP_OLD, (memory.memory_id,))
        connection.execute(_REPLACE, columns)
        if has_new_content:
            connection.execute("DELETE FROM vectors WHERE memory_id = ?", (memory.memory_id,))

    def _archive(self, connection: sqlite3.Connection, row: sqlite3.Row, statement: ChangeOrigin) -> None:
        memory = with_status_tag(self._memory_of(row), MemoryState.ARCHIVED)
        self._replace(connection, row, memory, statement, MemoryState.ARCHIVED)

    def _columns(
        self, memory: Memory, state: MemoryState, version: int, content_version: int, statement: ChangeOrigin
    ) -> dict[str, object]:
        assert memory.scope is not None  # refused before
        return {
            "seq": self._database.take_seq(),
            "memory_id": memory.memory_id,
            "version": version,
            "content_version": content_version,
            "type": memory.type.value,
            "scope": memory.scope.value,
            "user_id": memory.user_id,
            "session_id": memory.session_id,
            "key": memory.key,
            "pinned": memory.pinned,
            "valid_until": memory.valid_until,
            "state": state.value,
            "reason": statement.reason,
            "actor": statement.actor,
            "body": encode_body(memory),
        }

    def _refuse_rule(self, memory: Memory) -> None:
        """Ask the injected check whether a constraint's rule can be enforced."""
        if memory.rule is None or self._check_rule is None:
            return
        try:
            self._check_rule(dict(memory.rule))
        except ValueError as error:
            raise ValueError(f"rule of memory {memory.memory_id!r} cannot be enforced: {error}") from error


def refuse_read_only(memory: Memory) -> None:
    """Keep a memory that was declared read-only as it is."""
    if memory.read_only:
        raise MemoryReadOnly(f"memory {memory.memory_id!r} is read-only: it can be forgotten, not changed")


def refuse_outdated(row: sqlite3.Row, statement: ChangeOrigin) -> None:
    """Keep a late statement from replacing what was stated or confirmed after it."""
    if statement.stated_ns is not None and statement.stated_ns < row["verified_ns"]:
        raise StatementOutdated(
            f"stated_ns must not lie before memory {row['memory_id']!r} was verified "
            f"({row['verified_ns']}), got {statement.stated_ns}"
        )


def find_tombstone(
    connection: sqlite3.Connection, memory_id: str, statement: ChangeOrigin
) -> sqlite3.Row | None:
    """The grave of an id, if a statement may be stored over it."""
    grave = connection.execute("SELECT * FROM tombstones WHERE memory_id = ?", (memory_id,)).fetchone()
    if grave is not None and statement.stated_ns is not None and statement.stated_ns < grave["forgotten_ns"]:
        raise MemoryForgotten(f"memory {memory_id!r} was forgotten after it was stated; it stays forgotten")
    return grave
