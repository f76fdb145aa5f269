"""What a context leaves out, and why: one event for each memory that was given and isn't rendered."""

from dataclasses import asdict, dataclass
from enum import StrEnum

from pydantic import JsonValue

from salience_memory.decay import DecayPolicy, assess, is_expired
from salience_memory.records import Memory, StoredMemory

__all__ = ["TruncationEvent", "TruncationReason", "find_withholding"]


class TruncationReason(StrEnum):
    """Why a memory isn't rendered."""

    EXPIRED = "expired"
    STALE = "stale"
    OVERAGED = "overaged"
    """Older than the last age step: recalled only on request."""
    CONFLICT = "conflict"
    """Another live constraint on the same key stands above it."""
    NO_SECTION = "no_section"
    """No section of the template accepts it."""
    SECTION_BUDGET = "section_budget"
    LAYER_BUDGET = "layer_budget"
    """The memories' share of the window is used up."""
    TOTAL_BUDGET = "total_budget"


@dataclass(frozen=True, slots=True)
class TruncationEvent:
    """One memory left out. `tokens` is what it would have taken, `left_tokens` what the budget still held."""

    memory_id: str
    reason: TruncationReason
    detail: str
    section: str | None = None
    tokens: int | None = None
    left_tokens: int | None = None

    def facts(self) -> dict[str, JsonValue]:
        """The event as JSON for an audit: ids, names and counts."""
        facts = asdict(self)
        del facts["detail"]
        return {name: value for name, value in facts.items() if value is not None}

    def __str__(self) -> str:
        return f"{self.memory_id} was left out: {self.detail}"


def find_withholding(
    memory: Memory, now_ns: int, policy: DecayPolicy | None, *, include_archived: bool
) -> TruncationEvent | None:
    """The event of a memory that no prompt may hold at `now_ns`; None for one that may be rendered."""
    if is_expired(memory, now_ns):
        return TruncationEvent(memory.memory_id, TruncationReason.EXPIRED, "past valid_until")
    if not isinstance(memory, StoredMemory):
        return None
    standing = assess(memory, now_ns, policy)
    if standing.is_stale:
        reason = TruncationReason.STALE
    elif standing.should_archive and not include_archived:
        reason = TruncationReason.OVERAGED
    else:
        return None
    return TruncationEvent(memory.memory_id, reason, "; ".join(standing.reasons))
