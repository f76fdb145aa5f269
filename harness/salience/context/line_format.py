"""How a section writes one memory: text with `{field}`s and, in `[ ]`, parts left out with an absent field.

`- {label}[ (weight: {weight})]` writes `- diet: vegan (weight: 0.72)`, and without weights `- diet: vegan`.
Doubled braces and brackets stand for themselves.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from salience.context.escaping import escape_text, shorten_escaped
from salience_memory.clock import from_ns
from salience_memory.records import Memory

__all__ = ["FIELDS", "Line", "LineFormat", "parse_line_format"]

_Read = Callable[[Memory], str | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A memory as one line; `[start, end)` is its block: from the first field up to the content's end."""

    text: str
    start: int
    end: int
    is_shortened: bool = False


@dataclass(frozen=True, slots=True)
class _Piece:
    """Literal text, or a field where `is_field`; pieces with one `group` are left out together."""

    text: str
    is_field: bool
    group: int | None


@dataclass(frozen=True)
class LineFormat:
    """A parsed `render` text."""

    pieces: tuple[_Piece, ...]

    @property
    def fixed_chars(self) -> int:
        """Characters of a line that is left with nothing but its content."""
        return sum(10 if p.is_field else len(p.text) for p in self.pieces if p.group is None) - 10

    def write(self, memory: Memory, *, weight: float | None, max_chars: int | None = None) -> Line:
        """One line of at most `max_chars` characters: its content is shortened, then optional parts go."""
        values = {
            piece.text: _read(piece.text, memory, weight) for piece in self.pieces if piece.is_field
        }
        gone = {piece.group for piece in self.pieces if piece.is_field and values[piece.text] is None}
        line = self._join(values, gone)
        if max_chars is None or len(line.text) <= max_chars:
            return line
        main = next(name for name in ("content", "label") if name in values)
        content = values[main]
        assert content is not None
        if len(line.text) - len(content) > max_chars // 2:
            gone |= {piece.group for piece in self.pieces}
            line = self._join(values, gone)
        room = max_chars - (len(line.text) - len(content))
        line = self._join(values | {main: shorten_escaped(content, max(1, room))}, gone)
        return Line(line.text, line.start, line.end, is_shortened=True)

    def _join(self, values: dict[str, str | None], gone: set[int | None]) -> Line:
        parts: list[str] = []
        length, start, end = 0, -1, 0
        for piece in self.pieces:
            if piece.group is not None and piece.group in gone:
                continue
            text = values[piece.text] if piece.is_field else piece.text
            assert text is not None
            if piece.is_field and start < 0:
                start = length
            parts.append(text)
            length += len(text)
            if piece.is_field and piece.text in _MAIN_FIELDS:
                end = length
        return Line("".join(parts), start, end)


def _read(name: str, memory: Memory, weight: float | None) -> str | None:
    if name == "weight":
        return None if weight is None else f"{weight:.2f}"
    text = FIELDS[name](memory)
    return escape_text(text) if text else None


def _label(memory: Memory) -> str:
    if memory.key is None:
        return memory.content.strip()
    return f"{memory.key}: {_value(memory) or memory.content.strip()}"


def _value(memory: Memory) -> str | None:
    """The value in words; of a registrar's `{who, what, when, result}` the result, else as JSON."""
    value = memory.value
    if isinstance(value, dict) and isinstance(value.get("result"), str):
        value = value["result"]
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _valid_until(memory: Memory) -> str | None:
    if memory.valid_until is None:
        return None
    return from_ns(memory.valid_until, memory.timezone_offset_min).isoformat(timespec="minutes")


FIELDS: dict[str, _Read] = {
    "content": lambda m: m.content.strip(),
    "label": _label,
    "memory_id": lambda m: m.memory_id,
    "type": lambda m: m.type.value,
    "urgency": lambda m: m.urgency.value,
    "trust": lambda m: f"{m.trust:.2f}",
    "key": lambda m: m.key,
    "value": _value,
    "weight": lambda m: f"{m.effective_weight:.2f}",
    "scope": lambda m: m.scope and m.scope.value,
    "tags": lambda m: ", ".join(m.tags) or None,
    "valid_until": _valid_until,
    "source_id": lambda m: m.provenance and m.provenance.source_id,
    "source_format": lambda m: m.provenance and m.provenance.source_format,
    "source_location": lambda m: m.provenance and m.provenance.source_location,
    "verification": lambda m: m.provenance and m.provenance.verification.value,
}
"""What a line may show. `label` is `key: value` where a memory holds both, `key: content` with a key alone,
else the content; `weight` is the effective one."""

_MAIN_FIELDS = ("content", "label")
_ALWAYS_SHOWN = ("content", "label", "type", "urgency", "trust")
"""The rest may be absent, or too long for its line."""

_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{([^{}]*)\}|[\[\]{}]|[^\[\]{}]+")


@lru_cache(maxsize=256)
def parse_line_format(text: str) -> LineFormat:
    """Parse a `render` text.

    Raises:
        ValueError: An unknown field, one that may be absent outside `[ ]`, not exactly one of `{content}` and
            `{label}` outside `[ ]`, an unbalanced brace or bracket, or a line break.
    """
    pieces: list[_Piece] = []
    group: int | None = None
    n_groups = 0
    if len(f"{text}.".splitlines()) != 1:
        raise ValueError(f"render must be one line, got {text!r}")
    for match in _TOKEN.finditer(text):
        token, name = match[0], match[1]
        if name is not None:
            pieces.append(_Piece(_check_field(name, group), True, group))
        elif token == "[" and group is None:
            group, n_groups = n_groups, n_groups + 1
        elif token == "]" and group is not None:
            if not any(piece.is_field and piece.group == group for piece in pieces):
                raise ValueError(f"render must hold a field in each pair of [ ], got none in one of {text!r}")
            group = None
        elif token in "[]{}":
            raise ValueError(
                f"render must hold balanced, unnested braces and brackets, got {token!r} in {text!r}"
            )
        else:
            pieces.append(_Piece(token[0] if token in ("{{", "}}", "[[", "]]") else token, False, group))
    if group is not None:
        raise ValueError(f"render must hold balanced, unnested braces and brackets, got '[' in {text!r}")
    main = [piece for piece in pieces if piece.is_field and piece.text in _MAIN_FIELDS]
    if len(main) != 1 or main[0].group is not None:
        raise ValueError(
            f"render must hold exactly one of {{content}} and {{label}}, outside [ ], got {text!r}"
        )
    return LineFormat(tuple(pieces))


def _check_field(name: str, group: int | None) -> str:
    if name not in FIELDS:
        raise ValueError(f"render must hold fields out of {', '.join(FIELDS)}, got {{{name}}}")
    if group is None and name not in _ALWAYS_SHOWN:
        raise ValueError(f"render must hold {{{name}}} inside [ ], as it may be left out, got it outside")
    return name
