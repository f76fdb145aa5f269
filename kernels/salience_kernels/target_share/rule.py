"""The bias that gives blocks their target shares, for many rows at once."""

import math

import torch
from torch import Tensor


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
        return _with_rest(torch.where(wanted, bias, 0.0))
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
    return _with_rest(torch.where(is_possible, goal - log_mass[..., 1:] - log_scale, 0.0))


def _others_log_scale(log_mass: Tensor, shares: Tensor, active: Tensor) -> Tensor:
    """Log of the factor from the inactive blocks' exp(log_mass) to what the active leave; inf if none."""
    taken = (active * shares[:, None, None]).sum(-1, keepdim=True)
    others = log_mass.masked_fill(torch.nn.functional.pad(active, (1, 0)), -math.inf)
    return torch.log1p(-taken) - others.logsumexp(-1, keepdim=True)


def _with_rest(bias: Tensor) -> Tensor:
    return torch.nn.functional.pad(bias, (1, 0))
