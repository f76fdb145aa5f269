"""A report as one HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from salience_experiments.report.document import Alarm, Block, Figure, Heading, Listing, Paragraph, Table
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


def render_html(title: str, blocks: Sequence[Block]) -> str:
    """The whole page; figures are inlined as SVG data URIs, so that their ids cannot meet."""
    body = "\n".join(_render(block) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _render(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Listing(entries):
            return "<ul>" + "".join(f"<li>{escape(entry)}</li>" for entry in entries) + "</ul>"
        case Alarm(text):
            return f'<p class="alarm" role="alert">⚠ {escape(text)}</p>'
        case Figure(_, alt, _, svg):
            data = base64.b64encode(svg).decode("ascii")
            image = f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">'
            return f"<figure>{image}<figcaption>{escape(alt)}</figcaption></figure>"
        case Table():
            return _render_table(block)


def _render_table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class("text" if index < table.n_text else "")}>{escape(column)}</th>'
        for index, column in enumerate(table.columns)
    )
    rows = "\n".join(
        "<tr>" + "".join(_render_cell(cell, index < table.n_text) for index, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _render_cell(text: str, is_text: bool) -> str:
    word = text.split(" ", 1)[0]
    names = ["text"] if is_text else []
    names += [word] if word in _VERDICTS else []
    names += ["long"] if len(text) > _LONG_CELL else []
    return f"<td{_class(' '.join(names))}>{escape(text)}</td>"


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""
