"""PDF as lines and table rows in reading order, without what the pages repeat."""

import hashlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from salience_memory.errors import DocumentUnreadable, MissingExtra
from salience_memory.ingestion.elements import Gap, Place, SourceText, TableRow, TextLine, words_of
from salience_memory.ingestion.page_lines import SetLine, order_lines, read_fragments
from salience_memory.ingestion.running_heads import find_running_heads
from salience_memory.ingestion.tables import PageTable, TableReader, find_tables
from salience_memory.ingestion.typesetting import Typesetting

__all__ = ["is_pdf", "read_pdf"]

_MAGIC = b"%PDF-"
_UNREADABLE_SHARE = 0.2
_FOOTNOTE_SHARE = 0.87
"""Of the body's type size: smaller lines at the foot of a page are footnotes."""


def is_pdf(data: bytes) -> bool:
    """Whether the bytes begin as a PDF does; some writers put a few bytes before it."""
    return _MAGIC in data[:1024]


@dataclass(slots=True)
class _Page:
    lines: list[SetLine]
    tables: list[PageTable]
    height: float
    width: float
    slanted: int


def read_pdf(data: bytes, name: str) -> SourceText:
    """Read a PDF's text layer.

    Args:
        data: The file.
        name: What to call it in errors.

    Raises:
        DocumentUnreadable: It is no PDF, is encrypted, has no pages or no text at all.
        MissingExtra: pymupdf is not installed.
    """
    with _opened(data, name) as document:
        pages = [_read_page(page) for page in document]
        warnings = (
            ["the PDF is damaged and was repaired: check that nothing is missing"]
            if document.is_repaired
            else []
        )
    if not any(page.lines for page in pages):
        raise DocumentUnreadable(
            f"document {name} must have a text layer, got {len(pages)} page(s) of images or nothing: "
            "run text recognition (OCR) first"
        )
    slanted = sum(page.slanted for page in pages)
    if slanted:
        warnings.append(f"{slanted} slanted line(s), such as a watermark, were left out")
    empty = [number for number, page in enumerate(pages, start=1) if not page.lines]
    warnings += [f"page {number} has no text that can be read" for number in empty]
    heads = find_running_heads([page.lines for page in pages], [page.height for page in pages])
    elements = tuple(_assemble(pages, heads))
    words = words_of(element.text for element in elements if isinstance(element, TextLine))
    return SourceText("pdf", hashlib.sha256(data).hexdigest(), elements, tuple(warnings), words)


@contextmanager
def _opened(data: bytes, name: str) -> Generator[Any]:
    pymupdf = _import_pymupdf()
    pymupdf.TOOLS.mupdf_display_errors(False)
    pymupdf.TOOLS.mupdf_display_warnings(False)
    if not is_pdf(data):
        raise DocumentUnreadable(f"document {name} must be a PDF, got a file that does not begin as one")
    try:
        document = pymupdf.open(stream=data, filetype="pdf")
    except RuntimeError as error:
        raise DocumentUnreadable(
            f"document {name} must be a whole PDF, got a damaged one: {error}"
        ) from error
    with document:
        if document.needs_pass:
            raise DocumentUnreadable(
                f"document {name} must be readable without a password, got an encrypted PDF"
            )
        if not document.page_count:
            raise DocumentUnreadable(f"document {name} must have pages, got none")
        yield document


def _import_pymupdf() -> Any:
    try:
        return import_module("pymupdf")  # half a second, and without types
    except ImportError as error:
        raise MissingExtra("reading PDF needs pymupdf: install the extra 'documents'") from error


def _read_page(page: Any) -> _Page:
    pymupdf = _import_pymupdf()
    flags = pymupdf.TEXT_PRESERVE_WHITESPACE | pymupdf.TEXT_MEDIABOX_CLIP
    fragments, slanted = read_fragments(page, page.get_text("dict", flags=flags))
    text = "".join(fragment.text for fragment in fragments)
    if text.count("\ufffd") > _UNREADABLE_SHARE * len(text):
        fragments = []
    tables = find_tables(page) if fragments and not page.rotation else []
    for table in tables:
        x0, y0, x1, y1 = table.box
        inside = [f for f in fragments if x0 <= (f.x0 + f.x1) / 2 <= x1 and y0 <= f.middle <= y1]
        fragments = [f for f in fragments if f not in inside]
    stand_ins = [SetLine("", *table.box, size=10.0, table=index) for index, table in enumerate(tables)]
    lines = order_lines([*fragments, *stand_ins])
    return _Page(lines, tables, float(page.rect.height), float(page.rect.width), slanted)


def _assemble(pages: Sequence[_Page], heads: set[tuple[int, int]]) -> Iterator[TextLine | TableRow | Gap]:
    """All elements, with the lines counted as they stand on the page, headers included."""
    kept = [
        [line for i, line in enumerate(page.lines) if (number, i) not in heads]
        for number, page in enumerate(pages)
    ]
    signs: Counter[float] = Counter()
    for line in (line for lines in kept for line in lines):
        signs[round(line.size * 2) / 2] += len(line.text)
    body_size = signs.most_common(1)[0][0] if signs else 10.0
    typesetting = Typesetting(kept, body_size, max(page.width for page in pages))

    def is_small(line: SetLine) -> bool:
        return line.table is None and line.size <= _FOOTNOTE_SHARE * body_size

    tables = TableReader()
    footnotes: list[TextLine] = []
    for number, page in enumerate(pages):
        if not page.lines:
            yield from tables.end()
            yield Gap(number + 1)
            continue
        places: list[Place] = []
        count = 1
        for line in page.lines:  # a table takes as many lines as its rows have
            places.append(Place(number + 1, count))
            count += 1 if line.table is None else sum(page.tables[line.table].heights)
        body = [i for i in range(len(page.lines)) if (number, i) not in heads]
        # Small lines at the end of a page are footnotes; where all lines are small, none is.
        end = next((n for n in range(len(body), 0, -1) if not is_small(page.lines[body[n - 1]])), len(body))
        for i in body[end:]:
            text = page.lines[i].text
            opens = i == body[end] or not text[:1].isalpha()
            footnotes.append(TextLine(text, places[i], opens=opens))
        body = body[:end]
        for i in body:
            line, is_last = page.lines[i], i == body[-1]
            if line.table is None:
                yield from tables.end()
                yield typesetting.place(line, places[i], ends_page=is_last)
            else:
                yield from tables.read(
                    page.tables[line.table], places[i], is_first=i == body[0], is_last=is_last
                )
    yield from tables.end()
    if footnotes:
        yield TextLine("Footnotes", footnotes[0].place, opens=True, prominence=9.0)
        yield from footnotes
