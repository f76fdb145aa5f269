"""Rows turned into memories, on behalf of a viewer, and the versions that are written of them."""

import sqlite3
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from salience_memory.clock import Clock, system_clock
from salience_memory.decay import compute_freshness
from salience_memory.errors import (
    MemoryForgotten,
    MemoryNotFound,
    MemoryReadOnly,
    StatementOutdated,
    StoreCorrupt,
)
from salience_memory.records import Memory, MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store.database import Database
from salience_memory.store.rows import (
    HotRows,
    MemoryVersion,
    can_see,
    chunks,
    decode_body,
    encode_body,
    has_expired,
    owners_of,
    placeholders,
)

__all__ = [
    "INSERT",
    "INSERT_OLD",
    "ChangeOrigin",
    "CheckRule",
    "Decay",
    "MemoryRows",
    "find_tombstone",
    "refuse_outdated",
    "refuse_read_only",
]

CheckRule = Callable[[dict[str, JsonValue]], None]
"""Raises ValueError for a rule that cannot be enforced."""

Decay = Callable[[StoredMemory, int], float]
"""Freshness in [0, 1] of a memory at a moment in nanoseconds."""

_Stored = TypeVar("_Stored", bound=StoredMemory)

INSERT = """
INSERT INTO memories VALUES (
    :seq, :memory_id, :version, :content_version, :type, :scope, :user_id, :session_id, :key, :pinned,
    :valid_until, :state, :created_ns, :updated_ns, :verified_ns, :used_ns, :reason, :actor, :body
)
"""

