"""One bias per block and layer, solved so that the mean attention mass over heads and rows has a share."""

import math

import torch
from jaxtyping import Bool, Float, Float32, Int, Int16
from torch import Tensor

from salience_kernels.outputs import SolvedShareBias
from salience_kernels.problem import slice_rows, trim_problem
from salience_kernels.scores import biased_scores, block_log_sum_exp, fold_sinks, rows_per_chunk
from salience_kernels.validation import build_problem, check_shares

_MAX_STEPS = 100
_MAX_STEP_NATS = 4.0
_MAX_HALVINGS = 20
_ENOUGH = 1e-4
"""Part of the linear descent that a step must realise."""
_RIDGE = 1e-12
"""Added to the derivative, which vanishes with a block's mass."""
_ROUNDING = 1e-13
"""Potentials closer than this are equal in float64."""


def block_log_mass(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    *,
    blocks: Int16[Tensor, "batch key"],
    scale: float,
    causal: bool,
    query_offset: int = 0,
    key_start: Int[Tensor, " batch"] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    key_bias: Float32[Tensor, "batch bias_head key"] | None = None,
    n_blocks: int | None = None,
) -> Float32[Tensor, "batch head query _"]:
    """Natural log-sum-exp per block of every row's biased scores, `[batch, head, query, block + 1]`.

    A softmax over the last axis gives the masses. Index 0 is the rest, a sink included if given; -inf where a
    row sees no key of the block. Pass only the rows that matter: the scores are built explicitly, some rows
    at a time.

    Args:
        n_blocks: Number of blocks beside the rest; None counts them from `blocks`.

    The other arguments are those of `key_bias_attention`.
    """
    problem = build_problem(
        query,
        key,
        key,
        scale=scale,
        causal=causal,
        query_offset=query_offset,
        key_bias=key_bias,
        key_start=key_start,
        window=window,
        softcap=softcap,
        sinks=sinks,
        blocks=blocks,
        n_blocks=n_blocks,
    )
    problem = trim_problem(problem)
    n_rows = problem.n_rows
    step = rows_per_chunk(query.shape[0], query.shape[1], problem.n_keys, query.device)
    parts = []
    for start in range(0, n_rows, step):
        rows = slice_rows(problem, start, min(start + step, n_rows))
        assert rows.blocks is not None
        parts.append(block_log_sum_exp(biased_scores(rows), rows.blocks, rows.n_blocks))
    return fold_sinks(torch.cat(parts, 2), sinks).float()


def solve_share_bias(
    log_mass: Float32[Tensor, "batch head query _"],
    shares: Float32[Tensor, "batch block"],
    *,
    row_mask: Bool[Tensor, "batch query"],
    head_mask: Bool[Tensor, "batch head"] | None = None,
    max_bias: float = 16.0,
    tolerance: float = 1e-5,
) -> SolvedShareBias:
    """The smallest non-negative bias per block under which its mean mass is at least its share.

    The mean is over the counted heads and rows; a row that does not see a block counts with mass 0. A block
    already above its share under the other blocks' biases gets 0. So does one that no bias can take there,
    because too few counted rows see it. Blocks that would need more than `max_bias` get `max_bias`; both are
    not `reached`.

    The biases minimise the convex potential `mean(logsumexp(log_mass + bias)) - shares . bias` over the box
    `[0, max_bias]`, whose gradient is achieved minus asked; Newton steps on the blocks inside the box find
    it.

    Args:
        log_mass: `[batch, head, query, block + 1]` from `block_log_mass`, without the bias to be solved.
        shares: Mean mass asked per block; 0 asks for nothing. Each row sums to less than 1.
        row_mask: Rows that count.
        head_mask: Heads that count; None counts all.
        max_bias: Nats.
        tolerance: Largest shortfall of the mean mass that counts as reached.
    """
    weight = _mean_weights(log_mass, shares, row_mask, head_mask, max_bias, tolerance)
    is_empty = (log_mass == -math.inf).all(-1, keepdim=True)
    log_mass = log_mass.double().masked_fill(is_empty, 0.0)  # any finite value: such a row has weight 0
    log_mass = log_mass - log_mass.logsumexp(-1, keepdim=True)
    means = _Means(log_mass.flatten(1, 2), weight.flatten(1))
    bias = _minimise(means, means.reachable(shares.double()), max_bias, tolerance / 10)
    achieved = means.mass(bias)[0].float()
    return SolvedShareBias(bias.float(), achieved, achieved >= shares - tolerance)


