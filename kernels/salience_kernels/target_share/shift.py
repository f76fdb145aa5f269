"""Many rows at once: the bias that gives blocks their shares, and attention under it."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from salience_kernels.key_bias.segmented import attend_segments, find_segments
from salience_kernels.problem import MASKED_BIAS_NATS, AttentionProblem, empty_rows
from salience_kernels.scores import (
    add_to_block,
    biased_scores,
    block_log_sum_exp,
    compute_dtype,
    fold_sinks,
    grouped_values,
)


@dataclass(frozen=True)
class ShareTarget:
    """What was asked for: shares `[batch, block]`, the rule, whether to raise only."""

    shares: Tensor
    rule: str
    only_raise: bool


@dataclass(frozen=True)
class ShiftedMass:
    """Every row under its own bias.

    Attributes:
        bias: `[batch, head, query, block + 1]` in nats.
        log_total: `[batch, head, query]`, log of the softmax's denominator under the bias, a sink included;
            +inf in rows that see no key, so that each of their weights is 0.
        lse: The same without the sink, -inf in rows that see no key.
        after: `[batch, head, query, block + 1]`, probability per block under the bias, float32.
        before: The same without the bias.
    """

    bias: Tensor
    log_total: Tensor
    lse: Tensor
    after: Tensor
    before: Tensor


def shift_mass(problem: AttentionProblem, log_keys: Tensor, target: ShareTarget) -> ShiftedMass:
    """Solve for the biases of a trimmed problem's rows.

    Args:
        log_keys: `[batch, head, query, block + 1]`, log-sum-exp of the keys of each block, -inf where a row
            sees none.
    """
    is_empty = empty_rows(problem)
    if is_empty is not None:
        log_keys = log_keys.masked_fill(is_empty[..., None], -math.inf)
    log_mass = fold_sinks(log_keys, problem.sinks)
    shares = target.shares.to(log_mass.dtype)
    bias = share_bias(log_mass, shares, rule=target.rule, only_raise=target.only_raise)
    lse = (log_keys + bias).logsumexp(-1)
    no_key = lse == -math.inf
    log_total = (log_mass + bias).logsumexp(-1).masked_fill(no_key, math.inf)
    total_before = log_mass.logsumexp(-1).masked_fill(no_key, math.inf)
    after = (log_mass + bias - log_total[..., None]).exp().float()
    before = (log_mass - total_before[..., None]).exp().float()
    return ShiftedMass(bias, log_total, lse, after, before)


def share_bias(log_mass: Tensor, shares: Tensor, *, rule: str, only_raise: bool) -> Tensor:
    """Bias per row and block that moves attention mass to the shares asked for.

    A block that a row cannot see, or without a share, gets 0. The other keys of the row, a sink included,
    keep their proportions. A row that sees nothing else keeps its mass as it is.

    Args:
        log_mass: `[batch, head, query, block + 1]`, log-sum-exp of a row's scores per block in nats, any
            shift; index 0 is the rest, a sink folded in; -inf where the row sees none of the block.
        shares: `[batch, block]`; 0 asks for nothing.
        rule: `exact` reaches the share; `paper` adds `ln(share / mass)`, which falls short of it.
        only_raise: Leave blocks that already have their share.

    Returns:
        `[batch, head, query, block + 1]` in nats, 0 at index 0.
    """
    goal = shares[:, None, None].log()
    log_p = (log_mass - log_mass.logsumexp(-1, keepdim=True))[..., 1:]
    wanted = (shares > 0)[:, None, None] & (log_mass[..., 1:] > -math.inf)
    if rule == "paper":
        bias = goal - log_p
        bias = bias.clamp_min(0.0) if only_raise else bias
        return F.pad(torch.where(wanted, bias, 0.0), (1, 0))
    active = wanted & (log_p < goal) if only_raise else wanted
    log_scale = _others_log_scale(log_mass, shares, active)
    for _ in range(shares.shape[1] if only_raise else 0):
        # what the raised blocks take from the others may push one of those below its own share
        falls = wanted & ~active & (log_mass[..., 1:] + log_scale < goal)
        if not bool(falls.any()):
            break
        active = active | falls
        log_scale = _others_log_scale(log_mass, shares, active)
    is_possible = active & (log_scale < math.inf)
    return F.pad(torch.where(is_possible, goal - log_mass[..., 1:] - log_scale, 0.0), (1, 0))


def _others_log_scale(log_mass: Tensor, shares: Tensor, active: Tensor) -> Tensor:
    """Log of the factor from the inactive blocks' exp(log_mass) to what the active leave; inf if none."""
    taken = (active * shares[:, None, None]).sum(-1, keepdim=True)
    others = log_mass.masked_fill(F.pad(active, (1, 0)), -math.inf)
    return torch.log1p(-taken) - others.logsumexp(-1, keepdim=True)


def attend_chunked(problem: AttentionProblem, target: ShareTarget) -> tuple[Tensor, ShiftedMass]:
    """Output and shifted mass of the few rows of a trimmed problem, from explicit scores: any device, any
    option, any layout of blocks.
    """
    assert problem.blocks is not None
    scores = biased_scores(problem)
    shifted = shift_mass(problem, block_log_sum_exp(scores, problem.blocks, problem.n_blocks), target)
    block_of_key = problem.blocks.long()[:, None, None].expand(scores.shape)
    weights = scores.add_(shifted.bias.gather(3, block_of_key)).sub_(shifted.log_total[..., None]).exp_()
    out = grouped_values(weights, problem.value.to(weights.dtype))
    return out.to(problem.query.dtype), shifted


def attend_segmented(problem: AttentionProblem, target: ShareTarget) -> tuple[Tensor, ShiftedMass]:
    """Output and shifted mass of a trimmed problem by fused attention to one segment at a time.

    Each row's bias is chosen after its scores. The outputs of all segments are held at once.
    """
    assert problem.blocks is not None
    query, dtype = problem.query, compute_dtype(problem.query.dtype)
    shape = (*query.shape[:3], problem.n_blocks + 1)
    log_keys = torch.full(shape, -math.inf, dtype=dtype, device=query.device)
    parts = list(attend_segments(problem, find_segments(problem, by_block=True)))
    for part in parts:
        # padding alone has a log-sum-exp near the masked bias: the row does not see the segment
        lse = part.lse.masked_fill(part.lse < MASKED_BIAS_NATS / 2, -math.inf)
        add_to_block(log_keys[:, :, part.row_start : part.row_end], problem.blocks[:, part.key_start], lse)
    shifted = shift_mass(problem, log_keys, target)
    out = torch.zeros((*query.shape[:3], problem.value.shape[3]), dtype=dtype, device=query.device)
    for part in parts:
        rows = slice(part.row_start, part.row_end)
        block = problem.blocks[:, part.key_start].long()[:, None, None, None].expand(*part.lse.shape, 1)
        bias = shifted.bias[:, :, rows].gather(3, block)
        weight = torch.exp(part.lse[..., None] + bias - shifted.log_total[:, :, rows, None])
        out[:, :, rows] += part.out * weight.to(dtype)
    return out.to(query.dtype), shifted
