"""The specification: eager attention with a key bias, written to be read."""

import math

import torch
from torch import Tensor

from salience_kernels.outputs import AttentionOutput
from salience_kernels.problem import LAST_ROWS, AttentionProblem


def attend(
    problem: AttentionProblem, mass: str = "none", *, dtype: torch.dtype | None = None
) -> AttentionOutput:
    """Attention of an untrimmed problem, computed in `dtype` (float32, or float64 for float64 inputs).

    The whole `[batch, head, query, key]` score tensor exists several times over: for tests and small
    problems.
    """
    if dtype is None:
        dtype = torch.float64 if problem.query.dtype == torch.float64 else torch.float32
    scores = biased_scores(problem, dtype)
    lse = scores.logsumexp(-1)
    is_empty = lse == -math.inf
    probabilities = (scores - lse.masked_fill(is_empty, 0.0)[..., None]).exp()
    if problem.sinks is not None:
        # a sink is one more key without a value: it takes probability and gives nothing
        sink = problem.sinks.to(dtype)[None, :, None]
        probabilities = probabilities * (lse - torch.logaddexp(lse, sink)).exp()[..., None]
    out = probabilities @ _repeat_heads(problem.value.to(dtype), problem.query.shape[1])
    block_mass = None
    if mass != "none":
        assert problem.blocks is not None
        rest, *others = (
            (probabilities * (problem.blocks == block)[:, None, None, :]).sum(-1)
            for block in range(problem.n_blocks + 1)
        )
        if problem.sinks is not None:  # the sink's probability belongs to the rest
            rest = (rest + 1.0 - probabilities.sum(-1)).masked_fill(is_empty, 0.0)
        rows = slice(-LAST_ROWS if mass == "last" else None, None)
        block_mass = torch.stack([rest, *others], -1).float()[:, :, rows]
    return AttentionOutput(out.to(problem.query.dtype), lse.float(), block_mass, "reference")


def biased_scores(problem: AttentionProblem, dtype: torch.dtype) -> Tensor:
    """Scores plus bias `[batch, head, query, key]`, -inf where a row does not see a key."""
    query, key = problem.query.to(dtype), problem.key.to(dtype)
    scores = query @ _repeat_heads(key, query.shape[1]).transpose(2, 3) * problem.scale
    if problem.softcap is not None:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    if problem.key_bias is not None:
        scores = scores + problem.key_bias[:, :, None, :].to(dtype)
    return scores.masked_fill(~visible_pairs(problem), -math.inf)


def visible_pairs(problem: AttentionProblem) -> Tensor:
    """Which row sees which key, `[batch, 1, query, key]`."""
    device = problem.query.device
    position = torch.arange(problem.n_rows, device=device)[:, None] + problem.query_offset
    index = torch.arange(problem.n_keys, device=device)[None, :]
    visible = torch.ones(problem.n_rows, problem.n_keys, dtype=torch.bool, device=device)
    if problem.causal:
        visible = index <= position
        if problem.window is not None:
            visible = visible & (index > position - problem.window)
    visible = visible.expand(problem.query.shape[0], 1, -1, -1)
    if problem.key_start is not None:
        visible = visible & (index >= problem.key_start[:, None, None, None])
    return visible


def _repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)
