"""Conflicts: memories of one type on one key that say different things.

Both stay. The winner is what an answer should rest on; the losers are marked.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

from salience_memory.normalisation import is_same_text, normalise
from salience_memory.records import Memory, MemoryType, StoredMemory

__all__ = ["CONFLICT_EVENT", "Conflict", "agree", "find_conflicts"]

CONFLICT_EVENT = "conflict"
"""Kind of the audit event that a conflict leaves."""


@dataclass(frozen=True)
class Conflict:
    """Memories that contradict each other, and which of them prevails."""

    key: str
    type: MemoryType
    winner_id: str
    loser_ids: tuple[str, ...]
    reason: str

    @property
    def memory_ids(self) -> tuple[str, ...]:
        """Everyone in the conflict, the winner first."""
        return (self.winner_id, *self.loser_ids)

    def as_facts(self) -> dict[str, JsonValue]:
        """For the audit log: who conflicts, the winner first, and why; never what they say, nor the key."""
        return {"memory_ids": list(self.memory_ids), "type": self.type.value, "reason": self.reason}


def agree(first: Memory, second: Memory) -> bool:
    """Whether two memories on one key say the same."""
    if first.value is not None and first.value == second.value and first.rule == second.rule:
        return True
    return is_same_text(first.content, second.content) and first.rule == second.rule


def find_conflicts(memories: Iterable[StoredMemory]) -> list[Conflict]:
    """The conflicts among live memories that one viewer sees, in the order of their keys.

    Higher trust wins, then the one confirmed last, then the higher `seq`. Memories that agree with the
    winner are no losers. Hand in live memories of one viewer only: what has expired or is another's
    conflicts with nothing.
    """
    groups: dict[tuple[str, MemoryType], list[StoredMemory]] = {}
    for memory in memories:
        if memory.key is not None:
            groups.setdefault((normalise(memory.key), memory.type), []).append(memory)
    conflicts: list[Conflict] = []
    for (key, kind), group in sorted(groups.items()):
        ranked = sorted(group, key=lambda memory: (-memory.trust, -memory.verified_ns, -memory.seq))
        winner, losers = ranked[0], [memory for memory in ranked[1:] if not agree(ranked[0], memory)]
        if losers:
            by_trust = winner.trust > losers[0].trust
            reason = "higher-trust" if by_trust else "equal-trust-confirmed-later"
            loser_ids = tuple(memory.memory_id for memory in losers)
            conflicts.append(Conflict(key, kind, winner.memory_id, loser_ids, reason))
    return conflicts
