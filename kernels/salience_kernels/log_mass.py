"""Attention mass per block as log-sum-exps, which stay exact where a block's probability would underflow."""

import math
from itertools import pairwise

import torch
from torch import Tensor


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
