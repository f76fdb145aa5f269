"""Attention in which blocks receive a share of the mass: validate, then dispatch on the implementation."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Literal

import torch
from jaxtyping import Float, Float32, Int, Int16
from torch import Tensor

from salience_kernels.errors import ImplUnavailable
from salience_kernels.key_bias.segmented import MAX_SEGMENTS, find_segments, is_segmentable
from salience_kernels.outputs import TargetShareOutput
from salience_kernels.problem import LAST_ROWS, AttentionProblem, slice_batch, slice_rows, trim_problem
from salience_kernels.scores import rows_per_chunk
from salience_kernels.target_share import reference
from salience_kernels.target_share.shift import ShareTarget, ShiftedMass, attend_chunked, attend_segmented
from salience_kernels.validation import build_problem, check_mass_rows, check_shares, resolve

_RULES = ("exact", "paper")

_MAX_HELD_ELEMENTS = 1 << 26
"""Largest total of segment outputs held at once: 256 MiB in float32."""


class TargetShareImpl(StrEnum):
    """Implementations of `target_share_attention`; the table of what each can do is in the room's README."""

    REFERENCE = "reference"
    CHUNKED = "chunked"
    SEGMENTED = "segmented"
    AUTO = "auto"


def target_share_attention(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    value: Float[Tensor, "batch kv_head key _"],
    *,
    blocks: Int16[Tensor, "batch key"],
    shares: Float32[Tensor, "batch block"],
    rule: Literal["exact", "paper"] = "exact",
    only_raise: bool = True,
    scale: float,
    causal: bool,
    query_offset: int = 0,
    key_start: Int[Tensor, " batch"] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    mass: Literal["none", "last", "all"] = "none",
    impl: TargetShareImpl | str = TargetShareImpl.AUTO,
) -> TargetShareOutput:
    """Attention in which every row and head gives each block at least (or exactly) its share of the mass.

    The bias is solved per row and head after the scores. A row that does not see a block skips it; a sink's
    mass belongs to the rest; a row that sees nothing but blocks to be set stays as it is, since nothing could
    give or take.

    Args:
        blocks: Block id per key, 0 the rest, others in `[1, block]`.
        shares: Share of the mass per block; 0 asks for nothing. Each row sums to less than 1.
        rule: `exact` reaches the share: for one block the bias is logit(share) - logit(mass). `paper` is the
            published ln(share / mass), which falls short: from .05 asked to .3 it reaches .24.
        only_raise: Leave a block that already has its share. False sets each visible block to exactly its
            share.
        mass: Rows whose mass by block, after and before, is returned: none, the last 64, or all.
        impl: Implementation by name; one named runs or raises, `auto` chooses and reports which.

    The other arguments are those of `key_bias_attention`.

    Raises:
        ImplUnavailable: The implementation named cannot run on these inputs.
    """
    impl = resolve(TargetShareImpl, impl)
    check_mass_rows(mass, blocks)
    if rule not in _RULES:
        raise ValueError(f"rule must be one of {', '.join(_RULES)}, got {rule!r}")
    check_shares(shares, query.shape[0], query.device)
    problem = build_problem(
        query,
        key,
        value,
        scale=scale,
        causal=causal,
        query_offset=query_offset,
        key_start=key_start,
        window=window,
        softcap=softcap,
        sinks=sinks,
        blocks=blocks,
        n_blocks=shares.shape[1],
    )
    if impl is TargetShareImpl.REFERENCE:
        return reference.attend(problem, shares, rule, only_raise, mass)
    problem, target = trim_problem(problem), ShareTarget(shares, rule, only_raise)
    if impl is TargetShareImpl.AUTO:
        impl = TargetShareImpl.SEGMENTED if is_segmentable(problem) else TargetShareImpl.CHUNKED
    if impl is TargetShareImpl.SEGMENTED:
        out, lse, after, before = _attend_segmented(problem, target, mass)
    else:
        step = rows_per_chunk(query.shape[0], query.shape[1], problem.n_keys, query.device)
        out, lse, after, before = _attend_by_rows(attend_chunked, problem, target, mass, step)
    masses = (None, None) if mass == "none" else (after, before)
    return TargetShareOutput(out, lse.float(), *masses, impl.value)


def _attend_segmented(problem: AttentionProblem, target: ShareTarget, mass: str) -> tuple[Tensor, ...]:
    batch, heads, _, value_dim = *problem.query.shape[:3], problem.value.shape[3]
    n_segments = len(find_segments(problem, by_block=True))
    if n_segments <= MAX_SEGMENTS:
        step = max(256, _MAX_HELD_ELEMENTS // (n_segments * batch * heads * value_dim))
        return _attend_by_rows(attend_segmented, problem, target, mass, step)
    if batch == 1:
        reason = f"blocks must form at most {MAX_SEGMENTS} segments, got {n_segments}"
        raise ImplUnavailable(TargetShareImpl.SEGMENTED.value, reason)
    # batch rows cut the keys at different places: each alone has fewer cuts
    rows = [
        _attend_segmented(
            slice_batch(problem, row), replace(target, shares=target.shares[row : row + 1]), mass
        )
        for row in range(batch)
    ]
    return tuple(torch.cat(tensors) for tensors in zip(*rows, strict=True))


def _attend_by_rows(
    attend: Callable[[AttentionProblem, ShareTarget], tuple[Tensor, ShiftedMass]],
    problem: AttentionProblem,
    target: ShareTarget,
    mass: str,
    step: int,
) -> tuple[Tensor, ...]:
    """Output, log-sum-exp, and mass after and before of the measured rows, `step` rows at a time."""
    n_rows = problem.n_rows
    first_measured = {"none": n_rows, "last": max(0, n_rows - LAST_ROWS), "all": 0}[mass]
    parts = []
    for start in range(0, n_rows, step):
        out, shifted = attend(slice_rows(problem, start, min(start + step, n_rows)), target)
        measured = slice(max(0, first_measured - start), None)
        parts.append((out, shifted.lse, shifted.after[:, :, measured], shifted.before[:, :, measured]))
    return (
        parts[0] if len(parts) == 1 else tuple(torch.cat(tensors, 2) for tensors in zip(*parts, strict=True))
    )
