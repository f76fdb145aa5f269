"""Key-bias attention by torch's fused CPU kernel: a bias row together with `is_causal`, never a mask."""

from torch import Tensor

from salience_kernels.key_bias.band import Piece, Shape, band_pieces
from salience_kernels.key_bias.fused import fused_call, row_bias_refusal
from salience_kernels.key_bias.merge import MergedAttention
from salience_kernels.problem import AttentionProblem, row_bias


def refusal(problem: AttentionProblem, mass: str) -> str | None:
    """Why `native` cannot run this problem, or None if it can."""
    if mass == "all":
        return "mass of all rows needs the segmented or chunked implementation"
    return row_bias_refusal(problem.query, problem.value, problem.softcap)


def attend(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a trimmed problem that `refusal` lets pass."""
    offset = problem.query_offset if problem.causal else None
    return attend_band(
        problem.query,
        problem.key,
        problem.value,
        row_bias(problem),
        scale=problem.scale,
        offset=offset,
        window=problem.window,
    )


def attend_band(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    offset: int | None,
    window: int | None,
    softcap: None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of rows at positions `i + offset` that each see at least one key; `offset` None means not
    causal.

    `bias` is finite, `[batch, 1 | head, key]` in float32. The common cases (whole prompt, one row) are one
    kernel call without a copy.
    """
    n_rows = query.shape[2]
    pieces = band_pieces(n_rows, key.shape[2], offset, window)
    if len(pieces) == 1:
        return _attend_piece(pieces[0], query, key, value, bias, scale)
    merged = MergedAttention(query, value.shape[3])
    for piece in pieces:
        merged.add(piece.row_start, piece.row_end, *_attend_piece(piece, query, key, value, bias, scale))
    return merged.result()


def _attend_piece(
    piece: Piece, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    query = query[:, :, piece.row_start : piece.row_end]
    key, value = key[:, :, piece.key_start : piece.key_end], value[:, :, piece.key_start : piece.key_end]
    mask = None if bias is None else bias[:, :, None, piece.key_start : piece.key_end]
    if piece.shape is Shape.UPPER:
        flipped = None if mask is None else mask.flip(3)
        out, lse = fused_call(query.flip(2), key.flip(2), value.flip(2), flipped, True, scale)
        return out.flip(2), lse.flip(2)
    # a causal square of one row is a plain row; the plain call is the same kernel without the diagonal's
    # bookkeeping
    return fused_call(query, key, value, mask, piece.shape is Shape.LOWER and query.shape[2] > 1, scale)
