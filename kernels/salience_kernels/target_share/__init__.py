"""Attention in which blocks receive a share of the mass."""

from salience_kernels.target_share.api import TargetShareImpl, target_share_attention

__all__ = ["TargetShareImpl", "target_share_attention"]