INSERT_OLD = """
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


class MemoryRows:
    """The file, the clock, how a row becomes a memory and a memory a row."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock = system_clock,
        cache_bytes: int = 100 * 2**20,
        check_rule: CheckRule | None = None,
        decay: Decay = compute_freshness,
        busy_timeout_s: float = 30.0,
    ) -> None:
        """Open a store, or create one where there is no file. What is not ours is refused and left as it is.

        Args:
            path: The file; SQLite keeps `-wal` and `-shm` beside it. Not on a network file system.
            clock: What time it is; nothing here asks the machine.
            cache_bytes: How much the memories read last may take.
            check_rule: Raises ValueError for a constraint's rule that cannot be enforced. Without one no
                new rule is stored.
            decay: Freshness of a memory at a moment; default, by `DecayPolicy`'s defaults.
            busy_timeout_s: How long to wait for another process's transaction.

        Raises:
            StoreForeign: The file is something else.
            StoreTooNew: A later Salience wrote it.
            StoreCorrupt: It is damaged.
            StoreBusy: Another process keeps it locked.
            StoreUnavailable: It cannot be opened or created.
        """
        self._cache = HotRows(cache_bytes)
        self._database = Database(Path(path), busy_timeout_s=busy_timeout_s, on_rollback=self._cache.clear)
        self._clock = clock
        self._check_rule = check_rule
        self._decay = decay

    def get(self, memory_id: str, viewer: Viewer, *, version: int | None = None) -> StoredMemory:
        """One memory by its id, archived and expired ones too: for looking at, not for rendering.

        Args:
            memory_id: Its id.
            viewer: On whose behalf.
            version: An earlier version; default, the current one.

        Raises:
            MemoryNotFound: No such memory or version, or not the viewer's.
        """
        with self._database.reading() as connection:
            row = self._visible_row(connection, memory_id, viewer)
            if version is None or version == row["version"]:
                return self._stored(row, self._clock())
            old = connection.execute(
                "SELECT * FROM old_versions WHERE memory_id = ? AND version = ?", (memory_id, version)
            ).fetchone()
            if old is None:
                raise MemoryNotFound(f"memory {memory_id!r} has no version {version}")
            found = self._version(old, self._clock())
            return StoredMemory.model_construct(
                **{name: getattr(found, name) for name in StoredMemory.model_fields}
            )

    def get_many(
        self,
        memory_ids: Sequence[str],
        viewer: Viewer,
        *,
        include_archived: bool = False,
        include_expired: bool = False,
    ) -> dict[str, StoredMemory]:
        """Those of the ids that the viewer may be shown now, in the order asked.

        Every recall goes through here: whatever an index says, what is forgotten, out of scope, archived or
        past its `valid_until` is left out.
        """
        now_ns = self._clock()
        wanted = list(dict.fromkeys(memory_ids))
        rows: dict[str, sqlite3.Row] = {}
        with self._database.reading() as connection:
            for chunk in chunks(wanted):
                query = f"SELECT * FROM memories WHERE memory_id IN ({placeholders(len(chunk))})"
                rows |= {row["memory_id"]: row for row in connection.execute(query, chunk)}
            return {
                memory_id: self._stored(rows[memory_id], now_ns)
                for memory_id in wanted
                if memory_id in rows
                and can_see(viewer, rows[memory_id])
                and (include_archived or rows[memory_id]["state"] == MemoryState.ACTIVE)
                and (include_expired or not has_expired(rows[memory_id], now_ns))
            }

    def history(self, memory_id: str, viewer: Viewer) -> list[MemoryVersion]:
        """Every version of a memory, oldest first, the current one last.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
        """
        with self._database.reading() as connection:
            current = self._visible_row(connection, memory_id, viewer)
            old = connection.execute(
                "SELECT * FROM old_versions WHERE memory_id = ? ORDER BY version", (memory_id,)
            ).fetchall()
            now_ns = self._clock()
            return [self._version(row, now_ns) for row in (*old, current)]

    def list(
        self,
        viewer: Viewer,
        *,
        types: Sequence[MemoryType | str] = (),
        tags: Sequence[str] = (),
        key: str | None = None,
        pinned: bool | None = None,
        include_archived: bool = False,
        include_expired: bool = False,
        limit: int = 100,
        after_seq: int = 0,
    ) -> list[StoredMemory]:
        """The memories the viewer may be shown, the one longest unchanged first.

        Args:
            viewer: On whose behalf.
            types: Any of these; none named, every type.
            tags: All of these.
            key: That key.
            pinned: Only pinned ones, or only others.
            include_archived: Archived ones too.
            include_expired: Those past their `valid_until` too.
            limit: At most so many.
            after_seq: Only those with a larger `seq`: the last one's, for the next page.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        now_ns = self._clock()
        kinds = [MemoryType(kind).value for kind in types]
        conditions: list[str] = ["seq > ?"]
        bound: list[object] = [after_seq]
        filters: list[tuple[bool, str, Sequence[object]]] = [
            (bool(kinds), f"type IN ({placeholders(len(kinds))})", kinds),
            (key is not None, "key = ?", (key,)),
            (pinned is not None, "pinned = ?", (pinned,)),
            (not include_archived, "state = 'active'", ()),
            (not include_expired, "(valid_until IS NULL OR valid_until > ?)", (now_ns,)),
        ]
        filters += [(True, "has_tag(body, ?)", (tag,)) for tag in tags]
        for is_wanted, condition, operands in filters:
            if is_wanted:
                conditions.append(condition)
                bound += operands
        query = (
            "SELECT * FROM memories WHERE scope = ? AND user_id IS ? AND session_id IS ? AND "
            f"{' AND '.join(conditions)} ORDER BY seq LIMIT ?"
        )
        with self._database.reading() as connection:
            rows: list[sqlite3.Row] = []
            for owner in owners_of(viewer):
                rows += connection.execute(query, (*owner, *bound, limit))
            rows.sort(key=lambda row: row["seq"])
            return [self._stored(row, now_ns) for row in rows[:limit]]

    def _find_row(self, connection: sqlite3.Connection, memory_id: str) -> sqlite3.Row | None:
        return connection.execute("SELECT * FROM memories WHERE memory_id = ?", (memory_id,)).fetchone()

    def _visible_row(self, connection: sqlite3.Connection, memory_id: str, viewer: Viewer) -> sqlite3.Row:
        row = self._find_row(connection, memory_id)
        if row is None or not can_see(viewer, row):
            raise MemoryNotFound(f"no memory {memory_id!r} that this viewer may see")
        return row

    def _memory_of(self, row: sqlite3.Row) -> Memory:
        """The declaration that a current row holds; from the cache where that very version is there."""
        memory_id, version, body = row["memory_id"], row["version"], row["body"]
        memory = self._cache.find(memory_id, version)
        if memory is None:
            memory = decode_body(body, memory_id)
            # Rows are chosen by their columns, so these must say what the body says.
            columns = (row["type"], row["scope"], row["user_id"], row["session_id"], row["key"])
            fields = (memory.type, memory.scope, memory.user_id, memory.session_id, memory.key)
            if (*columns, row["valid_until"]) != (*fields, memory.valid_until):
                raise StoreCorrupt(f"the row of {memory_id!r} must say in its columns what its body says")
            if not self._database.is_writing:  # what may yet be taken back must not stay
                self._cache.keep(memory, version, len(body.encode()))
        return memory

    def _stored(self, row: sqlite3.Row, now_ns: int, memory: Memory | None = None) -> StoredMemory:
        """A row as callers get it; `memory` spares parsing where it was written just now."""
        return self._freshened(_compose(StoredMemory, memory or self._memory_of(row), row), now_ns)

    def _version(self, row: sqlite3.Row, now_ns: int) -> MemoryVersion:
        memory = decode_body(row["body"], row["memory_id"])
        found = _compose(MemoryVersion, memory, row, reason=row["reason"], actor=row["actor"])
        return self._freshened(found, now_ns)

    def _freshened(self, memory: _Stored, now_ns: int) -> _Stored:
        freshness = self._decay(memory, now_ns)
        if not 0.0 <= freshness <= 1.0:
            raise ValueError(f"decay must return a freshness in [0, 1], got {freshness}")
        return memory.model_copy(update={"freshness": freshness})

    def _row(self, connection: sqlite3.Connection, memory_id: str) -> sqlite3.Row:
        row = self._find_row(connection, memory_id)
        assert row is not None  # written or found in this very transaction
        return row

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

    def _refuse_rule(self, memory: Memory, stored: Memory | None = None) -> None:
        """Refuse a constraint's rule that the injected check refuses, or that nothing here can check.

        A rule that is `stored` already is not asked about again where there is no check: whoever opened the
        file without one may still correct the rest.
        """
        if memory.rule is None:
            return
        if self._check_rule is None:
            if stored is not None and stored.rule == memory.rule:
                return
            raise ValueError(
                f"rule of memory {memory.memory_id!r} cannot be checked here: give the store a check_rule, a "
                "function that raises ValueError for a rule that cannot be enforced (Harness.load brings one)"
            )
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


def _compose(kind: type[_Stored], memory: Memory, row: sqlite3.Row, **more: object) -> _Stored:
    """A stored memory from a validated declaration and its row, without validating it again."""
    declared = dict(memory.__dict__)
    for name in ("value", "rule"):  # mutable, so the caller gets copies of his own
        if isinstance(declared[name], dict | list):
            declared[name] = deepcopy(declared[name])
    return kind.model_construct(
        None,  # which fields were given is of no interest
        **declared,
        seq=row["seq"],
        version=row["version"],
        created_ns=row["created_ns"],
        updated_ns=row["updated_ns"],
        verified_ns=row["verified_ns"],
        used_ns=row["used_ns"],
        state=MemoryState(row["state"]),
        **more,
    )
