"""Attention with a bias per key: validate, then dispatch on the implementation."""

from enum import StrEnum
from typing import Literal

import torch
from jaxtyping import Float, Float32, Int, Int16
from torch import Tensor

from salience_kernels.errors import ImplUnavailable
from salience_kernels.key_bias import chunked, native, reference, segmented
from salience_kernels.key_bias.native import dense_mask_refusal, row_bias_refusal
from salience_kernels.key_bias.segmented import is_segmentable
from salience_kernels.outputs import AttentionOutput
from salience_kernels.problem import AttentionProblem, empty_rows, trim_problem
from salience_kernels.scores import block_mass
from salience_kernels.validation import build_problem, check_mass_rows, resolve


class KeyBiasImpl(StrEnum):
    """Implementations of `key_bias_attention`; the table of what each can do is in the room's README."""

    REFERENCE = "reference"
    NATIVE = "native"
    CHUNKED = "chunked"
    SEGMENTED = "segmented"
    AUTO = "auto"


def resolve_impl(name: str) -> KeyBiasImpl:
    """The implementation called `name`.

    Raises:
        ValueError: No such implementation; the message lists the valid names.
    """
    return resolve(KeyBiasImpl, name)


def key_bias_attention(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    value: Float[Tensor, "batch kv_head key _"],
    *,
    key_bias: Float32[Tensor, "batch bias_head key"] | None = None,
    scale: float,
    causal: bool,
    query_offset: int = 0,
    key_start: Int[Tensor, " batch"] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    blocks: Int16[Tensor, "batch key"] | None = None,
    mass: Literal["none", "last", "all"] = "none",
    impl: KeyBiasImpl | str = KeyBiasImpl.AUTO,
) -> AttentionOutput:
    """Attention in which a bias of `b` nats multiplies a key's softmax odds by `exp(b)`; zero changes
    nothing.

    Query row `i` sits at key index `i + query_offset`. Masks win over biases: a key hidden by `causal`,
    `window` or `key_start` keeps zero probability whatever its bias. For inference: no gradient of the bias.

    Args:
        query: Rows; several query heads may share one key head.
        key: May be longer than `query_offset + query`, as in a static cache; if `causal`, the surplus is
            invisible.
        value: Values; their head_dim may differ from the keys' except for `native`.
        key_bias: Nats per key, for all heads (`bias_head` 1) or per head; added after scale and softcap.
            Finite.
        scale: Factor of the dot products.
        causal: Row `i` sees only keys `j <= i + query_offset`.
        key_start: First visible key of each batch row; keys before it are padding.
        window: Row `i` sees only keys `j > i + query_offset - window`; needs `causal`.
        softcap: Scores become `softcap * tanh(score / softcap)` before the bias.
        sinks: One logit per head that takes probability and gives no value.
        blocks: Block id per key, 0 the rest; needed for `mass`.
        mass: Rows whose attention mass by block is returned: none, the last 64, or all.
        impl: Implementation by name; one named runs or raises, `auto` chooses and reports which.

    Raises:
        ImplUnavailable: The implementation named cannot run here or on these inputs.
    """
    impl = resolve_impl(impl)
    check_mass_rows(mass, blocks)
    problem = build_problem(
        query,
        key,
        value,
        scale=scale,
        causal=causal,
        query_offset=query_offset,
        key_bias=key_bias,
        key_start=key_start,
        window=window,
        softcap=softcap,
        sinks=sinks,
        blocks=None if mass == "none" else blocks,
    )
    if impl is KeyBiasImpl.REFERENCE:
        return reference.attend(problem, mass)
    problem = trim_problem(problem)
    if impl is KeyBiasImpl.AUTO:
        if mass == "all":
            check = row_bias_refusal if problem.window is None else dense_mask_refusal
            can_fuse = check(query, value, softcap) is None and is_segmentable(problem)
            impl = KeyBiasImpl.SEGMENTED if can_fuse else KeyBiasImpl.CHUNKED
        else:
            impl = KeyBiasImpl.CHUNKED if native.refusal(problem, mass) else KeyBiasImpl.NATIVE
    if impl is KeyBiasImpl.SEGMENTED:
        return _finish(problem, mass, impl, *segmented.attend(problem, mass))
    if impl is KeyBiasImpl.NATIVE:
        reason = native.refusal(problem, mass)
        if reason is not None:
            raise ImplUnavailable(impl.value, reason)
        return _finish(problem, mass, impl, *native.attend(problem), None)
    return _finish(problem, mass, impl, *chunked.attend(problem), None)


def _finish(
    problem: AttentionProblem, mass: str, impl: KeyBiasImpl, out: Tensor, lse: Tensor, masses: Tensor | None
) -> AttentionOutput:
    """Settle empty rows, mass and sinks, which are the same for every implementation."""
    lse = lse.float()
    is_empty = empty_rows(problem)
    if is_empty is not None:
        out = out.masked_fill(is_empty[..., None], 0.0)
        lse = lse.masked_fill(is_empty, float("-inf"))
    if mass != "none":
        masses = block_mass(problem, lse, mass) if masses is None else masses
        if is_empty is not None:
            masses = masses.masked_fill(is_empty[:, :, -masses.shape[2] :, None], 0.0)
    if problem.sinks is not None:
        keep = torch.sigmoid(lse - problem.sinks.float()[:, None])  # what the sink leaves to the keys
        out = (out * keep[..., None]).to(out.dtype)
        if masses is not None:
            keep = keep[:, :, -masses.shape[2] :]
            masses = masses * keep[..., None]
            taken = 1.0 - keep
            if is_empty is not None:
                taken = taken.masked_fill(is_empty[:, :, -masses.shape[2] :], 0.0)
            masses[..., 0] += taken
    return AttentionOutput(out, lse, masses, impl.value)
