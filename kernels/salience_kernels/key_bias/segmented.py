"""Key-bias attention one segment at a time: the bias is added after the scores, so the mass of a block comes
for free.

A segment is a run of keys with one block and one bias. Adding `b` to all its scores adds `b` to its
log-sum-exp and leaves its own output as it is, so each segment is plain attention and the bias acts where
they are merged.
"""

import math

import torch
from torch import Tensor

from salience_kernels.errors import ImplUnavailable
from salience_kernels.key_bias.merge import MergedAttention
from salience_kernels.key_bias.segments import MAX_SEGMENTS, attend_segments, find_segments
from salience_kernels.log_mass import add_to_block
from salience_kernels.problem import LAST_ROWS, AttentionProblem, slice_batch


def attend(problem: AttentionProblem, mass: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, log-sum-exp and mass of the keys (a sink not yet counted) of a trimmed problem.

    Raises:
        ImplUnavailable: A batch row has more than 64 segments.
    """
    segments = find_segments(problem, by_block=mass != "none")
    if len(segments) <= MAX_SEGMENTS:
        return _attend(problem, segments, mass)
    batch = problem.query.shape[0]
    if batch == 1:
        reason = f"key_bias and blocks must form at most {MAX_SEGMENTS} segments, got {len(segments)}"
        raise ImplUnavailable("segmented", reason)
    # batch rows cut the keys at different places: each alone has fewer cuts
    outs, lses, masses = zip(*(attend(slice_batch(problem, row), mass) for row in range(batch)), strict=True)
    return torch.cat(outs), torch.cat(lses), None if mass == "none" else torch.cat(masses)


def _attend(
    problem: AttentionProblem, segments: list[tuple[int, int]], mass: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    merged = MergedAttention(problem.query, problem.value.shape[3])
    masses = None if mass == "none" else _BlockMass(problem, LAST_ROWS if mass == "last" else problem.n_rows)
    for part in attend_segments(problem, segments):
        lse = part.lse
        if problem.key_bias is not None:
            lse = lse + problem.key_bias[:, :, part.key_start, None]
        merged.add(part.row_start, part.row_end, part.out, lse)
        if masses is not None:
            masses.add(part.key_start, part.row_start, part.row_end, lse)
    out, lse = merged.result()
    return out, lse, None if masses is None else masses.result(lse)


class _BlockMass:
    """Log-sum-exp per block over the last rows, one segment after the other."""

    def __init__(self, problem: AttentionProblem, n_last: int) -> None:
        assert problem.blocks is not None
        batch, heads, n_rows, _ = problem.query.shape
        self._blocks = problem.blocks
        self._first_row = max(0, n_rows - n_last)
        shape = (batch, heads, n_rows - self._first_row, problem.n_blocks + 1)
        self._log_mass = torch.full(shape, -math.inf, device=problem.query.device)

    def add(self, key_start: int, row_start: int, row_end: int, lse: Tensor) -> None:
        start = max(row_start, self._first_row)
        if start >= row_end:
            return
        rows = self._log_mass[:, :, start - self._first_row : row_end - self._first_row]
        add_to_block(rows, self._blocks[:, key_start], lse[:, :, start - row_start :])

    def result(self, lse: Tensor) -> Tensor:
        return (self._log_mass - lse[:, :, self._first_row :, None].float()).exp()
