"""Attention operators that bias keys or set the share of mass a block of keys receives.

Pure tensor functions; torch and jaxtyping only.
"""

from salience_kernels.errors import ImplUnavailable, KernelsError
from salience_kernels.key_bias import KeyBiasImpl, key_bias_attention, resolve_impl
from salience_kernels.outputs import AttentionOutput, SolvedShareBias, TargetShareOutput
from salience_kernels.problem import LAST_ROWS
from salience_kernels.share_control import block_log_mass, solve_share_bias
from salience_kernels.target_share import (
    TargetShareImpl,
    resolve_target_share_impl,
    target_share_attention,
)

__all__ = [
    "LAST_ROWS",
    "AttentionOutput",
    "ImplUnavailable",
    "KernelsError",
    "KeyBiasImpl",
    "SolvedShareBias",
    "TargetShareImpl",
    "TargetShareOutput",
    "block_log_mass",
    "key_bias_attention",
    "resolve_impl",
    "resolve_target_share_impl",
    "solve_share_bias",
    "target_share_attention",
]
