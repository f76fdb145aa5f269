"""Attention in which blocks receive a share of the mass."""

from salience_kernels.target_share.api import (
    TargetShareImpl,
    resolve_target_share_impl,
    target_share_attention,
)

__all__ = ["TargetShareImpl", "resolve_target_share_impl", "target_share_attention"]
