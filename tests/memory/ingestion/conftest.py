"""PDFs built in the test: text is set at points of an A4 page, 595 × 842."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pymupdf
import pytest

from salience_memory.ingestion import Clause, Refusal, read_document, split_clauses
from salience_memory.store import MemoryStore

DAY_NS = 86_400 * 10**9
LEADING = 14.0


class PdfBuilder:
    """Sets text line by line. `y` is where the next line's baseline goes."""

    def __init__(self) -> None:
        self.document = pymupdf.open()
        self.y = 0.0
        self.page: Any = None

    def new_page(self, **size: float) -> "PdfBuilder":
        self.page = self.document.new_page(**size)
        self.y = 90.0
        return self

    def line(
        self, text: str, *, x: float = 72, y: float | None = None, size: float = 11, font: str = "helv"
    ) -> "PdfBuilder":
        """One line; below the last one, or at `y`, which moves nothing."""
        self.page.insert_text((x, self.y if y is None else y), text, fontsize=size, fontname=font)
        if y is None:
            self.y += LEADING * size / 11
        return self

    def paragraph(self, text: str, *, x: float = 72, width: float = 450, font: str = "helv") -> "PdfBuilder":
        """Wrapped as a typesetter would; Chinese between any two signs."""
        parts = list(text) if font == "china-s" else text.split(" ")
        glue = "" if font == "china-s" else " "
        line = ""
        for part in parts:
            longer = line + glue + part if line else part
            if line and pymupdf.get_text_length(longer, fontname=font, fontsize=11) > width:
                self.line(line, x=x, font=font)
                longer = part
            line = longer
        return self.line(line, x=x, font=font)

    def skip(self, points: float = 8) -> "PdfBuilder":
        self.y += points
        return self

    def table(
        self, rows: Sequence[Sequence[str]], edges: Sequence[float], height: float = 20
    ) -> "PdfBuilder":
        """A ruled table; a cell's lines are split by line feeds."""
        heights = [height * max(cell.count("\n") + 1 for cell in row) for row in rows]
        top = self.y
        tops = [top + sum(heights[:i]) for i in range(len(rows) + 1)]
        shape = self.page.new_shape()
        for y in tops:
            shape.draw_line((edges[0], y), (edges[-1], y))
        for x in edges:
            shape.draw_line((x, tops[0]), (x, tops[-1]))
        shape.finish()
        shape.commit()
        for row, y in zip(rows, tops, strict=False):
            for cell, x in zip(row, edges, strict=False):
                for i, line in enumerate(cell.split("\n")):
                    self.line(line, x=x + 4, y=y + 14 + height * i)
        self.y = tops[-1] + 20
        return self

    def data(self, **options: Any) -> bytes:
        return self.document.tobytes(**options)


@pytest.fixture
def pdf() -> PdfBuilder:
    return PdfBuilder().new_page()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[list[Clause], list[Refusal]]]:
    """Write a document and split it."""

    def split(document: PdfBuilder | str) -> tuple[list[Clause], list[Refusal]]:
        return split_clauses(read_document(write(tmp_path, document)))

    return split


def write(folder: Path, document: PdfBuilder | str | bytes, name: str = "document") -> Path:
    if isinstance(document, PdfBuilder):
        document = document.data()
    path = folder / f"{name}.{'md' if isinstance(document, str) else 'pdf'}"
    path.write_bytes(document.encode() if isinstance(document, str) else document)
    return path


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a document; returns its path."""
    return lambda document, name="document": write(tmp_path, document, name)


class FixedClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_800_000_000 * 10**9

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def store(tmp_path: Path, clock: FixedClock):
    with MemoryStore(tmp_path / "memory.db", clock=clock) as opened:
        yield opened