def _mean_weights(
    log_mass: Tensor,
    shares: Tensor,
    row_mask: Tensor,
    head_mask: Tensor | None,
    max_bias: float,
    tolerance: float,
) -> Tensor:
    """Weight of each head and row in the mean, `[batch, head, query]` in float64, after checking the
    arguments.

    A row that sees no key has weight 0 but is counted in the denominator: its mass is 0.
    """
    if log_mass.dim() != 4:
        raise ValueError(f"log_mass must have 4 dimensions, got shape {list(log_mass.shape)}")
    batch, heads, n_rows, n_columns = log_mass.shape
    check_shares(shares, batch, log_mass.device)
    if shares.shape[1] != n_columns - 1:
        raise ValueError(f"shares must have shape [{batch}, {n_columns - 1}], got {list(shares.shape)}")
    if row_mask.shape != (batch, n_rows) or row_mask.dtype != torch.bool:
        raise ValueError(
            f"row_mask must be bool [{batch}, {n_rows}], got {row_mask.dtype} {list(row_mask.shape)}"
        )
    if head_mask is not None and (head_mask.shape != (batch, heads) or head_mask.dtype != torch.bool):
        raise ValueError(
            f"head_mask must be bool [{batch}, {heads}], got {head_mask.dtype} {list(head_mask.shape)}"
        )
    if not (max_bias > 0 and tolerance > 0):
        raise ValueError(f"max_bias and tolerance must be greater than 0, got {max_bias} and {tolerance}")
    counted = row_mask[:, None].expand(batch, heads, n_rows)
    if head_mask is not None:
        counted = counted & head_mask[:, :, None]
    total = counted.sum((1, 2), keepdim=True).clamp_min(1)
    sees_key = (log_mass > -math.inf).any(-1)
    return (counted & sees_key).double() / total


class _Means:
    """Means over the counted rows (heads and rows flattened) as functions of the bias `[batch, block]`."""

    def __init__(self, log_mass: Tensor, weight: Tensor) -> None:
        self._log_mass = log_mass
        self._weight = weight

    def reachable(self, shares: Tensor) -> Tensor:
        """The shares, 0 for a block that too few counted rows see for any bias to take it there."""
        is_visible = (self._log_mass[..., 1:] > -math.inf).double()
        most = torch.einsum("br,brm->bm", self._weight, is_visible)
        return torch.where(shares < most, shares, 0.0)

    def potential(self, bias: Tensor) -> Tensor:
        """Mean log-sum-exp `[batch]`; its gradient is the mean mass."""
        return (self._weight * self._shifted(bias).logsumexp(-1)).sum(1)

    def mass(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Mean mass `[batch, block]` and its derivative by the bias `[batch, block, block]`."""
        probabilities = self._shifted(bias).softmax(-1)[..., 1:]
        weighted = probabilities * self._weight[..., None]
        mass = weighted.sum(1)
        return mass, torch.diag_embed(mass) - weighted.transpose(1, 2) @ probabilities

    def _shifted(self, bias: Tensor) -> Tensor:
        return self._log_mass + torch.nn.functional.pad(bias, (1, 0))[:, None]


def _minimise(means: _Means, goal: Tensor, max_bias: float, tolerance: float) -> Tensor:
    """Projected Newton descent, all batch rows at once."""
    bias = torch.zeros_like(goal)
    for _ in range(_MAX_STEPS):
        mass, derivative = means.mass(bias)
        gradient = mass - goal
        # blocks held by a bound they would cross are left out
        free = (goal > 0) & ((bias > 0) | (gradient < 0)) & ((bias < max_bias) | (gradient > 0))
        is_open = (free & (gradient.abs() > tolerance)).any(1)
        if not bool(is_open.any()):
            break
        gradient = gradient * (free & is_open[:, None])
        # a bound block's row and column become the identity's, so its step is 0
        identity = torch.eye(free.shape[1], dtype=gradient.dtype, device=gradient.device)
        pairs = free[:, :, None] & free[:, None, :]
        matrix = torch.where(pairs, derivative + _RIDGE * identity, identity)
        newton = _limit(-torch.linalg.solve(matrix, gradient))
        bias, is_done = _line_search(means, goal, bias, newton, gradient, max_bias)
        if not bool(is_done.all()):
            # next to a bound a Newton step need not descend; one scaled block by block does
            diagonal = derivative.diagonal(dim1=1, dim2=2)
            scaled = _limit(-gradient / (diagonal + _RIDGE)) * ~is_done[:, None]
            bias, _ = _line_search(means, goal, bias, scaled, gradient, max_bias)
    return bias


def _limit(step: Tensor) -> Tensor:
    """The step shortened to a few nats: far from the solution the local slope says little."""
    longest = step.abs().amax(1, keepdim=True)
    return step * (_MAX_STEP_NATS / longest.clamp_min(_MAX_STEP_NATS))


def _line_search(
    means: _Means, goal: Tensor, bias: Tensor, step: Tensor, gradient: Tensor, max_bias: float
) -> tuple[Tensor, Tensor]:
    """Bias after the longest halved step that descends enough, and the batch rows in which one does."""
    start = means.potential(bias) - (goal * bias).sum(1)
    length = torch.ones_like(start)
    moved, is_done = bias, torch.zeros_like(start, dtype=torch.bool)
    for _ in range(_MAX_HALVINGS):
        moved = (bias + length[:, None] * step).clamp(0.0, max_bias)
        descent = (gradient * (moved - bias)).sum(1)
        end = means.potential(moved) - (goal * moved).sum(1)
        is_done = end <= start + _ENOUGH * descent + _ROUNDING
        if bool(is_done.all()):
            break
        length = torch.where(is_done, length, length / 2)
    return torch.where(is_done[:, None], moved, bias), is_done
