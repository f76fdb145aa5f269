"""Key-bias attention by masks of a few rows that stop at the diagonal: any device, linear memory."""

import math

import torch
from torch import Tensor

from salience_kernels.key_bias.fused import dense_mask_refusal, fused_call
from salience_kernels.problem import AttentionProblem, row_bias
from salience_kernels.scores import (
    compute_dtype,
    grouped_scores,
    grouped_values,
    rows_per_chunk,
    visible_keys,
)

_ROWS = 256
_WINDOW_ROWS = 64
_ROW_TILE = 32
"""Rows that torch's fused CPU kernel gives to one thread in short calls."""


def attend(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a trimmed problem."""
    offset = problem.query_offset if problem.causal else None
    return attend_band(
        problem.query,
        problem.key,
        problem.value,
        row_bias(problem),
        scale=problem.scale,
        offset=offset,
        window=problem.window,
        softcap=problem.softcap,
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
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of rows at positions `i + offset` that each see a key; `offset` None means not causal.

    `bias` is finite, `[batch, 1 | head, key]` in float32.
    """
    batch, heads, n_rows, _ = query.shape
    n_keys = key.shape[2]
    is_fused = dense_mask_refusal(query, value, softcap) is None
    dtype = compute_dtype(query.dtype)
    if not is_fused:
        key, value = key.to(dtype), value.to(dtype)
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    lse = torch.empty(query.shape[:3], dtype=dtype, device=query.device)
    at_most = _step(batch * heads, window) if is_fused else _ROWS
    step = rows_per_chunk(batch, heads, n_keys, query.device, at_most)
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        first, end = _key_range(start, stop, n_keys, offset, window)
        chunk_offset = None if offset is None else start + offset - first
        visible = visible_keys(
            stop - start, end - first, offset=chunk_offset, window=window, device=query.device
        )
        mask = _mask(None if bias is None else bias[..., first:end], visible, batch)
        rows = query[:, :, start:stop]
        keys, values = key[:, :, first:end], value[:, :, first:end]
        if is_fused:
            chunk = fused_call(rows, keys, values, mask, False, scale)
        else:
            chunk = _explicit(rows.to(dtype), keys, values, mask, scale, softcap)
        out[:, :, start:stop], lse[:, :, start:stop] = chunk
    return out, lse


def _step(tasks_per_row_tile: int, window: int | None) -> int:
    """Rows of a mask: 256; under a window so few that little beside it is computed and no thread idles."""
    step = _ROWS if window is None else _WINDOW_ROWS
    while step < _ROWS and tasks_per_row_tile * step // _ROW_TILE < torch.get_num_threads():
        step *= 2
    return step


def _key_range(start: int, stop: int, n_keys: int, offset: int | None, window: int | None) -> tuple[int, int]:
    """The keys `[first, end)` that rows `[start, stop)` can see."""
    if offset is None:
        return 0, n_keys
    first = 0 if window is None else max(0, start + offset - window + 1)
    return first, min(n_keys, stop + offset)


def _mask(bias: Tensor | None, visible: Tensor | None, batch: int) -> Tensor | None:
    """Float32 mask `[batch, 1 | head, 1 | query, key]`, -inf where a row does not see a key."""
    if visible is None:
        return None if bias is None else bias[:, :, None]
    if bias is None:
        hidden = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -math.inf)
        return hidden.expand(batch, 1, -1, -1)
    return torch.where(visible, bias[:, :, None], -math.inf)


def _explicit(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    scores = grouped_scores(query, key, scale, softcap)
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(-1)
    return grouped_values(scores.sub_(lse[..., None]).exp_(), value), lse
