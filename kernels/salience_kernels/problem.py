"""One validated attention problem, as every implementation receives it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

MASKED_BIAS_NATS = -1e9
"""Bias of a padding key. Finite, so that a row of padding alone stays finite inside fused kernels; next to
any visible key its exponential underflows to exactly zero."""

LAST_ROWS = 64
"""Number of rows that `mass="last"` measures."""


@dataclass(frozen=True)
class AttentionProblem:
    """Inputs of one attention call, after validation.

    Query row `i` sits at key index `i + query_offset`. If `causal`, it sees keys `j <= i + query_offset`,
    with a window `W` only those with `j > i + query_offset - W`; in every case only those with `j >=
    key_start[batch]`. Dtype of `key_bias` is float32, of `blocks` int16; `n_blocks` counts the blocks beside
    the rest (0).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    causal: bool
    query_offset: int = 0
    key_bias: Tensor | None = None
    key_start: Tensor | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    blocks: Tensor | None = None
    n_blocks: int = 0

    @property
    def n_rows(self) -> int:
        return self.query.shape[2]

    @property
    def n_keys(self) -> int:
        return self.key.shape[2]


def trim_problem(problem: AttentionProblem) -> AttentionProblem:
    """The same problem without the keys that no row can see, in the simplest terms.

    Afterwards: if `causal`, there are at least two rows and the last one sits at the last key; `window` is
        None
    unless it hides something; `key_start` is None unless it hides something.
    """
    first, end, n_rows = 0, problem.n_keys, problem.n_rows
    if problem.causal:
        end = problem.query_offset + n_rows
        if problem.window is not None:
            first = max(0, problem.query_offset - problem.window + 1)
    problem = slice_keys(problem, first, end)
    key_start = problem.key_start
    if key_start is not None and not bool((key_start > 0).any()):
        key_start = None
    window = problem.window
    if window is not None and window >= problem.n_keys:
        window = None
    return replace(problem, key_start=key_start, window=window, causal=problem.causal and n_rows > 1)


def slice_keys(problem: AttentionProblem, first: int, end: int) -> AttentionProblem:
    """The problem on the keys `[first, end)` alone, positions counted from `first`."""
    if first == 0 and end == problem.n_keys:
        return problem
    keys = slice(first, end)
    bias, blocks, key_start = problem.key_bias, problem.blocks, problem.key_start
    return replace(
        problem,
        key=problem.key[:, :, keys],
        value=problem.value[:, :, keys],
        key_bias=None if bias is None else bias[..., keys],
        blocks=None if blocks is None else blocks[:, keys],
        key_start=None if key_start is None else (key_start - first).clamp_min(0),
        query_offset=problem.query_offset - first,
    )


def slice_rows(problem: AttentionProblem, first: int, end: int) -> AttentionProblem:
    """A trimmed problem on the query rows `[first, end)` alone, trimmed again."""
    if first == 0 and end == problem.n_rows:
        return problem
    rows = replace(problem, query=problem.query[:, :, first:end])
    return trim_problem(replace(rows, query_offset=problem.query_offset + first)) if problem.causal else rows


def slice_batch(problem: AttentionProblem, index: int) -> AttentionProblem:
    """The problem of one batch row, batch dimension kept."""
    one = slice(index, index + 1)

    def pick(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[one]

    return replace(
        problem,
        query=problem.query[one],
        key=problem.key[one],
        value=problem.value[one],
        key_bias=pick(problem.key_bias),
        key_start=pick(problem.key_start),
        blocks=pick(problem.blocks),
    )


def padding_bias(problem: AttentionProblem) -> Tensor | None:
    """Bias `[batch, 1, key]` that hides padding keys, or None if there are none."""
    if problem.key_start is None:
        return None
    index = torch.arange(problem.n_keys, device=problem.key.device)
    is_padding = index < problem.key_start[:, None]
    return torch.zeros(is_padding.shape, device=index.device).masked_fill_(is_padding, MASKED_BIAS_NATS)[
        :, None
    ]


def row_bias(problem: AttentionProblem) -> Tensor | None:
    """Bias `[batch, 1 | head, key]` that carries the key bias and hides padding keys whatever their bias."""
    padding = padding_bias(problem)
    if problem.key_bias is None or padding is None:
        return problem.key_bias if padding is None else padding
    return torch.where(padding < 0, padding, problem.key_bias)


def empty_rows(problem: AttentionProblem) -> Tensor | None:
    """Which rows of a trimmed problem see no key, `[batch, 1, query]`, or None if no row can be empty."""
    if problem.key_start is None:
        return None
    if problem.causal:
        last_visible = torch.arange(problem.n_rows, device=problem.key.device) + problem.query_offset
    else:
        last_visible = torch.full((problem.n_rows,), problem.n_keys - 1, device=problem.key.device)
    return (last_visible < problem.key_start[:, None])[:, None]
