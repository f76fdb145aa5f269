"""What constraints did to an answer, for an audit."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ConstraintEvent", "EventKind", "Violation"]


class EventKind(StrEnum):
    """What happened."""

    DROPPED_RULE = "dropped_rule"
    """A stronger rule has the same key; this one does not bind."""
    DROPPED_VALUE = "dropped_value"
    """A value of `allow_values` contradicts another rule and cannot be the answer."""
    MASKED = "masked"
    """Steps at which the model's own first choice was not allowed; one event for the answer."""
    STEPPED_BACK = "stepped_back"
    """Tokens nobody had seen were taken back, because nothing could follow them."""
    CONTENT_FILTER = "content_filter"
    """Nothing could follow and nothing could be taken back: the answer ended there."""
    INCOMPLETE = "incomplete"
    """The answer was cut before it satisfied a rule that asks for a whole text."""
    VIOLATION = "violation"
    """The independent check found a rule broken."""


@dataclass(frozen=True)
class ConstraintEvent:
    """One thing that happened, and the rules it happened for.

    `position` is the answer's token, where it happened at one; `count` how often, or how many tokens.
    """

    kind: EventKind
    rule_ids: tuple[str, ...]
    detail: str = ""
    position: int | None = None
    count: int = 1


@dataclass(frozen=True)
class Violation:
    """A rule that an answer breaks.

    Of an enforced rule it is a failure of ours, unless `is_incomplete`: the answer was cut short.
    """

    rule_id: str
    kind: str
    detail: str
    is_incomplete: bool = False
