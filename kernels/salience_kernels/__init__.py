"""Attention operators that bias keys or set the share of mass a block of keys receives; masks over the
vocabulary applied to the logits of a batch.

Pure tensor functions; torch and jaxtyping only.
"""

from salience_kernels.constraint_mask import (
    AllowedBits,
    BannedIds,
    ConstraintMaskImpl,
    TokenMask,
    allow_ids,
    apply_constraint_mask,
    intersect_masks,
    pack_allowed,
)
from salience_kernels.errors import ImplUnavailable, KernelsError
from salience_kernels.key_bias import KeyBiasImpl, key_bias_attention, resolve_impl
from salience_kernels.outputs import AttentionOutput, SolvedShareBias, TargetShareOutput
from salience_kernels.problem import LAST_ROWS, MASKED_BIAS_NATS
from salience_kernels.share_control import block_log_mass, solve_share_bias
from salience_kernels.target_share import TargetShareImpl, target_share_attention

__all__ = [
    "LAST_ROWS",
    "MASKED_BIAS_NATS",
    "AllowedBits",
    "AttentionOutput",
    "BannedIds",
    "ConstraintMaskImpl",
    "ImplUnavailable",
    "KernelsError",
    "KeyBiasImpl",
    "SolvedShareBias",
    "TargetShareImpl",
    "TargetShareOutput",
    "TokenMask",
    "allow_ids",
    "apply_constraint_mask",
    "block_log_mass",
    "intersect_masks",
    "key_bias_attention",
    "pack_allowed",
    "resolve_impl",
    "solve_share_bias",
    "target_share_attention",
]
