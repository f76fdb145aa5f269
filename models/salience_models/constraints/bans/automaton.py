"""The automaton that reads an answer's bytes and dies where a banned phrase is complete.

A state is a set of places inside phrases (what an Aho–Corasick automaton calls one node) and at most three
bytes of an unfinished character. Sets are met, and numbered, as texts lead there.
"""

import threading
from collections.abc import Iterable, Iterator

from salience_models.constraints.bans.folding import fold, is_word_symbol
from salience_models.constraints.bans.spellings import Spelling, check_phrases, spellings
from salience_models.constraints.bans.utf8 import completion_codes, completions, decode_prefix

__all__ = ["DEAD", "MATCH", "WAIT", "BanAutomaton"]

DEAD = -1
"""The state after a banned phrase or after bytes that no UTF-8 text holds."""

MATCH = 0
"""Place: a phrase is complete."""
WAIT = 1
"""Place: a whole word is complete if the next symbol belongs to no word, or the text ends."""
ANYWHERE = 2
"""Place before phrases that may begin at any symbol."""
BOUNDARY = 3
"""Place before phrases that begin with a word, where no word goes on."""

PENDING_BITS = 24

_MAY_GO_ON = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))
"""Everywhere else code points are unassigned or private: three quarters of them, and none in a word."""


