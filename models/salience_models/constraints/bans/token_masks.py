"""The tokens that each state of a ban automaton forbids: found when a state is first met, then looked up."""

from bisect import bisect_left
from collections.abc import Sequence
from sys import maxunicode

import torch
from jaxtyping import Int32
from torch import Tensor

from salience_kernels import AllowedBits, BannedIds, TokenMask, allow_ids, pack_allowed
from salience_models.constraints.bans.automaton import (
    DEAD,
    MATCH,
    PENDING_BITS,
    WAIT,
    BanAutomaton,
    make_state,
    state_pending,
)
from salience_models.constraints.bans.folding import is_word_symbol
from salience_models.constraints.bans.token_images import ImageTable, token_images

__all__ = ["BanMasks"]

_MAX_CACHED_BYTES = 1 << 26
_MAX_MOVES = 1 << 20
_MAX_SPARSE_SHARE = 1 / 16
"""Above this share of the vocabulary, bits are smaller than ids and faster to apply."""


class BanMasks:
    """Tokens that may not follow, by state: those that complete a phrase, those that break UTF-8, and
    those that begin a character which only phrases could complete.

    A token completes a phrase that was begun before it or at its start, or else holds the phrase further in.
    The last does not depend on the state and is found once; the first are the tokens that begin with the rest
    of a phrase, which are neighbours in a sorted vocabulary. So a state costs a few bisections per phrase
    begun, whatever the vocabulary's size.
    """

    def __init__(self, automaton: BanAutomaton, token_bytes: Sequence[bytes | None]) -> None:
        """Find what holds a phrase by itself.

        Args:
            automaton: Where states come from.
            token_bytes: Bytes by token id; None where an id yields no text: such an id is never listed, and
                whether it may be sampled is the caller's business.
        """
        self.automaton = automaton
        self._vocabulary = token_images(tuple(token_bytes))
        self._moves: dict[tuple[int, int], int] = {}
        self._masks: dict[int, TokenMask] = {}
        self._cached_bytes = 0
        self._holding: dict[bytes, frozenset[int]] = {}
        self._completing: dict[tuple[int, bytes], frozenset[int]] = {}
        self._risky: dict[bytes, list[tuple[int, str, bytes]]] = {}
        silent = torch.tensor(self._vocabulary.silent_ids, dtype=torch.int32)
        self._silent = allow_ids(torch.zeros(-(-self.n_vocab // 32), dtype=torch.int32), silent)
        self._everywhere = self._ban_everywhere()
        self._least = self._write_down(self._everywhere)
        self.mask(automaton.start)

    @property
    def token_bytes(self) -> tuple[bytes | None, ...]:
        """Bytes by token id."""
        return self._vocabulary.token_bytes

    @property
    def n_vocab(self) -> int:
        """Tokens, those without bytes included."""
        return len(self._vocabulary.token_bytes)

    def advance(self, state: int, token_id: int) -> int:
        """The state after a token; DEAD where the state bans it, the same where it yields no text."""
        reached = self._moves.get((state, token_id))
        if reached is None:
            reached = self._advance(state, token_id)
            if len(self._moves) >= _MAX_MOVES:
                self._moves.clear()
            self._moves[state, token_id] = reached
        return reached

    def mask(self, state: int) -> TokenMask:
        """What `state` bans; the same object for the same state as long as it stays cached.

        Raises:
            ValueError: The state is DEAD, where no token is left to choose.
        """
        known = self._masks.get(state)
        if known is None:
            known = self._build_mask(state)
            self._cached_bytes += known.nbytes
            if self._cached_bytes > _MAX_CACHED_BYTES:
                self._masks.clear()
                self._cached_bytes = known.nbytes
            self._masks[state] = known
        return known

    def banned(self, state: int) -> Int32[Tensor, " banned"]:
        """The ids that `state` bans, ascending."""
        mask = self.mask(state)
        if isinstance(mask, BannedIds):
            return mask.ids
        allowed = mask.unpack(self.n_vocab)
        return torch.nonzero(~allowed).flatten().to(torch.int32)

    def _advance(self, state: int, token_id: int) -> int:
        if not 0 <= token_id < self.n_vocab:
            raise ValueError(f"token_id must lie in [0, {self.n_vocab}), got {token_id}")
        data = self._vocabulary.token_bytes[token_id]
        if data is None or state == DEAD:
            return state
        number = state >> PENDING_BITS
        if state != number << PENDING_BITS:  # inside a character
            return self.automaton.advance_bytes(state, data)
        image = self._vocabulary.image[token_id]
        reached = DEAD if image is None else self.automaton.run(number, image)
        tail = self._vocabulary.tail[token_id]
        return make_state(reached, tail) if self.automaton.survives(reached, tail) else DEAD

    def _build_mask(self, state: int) -> TokenMask:
        if state == DEAD:
            raise ValueError("state must be one that a text may lead to, got DEAD")
        pending = state_pending(state)
        table = self._vocabulary.table(pending)
        number = state >> PENDING_BITS
        begun = self._tokens_that_corner(number, pending, table)
        for place in self.automaton.places(number):
            begun |= self._tokens_that_complete(place, pending, table)
        if pending:  # almost nothing continues a character
            banned = begun | self._tokens_that_hold(pending, table)
            allowed = [i for i in table.ids if i not in banned]
            return AllowedBits(allow_ids(self._silent, torch.tensor(allowed, dtype=torch.int32)))
        begun -= self._tokens_that_hold(pending, table)
        if not begun:
            return self._least
        ids = torch.cat([self._everywhere, torch.tensor(list(begun), dtype=torch.int32)])
        return self._write_down(ids.sort().values)

    def _ban_everywhere(self) -> Tensor:
        """Ids that no state lets through at a character's start, ascending."""
        held = self._tokens_that_hold(b"", self._vocabulary.table(b""))
        return torch.tensor(sorted({*self._vocabulary.broken_ids, *held}), dtype=torch.int32)

    def _write_down(self, banned_ids: Tensor) -> TokenMask:
        mask = BannedIds(banned_ids)
        if banned_ids.numel() <= _MAX_SPARSE_SHARE * self.n_vocab:
            return mask
        return AllowedBits(pack_allowed(mask.unpack(self.n_vocab)))

    def _tokens_that_hold(self, pending: bytes, table: ImageTable) -> frozenset[int]:
        """Tokens that no text without a phrase can end with, whatever it is."""
        known = self._holding.get(pending)
        if known is None:
            run, outset = self.automaton.run, self.automaton.inside_word
            held = (i for i, image in zip(table.ids, table.images, strict=True) if run(outset, image) == DEAD)
            known = self._holding[pending] = frozenset(held)
        return known

    def _tokens_that_corner(self, number: int, pending: bytes, table: ImageTable) -> set[int]:
        """Tokens that begin a character which only phrases could complete."""
        risky = self._risky.get(pending)
        if risky is None:
            is_safe, waits = self.automaton.is_safe, self.automaton.whole_word
            risky = self._risky[pending] = [t for t in table.unfinished if not is_safe(t[2], waiting=waits)]
        if not risky:
            return set()
        run, survives = self.automaton.run, self.automaton.survives
        return {i for i, image, tail in risky if not survives(run(number, image), tail)}

    def _tokens_that_complete(self, place: int, pending: bytes, table: ImageTable) -> frozenset[int]:
        """Tokens that begin with the rest of a phrase."""
        known = self._completing.get((place, pending))
        if known is None:
            known = self._completing[place, pending] = frozenset(self._find_completing(place, table))
        return known

    def _find_completing(self, place: int, table: ImageTable) -> set[int]:
        if place == WAIT:
            return set(_not_going_on(table, 0, 0, len(table.ids)))
        found: set[int] = set()
        images, open_places = table.images, [(place, "", 0, len(table.images))]
        while open_places:
            here, written, low, high = open_places.pop()
            for symbol, targets in self.automaton.arcs(here).items():
                start = bisect_left(images, written + symbol, low, high)
                end = (
                    high
                    if ord(symbol) == maxunicode
                    else bisect_left(images, written + chr(ord(symbol) + 1), start, high)
                )
                if start == end:
                    continue
                for target in targets:
                    if target == MATCH:
                        found.update(table.ids[start:end])
                    elif target == WAIT:
                        found.update(_not_going_on(table, len(written) + 1, start, end))
                    else:
                        open_places.append((target, written + symbol, start, end))
        return found


def _not_going_on(table: ImageTable, n_symbols: int, start: int, end: int) -> list[int]:
    """The tokens in `[start, end)` whose symbol after the first `n_symbols` ends a word."""
    ids, images = table.ids[start:end], table.images[start:end]
    return [
        i
        for i, image in zip(ids, images, strict=True)
        if len(image) > n_symbols and not is_word_symbol(image[n_symbols])
    ]
