"""Cut causal and windowed attention into rectangles and triangles.

A fused kernel knows two shapes: every row sees every key, or row `i` sees keys `0..i` of a square. Causal
attention at an offset, a sliding window, a segment of the keys: each is a few of those, joined by their
log-sum-exps, and none needs a band mask. A window's upper triangle becomes a lower one by reversing rows and
keys.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Shape(Enum):
    FULL = auto()
    """Every row sees every key."""
    LOWER = auto()
    """A square; row `i` sees keys `0..i`."""
    UPPER = auto()
    """A square; row `i` sees keys `i` to the last."""


@dataclass(frozen=True)
class Piece:
    """Rows `[row_start, row_end)` against keys `[key_start, key_end)`."""

    shape: Shape
    row_start: int
    row_end: int
    key_start: int
    key_end: int


def band_pieces(n_rows: int, n_keys: int, offset: int | None, window: int | None) -> list[Piece]:
    """Pieces that together cover each visible (row, key) pair once.

    Row `i` sits at position `i + offset` and sees the keys `j` with `j <= i + offset` and, with a window `W`,
    `j > i + offset - W`; `offset` None lets it see all. An offset may lie outside the keys: rows before the
    first key and rows whose window is past the last key get no piece.
    """
    if offset is None:
        return [Piece(Shape.FULL, 0, n_rows, 0, n_keys)]
    # from here on positions, shifted back to rows at the end
    first, end = max(offset, 0), offset + n_rows
    pieces: list[Piece] = []
    block = n_keys if window is None else window
    for start in range(first, min(end, n_keys), block):
        stop = min(start + block, end, n_keys)
        pieces.append(Piece(Shape.LOWER, start, stop, start, stop))
        pieces += _past_pieces(start, stop, start, window)
    if max(first, n_keys) < end:
        pieces += _past_pieces(max(first, n_keys), end, n_keys, window)
    return [Piece(p.shape, p.row_start - offset, p.row_end - offset, p.key_start, p.key_end) for p in pieces]


def _past_pieces(start: int, stop: int, key_end: int, window: int | None) -> list[Piece]:
    """Positions `[start, stop)` against the keys `[0, key_end)` before them, `key_end <= start`."""
    pieces: list[Piece] = []
    if window is None:
        if key_end > 0:
            pieces.append(Piece(Shape.FULL, start, stop, 0, key_end))
        return pieces
    partial_start = max(start, window - 1)  # the first position whose window hides a key, or is about to
    if start < min(stop, partial_start) and key_end > 0:
        pieces.append(Piece(Shape.FULL, start, min(stop, partial_start), 0, key_end))
    partial_stop = min(stop, key_end + window - 1)
    if partial_start >= partial_stop:
        return pieces
    key_start = partial_start - window + 1
    middle = partial_stop - window + 1  # keys from here on are in every partial position's window
    pieces.append(Piece(Shape.UPPER, partial_start, partial_stop, key_start, middle))
    if middle < key_end:
        pieces.append(Piece(Shape.FULL, partial_start, partial_stop, middle, key_end))
    return pieces
