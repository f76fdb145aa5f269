"""Ruled tables of a PDF as pymupdf finds them: merged cells filled in, rows read on over page breaks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from salience_memory.ingestion.elements import Place, TableRow, breaks_off, join_lines, tidy

__all__ = ["PageTable", "TableReader", "find_tables"]

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
    if own is None and not text and row == 0:
        text = next((rows[0][left] for left in range(column - 1, -1, -1) if boxes[0][left]), None)
    elif own is None and not text:
        middles = [(cell[1] + cell[3]) / 2 for cell in boxes[row] if cell is not None]
        for above in range(row - 1, -1, -1):
            if cell := boxes[above][column]:
                text = rows[above][column] if middles and cell[3] > min(middles) else None
                break
    return join_lines([tidy(line) for line in (text or "").split("\n") if line.strip()])


@dataclass(slots=True)
class _Open:
    table: PageTable
    names: tuple[str, ...]
    last_row: TableRow | None


class TableReader:
    """Turns the tables of page after page into rows; the last row waits for the next page."""

    def __init__(self) -> None:
        self._count = 0
        self._open: _Open | None = None

    def read(self, table: PageTable, place: Place, *, is_first: bool, is_last: bool) -> Iterator[TableRow]:
        """The rows of one page's table.

        Args:
            table: What pymupdf found.
            place: Its first line.
            is_first: It is the first thing on its page and may go on with a table of the page before.
            is_last: It is the last thing on its page and may go on with the next.
        """
        went_on = self._open if is_first and self._open and table.continues(self._open.table) else None
        waiting = None if went_on is None else went_on.last_row
        if went_on is None:
            yield from self.end()
            self._count += 1
            names, skipped = table.rows[0], 1
        else:
            names, skipped = went_on.names, int(table.rows[0] == went_on.names)
        line = place.line + sum(table.heights[:skipped])
        for cells, height in list(zip(table.rows, table.heights, strict=True))[skipped:]:
            first, last = Place(place.page, line), Place(place.page, line + height - 1)
            line += height
            if not any(cells):
                continue
            if waiting is not None and waiting.last.page != place.page and not cells[0]:
                pairs = zip(waiting.cells, cells, strict=True)
                joined = tuple(join_lines([part for part in pair if part]) for pair in pairs)
                waiting = replace(waiting, cells=joined, last=last)
                continue
            if waiting is not None:
                yield waiting
            waiting = TableRow(names, cells, first, last, self._count)
        self._open = _Open(table, names, waiting) if is_last else None
        if not is_last and waiting is not None:
            yield waiting

    def end(self) -> Iterator[TableRow]:
        """No table goes on here: the row that waited stands as it is, or is known to be cut."""
        if self._open is not None and (row := self._open.last_row) is not None:
            yield replace(row, is_cut=any(breaks_off(cell) for cell in row.cells if cell))
        self._open = None
