"""What a message's context is filled from: memories recalled, pinned and binding, and task states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from salience.context.escaping import escape_json
from salience_memory import Memory, MemoryType
from salience_memory.conflicts import Conflict, find_conflicts
from salience_memory.memory_recall import MemoryRecall
from salience_memory.records import StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store.memory_store import MemoryStore

__all__ = ["Gathered", "gather_memories", "read_state"]

_PAGE_ROWS = 500

_ONE_VALUE_A_KEY = (MemoryType.CONSTRAINT, MemoryType.CONTEXT, MemoryType.SEMANTIC, MemoryType.TASK)
"""Types whose key names one thing that can't be two ways at once; two documents may share a heading."""

_CLOSED = ("done", "cancelled", "failed")


@dataclass(frozen=True)
class Gathered:
    """Memories for a context, most relevant first, and those of them that a conflict takes out."""

    memories: tuple[Memory, ...]
    conflicts: tuple[Conflict, ...]
    overruled: Mapping[str, str]
    """Why, by memory id."""
    now_ns: int
    """The moment they were gathered for."""

    @property
    def binding(self) -> tuple[Memory, ...]:
        """The constraints that hold a rule, have not expired and stand in no conflict's shade."""
        return tuple(
            memory
            for memory in self.memories
            if memory.rule is not None
            and memory.memory_id not in self.overruled
            and (memory.valid_until is None or memory.valid_until > self.now_ns)
        )


def gather_memories(
    message: str,
    given: Sequence[Memory],
    *,
    viewer: Viewer,
    store: MemoryStore | None,
    recall: MemoryRecall | None,
    top_k: int,
    now_ns: int,
) -> Gathered:
    """Memories given for this message, then recalled ones, then every live constraint and pinned memory.

    Raises:
        ValueError: Two of the memories given have one id.
    """
    found = list(given)
    if recall is not None:
        found += [hit.memory for hit in recall.recall(message, viewer, top_k=top_k, now_ns=now_ns)]
    if store is not None:
        found += _list_all(store, viewer, types=(MemoryType.CONSTRAINT,))
        found += _list_all(store, viewer, pinned=True)
    memories = list(given)
    seen = {memory.memory_id for memory in given}
    for memory in found[len(given) :]:
        if memory.memory_id not in seen:
            memories.append(memory)
            seen.add(memory.memory_id)
    single = [m for m in memories if isinstance(m, StoredMemory) and m.type in _ONE_VALUE_A_KEY]
    conflicts = find_conflicts(m for m in single if m.valid_until is None or m.valid_until > now_ns)
    overruled = {
        loser: f"{conflict.winner_id} prevails on the same key: {conflict.reason}"
        for conflict in conflicts
        for loser in conflict.loser_ids
    }
    return Gathered(tuple(memories), tuple(conflicts), overruled, now_ns)


def _list_all(
    store: MemoryStore, viewer: Viewer, *, types: Sequence[MemoryType] = (), pinned: bool | None = None
) -> list[StoredMemory]:
    rows: list[StoredMemory] = []
    while True:
        after_seq = rows[-1].seq if rows else 0
        page = store.list(viewer, types=types, pinned=pinned, limit=_PAGE_ROWS, after_seq=after_seq)
        rows += page
        if len(page) < _PAGE_ROWS:
            return rows


def read_state(
    store: MemoryStore | None, viewer: Viewer, *, count_tokens: Callable[[str], int], budget_tokens: int
) -> dict[str, JsonValue]:
    """Open tasks as small JSON, the ones set last first; `more_tasks` counts those that don't fit."""
    states = [] if store is None else [t for t in store.tasks(viewer) if t.status not in _CLOSED]
    by_key = {state.key: state for state in states}  # a session's own task stands before the user's
    by_key |= {state.key: state for state in states if state.scope == "session"}
    tasks: dict[str, JsonValue] = {}
    left = sorted(by_key.values(), key=lambda state: -state.updated_ns)
    while left:
        more = {**tasks, left[0].key: {"status": left[0].status, "value": left[0].value}}
        if count_tokens(escape_json({"tasks": more, "more_tasks": len(left)})) > budget_tokens:
            break
        tasks = more
        del left[0]
    return {"tasks": tasks, "more_tasks": len(left)} if left else {"tasks": tasks}
