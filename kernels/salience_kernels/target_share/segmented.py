"""Target share by fused attention to one segment at a time; each row's bias is chosen after its scores."""

import math

import torch
from torch import Tensor

from salience_kernels.key_bias.segments import attend_segments, find_segments
from salience_kernels.log_mass import add_to_block
from salience_kernels.problem import MASKED_BIAS_NATS, AttentionProblem
from salience_kernels.scores import compute_dtype
from salience_kernels.target_share.shift import ShareTarget, ShiftedMass, shift_mass


def attend(problem: AttentionProblem, target: ShareTarget) -> tuple[Tensor, ShiftedMass]:
    """Output and shifted mass of a trimmed problem; holds one output per segment at a time."""
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
