"""Attention mass by block of chosen rows, from explicit scores and a known log-sum-exp."""

import math

import torch
from torch import Tensor

from salience_kernels.problem import LAST_ROWS, AttentionProblem, slice_rows
from salience_kernels.scores import biased_scores, rows_per_chunk


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
