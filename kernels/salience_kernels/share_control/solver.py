"""One bias per block so that the mean attention mass over heads and rows reaches a share."""

import math

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from salience_kernels.outputs import SolvedShareBias
from salience_kernels.validation import check_shares

_MAX_STEPS = 100
_MAX_STEP_NATS = 4.0
_MAX_HALVINGS = 20
_ENOUGH = 1e-4
"""Part of the linear descent that a step must realise."""
_RIDGE = 1e-12
"""Added to the derivative, which vanishes with a block's mass."""
_ROUNDING = 1e-13
"""Potentials closer than this are equal in float64."""


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
        newton = _newton_step(gradient, derivative, free)
        bias, is_done = _line_search(means, goal, bias, newton, gradient, max_bias)
        if not bool(is_done.all()):
            # next to a bound a Newton step need not descend; one scaled block by block does
            diagonal = derivative.diagonal(dim1=1, dim2=2)
            scaled = _limit(-gradient / (diagonal + _RIDGE)) * ~is_done[:, None]
            bias, _ = _line_search(means, goal, bias, scaled, gradient, max_bias)
    return bias


def _newton_step(gradient: Tensor, derivative: Tensor, free: Tensor) -> Tensor:
    pairs = free[:, :, None] & free[:, None, :]
    identity = torch.eye(free.shape[1], dtype=gradient.dtype, device=gradient.device)
    matrix = torch.where(pairs, derivative + _RIDGE * identity, identity)
    return _limit(-torch.linalg.solve(matrix, gradient))


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
