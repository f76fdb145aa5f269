"""Key-bias attention by masks of a few rows that stop at the diagonal: any device, linear memory."""

import math

import torch
from torch import Tensor

from salience_kernels.key_bias.native import dense_mask_refusal, fused_call
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
    at_most = _ROWS
    if is_fused and window is not None:
        # so few rows that little beside the window is computed, yet enough that no thread idles
        at_most = _WINDOW_ROWS
        while at_most < _ROWS and batch * heads * at_most // _ROW_TILE < torch.get_num_threads():
            at_most *= 2
    step = rows_per_chunk(batch, heads, n_keys, query.device, at_most)
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        first, end, chunk_offset = 0, n_keys, None
        if offset is not None:  # the keys that these rows can see
            first = 0 if window is None else max(0, start + offset - window + 1)
            end, chunk_offset = min(n_keys, stop + offset), start + offset - first
        visible = visible_keys(
            stop - start, end - first, offset=chunk_offset, window=window, device=query.device
        )
        # float32 `[batch, 1 | head, 1 | query, key]`, -inf where a row does not see a key
        mask = None if bias is None else bias[:, :, None, first:end]
        if visible is not None and mask is None:
            mask = torch.where(visible, 0.0, -math.inf).expand(batch, 1, -1, -1)
        elif visible is not None:
            mask = torch.where(visible, mask, -math.inf)
        rows = query[:, :, start:stop]
        keys, values = key[:, :, first:end], value[:, :, first:end]
        if is_fused:
            chunk = fused_call(rows, keys, values, mask, False, scale)
        else:
            scores = grouped_scores(rows.to(dtype), keys, scale, softcap)
            if mask is not None:
                scores += mask
            total = scores.logsumexp(-1)
            chunk = grouped_values(scores.sub_(total[..., None]).exp_(), values), total
        out[:, :, start:stop], lse[:, :, start:stop] = chunk
    return out, lse
