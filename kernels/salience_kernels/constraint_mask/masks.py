"""Two ways to write down which tokens may come next, and taking the others out of a batch's logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

_WORD_BITS = 32


@dataclass(frozen=True, eq=False)
class BannedIds:
    """Tokens that may not come next: few, ascending, each once."""

    ids: Int32[Tensor, " banned"]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes

    def unpack(self, n_vocab: int) -> Bool[Tensor, " vocab"]:
        """Whether each token may come next."""
        allowed = torch.ones(n_vocab, dtype=torch.bool, device=self.ids.device)
        allowed[self.ids.long()] = False
        return allowed


@dataclass(frozen=True, eq=False)
class AllowedBits:
    """Tokens that may come next, one bit each: token `i` is bit `i % 32` of word `i // 32`.

    The layout of llguidance and XGrammar. Bits beyond the vocabulary mean nothing.
    """

    words: Int32[Tensor, " word"]

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def unpack(self, n_vocab: int) -> Bool[Tensor, " vocab"]:
        """Whether each token may come next."""
        places = torch.arange(_WORD_BITS, dtype=torch.int32, device=self.words.device)
        return (self.words[:, None] >> places & 1).bool().flatten()[:n_vocab]


TokenMask = BannedIds | AllowedBits


def pack_allowed(allowed: Bool[Tensor, " vocab"]) -> Int32[Tensor, " word"]:
    """The words of `AllowedBits`; bits beyond the vocabulary are 0."""
    n_words = -(-allowed.numel() // _WORD_BITS)
    bits = torch.zeros(n_words * _WORD_BITS, dtype=torch.int64, device=allowed.device)
    bits[: allowed.numel()] = allowed
    places = torch.arange(_WORD_BITS, device=allowed.device)
    return _to_int32((bits.view(-1, _WORD_BITS) << places).sum(1))


def _to_int32(words: Tensor) -> Tensor:
    """The same 32 bits: from 2**31 on the last one is the sign."""
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def allow_ids(words: Int32[Tensor, " word"], ids: Int32[Tensor, " allowed"]) -> Int32[Tensor, " word"]:
    """`words` with the bits of `ids` set, each id given once."""
    bits = torch.zeros(words.numel(), dtype=torch.int64, device=words.device)
    bits.index_add_(0, ids // _WORD_BITS, 1 << (ids % _WORD_BITS).long())
    return words | _to_int32(bits)


def intersect_masks(first: TokenMask | None, second: TokenMask | None, n_vocab: int) -> TokenMask | None:
    """What both allow; None allows everything."""
    if first is None or second is None:
        return first if second is None else second
    if isinstance(first, BannedIds) and isinstance(second, BannedIds):
        return BannedIds(torch.cat([first.ids, second.ids]).unique())
    words = [
        mask.words if isinstance(mask, AllowedBits) else pack_allowed(mask.unpack(n_vocab))
        for mask in (first, second)
    ]
    return AllowedBits(words[0] & words[1])


def apply_batched(logits: Tensor, masks: Sequence[TokenMask | None]) -> Tensor:
    """Mask `logits` in place in a handful of operations on their device; which masked rows have no token
    left.
    """
    device = logits.device
    is_empty = torch.zeros(logits.shape[0], dtype=torch.bool, device=device)
    sparse = {row: mask.ids for row, mask in enumerate(masks) if isinstance(mask, BannedIds)}
    dense = {row: mask.words for row, mask in enumerate(masks) if isinstance(mask, AllowedBits)}
    if sparse:
        ids = torch.cat(list(sparse.values())).to(device, non_blocking=True)
        counts = torch.tensor([ids.numel() for ids in sparse.values()])
        rows = torch.tensor(list(sparse)).repeat_interleave(counts).to(device, non_blocking=True)
        logits.index_put_((rows, ids.long()), logits.new_tensor(-math.inf))
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
