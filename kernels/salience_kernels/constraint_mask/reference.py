"""Token masks applied id by id and bit by bit: the specification."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from salience_kernels.constraint_mask.masks import BannedIds, TokenMask


def apply(logits: Tensor, masks: Sequence[TokenMask | None]) -> Tensor:
    """Mask `logits` in place; which masked rows have no token left."""
    is_empty = torch.zeros(logits.shape[0], dtype=torch.bool, device=logits.device)
    for row, mask in enumerate(masks):
        if mask is None:
            continue
        for token_id in range(logits.shape[1]):
            if isinstance(mask, BannedIds):
                is_banned = token_id in mask.ids.tolist()
            else:
                is_banned = not int(mask.words[token_id // 32]) >> token_id % 32 & 1
            if is_banned:
                logits[row, token_id] = -math.inf
        is_empty[row] = all(math.isinf(x) and x < 0 for x in logits[row].tolist())
    return is_empty
