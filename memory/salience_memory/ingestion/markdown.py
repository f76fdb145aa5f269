"""Markdown (CommonMark with tables) as lines and table rows with their places in the file."""

import hashlib
import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from salience_memory.errors import DocumentUnreadable
from salience_memory.ingestion.elements import Place, SourceText, TableRow, TextLine, tidy, words_of

__all__ = ["read_markdown"]

_FRONT_MATTER = re.compile(r"---\n.*?\n(?:---|\.\.\.)(?:\n|$)", re.DOTALL)
_LEAST_WIDTH = 60
"""Signs below which no line counts as full, however short the lines around it are."""


def read_markdown(data: bytes, name: str) -> SourceText:
    """Read a Markdown document; front matter and comments are left out.

    Args:
        data: The file, UTF-8.
        name: What to call it in errors.

    Raises:
        DocumentUnreadable: The bytes are no UTF-8 text, or hold no words.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentUnreadable(
            f"document {name} must be UTF-8 text, got byte {data[error.start]:#04x} at offset {error.start}"
        ) from error
    if "\0" in text:
        raise DocumentUnreadable(f"document {name} must be Markdown text, got a binary file")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (matter := _FRONT_MATTER.match(text)) is not None:
        text = "\n" * matter.group().count("\n") + text[matter.end() :]
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    elements = tuple(_Reader(tokens).read())
    if not elements:
        raise DocumentUnreadable(f"document {name} must hold text, got none")
    words = words_of(line.text for line in elements if isinstance(line, TextLine))
    return SourceText("markdown", hashlib.sha256(data).hexdigest(), elements, words=words)


class _Reader:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = iter(tokens)
        self._depth = 0
        self._marker: str | None = None
        self._tables = 0

    def read(self) -> Iterator[TextLine | TableRow]:
        for token in self._tokens:
            if token.type in ("ordered_list_open", "bullet_list_open", "blockquote_open"):
                self._depth += 1
            elif token.type in ("ordered_list_close", "bullet_list_close", "blockquote_close"):
                self._depth -= 1
            elif token.type == "list_item_open":
                self._marker = f"{token.info}{token.markup}"
            elif token.type == "heading_open":
                yield from self._lines(next(self._tokens), prominence=7.0 - int(token.tag[1]))
            elif token.type == "inline":
                yield from self._lines(token)
            elif token.type in ("fence", "code_block"):
                assert token.map is not None
                start = token.map[0] + (2 if token.type == "fence" else 1)
                for offset, text in enumerate(token.content.rstrip("\n").split("\n")):
                    if text.strip():
                        place, depth = Place(None, start + offset), float(self._depth)
                        yield TextLine(text, place, offset == 0, indent=depth, is_verbatim=True)
            elif token.type == "table_open":
                self._tables += 1
                yield from self._rows()

    def _lines(self, token: Token, prominence: float = 0.0) -> Iterator[TextLine]:
        """The lines of one paragraph or heading."""
        assert token.map is not None
        texts = _split_inline(token.children or [])
        width = max(_LEAST_WIDTH, *(len(text) for text, _ in texts))
        is_first = True
        for offset, (text, is_broken) in enumerate(texts):
            if not text:
                continue
            follower = texts[offset + 1][0] if offset + 1 < len(texts) else ""
            word = len(follower.split(None, 1)[0]) if follower else 0
            yield TextLine(
                text,
                Place(None, min(token.map[0] + 1 + offset, token.map[1])),
                opens=is_first,
                is_full=bool(word) and not is_broken and len(text) + 1 + word > width,
                prominence=prominence,
                indent=float(self._depth),
                marker=self._marker if is_first and not prominence else None,
            )
            is_first, self._marker = False, None

    def _rows(self) -> Iterator[TableRow]:
        names: tuple[str, ...] = ()
        cells: list[str] = []
        place = Place(None, 1)
        for token in self._tokens:
            if token.type == "table_close":
                return
            if token.type == "inline":
                cells.append(" ".join(text for text, _ in _split_inline(token.children or [])))
            elif token.type == "tr_open":
                cells, place = [], Place(None, (token.map or [0])[0] + 1)
            elif token.type == "thead_close":
                names = tuple(cells)
            elif token.type == "tr_close" and names and any(cells):
                yield TableRow(names, tuple(cells), place, place, self._tables)


def _split_inline(children: Sequence[Token]) -> list[tuple[str, bool]]:
    """Texts by source line, without markup; whether a line's end was forced."""
    lines: list[tuple[str, bool]] = []
    text = ""
    for child in children:
        if child.type in ("softbreak", "hardbreak"):
            lines.append((tidy(text), child.type == "hardbreak"))
            text = ""
        elif child.type in ("text", "code_inline", "text_special"):
            text += child.content
        elif child.type == "image":
            text += child.content  # its alternative text
        elif child.type == "html_inline" and re.match(r"<br\s*/?>", child.content, re.IGNORECASE):
            text += " "
    lines.append((tidy(text), True))
    return lines
