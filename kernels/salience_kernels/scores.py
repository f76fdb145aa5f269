"""Explicit attention scores of a few rows, and the mass of blocks of keys, for the paths that must look
inside the softmax.

Mass is kept as log-sum-exps, which stay exact where a block's probability would underflow.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from salience_kernels.problem import LAST_ROWS, AttentionProblem, slice_rows

_MAX_ELEMENTS = 1 << 25
"""Largest score tensor built at once on a CPU: 128 MiB in float32."""

_MAX_GPU_ELEMENTS = 1 << 29
"""The same elsewhere, where a few rows at a time leave most of the device idle: 2 GiB."""


def rows_per_chunk(batch: int, heads: int, n_keys: int, device: torch.device, at_most: int = 256) -> int:
    """How many rows of scores fit the device's memory bound."""
    bound = _MAX_ELEMENTS if device.type == "cpu" else _MAX_GPU_ELEMENTS
    return max(1, min(at_most, bound // (batch * heads * n_keys)))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def grouped_scores(query: Tensor, key: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Scores `[batch, head, query, key]` without repeating keys for grouped heads; float32 or float64."""
    batch, heads, n_rows, head_dim = query.shape
    kv_heads, n_keys = key.shape[1:3]
    # heads of one group share a key head: they become rows of one matrix product
    grouped = query.reshape(batch, kv_heads, heads // kv_heads * n_rows, head_dim)
    scores = torch.matmul(grouped, key.transpose(2, 3)).view(batch, heads, n_rows, n_keys).mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    return scores


def grouped_values(weights: Tensor, value: Tensor) -> Tensor:
    """Mix values `[batch, kv_head, key, head_dim]` by weights `[batch, head, query, key]`."""
    batch, heads, n_rows, n_keys = weights.shape
    kv_heads, head_dim = value.shape[1], value.shape[3]
    grouped = weights.reshape(batch, kv_heads, heads // kv_heads * n_rows, n_keys)
    return torch.matmul(grouped, value).view(batch, heads, n_rows, head_dim)


def visible_keys(
    n_rows: int, n_keys: int, *, offset: int | None, window: int | None, device: torch.device
) -> Tensor | None:
    """Mask `[query, key]`, True where row `i` at position `i + offset` sees the key; None if every row sees
    all.

    `offset` None means not causal.
    """
    if offset is None:
        return None
    sees_last_key = offset >= n_keys - 1
    sees_first_key = window is None or n_rows - 1 + offset - window < 0
    if sees_last_key and sees_first_key:
        return None
    position = torch.arange(n_rows, device=device)[:, None] + offset
    index = torch.arange(n_keys, device=device)
    visible = index <= position
    return visible if sees_first_key or window is None else visible & (index > position - window)


def biased_scores(problem: AttentionProblem) -> Tensor:
    """Scores plus bias of a trimmed problem `[batch, head, query, key]`, -inf where a key is hidden."""
    dtype = compute_dtype(problem.query.dtype)
    scores = grouped_scores(problem.query.to(dtype), problem.key.to(dtype), problem.scale, problem.softcap)
    if problem.key_bias is not None:
        scores += problem.key_bias[:, :, None]
    offset = problem.query_offset if problem.causal else None
    visible = visible_keys(
        problem.n_rows, problem.n_keys, offset=offset, window=problem.window, device=scores.device
    )
    if visible is not None:
        scores.masked_fill_(~visible, -math.inf)
    if problem.key_start is not None:
        index = torch.arange(problem.n_keys, device=scores.device)
        scores.masked_fill_((index < problem.key_start[:, None])[:, None, None], -math.inf)
    return scores


def block_log_sum_exp(scores: Tensor, blocks: Tensor, n_blocks: int) -> Tensor:
    """Log-sum-exp per block `[batch, head, query, block + 1]` of scores `[batch, head, query, key]`.

    -inf where every score of a block is -inf, or the block has no key.
    """
    out = torch.full((*scores.shape[:3], n_blocks + 1), -math.inf, dtype=scores.dtype, device=scores.device)
    changes = (blocks[:, 1:] != blocks[:, :-1]).any(0)
    cuts = [0, *(changes.nonzero().flatten() + 1).tolist(), blocks.shape[1]]
    for start, end in pairwise(cuts):
        add_to_block(out, blocks[:, start], scores[..., start:end].logsumexp(-1))
    return out


def add_to_block(log_mass: Tensor, block: Tensor, lse: Tensor) -> None:
    """Join in place the log-sum-exp `[batch, head, query]` of more keys, of block `[batch]` each."""
    index = block.long()[:, None, None, None].expand(*lse.shape, 1)
    log_mass.scatter_(3, index, torch.logaddexp(log_mass.gather(3, index), lse[..., None].to(log_mass.dtype)))


def fold_sinks(log_mass: Tensor, sinks: Tensor | None) -> Tensor:
    """Log mass `[batch, head, query, block + 1]` with each head's sink counted in the rest (index 0)."""
    if sinks is None:
        return log_mass
    rest = torch.logaddexp(log_mass[..., 0], sinks.to(log_mass.dtype)[:, None])
    return torch.cat([rest[..., None], log_mass[..., 1:]], -1)


def block_mass(problem: AttentionProblem, lse: Tensor, mass: str) -> Tensor:
    """Probability per block `[batch, head, rows, block + 1]` of a trimmed problem, a sink not yet counted.

    Args:
        lse: Log-sum-exp of every row, -inf in rows that see no key; those get zero mass.
        mass: `last` for the last 64 rows, `all` for every row.
    """
    batch, heads, n_rows, _ = problem.query.shape
    first_row = max(0, n_rows - LAST_ROWS) if mass == "last" else 0
    shape = (batch, heads, n_rows - first_row, problem.n_blocks + 1)
    out = torch.empty(shape, device=problem.query.device)
    # a row without keys has no probability: exp(-inf - inf) is 0, exp(-inf + inf) would be NaN
    lse = lse.masked_fill(lse == -math.inf, math.inf)[..., None]
    step = rows_per_chunk(batch, heads, problem.n_keys, problem.query.device)
    for start in range(first_row, n_rows, step):
        stop = min(start + step, n_rows)
        rows = slice_rows(problem, start, stop)
        assert rows.blocks is not None
        probabilities = biased_scores(rows).sub_(lse[:, :, start:stop]).exp_()
        one_hot = torch.nn.functional.one_hot(rows.blocks.long(), rows.n_blocks + 1).to(probabilities.dtype)
        out[:, :, start - first_row : stop - first_row] = probabilities @ one_hot[:, None]
    return out
