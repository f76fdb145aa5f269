"""Key-bias attention one segment at a time: the bias is added after the scores, so the mass of a block comes
for free.

A segment is a run of keys with one block and one bias. Adding `b` to all its scores adds `b` to its
log-sum-exp and leaves its own output as it is, so each segment is plain attention and the bias acts where
they are merged.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from salience_kernels.errors import ImplUnavailable
from salience_kernels.key_bias import chunked, native
from salience_kernels.key_bias.native import MergedAttention, row_bias_refusal
from salience_kernels.problem import LAST_ROWS, AttentionProblem, padding_bias, slice_batch
from salience_kernels.scores import add_to_block

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
        row_start, row_end = 0, problem.n_rows
        if problem.causal:
            row_start = max(0, key_start - problem.query_offset)
            if problem.window is not None:
                row_end = min(row_end, key_end - 1 + problem.window - problem.query_offset)
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


def attend(problem: AttentionProblem, mass: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, log-sum-exp and mass of the keys (a sink not yet counted) of a trimmed problem.

    Raises:
        ImplUnavailable: A batch row has more than 64 segments.
    """
    segments = find_segments(problem, by_block=mass != "none")
    batch, heads, n_rows, _ = problem.query.shape
    if len(segments) > MAX_SEGMENTS:
        if batch == 1:
            reason = f"key_bias and blocks must form at most {MAX_SEGMENTS} segments, got {len(segments)}"
            raise ImplUnavailable("segmented", reason)
        # batch rows cut the keys at different places: each alone has fewer cuts
        parts = zip(*(attend(slice_batch(problem, row), mass) for row in range(batch)), strict=True)
        outs, lses, masses = parts
        return torch.cat(outs), torch.cat(lses), None if mass == "none" else torch.cat(masses)
    merged = MergedAttention(problem.query, problem.value.shape[3])
    first_row = max(0, n_rows - LAST_ROWS) if mass == "last" else 0
    # log-sum-exp per block of the measured rows
    shape = (batch, heads, n_rows - first_row, problem.n_blocks + 1)
    log_mass = None if mass == "none" else torch.full(shape, -math.inf, device=problem.query.device)
    for part in attend_segments(problem, segments):
        lse = part.lse
        if problem.key_bias is not None:
            lse = lse + problem.key_bias[:, :, part.key_start, None]
        merged.add(part.row_start, part.row_end, part.out, lse)
        start = max(part.row_start, first_row)
        if log_mass is not None and start < part.row_end:
            assert problem.blocks is not None
            rows = log_mass[:, :, start - first_row : part.row_end - first_row]
            add_to_block(rows, problem.blocks[:, part.key_start], lse[:, :, start - part.row_start :])
    out, lse = merged.result()
    return out, lse, None if log_mass is None else (log_mass - lse[:, :, first_row:, None].float()).exp()
