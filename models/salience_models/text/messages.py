"""Messages of a chat and the named blocks inside a text, checked on creation."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Message", "TextSpan", "check_names", "sort_spans"]

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class TextSpan:
    """A named block: characters `[start, end)` of a text or of a message's content."""

    name: str
    start: int
    end: int

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(
                f"name of a span must not be empty, got {self.name!r} for [{self.start}, {self.end})"
            )
        if not 0 <= self.start < self.end:
            raise ValueError(
                f"span {self.name!r} must hold at least one character, got [{self.start}, {self.end})"
            )


@dataclass(frozen=True)
class Message:
    """One turn of a chat; `spans` are the blocks in its content, in any order."""

    role: str
    content: str
    spans: tuple[TextSpan, ...] = ()

    def __post_init__(self) -> None:
        if not _ROLE.fullmatch(self.role):  # a template pastes the role beside its control tokens
            raise ValueError(f"role must be a letter, then letters, digits, '-' or '_', got {self.role!r}")
        object.__setattr__(self, "spans", sort_spans(self.spans, len(self.content)))


def sort_spans(spans: Sequence[TextSpan], length: int) -> tuple[TextSpan, ...]:
    """Check spans against a text of `length` characters and put them in its order."""
    check_names(spans)
    ordered = tuple(sorted(spans, key=lambda span: span.start))
    for span in ordered:
        if span.end > length:
            raise ValueError(
                f"span {span.name!r} must end within the text's {length} characters,"
                f" got [{span.start}, {span.end})"
            )
    for left, right in pairwise(ordered):
        if right.start < left.end:
            raise ValueError(
                f"spans must not overlap, got {left.name!r} [{left.start}, {left.end})"
                f" and {right.name!r} [{right.start}, {right.end})"
            )
    return ordered


def check_names(spans: Sequence[TextSpan]) -> None:
    """Refuse a name that occurs twice."""
    seen: set[str] = set()
    for span in spans:
        if span.name in seen:
            raise ValueError(f"names of spans must be unique, got {span.name!r} twice")
        seen.add(span.name)
