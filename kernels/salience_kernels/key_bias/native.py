"""Key-bias attention by torch's fused CPU kernel: a bias row together with `is_causal`, no mask.

`is_causal` is aligned to the top left, so it serves squares only. Rows at an offset are a causal square and a
plain rectangle of the keys before it, merged by their log-sum-exps. Windows are left to `chunked`: masks of
a few rows that reach back one window are faster than any cut into triangles, because the kernel computes
whole tiles of 512 keys.

The public `scaled_dot_product_attention` runs the same kernel in torch 2.13 but returns no log-sum-exp and,
in newer versions, refuses a mask together with `is_causal`. The aten operator underneath is not public
either, so both uses are tested once, when first needed; a torch in which one is gone or wrong loses that path
with a reason, not silently.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from salience_kernels.key_bias import reference
from salience_kernels.problem import AttentionProblem, row_bias
from salience_kernels.scores import compute_dtype

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OP = "_scaled_dot_product_flash_attention_for_cpu"


def fused_call(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """One kernel call: output and natural log-sum-exp `[batch, head, query]`.

    `causal` is aligned to the top left, so lengths must agree. `mask` is `[batch, 1 | head, 1 | query, key]`
    in float32. Rows that see no key give log-sum-exp 0, so callers keep masks finite in at least one key.
    There must be at least one key: the kernel divides by zero otherwise.
    """
    if mask is not None and query.dtype == torch.float64:
        mask = mask.double()  # the kernel reads it as float32 or as the query's dtype, and does not ask which
    return getattr(torch.ops.aten, _OP)(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)


def row_bias_refusal(query: Tensor, value: Tensor, softcap: float | None) -> str | None:
    """Why the kernel cannot take a bias row together with `is_causal` here, or None if it can."""
    return _input_refusal(query, value, softcap) or _self_test(dense=False)


def dense_mask_refusal(query: Tensor, value: Tensor, softcap: float | None) -> str | None:
    """Why the kernel cannot take a `[query, key]` mask here, or None if it can."""
    return _input_refusal(query, value, softcap) or _self_test(dense=True)


def _input_refusal(query: Tensor, value: Tensor, softcap: float | None) -> str | None:
    if query.device.type != "cpu":
        return f"it needs tensors on the CPU, got {query.device.type}"
    if query.dtype not in _DTYPES:
        return f"it needs a floating dtype of 16 to 64 bits, got {query.dtype}"
    if softcap is not None:
        return "it cannot apply a softcap"
    if query.shape[3] != value.shape[3]:
        return f"it needs one head_dim for keys and values, got {query.shape[3]} and {value.shape[3]}"
    return None


@functools.cache
def _self_test(*, dense: bool) -> str | None:
    """Compare the kernel with the reference on tiny grouped heads; the reason it is unusable, or None."""
    generator = torch.Generator("cpu").manual_seed(0)  # leaves the global generator alone
    shapes = ((2, 4, 37, 16), (2, 2, 37, 16), (2, 2, 37, 16), (2, 4, 37))
    *drawn, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu") for shape in shapes
    )
    bias, scale, hidden = bias * 2, 0.3, torch.ones(37, 37, dtype=torch.bool, device="cpu").triu(1)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        query, key, value = (tensor.to(dtype) for tensor in drawn)
        for causal in (True, False):
            expected = reference.attend(AttentionProblem(query, key, value, scale, causal, key_bias=bias))
            mask = bias[:, :, None]
            if dense and causal:
                mask = mask.expand(-1, -1, 37, -1).masked_fill(hidden, float("-inf"))
            try:
                out, lse = fused_call(query, key, value, mask, causal and not dense, scale)
            except (RuntimeError, TypeError, ValueError, AttributeError) as failure:
                return f"torch {torch.__version__} refuses it: {failure}"
            for actual, right in ((out, expected.out), (lse, expected.lse)):
                error = float((actual - right).abs().max())
                if not error <= tolerance:
                    return f"torch {torch.__version__} computes it wrongly: off by {error:.2g} in {dtype}"
    return None


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


class MergedAttention:
    """A running output over the keys seen so far, kept in float32.

    With `out_a, lse_a` over one set of keys and `out_b, lse_b` over another, the output over both is their
    mean with weights `exp(lse_a)` and `exp(lse_b)`.
    """

    def __init__(self, query: Tensor, value_dim: int) -> None:
        dtype = compute_dtype(query.dtype)
        self._query_dtype = query.dtype
        self._out = torch.zeros((*query.shape[:3], value_dim), dtype=dtype, device=query.device)
        self._fresh_from = 0  # no row from here on has an output yet
        self._lse = torch.full(query.shape[:3], -math.inf, dtype=dtype, device=query.device)

    def add(self, row_start: int, row_end: int, out: Tensor, lse: Tensor) -> None:
        """Join `out` and a finite `lse` of rows `[row_start, row_end)` over keys not yet seen."""
        running, rows = self._out[:, :, row_start:row_end], self._lse[:, :, row_start:row_end]
        is_fresh = row_start >= self._fresh_from
        self._fresh_from = max(self._fresh_from, row_end)
        if is_fresh:
            running.copy_(out)
            rows.copy_(lse)
            return
        joined = torch.logaddexp(rows, lse)
        weight = torch.exp(lse - joined).to(self._out.dtype)
        rows.copy_(joined)
        # not lerp_ or addcmul_: with a broadcast third operand those leave the vectorised path on the CPU
        running += (out - running).mul_(weight[..., None])

    def result(self) -> tuple[Tensor, Tensor]:
        return self._out.to(self._query_dtype), self._lse
