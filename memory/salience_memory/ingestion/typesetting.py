"""What the look of a PDF's lines says: where paragraphs begin, what is a heading, which lines are full."""

from collections.abc import Sequence
from itertools import pairwise

from salience_memory.ingestion.elements import Place, TextLine, breaks_off, ends_sentence, is_cjk
from salience_memory.ingestion.numbering import parse_label
from salience_memory.ingestion.page_lines import Column, SetLine, first_word_width

__all__ = ["Typesetting"]

_LARGER = 1.1
_MOST_HEADING_SIGNS = 120
_USUAL_WORD_EMS = 2.5


class Typesetting:
    """Reads lines one after the other against what is usual in their document."""

    def __init__(self, pages: Sequence[Sequence[SetLine]], body_size: float, page_width: float) -> None:
        lines = [line for page in pages for line in page if line.table is None]
        self._body_size = body_size
        # The edges of text as wide as the page, as far right as running text goes.
        wide = [line for line in lines if line.column is None] or lines
        self._column = Column(0.0, page_width)
        if wide:
            left, right = min(line.x0 for line in wide), max(line.x1 for line in wide)
            prose = [line for line in wide if len(line.text) >= (15 if is_cjk(line.text[0]) else 30)]
            reaching = sum(line.x1 >= right - 0.15 * (right - left) for line in prose)
            self._column = Column(left, right if reaching >= 4 else max(right, 0.75 * page_width))
        # The usual distance of lines in a paragraph, in ems: the lower quartile of all distances.
        pitches = sorted(
            (after.middle - line.middle) / line.size
            for page in pages
            for line, after in pairwise(page)
            if line.table is None
            and after.table is None
            and line.size == after.size
            and after.middle > line.y1
        )
        self._pitch = min(pitches[len(pitches) // 4], 2.0) if pitches else 1.3
        bold = sum(len(line.text) for line in lines if line.is_bold)
        self._bold_is_usual = bold > 0.4 * sum(len(line.text) for line in lines)
        self._next = {id(line): after for line, after in pairwise(lines)}
        self._previous: tuple[SetLine, TextLine] | None = None

    def place(self, line: SetLine, place: Place, *, ends_page: bool) -> TextLine:
        """The line as an element. Call once for each line, in order."""
        column = line.column or self._column
        opens = self._opens(line, place)
        after = self._next.get(id(line))
        word = _USUAL_WORD_EMS * line.size if after is None else first_word_width(after)
        placed = TextLine(
            line.text,
            place,
            opens=opens,
            is_full=line.x1 + word > column.right - line.size,
            prominence=self._prominence(line, opens),
            indent=max(0.0, (line.x0 - column.left) / line.size),
            ends_page=ends_page,
        )
        self._previous = (line, placed)
        return placed

    def _opens(self, line: SetLine, place: Place) -> bool:
        if self._previous is None:
            return True
        last, placed = self._previous
        has_ended = ends_sentence(last.text)
        goes_on = placed.is_full and not has_ended
        has_label = parse_label(line.text) is not None
        if line.size >= _LARGER * last.size or last.size >= _LARGER * line.size:
            return True
        if line.is_bold != last.is_bold and not goes_on:
            return True
        column = line.column or self._column
        is_indented = line.x0 - column.left >= 0.8 * line.size
        if place.page != placed.place.page or line.y0 < last.y0:  # a new page or column
            return has_ended and (not placed.is_full or is_indented or has_label)
        if line.middle - last.middle > 1.3 * self._pitch * line.size:
            return True
        if has_label and line.x0 < last.x0 - 0.5 * line.size:
            return True
        if not placed.is_full:
            is_cut = breaks_off(last.text) or line.text[0].islower()
            return has_ended or has_label or not is_cut
        begins_indented = is_indented and line.x0 - last.x0 >= 0.8 * line.size
        return begins_indented and has_ended and parse_label(last.text) is None

    def _prominence(self, line: SetLine, opens: bool) -> float:
        last = None if self._previous is None else self._previous[1]
        larger = line.size / self._body_size
        is_bold = line.is_bold and not self._bold_is_usual and not line.is_mono
        if larger >= _LARGER and len(line.text) <= 2 * _MOST_HEADING_SIGNS:
            return round(larger - 1.0, 2) + (0.05 if is_bold else 0.0)
        is_short = len(line.text) <= _MOST_HEADING_SIGNS and not ends_sentence(line.text)
        follows_heading = last is not None and last.prominence == 0.05
        if is_bold and is_short and (opens or follows_heading):
            return 0.05
        letters = [sign for sign in line.text if sign.isalpha()]
        is_capital = not line.is_mono and len(letters) >= 4 and all(sign.isupper() for sign in letters)
        return 0.02 if is_capital and is_short and opens else 0.0
