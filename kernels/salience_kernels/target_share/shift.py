"""Biases and masses of many rows, from the log-sum-exp per block of their keys."""

import math
from dataclasses import dataclass

from torch import Tensor

from salience_kernels.log_mass import fold_sinks
from salience_kernels.problem import AttentionProblem, empty_rows
from salience_kernels.target_share.rule import share_bias


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
