"""Step 1, gather: which memories a message's context is filled from, and the session's state."""

from dataclasses import replace

from pydantic import JsonValue

from salience.context.escaping import escape_json
from salience.turn.record import QUESTION, GatheredMemory, Gathering, Origin, Parts, Turn
from salience.turn.token_counting import count_tokens
from salience_memory import MemoryStore, MemoryType, Viewer
from salience_memory.conflicts import find_conflicts
from salience_memory.records import StoredMemory

__all__ = ["gather"]

_PAGE_ROWS = 500

_ONE_VALUE_A_KEY = (MemoryType.CONSTRAINT, MemoryType.CONTEXT, MemoryType.SEMANTIC, MemoryType.TASK)
"""Types whose key names one thing that can't be two ways at once; two documents may share a heading."""

_CLOSED = ("done", "cancelled", "failed")


def gather(turn: Turn, parts: Parts) -> None:
    """Memories given for this message, then recalled ones, then every live constraint and pinned memory.

    Recall's score, probability and conflicts stay with what it found, for the plan and the receipt.

    Raises:
        ValueError: Two of the memories given have one id, or one has the question's name.
    """
    found: dict[str, GatheredMemory] = {}
    for memory in turn.given:
        if memory.memory_id in found:
            raise ValueError(
                f"memories must have different ids, got {memory.memory_id!r} twice, for {memory.content!r}"
            )
        if memory.memory_id == QUESTION:
            raise ValueError(f"memory_id must not be {QUESTION!r}, which names the question's span")
        found[memory.memory_id] = GatheredMemory(memory)
    if parts.memory is None:
        turn.gathered = Gathering(tuple(found.values()))
        return
    store = parts.memory.store
    # What binds or is pinned is in the prompt whether the message is about it or not.
    standing = [
        *_list_all(store, turn.viewer, types=(MemoryType.CONSTRAINT,)),
        *_list_all(store, turn.viewer, pinned=True),
    ]
    always = {memory.memory_id for memory in standing}
    hits = parts.memory.recall(turn.message, turn.viewer, top_k=parts.options.top_k, now_ns=turn.now_ns)
    for hit in hits:
        is_standing = hit.memory.memory_id in always
        found.setdefault(
            hit.memory.memory_id,
            GatheredMemory(
                hit.memory,
                Origin.STANDING if is_standing else Origin.RECALLED,
                1.0 if is_standing else hit.probability,
                hit.score,
                hit.breakdown,
                hit.has_conflict,
            ),
        )
    for memory in standing:
        found.setdefault(memory.memory_id, GatheredMemory(memory, Origin.STANDING))
    conflicts = find_conflicts(
        g.memory
        for g in found.values()
        if isinstance(g.memory, StoredMemory)
        and g.memory.type in _ONE_VALUE_A_KEY
        and (g.memory.valid_until is None or g.memory.valid_until > turn.now_ns)
    )
    for conflict in conflicts:
        for loser in conflict.loser_ids:
            why = f"{conflict.winner_id} prevails on the same key: {conflict.reason}"
            found[loser] = replace(found[loser], has_conflict=True, overruled=why)
    turn.gathered = Gathering(
        tuple(found.values()), tuple(conflicts), _read_state(store, turn.viewer, parts)
    )


def _list_all(
    store: MemoryStore, viewer: Viewer, *, types: tuple[MemoryType, ...] = (), pinned: bool | None = None
) -> list[StoredMemory]:
    rows: list[StoredMemory] = []
    while True:
        after_seq = rows[-1].seq if rows else 0
        page = store.list(viewer, types=types, pinned=pinned, limit=_PAGE_ROWS, after_seq=after_seq)
        rows += page
        if len(page) < _PAGE_ROWS:
            return rows


def _read_state(store: MemoryStore, viewer: Viewer, parts: Parts) -> dict[str, JsonValue] | None:
    """Open tasks as small JSON, the ones set last first; `more_tasks` counts those that don't fit.

    None without an open task: a line of empty state only tells a small model of brackets to repeat.
    """
    budget_tokens = parts.options.shares.scale(parts.lm.info.context_window).system_tokens // 4
    states = [state for state in store.tasks(viewer) if state.status not in _CLOSED]
    by_key = {state.key: state for state in states}  # a session's own task stands before the user's
    by_key |= {state.key: state for state in states if state.scope == "session"}
    tasks: dict[str, JsonValue] = {}
    left = sorted(by_key.values(), key=lambda state: -state.updated_ns)
    while left:
        more = {**tasks, left[0].key: {"status": left[0].status, "value": left[0].value}}
        if count_tokens(parts.lm, escape_json({"tasks": more, "more_tasks": len(left)})) > budget_tokens:
            break
        tasks = more
        del left[0]
    if left:
        return {"tasks": tasks, "more_tasks": len(left)}
    return {"tasks": tasks} if tasks else None
