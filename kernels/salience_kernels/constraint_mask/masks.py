"""Two ways to write down which tokens may come next."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

__all__ = ["AllowedBits", "BannedIds", "TokenMask", "allow_ids", "intersect_masks", "pack_allowed"]

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
