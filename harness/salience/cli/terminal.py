"""What reaches a terminal: text whose control characters are shown, never sent; JSON; a memory on a line."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from salience_memory.clock import from_ns
from salience_memory.records import Memory, StoredMemory

__all__ = [
    "Terminal",
    "line_of",
    "print_json",
    "shorten",
    "show_time",
    "table_of",
    "visible",
    "weight_of",
    "whose",
]

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 but for tab and newline, which starts no escape; what turns the direction of writing; half a
character, which no terminal can be sent."""


def visible(text: str) -> str:
    r"""The text with its control characters spelt out, `\x1b` for the one that begins a terminal's escapes.

    A memory, a person or a model can write what moves the cursor, renames the window or answers for the user.
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console through which no text that is printed can send a control character of its own."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, with all text visible: every way of printing comes through here."""
        for segment in super().render(renderable, options):
            # A control segment is rich's own, such as moving back over a spinner.
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def say(self, text: str, style: str | None = None, *, end: str = "\n") -> None:
        """Print text as it is: brackets are no markup, and long lines are the terminal's to break."""
        # Visible already here: rich drops some control characters from what it's given, unshown.
        self.print(visible(text), style=style, markup=False, soft_wrap=True, end=end)


def print_json(found: Any, *, is_line: bool = False) -> None:
    """As JSON on standard output, Unicode as it is but for control characters.

    Args:
        found: What JSON can hold.
        is_line: Whether it is one line of several.
    """
    text = json.dumps(found, ensure_ascii=False, indent=None if is_line else 2)
    # json escapes C0 alone; beyond it, only strings can hold what the pattern finds.
    print(re.sub(_UNSEEN, lambda char: f"\\u{ord(char[0]):04x}", text), flush=True)


def shorten(text: str, width: int = 60) -> str:
    """A text on one line, visible, cut to `width` characters."""
    flat = visible(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def show_time(ns: int, offset_min: int = 0) -> str:
    """ISO 8601 to the second, in UTC or at an offset from it."""
    return from_ns(ns, offset_min).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def table_of(memories: Sequence[StoredMemory]) -> Table:
    """One row a memory: id, type, whose, effective weight, key and content."""
    table = Table()
    table.add_column("id", no_wrap=True)
    for name in ("type", "whose"):
        table.add_column(name)
    table.add_column("weight", justify="right")
    table.add_column("memory", ratio=1)
    for memory in memories:
        row = (Text(visible(memory.memory_id)), memory.type.value, whose(memory))
        table.add_row(*row, weight_of(memory), line_of(memory))
    return table


def whose(memory: Memory) -> Text:
    """The scope and its owner."""
    owners = [owner for owner in (memory.user_id, memory.session_id) if owner]
    return Text(visible(" ".join(owners)) or "everybody")


def weight_of(memory: Memory) -> str:
    """The declared weight, and what trust and freshness leave of it."""
    declared, left = f"{memory.semantic_weight:.2f}", f"{memory.effective_weight:.2f}"
    return declared if declared == left else f"{declared} → {left}"


def line_of(memory: Memory) -> Text:
    """Key and content on a line."""
    key = visible(" ".join((memory.key or "").split()))
    shown = key if len(key) <= 40 else f"…{key[-39:]}"  # of a breadcrumb, the end tells most
    text = Text(f"{shown}: " if key else "", style="dim")
    return text.append(shorten(memory.content, 100), style="not dim")
