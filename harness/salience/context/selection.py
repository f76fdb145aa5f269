"""Which memories fit: sections by priority, in each the heaviest first, then what still does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from salience.context.line_format import Line
from salience.context.template import Layer, Section
from salience.context.truncation import TruncationEvent, TruncationReason
from salience_memory.records import Memory, Urgency

__all__ = ["Candidate", "Selection", "rank_memories"]

_URGENCY_RANK = {urgency: rank for rank, urgency in enumerate(Urgency)}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory's line in its section; `tokens` counts the line with its break."""

    memory: Memory
    section: Section
    line: Line
    tokens: int

    def cut(
        self, reason: TruncationReason, budget: str, limit_tokens: int, left_tokens: int
    ) -> TruncationEvent:
        """The event of leaving it out."""
        left = max(0, left_tokens)
        return TruncationEvent(
            self.memory.memory_id,
            reason,
            f"needs {self.tokens} tokens, {left} of {budget}'s {limit_tokens} were left",
            self.section.name,
            self.tokens,
            left,
        )


def rank_memories(memories: Sequence[Memory], weights: Mapping[str, float]) -> list[Memory]:
    """By weight, then urgency, then as given."""
    return sorted(memories, key=lambda m: (-weights[m.memory_id], _URGENCY_RANK[m.urgency]))


@dataclass
class Selection:
    """Candidates taken under three budgets: the section's, the memories' layer's and the whole context's.

    Token counts of pieces are added up here; the caller measures the whole text and calls `drop` where it
    is longer than its pieces.
    """

    count_tokens: Callable[[str], int]
    total_tokens: int
    layer_tokens: int
    """What all sections of layer memories may take together."""
    block_tokens: dict[Layer, int]
    """What a layer's delimiters and note take, once it holds a memory."""
    used_tokens: int
    kept: dict[str, list[Candidate]] = field(default_factory=dict)
    events: list[TruncationEvent] = field(default_factory=list)
    used_layer_tokens: int = 0

    def fill(self, section: Section, candidates: Sequence[Candidate]) -> None:
        """Take what fits of a section; call by priority, highest first, with the heaviest memory first."""
        kept = self.kept.setdefault(section.name, [])
        title_tokens = self.count_tokens(f"{section.title}:\n") if section.title else 0
        used = 0
        for candidate in candidates:
            need = candidate.tokens + (0 if kept else title_tokens)
            block = 0 if self._holds(section.layer) else self.block_tokens[section.layer]
            for reason, budget, limit, left in self._limits(section, used):
                if need + (block if reason is TruncationReason.TOTAL_BUDGET else 0) > left:
                    self.events.append(candidate.cut(reason, budget, limit, left))
                    break
            else:
                kept.append(candidate)
                used += need
                self.used_tokens += need + block
                self.used_layer_tokens += need if section.layer is Layer.MEMORIES else 0

    def drop(
        self, section: Section, reason: TruncationReason, budget: str, limit_tokens: int, measured_tokens: int
    ) -> None:
        """Take the lightest memory of a section out again, as a text measured more than its limit."""
        candidate = self.kept[section.name].pop()
        left = limit_tokens - measured_tokens + candidate.tokens
        self.events.append(candidate.cut(reason, budget, limit_tokens, left))

    def _limits(self, section: Section, used: int) -> Iterator[tuple[TruncationReason, str, int, int]]:
        """Each budget over a section: the reason it gives, its name, its size and what is left of it."""
        left = section.max_tokens - used
        yield TruncationReason.SECTION_BUDGET, f"section {section.name}", section.max_tokens, left
        if section.layer is Layer.MEMORIES:
            left = self.layer_tokens - self.used_layer_tokens
            yield TruncationReason.LAYER_BUDGET, "the memories' share", self.layer_tokens, left
        left = self.total_tokens - self.used_tokens
        yield TruncationReason.TOTAL_BUDGET, "the context", self.total_tokens, left

    def _holds(self, layer: Layer) -> bool:
        return any(c.section.layer is layer for kept in self.kept.values() for c in kept[:1])
