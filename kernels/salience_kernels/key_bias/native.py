"""Key-bias attention by torch's fused CPU kernel: a bias row together with `is_causal`, no mask.

`is_causal` is aligned to the top left, so it serves squares only. Rows at an offset are a causal square and a
plain rectangle of the keys before it, merged by their log-sum-exps. Windows are left to `chunked`: masks of
a few rows that reach back one window are faster than any cut into triangles, because the kernel computes
whole tiles of 512 keys.
"""

from typing import NamedTuple

from torch import Tensor

from salience_kernels.key_bias.fused import fused_call, row_bias_refusal
from salience_kernels.key_bias.merge import MergedAttention
from salience_kernels.problem import AttentionProblem, row_bias


def refusal(problem: AttentionProblem, mass: str) -> str | None:
    """Why `native` cannot run this problem, or None if it can."""
    if mass == "all":
        return "mass of all rows needs the segmented or chunked implementation"
    if problem.window is not None:
        return "a window needs masks of a few rows, which the chunked implementation builds"
    return row_bias_refusal(problem.query, problem.value, problem.softcap)


def attend(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a trimmed problem that `refusal` lets pass."""
    offset = problem.query_offset if problem.causal else None
    return attend_rows(
        problem.query, problem.key, problem.value, row_bias(problem), scale=problem.scale, offset=offset
    )


def attend_rows(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, scale: float, offset: int | None
) -> tuple[Tensor, Tensor]:
    """Attention of rows at positions `i + offset`, `offset >= 0`; None means not causal.

    `bias` is finite, `[batch, 1 | head, key]` in float32. The common cases (whole prompt, one row) are one
    kernel call without a copy.
    """
    pieces = causal_pieces(query.shape[2], key.shape[2], offset)
    if len(pieces) == 1:
        return _attend_piece(pieces[0], query, key, value, bias, scale)
    merged = MergedAttention(query, value.shape[3])
    for piece in pieces:
        merged.add(piece.row_start, piece.row_end, *_attend_piece(piece, query, key, value, bias, scale))
    return merged.result()


class Piece(NamedTuple):
    """Rows against keys: a square in which row `i` sees keys `0..i`, or every row sees every key."""

    is_causal: bool
    row_start: int
    row_end: int
    key_start: int
    key_end: int


def causal_pieces(n_rows: int, n_keys: int, offset: int | None) -> list[Piece]:
    """Pieces that cover each visible pair once; row `i` sees keys `j <= i + offset`, `offset` None all."""
    if offset is None or offset >= n_keys - 1:
        return [Piece(False, 0, n_rows, 0, n_keys)]
    n_diagonal = min(n_rows, n_keys - offset)
    pieces = [Piece(True, 0, n_diagonal, offset, offset + n_diagonal)]
    if offset > 0:
        pieces.append(Piece(False, 0, n_diagonal, 0, offset))
    if n_diagonal < n_rows:
        pieces.append(Piece(False, n_diagonal, n_rows, 0, n_keys))
    return pieces


def _attend_piece(
    piece: Piece, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    rows, keys = slice(piece.row_start, piece.row_end), slice(piece.key_start, piece.key_end)
    mask = None if bias is None else bias[:, :, None, keys]
    return fused_call(query[:, :, rows], key[:, :, keys], value[:, :, keys], mask, piece.is_causal, scale)
