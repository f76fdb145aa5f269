"""Masks over the vocabulary, applied to the logits of a batch: validate, then dispatch."""

from collections.abc import Sequence
from enum import StrEnum

from jaxtyping import Bool, Float
from torch import Tensor

from salience_kernels.constraint_mask import reference
from salience_kernels.constraint_mask.masks import AllowedBits, TokenMask, apply_batched
from salience_kernels.validation import resolve


class ConstraintMaskImpl(StrEnum):
    """Implementations of `apply_constraint_mask`."""

    REFERENCE = "reference"
    BATCHED = "batched"
    AUTO = "auto"


def apply_constraint_mask(
    logits: Float[Tensor, "batch vocab"],
    masks: Sequence[TokenMask | None],
    *,
    impl: ConstraintMaskImpl | str = ConstraintMaskImpl.AUTO,
) -> Bool[Tensor, " batch"]:
    """Set the logits of tokens that may not come next to -inf, in place, once for the whole batch.

    A row without a mask is neither read nor written. Never sample from a row that has no token left.

    Args:
        logits: Rows to mask; any device, any strides.
        masks: One a row, None where anything may come.
        impl: Implementation by name; `auto` is `batched`.

    Returns:
        Which masked rows have no token left: every logit is -inf, by the mask or by what came before it.
    """
    impl = resolve(ConstraintMaskImpl, impl)
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be floating [batch, vocab], got {logits.dtype} {list(logits.shape)}")
    if len(masks) != logits.shape[0]:
        raise ValueError(f"masks must hold one mask a row, {logits.shape[0]}, got {len(masks)}")
    n_words = -(-logits.shape[1] // 32)
    for row, mask in enumerate(masks):
        if isinstance(mask, AllowedBits) and mask.words.numel() != n_words:
            raise ValueError(
                f"masks[{row}] must hold {n_words} words for {logits.shape[1]} tokens,"
                f" got {mask.words.numel()}"
            )
    apply = reference.apply if impl is ConstraintMaskImpl.REFERENCE else apply_batched
    return apply(logits, masks)
