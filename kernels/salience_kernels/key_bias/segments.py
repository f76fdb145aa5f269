"""Runs of keys that share a block and a bias, and attention to one run at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from salience_kernels.key_bias import chunked, native
from salience_kernels.key_bias.fused import row_bias_refusal
from salience_kernels.problem import AttentionProblem, padding_bias, slice_batch

MAX_SEGMENTS = 64


@dataclass(frozen=True)
class SegmentPart:
    """Attention of the rows `[row_start, row_end)` to one segment alone, no bias added.

    Attributes:
        key_start: First key of the segment; its block and bias are those of the whole segment.
        out: `[batch, head, rows, head_dim]`.
        lse: `[batch, head, rows]`.
    """

    key_start: int
    row_start: int
    row_end: int
    out: Tensor
    lse: Tensor


def find_segments(problem: AttentionProblem, *, by_block: bool) -> list[tuple[int, int]]:
    """Ranges of keys in which no batch row changes its bias or, if `by_block`, its block."""
    n_keys = problem.n_keys
    changes = torch.zeros(n_keys - 1, dtype=torch.bool, device=problem.key.device)
    if problem.key_bias is not None:
        bias = problem.key_bias
        changes |= (bias[..., 1:] != bias[..., :-1]).flatten(0, 1).any(0)
    if by_block and problem.blocks is not None:
        changes |= (problem.blocks[:, 1:] != problem.blocks[:, :-1]).any(0)
    cuts = [0, *(changes.nonzero().flatten() + 1).tolist(), n_keys]
    return list(pairwise(cuts))


def is_segmentable(problem: AttentionProblem) -> bool:
    """Whether every batch row has at most 64 segments by block and bias."""
    if len(find_segments(problem, by_block=True)) <= MAX_SEGMENTS:
        return True
    batch = problem.query.shape[0]
    return batch > 1 and all(is_segmentable(slice_batch(problem, row)) for row in range(batch))


def attend_segments(problem: AttentionProblem, segments: list[tuple[int, int]]) -> Iterator[SegmentPart]:
    """Attend to one segment after the other, leaving out the rows that cannot see it."""
    is_native = row_bias_refusal(problem.query, problem.value, problem.softcap) is None
    padding = padding_bias(problem)
    padded_keys = 0 if problem.key_start is None else int(problem.key_start.max())
    for key_start, key_end in segments:
        row_start, row_end = _rows_that_see(problem, key_start, key_end)
        if row_start >= row_end:
            continue
        query = problem.query[:, :, row_start:row_end]
        key, value = problem.key[:, :, key_start:key_end], problem.value[:, :, key_start:key_end]
        bias = padding[..., key_start:key_end] if padding is not None and key_start < padded_keys else None
        offset = row_start + problem.query_offset - key_start if problem.causal else None
        if is_native and problem.window is None:
            part = native.attend_rows(query, key, value, bias, scale=problem.scale, offset=offset)
        else:
            part = chunked.attend_band(
                query,
                key,
                value,
                bias,
                scale=problem.scale,
                offset=offset,
                window=problem.window,
                softcap=problem.softcap,
            )
        yield SegmentPart(key_start, row_start, row_end, *part)


def _rows_that_see(problem: AttentionProblem, key_start: int, key_end: int) -> tuple[int, int]:
    if not problem.causal:
        return 0, problem.n_rows
    row_end = problem.n_rows
    if problem.window is not None:
        row_end = min(row_end, key_end - 1 + problem.window - problem.query_offset)
    return max(0, key_start - problem.query_offset), row_end
