"""Ruled tables of a PDF page as pymupdf finds them, with merged cells filled in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from salience_memory.ingestion.elements import join_lines, tidy

__all__ = ["PageTable", "find_tables"]

_EDGE_POINTS = 4.0


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table on one page. The first row may be its header, or the page's part of a longer table."""

    box: tuple[float, float, float, float]
    edges: tuple[float, ...]
    rows: tuple[tuple[str, ...], ...]
    heights: tuple[int, ...]
    """How many lines of text each row takes."""

    def continues(self, other: "PageTable") -> bool:
        """Whether its columns stand where the other's do."""
        return len(self.edges) == len(other.edges) and all(
            abs(mine - its) <= _EDGE_POINTS for mine, its in zip(self.edges, other.edges, strict=True)
        )


def find_tables(page: Any) -> list[PageTable]:
    """Tables of at least two columns and some text. A box around running text is none."""
    tables = [_read_table(table) for table in page.find_tables().tables if table.col_count >= 2]
    return [table for table in tables if any(any(row) for row in table.rows)]


def _read_table(table: Any) -> PageTable:
    texts: list[list[str | None]] = table.extract()
    boxes: list[list[tuple[float, ...] | None]] = [list(row.cells) for row in table.rows]
    box, rows = tuple(table.bbox), list(texts)
    if table.header.external and table.header.names:
        rows.insert(0, list(table.header.names))
        boxes.insert(0, list(table.header.cells))
        above = table.header.bbox
        box = (min(box[0], above[0]), min(box[1], above[1]), max(box[2], above[2]), box[3])
    filled = [
        tuple(_cell(rows, boxes, row, column) for column in range(table.col_count))
        for row in range(len(rows))
    ]
    heights = tuple(max((text or "").count("\n") + 1 for text in row) for row in rows)
    lefts = {column: cell[0] for row in boxes for column, cell in enumerate(row) if cell is not None}
    edges = tuple(lefts[column] for column in sorted(lefts))
    return PageTable((box[0], box[1], box[2], box[3]), (*edges, box[2]), tuple(filled), heights)


def _cell(
    rows: Sequence[Sequence[str | None]],
    boxes: Sequence[Sequence[tuple[float, ...] | None]],
    row: int,
    column: int,
) -> str:
    """A cell's text; in the header, and down a column, that of the merged cell which covers it."""
    own = boxes[row][column] if column < len(boxes[row]) else None
    text = rows[row][column]
    if own is None and not text:
        text = _covering(rows, boxes, row, column)
    return join_lines([tidy(line) for line in (text or "").split("\n") if line.strip()])


def _covering(
    rows: Sequence[Sequence[str | None]],
    boxes: Sequence[Sequence[tuple[float, ...] | None]],
    row: int,
    column: int,
) -> str | None:
    middles = [(cell[1] + cell[3]) / 2 for cell in boxes[row] if cell is not None]
    for above in range(row - 1, -1, -1):
        cell = boxes[above][column]
        if cell is not None:
            return rows[above][column] if middles and cell[3] > min(middles) else None
    if row == 0:
        return next((rows[0][left] for left in range(column - 1, -1, -1) if boxes[0][left] is not None), None)
    return None
