"""Which tokens may come next, and taking the others out of a batch's logits."""

from salience_kernels.constraint_mask.api import ConstraintMaskImpl, apply_constraint_mask
from salience_kernels.constraint_mask.masks import (
    AllowedBits,
    BannedIds,
    TokenMask,
    allow_ids,
    intersect_masks,
    pack_allowed,
)

__all__ = [
    "AllowedBits",
    "BannedIds",
    "ConstraintMaskImpl",
    "TokenMask",
    "allow_ids",
    "apply_constraint_mask",
    "intersect_masks",
    "pack_allowed",
]
