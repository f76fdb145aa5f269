"""Token masks of a batch in a handful of tensor operations, on the logits' device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from salience_kernels.constraint_mask.masks import AllowedBits, BannedIds, TokenMask

__all__ = ["apply"]


def apply(logits: Tensor, masks: Sequence[TokenMask | None]) -> Tensor:
    """Mask `logits` in place; which masked rows have no token left."""
    device = logits.device
    is_empty = torch.zeros(logits.shape[0], dtype=torch.bool, device=device)
    sparse = {row: mask.ids for row, mask in enumerate(masks) if isinstance(mask, BannedIds)}
    dense = {row: mask.words for row, mask in enumerate(masks) if isinstance(mask, AllowedBits)}
    if sparse:
        _ban(logits, sparse)
    if dense:
        rows = torch.tensor(list(dense), device=device)
        words = torch.stack(list(dense.values())).to(device, non_blocking=True)
        places = torch.arange(32, dtype=torch.int32, device=device)
        is_allowed = (words[:, :, None] >> places & 1).bool().flatten(1)[:, : logits.shape[1]]
        logits[rows] = logits[rows].masked_fill_(~is_allowed, -math.inf)
    masked = sorted([*sparse, *dense])
    if len(masked) == len(masks):  # no row to leave out, so none to copy
        return logits.amax(1) == -math.inf
    if masked:
        rows = torch.tensor(masked, device=device)
        is_empty[rows] = logits[rows].amax(1) == -math.inf
    return is_empty


def _ban(logits: Tensor, ids_by_row: dict[int, Tensor]) -> None:
    ids = torch.cat(list(ids_by_row.values())).to(logits.device, non_blocking=True)
    counts = torch.tensor([ids.numel() for ids in ids_by_row.values()])
    rows = torch.tensor(list(ids_by_row)).repeat_interleave(counts).to(logits.device, non_blocking=True)
    logits.index_put_((rows, ids.long()), logits.new_tensor(-math.inf))
