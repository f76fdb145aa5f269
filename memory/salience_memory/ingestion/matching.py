"""Which clause of a new edition is which stored one, so that it keeps its id."""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from salience_memory.ingestion.clauses import Clause
from salience_memory.ingestion.numbering import parse_label
from salience_memory.records import StoredMemory

__all__ = ["Matches", "match_clauses"]

_LIKENESS = 0.7
"""From which share of common text on two clauses are two wordings of one."""

_MOST_COMPARED = 250
"""Clauses left on either side up to which wordings are compared: it takes their product."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Every clause and every stored memory stands in exactly one place."""

    pairs: list[tuple[StoredMemory, Clause]]
    added: list[Clause]
    vanished: list[StoredMemory]


def match_clauses(stored: Sequence[StoredMemory], clauses: Sequence[Clause], prefix: str) -> Matches:
    """Pair what is stored with what is read: by key and text, by text alone (renumbered or moved), by
    likeness (reworded), by key alone (replaced).

    Args:
        stored: The memories of an earlier edition.
        clauses: Those of this one.
        prefix: What precedes a clause's key in its memory's.
    """
    pairs: list[tuple[StoredMemory, Clause]] = []
    old, new = list(stored), list(clauses)
    old, new = _pair_equal(
        pairs, old, new, lambda memory: (memory.key, memory.content), lambda c: (prefix + c.key, c.content)
    )
    old, new = _pair_equal(pairs, old, new, lambda m: _wording(m.content), lambda c: _wording(c.content))
    old, new = _pair_alike(pairs, old, new)
    old, new = _pair_equal(pairs, old, new, lambda memory: memory.key, lambda clause: prefix + clause.key)
    return Matches(pairs, new, old)


def _pair_equal(
    pairs: list[tuple[StoredMemory, Clause]],
    old: Sequence[StoredMemory],
    new: Sequence[Clause],
    of_memory: Callable[[StoredMemory], Hashable],
    of_clause: Callable[[Clause], Hashable],
) -> tuple[list[StoredMemory], list[Clause]]:
    """Pair, in order, what has the same mark; returns what is left over."""
    waiting: defaultdict[Hashable, deque[StoredMemory]] = defaultdict(deque)
    for memory in old:
        waiting[of_memory(memory)].append(memory)
    left: list[Clause] = []
    for clause in new:
        if found := waiting.get(of_clause(clause)):
            pairs.append((found.popleft(), clause))
        else:
            left.append(clause)
    paired = {memory.memory_id for memory, _ in pairs}
    return [memory for memory in old if memory.memory_id not in paired], left


def _pair_alike(
    pairs: list[tuple[StoredMemory, Clause]], old: list[StoredMemory], new: list[Clause]
) -> tuple[list[StoredMemory], list[Clause]]:
    """Pair the most alike first."""
    if not old or not new or max(len(old), len(new)) > _MOST_COMPARED:
        return old, new
    found: list[tuple[float, int, int]] = []
    for j, clause in enumerate(new):
        matcher = SequenceMatcher(b=_wording(clause.content), autojunk=False)
        for i, memory in enumerate(old):
            matcher.set_seq1(_wording(memory.content))
            if matcher.real_quick_ratio() >= _LIKENESS and matcher.quick_ratio() >= _LIKENESS:
                found.append((-matcher.ratio(), i, j))
    old_left, new_left = set(range(len(old))), set(range(len(new)))
    for likeness, i, j in sorted(found):
        if -likeness >= _LIKENESS and i in old_left and j in new_left:
            old_left.remove(i)
            new_left.remove(j)
            pairs.append((old[i], new[j]))
    return [old[i] for i in sorted(old_left)], [new[j] for j in sorted(new_left)]


def _wording(content: str) -> str:
    """The text without its numbers, which a clause inserted before it changes."""
    labels = ((line, parse_label(line)) for line in content.split("\n"))
    return "\n".join(line if label is None else label.rest for line, label in labels)
