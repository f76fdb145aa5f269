"""Tables over page breaks: rows as elements, a table's next part under the header of its first."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from salience_memory.ingestion.elements import Place, TableRow, breaks_off, join_lines
from salience_memory.ingestion.tables import PageTable

__all__ = ["TableReader"]


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
                waiting = replace(waiting, cells=_join_cells(waiting.cells, cells), last=last)
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


def _join_cells(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(join_lines([part for part in pair if part]) for pair in zip(left, right, strict=True))
