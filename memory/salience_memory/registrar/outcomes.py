"""What the registrar did about something said."""

from dataclasses import dataclass
from enum import StrEnum

from salience_memory.records import StoredMemory
from salience_memory.registrar.rules import Trigger

__all__ = ["OutcomeKind", "RegistrarOutcome"]


class OutcomeKind(StrEnum):
    """What became of it."""

    DECLARED = "declared"
    """A new memory."""
    UPDATED = "updated"
    """Another value in the place of what was known."""
    MERGED = "merged"
    """Known already; it counts as verified now."""
    CLARIFY = "clarify"
    """Nothing was stored; `question` is for the user."""
    IGNORED = "ignored"
    """Nothing was stored, for the reason given."""


@dataclass(frozen=True)
class RegistrarOutcome:
    """One thing noticed, and what became of it."""

    kind: OutcomeKind
    trigger: Trigger
    reason: str
    memory: StoredMemory | None = None
    question: str | None = None
    lowered_ids: tuple[str, ...] = ()
    """Memories whose trust a correction halved."""
