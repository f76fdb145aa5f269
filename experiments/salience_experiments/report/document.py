"""A report as a list of blocks, which Markdown and HTML render alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Listing:
    """A bulleted list, one line an entry."""

    entries: tuple[str, ...]


@dataclass(frozen=True)
class Alarm:
    """What a reader must not miss, such as an incomplete run."""

    text: str


@dataclass(frozen=True)
class Table:
    """`n_text` leading columns are words, set left; the rest are numbers, set right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    n_text: int = 1


@dataclass(frozen=True)
class Figure:
    """`name` becomes the file name; `alt` says in a sentence what is drawn."""

    name: str
    alt: str
    png: bytes
    svg: bytes


Block = Heading | Paragraph | Listing | Alarm | Table | Figure


def render_markdown(blocks: Sequence[Block], figure_folder: str) -> str:
    """The report as GitHub-flavoured Markdown; figures are PNG files under the relative `figure_folder`."""
    return "\n\n".join(_render(block, figure_folder) for block in blocks) + "\n"


def _render(block: Block, figure_folder: str) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_escape(text)}"
        case Paragraph(text):
            return _escape(text)
        case Listing(entries):
            return "\n".join(f"- {_escape(entry)}" for entry in entries)
        case Alarm(text):
            return f"> **⚠ {_escape(text)}**"
        case Figure(name, alt):
            return f"![{_escape(alt)}]({figure_folder}/{name}.png)"
        case Table():
            return _render_table(block)


def _render_table(table: Table) -> str:
    rules = [":--" if index < table.n_text else "--:" for index in range(len(table.columns))]
    rows = [table.columns, *table.rows]
    lines = ["| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join([_escape(table.caption), "", lines[0], "|" + "|".join(rules) + "|", *lines[1:]])


def _escape(text: str) -> str:
    """Keep names such as `target_share*` and a bar inside a cell literal."""
    for character in "\\`*_|<[":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
