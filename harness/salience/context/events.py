"""Typed events: what a turn said, as one line such as `[Complaint] order_id=A-77 delay=3days`, by rules."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from salience.context.escaping import escape_text

__all__ = ["EventRule", "extract_events"]


class EventRule(BaseModel):
    """Makes an event of a turn in which `when` is found and at least one of the `fields`.

    Patterns ignore case. A field's value is what its pattern's first group captured, or all it matched: a
    number and its unit as one word, other text of several words in quotation marks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str = Field(pattern=r"^[A-Z][A-Za-z]*$")
    when: Annotated[str, StringConstraints(min_length=1)]
    fields: tuple[tuple[str, str], ...] = Field(min_length=1, description="Name and pattern, in this order.")
    roles: tuple[str, ...] = ("user",)

    @field_validator("fields", mode="before")
    @classmethod
    def _pair_up(cls, fields: Any) -> Any:
        """JSON writes them as an object; pairs can be hashed."""
        return tuple(fields.items()) if isinstance(fields, Mapping) else fields

    @field_validator("when")
    @classmethod
    def _compile_when(cls, pattern: str) -> str:
        _compile(pattern)
        return pattern

    @field_validator("fields")
    @classmethod
    def _compile_fields(cls, fields: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        names = [name for name, _ in fields]
        if len(set(names)) != len(names) or not all(re.fullmatch(r"[a-z][a-z0-9_]*", n) for n in names):
            raise ValueError(f"fields must have different lower-case names, got {names}")
        for _, pattern in fields:
            _compile(pattern)
        return fields

    def read(self, text: str) -> str | None:
        """The event that a text tells of, as one escaped line; None for no such event."""
        if not _compile(self.when).search(text):
            return None
        found = [(name, match) for name, p in self.fields if (match := _compile(p).search(text))]
        values = [(name, _value(match)) for name, match in found]
        written = " ".join(f"{name}={escape_text(value)}" for name, value in values if value)
        return f"[{self.type}] {written}" if written else None


def extract_events(rules: Sequence[EventRule], role: str, text: str) -> list[str]:
    """The events that one turn tells of, in the rules' order."""
    lines = [rule.read(text) for rule in rules if role in rule.roles]
    return [line for line in lines if line is not None]


def _value(match: re.Match[str]) -> str:
    groups = [group for group in match.groups() if group]
    words = (groups[0] if groups else match[0]).split()
    is_quantity = len(words) == 2 and words[0][:1].isdecimal()
    return "".join(words) if is_quantity or len(words) < 2 else f'"{" ".join(words)}"'


@lru_cache(maxsize=512)
def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(
            f"an event's pattern must be a regular expression, got {pattern!r} ({error})"
        ) from error
