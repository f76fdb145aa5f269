"""References: `<memory_ref id="…" type="…"/>` in an answer, read as it streams and hidden from the user."""

import html
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Position", "Reference", "ReferenceScanner", "count_positions", "format_reference"]

_OPEN = "<memory_ref"
_MAX_TAG_CHARS = 1024
_ATTRIBUTE = re.compile(r"""([A-Za-z_]+) ?= ?(?:"([^"]*)"|'([^']*)'|([^\s"'/>]+))""")
_QUOTES = str.maketrans({"“": '"', "”": '"', "＂": '"'})
_HUGS_LEFT = frozenset(".,;:!?)]}’”。，；：！？）】」』\n")
"""Before these no space is left over where a reference stood."""


class Position(StrEnum):
    """The third of the visible answer in which a reference stands."""

    HEAD = "head"
    MIDDLE = "middle"
    TAIL = "tail"


@dataclass(frozen=True)
class Reference:
    """One reference in an answer; `offset` counts visible characters before it, of `length` in all."""

    memory_id: str
    type: str | None
    offset: int
    length: int

    @property
    def position(self) -> Position:
        if 3 * self.offset < self.length or not self.length:
            return Position.HEAD
        return Position.MIDDLE if 3 * self.offset < 2 * self.length else Position.TAIL


class ReferenceScanner:
    """Separates references from text, however the text is cut into pieces.

    `push` returns what may be shown by now: all but references and what may yet turn out to be one. A tag
    is at most 1,024 characters from `<memory_ref` to the first `>`; one without an id is hidden and counted
    as malformed, and so is one that the end of the answer cuts off. Spaces that only set a reference apart
    go with it.
    """

    def __init__(self) -> None:
        self.malformed = 0
        self._tag = ""
        self._spaces_before = 0
        self._spaces = 0
        self._is_after_tag = False
        self._length = 0
        self._found: list[tuple[str, str | None, int]] = []

    @property
    def references(self) -> tuple[Reference, ...]:
        """Those found so far, in order; positions are final after `flush`."""
        return tuple(Reference(*found, length=self._length) for found in self._found)

    def push(self, text: str) -> str:
        """Take the next piece of the answer.

        Returns:
            What can be shown now.
        """
        shown: list[str] = []
        for character in text:
            if self._tag:
                self._extend_tag(character, shown)
            elif character == "<":
                self._tag = character
            else:
                self._show(character, shown)
        return self._join(shown)

    def flush(self) -> str:
        """End the answer.

        Returns:
            What was held back and is no reference.
        """
        shown: list[str] = []
        rest, self._tag = self._tag, ""
        if len(rest) > len(_OPEN):
            self.malformed += 1
            self._hide()
        else:
            self._show_all(rest, shown)
        if not self._is_after_tag:
            shown.append(" " * self._spaces)
        self._spaces, self._is_after_tag = 0, False
        return self._join(shown)

    def _extend_tag(self, character: str, shown: list[str]) -> None:
        tag = self._tag + character
        if character == "<":
            self._tag = ""
            self._show_all(tag[:-1], shown)
            self._tag = character
        elif not _may_be_tag(tag):
            self._tag = ""
            self._show_all(tag, shown)
        elif character == ">":
            self._tag = ""
            self._close_tag(tag, shown)
        else:
            self._tag = tag

    def _close_tag(self, tag: str, shown: list[str]) -> None:
        attributes = {
            match[1].lower(): html.unescape(match[2] or match[3] or match[4] or "")
            for match in _ATTRIBUTE.finditer(" ".join(tag.translate(_QUOTES).split()))
        }
        if memory_id := attributes.get("id", "").strip():
            before = self._length + sum(map(len, shown))
            self._found.append((memory_id, attributes.get("type"), before))
        else:
            self.malformed += 1
        self._hide()

    def _hide(self) -> None:
        """Something that stood here was left out."""
        if not self._is_after_tag:
            self._spaces_before = self._spaces
        self._is_after_tag = True

    def _show_all(self, text: str, shown: list[str]) -> None:
        for character in text:
            self._show(character, shown)

    def _show(self, character: str, shown: list[str]) -> None:
        if character == " ":
            self._spaces += 1
            return
        if self._is_after_tag and self._spaces_before:
            if character in _HUGS_LEFT:
                self._spaces -= self._spaces_before
            elif self._spaces > self._spaces_before:
                self._spaces -= 1
        shown.append(" " * self._spaces + character)
        self._spaces = self._spaces_before = 0
        self._is_after_tag = False

    def _join(self, shown: list[str]) -> str:
        text = "".join(shown)
        self._length += len(text)
        return text


def _may_be_tag(text: str) -> bool:
    """Whether `text` is the beginning of a reference, or a whole one."""
    name, rest = text[: len(_OPEN)].lower(), text[len(_OPEN) :]
    if not rest:
        return _OPEN.startswith(name)
    return name == _OPEN and (rest[0].isspace() or rest[0] in "/>") and len(text) <= _MAX_TAG_CHARS


def count_positions(references: Iterable[Reference]) -> dict[Position, int]:
    """How many references stand in each third; all three are named."""
    counts = Counter(reference.position for reference in references)
    return {position: counts[position] for position in Position}


def format_reference(memory_id: str, kind: str) -> str:
    """The reference that an answer should hold for a memory."""
    return f'<memory_ref id="{html.escape(memory_id)}" type="{html.escape(kind)}"/>'
