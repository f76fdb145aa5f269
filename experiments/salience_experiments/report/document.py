"""A report as a list of blocks, rendered alike as Markdown and as one HTML file that stands alone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from salience_experiments.verdict import Verdict

_CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 2rem auto; max-width:
72rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1.05rem; margin-top: 2rem; }
.alarm { background: #b00020; color: #fff; font-weight: 700; padding: .7rem 1rem; border-radius: 4px; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
caption { caption-side: top; text-align: left; color: #555; padding-bottom: .4rem; max-width: 60rem; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid #e6e6e6; text-align: right; vertical-align: top; }
td { white-space: nowrap; } th { border-bottom: 2px solid #999; }
th.text, td.text { text-align: left; } td.long { white-space: normal; overflow-wrap: anywhere; }
td.improved { color: #006b3c; font-weight: 700; } td.worse { color: #b00020; font-weight: 700; }
td.inconclusive { color: #666; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; } figcaption { color: #555;
font-size: .87rem; }
"""
_VERDICTS = frozenset(str(verdict) for verdict in Verdict)
_LONG_CELL = 60


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
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {_escape(text)}")
            case Paragraph(text):
                parts.append(_escape(text))
            case Listing(entries):
                parts.append("\n".join(f"- {_escape(entry)}" for entry in entries))
            case Alarm(text):
                parts.append(f"> **⚠ {_escape(text)}**")
            case Figure(name, alt):
                parts.append(f"![{_escape(alt)}]({figure_folder}/{name}.png)")
            case Table(columns, rows, caption, n_text):
                rules = [":--" if index < n_text else "--:" for index in range(len(columns))]
                lines = ["| " + " | ".join(map(_escape, row)) + " |" for row in (columns, *rows)]
                rule = "|" + "|".join(rules) + "|"
                parts.append("\n".join([_escape(caption), "", lines[0], rule, *lines[1:]]))
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    """Keep names such as `target_share*` and a bar inside a cell literal."""
    for character in "\\`*_|<[":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def render_html(title: str, blocks: Sequence[Block]) -> str:
    """The whole page; figures are inlined as SVG data URIs, so that their ids cannot meet."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"<h{level}>{escape(text)}</h{level}>")
            case Paragraph(text):
                parts.append(f"<p>{escape(text)}</p>")
            case Listing(entries):
                parts.append("<ul>" + "".join(f"<li>{escape(entry)}</li>" for entry in entries) + "</ul>")
            case Alarm(text):
                parts.append(f'<p class="alarm" role="alert">⚠ {escape(text)}</p>')
            case Figure(_, alt, _, svg):
                data = base64.b64encode(svg).decode("ascii")
                image = f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">'
                parts.append(f"<figure>{image}<figcaption>{escape(alt)}</figcaption></figure>")
            case Table():
                parts.append(_table_html(block))
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table_html(table: Table) -> str:
    """Verdicts are coloured by their first word; long cells may break."""
    head = "".join(
        f'<th scope="col"{_class("text" if index < table.n_text else "")}>{escape(column)}</th>'
        for index, column in enumerate(table.columns)
    )
    lines: list[str] = []
    for row in table.rows:
        cells = ""
        for index, text in enumerate(row):
            word = text.split(" ", 1)[0]
            names = ["text"] * (index < table.n_text) + [word] * (word in _VERDICTS)
            names += ["long"] * (len(text) > _LONG_CELL)
            cells += f"<td{_class(' '.join(names))}>{escape(text)}</td>"
        lines.append(f"<tr>{cells}</tr>")
    rows = "\n".join(lines)
    return (
        f'<div class="wide"><table><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""