class BanAutomaton:
    """Reads text in any cuts: `advance_bytes` of a whole equals that of its parts.

    States are plain ints, valid for this automaton only; equal states have equal futures.
    """

    start: int = 0
    """At the beginning of a text."""

    def __init__(
        self,
        phrases: Iterable[str],
        *,
        whole_word: bool = False,
        confusables: bool = False,
        in_json: bool = False,
    ) -> None:
        """Compile phrases; how each may be spelled is `spellings`' to say.

        Args:
            phrases: What must not be written, however it is cased, accented or composed.
            whole_word: A phrase's edge that is a word symbol must meet none outside: `cat` leaves `concat`
                and `cats` alone, and is complete only with the symbol after it or the end of the text.
            confusables: Look-alikes of other scripts and `@ 0 1 3 $` stand for letters too.
            in_json: The escapes of a JSON string stand for what they mean, so that the ban holds in the
                decoded string as in the text. The second half of `\\\\n` is read as `\\n` too.

        Raises:
            ValueError: A phrase that cannot be banned.
        """
        self.phrases = check_phrases(phrases)
        self.whole_word = whole_word
        self.confusables = confusables
        self.in_json = in_json
        self._lock = threading.Lock()
        self._arcs: list[dict[str, tuple[int, ...]]] = [{}, {}, {}, {}]
        self._children: dict[tuple[int, tuple[str, ...]], int] = {}
        for phrase in dict.fromkeys(self.phrases):
            for spelling in spellings(
                phrase, whole_word=whole_word, confusables=confusables, in_json=in_json
            ):
                self._add(spelling)
        self._alphabet = frozenset().union(*self._arcs)
        self._sets: list[frozenset[int]] = []
        self._rows: list[dict[str, int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self._survivals: dict[tuple[int, bytes], bool] = {}
        self._safeties: dict[tuple[bytes, bool], bool] = {}
        inside = frozenset({ANYWHERE})
        self._number(inside | {BOUNDARY} if whole_word else inside)  # 0: what `start` stands for
        self._inside_word = self._number(inside)

    def advance_bytes(self, state: int, data: bytes) -> int:
        """The state after `data`; DEAD, once and for all, where no text without a phrase goes on from there.

        That is after a phrase, in broken UTF-8, and in a character that only phrases could complete.
        """
        if state == DEAD:
            return DEAD
        read = decode_prefix(state_pending(state) + data)
        if read is None:
            return DEAD
        text, tail = read
        number = self.run(state >> PENDING_BITS, fold(text))
        return make_state(number, tail) if self.survives(number, tail) else DEAD

    def is_match(self, state: int) -> bool:
        """Whether nothing may be written that led here."""
        return state == DEAD

    def may_end(self, state: int) -> bool:
        """Whether a text may end here: no character is unfinished, and no whole word is a phrase."""
        return state != DEAD and not state_pending(state) and WAIT not in self._sets[state >> PENDING_BITS]

    def seed(self, text: str) -> int:
        """The state at the start of an answer that follows `text`, so that no phrase lies across the border.

        A phrase inside `text` is not the answer's, and forgiven.
        """
        places = self._sets[0]
        for symbol in fold(text):
            targets = {target for place in places for target in self._arcs[place].get(symbol, ())}
            places = self._sets[self._outset(symbol)] | (targets - {MATCH, WAIT})
        return make_state(self._number(places), b"")

    @property
    def n_sets(self) -> int:
        """Sets of places met so far."""
        return len(self._sets)

    def places(self, number: int) -> frozenset[int]:
        """The places of a set."""
        return self._sets[number]

    def arcs(self, place: int) -> dict[str, tuple[int, ...]]:
        """The places that each symbol leads to from a place."""
        return self._arcs[place]

    @property
    def inside_word(self) -> int:
        """The set that every other set holds more places than, or as many: no phrase is begun."""
        return self._inside_word

    def survives(self, number: int, tail: bytes) -> bool:
        """Whether the unfinished character `tail` may be completed after a set; DEAD survives nothing."""
        if not tail or number == DEAD:
            return number != DEAD
        known = self._survivals.get((number, tail))
        if known is None:
            waiting = WAIT in self._sets[number]
            candidates = _going_on(tail) if waiting else completions(tail)
            known = self.is_safe(tail, waiting=waiting) or any(
                self.run(number, fold(c)) != DEAD for c in candidates
            )
            self._survivals[number, tail] = known
        return known

    def is_safe(self, tail: bytes, *, waiting: bool) -> bool:
        """Whether `tail` survives after every set, those that hold WAIT included if `waiting`.

        So it is where a character of no phrase completes it, and goes on with the word. False is no proof of
        the contrary.
        """
        known = self._safeties.get((tail, waiting))
        if known is None:
            candidates = _going_on(tail) if waiting else completions(tail)
            known = any(self._alphabet.isdisjoint(fold(c)) for c in candidates)
            self._safeties[tail, waiting] = known
        return known

    def run(self, number: int, symbols: str) -> int:
        """The set after `symbols`, or DEAD."""
        rows = self._rows
        for symbol in symbols:
            reached = rows[number].get(symbol)
            if reached is None:
                reached = self._follow(number, symbol)
            if reached < 0:
                return DEAD
            number = reached
        return number

    def _follow(self, number: int, symbol: str) -> int:
        row = self._rows[number]
        known = row.get(symbol)
        if known is not None:
            return known
        places = self._sets[number]
        is_complete = WAIT in places and not is_word_symbol(symbol)
        if symbol not in self._alphabet:
            reached = DEAD if is_complete else self._outset(symbol)
            # Most text is read from the first two sets; elsewhere foreign symbols would only fill the rows.
            if number <= self._inside_word:
                row[symbol] = reached
            return reached
        targets = {target for place in places for target in self._arcs[place].get(symbol, ())}
        if is_complete or MATCH in targets:
            reached = DEAD
        else:
            reached = self._number(self._sets[self._outset(symbol)] | targets)
        row[symbol] = reached
        return reached

    def _outset(self, symbol: str) -> int:
        """The set after a symbol that continues no phrase."""
        return self._inside_word if self.whole_word and is_word_symbol(symbol) else 0

    def _number(self, places: frozenset[int]) -> int:
        known = self._numbers.get(places)
        if known is not None:
            return known
        with self._lock:
            if places not in self._numbers:
                self._sets.append(places)
                self._rows.append({})
                self._numbers[places] = len(self._sets) - 1
            return self._numbers[places]

    def _add(self, spelling: Spelling) -> None:
        begins, ends = (self.whole_word and is_word_symbol(spelling[i][0][0]) for i in (0, -1))
        place = BOUNDARY if begins else ANYWHERE
        for symbol in spelling[:-1]:
            child = self._children.get((place, symbol))
            if child is None:
                child = self._children[place, symbol] = self._new_place()
                self._link(place, symbol, child)
            place = child
        self._link(place, spelling[-1], WAIT if ends else MATCH)

    def _link(self, place: int, symbol: tuple[str, ...], target: int) -> None:
        for written in symbol:
            here = place
            for part in written[:-1]:
                between = self._new_place()
                self._arcs[here][part] = (*self._arcs[here].get(part, ()), between)
                here = between
            known = self._arcs[here].get(written[-1], ())
            if target not in known:
                self._arcs[here][written[-1]] = (*known, target)

    def _new_place(self) -> int:
        self._arcs.append({})
        return len(self._arcs) - 1


def _going_on(tail: bytes) -> Iterator[str]:
    """The characters that complete `tail` without ending a word: word symbols, and what leaves no symbol."""
    codes = completion_codes(tail)
    for first, last in _MAY_GO_ON:
        for code in range(max(codes.start, first), min(codes.stop, last + 1)):
            character = chr(code)
            symbols = fold(character)
            if not ((symbols and not is_word_symbol(symbols[0])) or 0xD800 <= code <= 0xDFFF):
                yield character


def make_state(number: int, pending: bytes) -> int:
    """A set's number and the bytes of an unfinished character, which never begin with 0, in one int."""
    return number << PENDING_BITS | int.from_bytes(pending, "big")


def state_pending(state: int) -> bytes:
    """The bytes of the unfinished character."""
    value = state & ((1 << PENDING_BITS) - 1)
    return value.to_bytes((value.bit_length() + 7) // 8, "big")
