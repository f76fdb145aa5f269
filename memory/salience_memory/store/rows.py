"""Memories as rows: their text, what the store returns beside memories, and whose a row is."""

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from salience_memory.errors import StoreCorrupt
from salience_memory.records import Memory, MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Scope, Viewer

__all__ = [
    "Change",
    "HotRows",
    "MemoryVersion",
    "Owner",
    "ProjectionRow",
    "VectorBatch",
    "can_see",
    "chunks",
    "complete_tags",
    "decode_body",
    "describe_fault",
    "encode_body",
    "encode_json",
    "has_expired",
    "has_tag",
    "owners_of",
    "placeholders",
    "with_status_tag",
]

Owner = tuple[str, str | None, str | None]
"""Scope, user and session, as rows hold them."""

_CHUNK = 500
"""Ids named in one statement; SQLite's older builds bind at most 999."""

_Item = TypeVar("_Item")

_DECLARED = {name for name in Memory.model_fields if name != "freshness"}
_STATUS_TAGS = {f"status:{state.value}": state for state in MemoryState}


def encode_body(memory: Memory) -> str:
    """Everything declared, in canonical JSON. The freshness is left out: it is computed on reading."""
    return encode_json(memory.model_dump(mode="json", include=_DECLARED), memory.memory_id)


def encode_json(value: Any, name: str) -> str:
    """Canonical JSON: sorted keys, no spaces, Unicode as it is.

    Raises:
        ValueError: Not JSON, a number that is none, or text with a lone surrogate.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be Unicode text throughout, got a lone surrogate") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON with finite numbers, got: {error}") from error
    return text


def decode_body(body: str, memory_id: str) -> Memory:
    """The memory of a row.

    Raises:
        StoreCorrupt: The row holds no valid memory, or another one's.
    """
    try:
        memory = Memory.model_validate_json(body)
    except ValueError as error:
        raise StoreCorrupt(
            f"the row of {memory_id!r} must hold a valid memory: {describe_fault(error)}"
        ) from error
    if memory.memory_id != memory_id or memory.scope is None:
        raise StoreCorrupt(f"the row of {memory_id!r} must hold that memory, got {memory.memory_id!r}")
    return memory


def complete_tags(memory: Memory, state: MemoryState = MemoryState.ACTIVE) -> Memory:
    """The memory with sorted tags, and a domain, its type and its status where no tag of that name is."""
    named = {tag.partition(":")[0] for tag in memory.tags}
    defaults = {"domain": "general", "type": memory.type.value, "status": state.value}
    missing = (f"{name}:{value}" for name, value in defaults.items() if name not in named)
    return memory.model_copy(update={"tags": tuple(sorted({*memory.tags, *missing}))})


def describe_fault(error: ValueError) -> str:
    """One line about a refused record: the first field at fault and why."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def has_tag(body: str, tag: str) -> bool:
    """Whether a row's text has a tag; for SQL, whose own JSON functions end a text at its first NUL."""
    return tag in json.loads(body)["tags"]


def with_status_tag(memory: Memory, state: MemoryState) -> Memory:
    """The memory with the status tag of a state, where its tag is one of the store's own."""
    kept = [tag for tag in memory.tags if tag not in _STATUS_TAGS]
    return complete_tags(memory.model_copy(update={"tags": tuple(kept)}), state)


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


def has_expired(row: sqlite3.Row, now_ns: int) -> bool:
    """Whether a row's `valid_until` has come; at that very nanosecond it has."""
    return row["valid_until"] is not None and now_ns >= row["valid_until"]


class MemoryVersion(StoredMemory):
    """One version in a memory's history, and why and by whom it came about."""

    reason: str = Field(description="Such as `declared`, `archived`, or what the caller gave.")
    actor: str = Field(description="Who changed it; empty where nobody said.")

    __hash__ = StoredMemory.__hash__


@dataclass(frozen=True, slots=True)
class Change:
    """The latest change of one memory. Earlier ones of the same memory are not told."""

    seq: int
    memory_id: str
    kind: Literal["put", "delete"]
    version: int
    """The row's version; of a deletion, the last one there was."""


@dataclass(frozen=True, slots=True)
class ProjectionRow:
    """What an index needs of one row. Nobody's eyes: recalled ids are looked up on behalf of a viewer."""

    memory_id: str
    seq: int
    version: int
    type: MemoryType
    content: str
    key: str | None
    tags: tuple[str, ...]
    scope: Scope
    user_id: str | None
    session_id: str | None
    valid_until: int | None
    state: MemoryState
    pinned: bool


class VectorBatch(NamedTuple):
    """Vectors of one embedding, in the order of their rows' `seq`."""

    memory_ids: list[str]
    seqs: NDArray[np.int64]
    vectors: NDArray[np.float32]
    """[record, embed]."""


_OVERHEAD_BYTES = 2_000
"""What one parsed memory costs beside its text: its objects, its entry, its key."""


class HotRows:
    """Memories by id and version. A version never changes, so an entry is right or, once superseded, unused.

    The store asks its rows for the current version at every read: a change by another process is never
    hidden, the cache only spares the parsing.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Keep up to `limit_bytes`; 0 keeps nothing."""
        if limit_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {limit_bytes}")
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[str, tuple[int, Memory, int]] = OrderedDict()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, memory_id: str, version: int) -> Memory | None:
        """The memory, if that very version is here."""
        entry = self._entries.get(memory_id)
        if entry is None or entry[0] != version:
            return None
        self._entries.move_to_end(memory_id)
        return entry[1]

    def keep(self, memory: Memory, version: int, text_bytes: int) -> None:
        """Put a memory in place of any other version of it; the longest unread ones make room."""
        self.drop(memory.memory_id)
        cost = text_bytes + _OVERHEAD_BYTES
        self._entries[memory.memory_id] = (version, memory, cost)
        self.used_bytes += cost
        while self.used_bytes > self._limit_bytes:
            _, (_, _, freed) = self._entries.popitem(last=False)
            self.used_bytes -= freed

    def drop(self, memory_id: str) -> None:
        """Forget a memory if it is here."""
        if entry := self._entries.pop(memory_id, None):
            self.used_bytes -= entry[2]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.used_bytes = 0
