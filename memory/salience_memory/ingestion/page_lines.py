"""The lines of a PDF page in reading order: fragments joined, columns one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from salience_memory.ingestion.elements import is_cjk, tidy
from salience_memory.ingestion.numbering import parse_label

__all__ = ["Column", "SetLine", "first_word_width", "order_lines", "read_fragments"]


@dataclass(frozen=True, slots=True)
class Column:
    """Left and right edge in points."""

    left: float
    right: float


@dataclass(frozen=True, slots=True)
class SetLine:
    """A line as it is set on the page, in points from the top left."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    is_bold: bool = False
    is_mono: bool = False
    column: Column | None = None
    """None for a line as wide as the page's text."""
    table: int | None = None
    """It stands for the table of that index."""

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2

    @property
    def width(self) -> float:
        return self.x1 - self.x0


def read_fragments(page: Any, layout: dict[str, Any]) -> tuple[list[SetLine], int]:
    """Upright text of a page as pymupdf's `dict` gives it, and how many slanted lines were left out."""
    fragments: list[SetLine] = []
    slanted = 0
    matrix = page.rotation_matrix
    for block in layout["blocks"]:
        for line in block.get("lines", ()):
            spans = [span for span in line["spans"] if span["text"].strip()]
            text = tidy("".join(span["text"] for span in line["spans"]))
            if not spans or not text:
                continue
            right, down = line["dir"]
            if abs(right * matrix.a + down * matrix.c) < 0.99:
                slanted += 1
                continue
            # The box of the unrotated page, where the rotated page shows it.
            corners = [(line["bbox"][i], line["bbox"][j]) for i in (0, 2) for j in (1, 3)]
            xs = [x * matrix.a + y * matrix.c + matrix.e for x, y in corners]
            ys = [x * matrix.b + y * matrix.d + matrix.f for x, y in corners]
            x0, y0, x1, y1 = min(xs), min(ys), max(xs), max(ys)
            size = max(float(span["size"]) for span in spans)
            is_bold = all(span["flags"] & 16 or "bold" in span["font"].lower() for span in spans)
            is_mono = all(span["flags"] & 8 for span in spans)
            fragments.append(SetLine(text, x0, y0, x1, y1, round(size, 1), is_bold, is_mono))
    return fragments, slanted


def order_lines(fragments: Sequence[SetLine]) -> list[SetLine]:
    """Lines from top to bottom, column by column between lines that run across the columns."""
    return _order(_join_fragments(fragments, gap_ems=1.0), None)


def _order(lines: list[SetLine], column: Column | None) -> list[SetLine]:
    gutter = _find_gutter(lines)
    if gutter is None:
        return [replace(line, column=column) for line in _join_fragments(lines, gap_ems=None)]
    middle = (gutter.left + gutter.right) / 2
    across = sorted((line for line in lines if line.x0 < middle < line.x1), key=lambda line: line.middle)
    rest = [line for line in lines if not line.x0 < middle < line.x1]
    left, right = min(line.x0 for line in lines), max(line.x1 for line in lines)
    columns = (Column(left, gutter.left), Column(gutter.right, right))
    ordered: list[SetLine] = []
    for line in [*across, None]:
        above = [other for other in rest if line is None or other.middle < line.middle]
        rest = [other for other in rest if line is not None and other.middle >= line.middle]
        ordered += _order([other for other in above if other.x1 <= middle], columns[0])
        ordered += _order([other for other in above if other.x0 >= middle], columns[1])
        if line is not None:
            ordered.append(replace(line, column=column))
    return ordered


def _find_gutter(lines: Sequence[SetLine]) -> Column | None:
    """The white strip between two columns of running text, which few lines cross."""
    if len(lines) < 6:
        return None
    left, right = min(line.x0 for line in lines), max(line.x1 for line in lines)
    best: tuple[int, float] | None = None
    found: Column | None = None
    for edge in sorted({line.x1 for line in lines}):
        if not left + 0.2 * (right - left) <= edge <= right - 0.2 * (right - left):
            continue
        before = [line for line in lines if line.x1 <= edge]
        after = [line for line in lines if line.x0 > edge]
        crossing = len(lines) - len(before) - len(after)
        if len(before) < 2 or len(after) < 2 or crossing > 0.35 * len(lines):
            continue
        strip = Column(edge, min(line.x0 for line in after))
        rank = (crossing, strip.left - strip.right)
        if _are_columns(before, after, left, right, strip) and (best is None or rank < best):
            best, found = rank, strip
    return found


def _are_columns(
    before: Sequence[SetLine], after: Sequence[SetLine], left: float, right: float, strip: Column
) -> bool:
    """Whether both sides are filled with text, side by side; labels before values are not."""
    top = max(min(line.y0 for line in side) for side in (before, after))
    bottom = min(max(line.y1 for line in side) for side in (before, after))
    height = min(max(line.y1 for line in side) - min(line.y0 for line in side) for side in (before, after))
    is_filled = median(line.width for line in before) >= 0.55 * (strip.left - left) and median(
        line.width for line in after
    ) >= 0.55 * (right - strip.right)
    is_wide = strip.right - strip.left >= 0.6 * min(line.size for line in before)
    return is_filled and is_wide and bottom - top >= 0.5 * height


def _join_fragments(fragments: Sequence[SetLine], *, gap_ems: float | None) -> list[SetLine]:
    """Join what stands on one line: up to a gap in ems; behind a clause number, and with None, any gap."""
    rows: list[list[SetLine]] = []
    for fragment in sorted(fragments, key=lambda f: (f.middle, f.x0)):
        row = rows[-1] if rows else None
        if row is not None and _is_level(row[0], fragment):
            row.append(fragment)
        else:
            rows.append([fragment])
    joined: list[SetLine] = []
    for row in rows:
        for fragment in sorted(row, key=lambda f: f.x0):
            last = joined[-1] if joined and _is_level(joined[-1], fragment) else None
            if last is None:
                joined.append(fragment)
                continue
            gap, label = fragment.x0 - last.x1, parse_label(f"{last.text} x")
            is_near = gap_ems is None or gap <= gap_ems * max(last.size, fragment.size)
            if not is_near and not (label is not None and label.rest == "x" and gap <= 6.0 * last.size):
                joined.append(fragment)
                continue
            is_spaced = gap > 0.15 * last.size and not (is_cjk(last.text[-1]) and is_cjk(fragment.text[0]))
            joined[-1] = replace(
                last,
                text=f"{last.text} {fragment.text}" if is_spaced else last.text + fragment.text,
                y0=min(last.y0, fragment.y0),
                x1=max(last.x1, fragment.x1),
                y1=max(last.y1, fragment.y1),
                size=last.size if len(last.text) > len(fragment.text) else fragment.size,
                is_bold=last.is_bold and fragment.is_bold,
                is_mono=last.is_mono and fragment.is_mono,
            )
    return joined


def _is_level(one: SetLine, other: SetLine) -> bool:
    if one.table is not None or other.table is not None:
        return False
    overlap = min(one.y1, other.y1) - max(one.y0, other.y0)
    return overlap >= 0.6 * min(one.y1 - one.y0, other.y1 - other.y0)


def first_word_width(line: SetLine) -> float:
    """About how wide the line's first word is; in Chinese and Japanese, its first sign."""
    if is_cjk(line.text[0]):
        return line.size
    word = line.text.split(None, 1)[0]
    return (len(word) + 1) * line.width / len(line.text)
