"""Join attention outputs over disjoint sets of keys by their log-sum-exps."""

import math

import torch
from torch import Tensor

from salience_kernels.scores import compute_dtype


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
