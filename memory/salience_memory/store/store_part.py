"""What every part of the store stands on: the file, the clock, and rows turned into memories."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import islice
from typing import TypeVar

from pydantic import JsonValue

from salience_memory.clock import Clock
from salience_memory.errors import MemoryNotFound, StoreCorrupt
from salience_memory.records import Memory, MemoryState, StoredMemory
from salience_memory.scopes import Scope, Viewer
from salience_memory.store.bodies import decode_body
from salience_memory.store.database import Database
from salience_memory.store.hot_rows import HotRows
from salience_memory.store.results import MemoryVersion

__all__ = ["CheckRule", "Decay", "Owner", "StorePart", "can_see", "chunks", "owners_of", "placeholders"]

CheckRule = Callable[[dict[str, JsonValue]], None]
"""Raises ValueError for a rule that cannot be enforced."""

Decay = Callable[[StoredMemory, int], float]
"""Freshness in [0, 1] of a memory at a moment in nanoseconds."""

Owner = tuple[str, str | None, str | None]
"""Scope, user and session, as rows hold them."""

_CHUNK = 500
"""Ids named in one statement; SQLite's older builds bind at most 999."""

_Item = TypeVar("_Item")
_Stored = TypeVar("_Stored", bound=StoredMemory)


class StorePart:
    """The file, the clock, the cache, and how a row becomes a memory."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        cache: HotRows,
        check_rule: CheckRule | None,
        decay: Decay | None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._cache = cache
        self._check_rule = check_rule
        self._decay = decay

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
            _refuse_disagreement(memory, row)
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
        if self._decay is None:
            return memory
        freshness = self._decay(memory, now_ns)
        if not 0.0 <= freshness <= 1.0:
            raise ValueError(f"decay must return a freshness in [0, 1], got {freshness}")
        return memory.model_copy(update={"freshness": freshness})


def can_see(viewer: Viewer, row: sqlite3.Row) -> bool:
    """Whether a row is the viewer's, by the columns alone."""
    return viewer.can_see(Scope(row["scope"]), row["user_id"], row["session_id"])


def owners_of(viewer: Viewer) -> list[Owner]:
    """Every owner whose rows the viewer sees: `Viewer.can_see`, spelt out for an index."""
    owners: list[Owner] = [(Scope.GLOBAL.value, None, None)]
    if viewer.user_id is not None:
        owners.append((Scope.USER.value, viewer.user_id, None))
    if viewer.session_id is not None:
        owners.append((Scope.SESSION.value, None, viewer.session_id))
        if viewer.user_id is not None:
            owners.append((Scope.SESSION.value, viewer.user_id, viewer.session_id))
    return owners


def chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    """The items in lists short enough to be named in one statement."""
    source = iter(items)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk


def placeholders(count: int) -> str:
    """`?, ?, ?` for `count` bound values."""
    return ", ".join("?" * count)


def _refuse_disagreement(memory: Memory, row: sqlite3.Row) -> None:
    """Rows are chosen by their columns, so these must say what the body says."""
    columns = (row["type"], row["scope"], row["user_id"], row["session_id"], row["key"], row["valid_until"])
    fields = (memory.type, memory.scope, memory.user_id, memory.session_id, memory.key, memory.valid_until)
    if columns != fields:
        raise StoreCorrupt(f"the row of {memory.memory_id!r} must say in its columns what its body says")


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
