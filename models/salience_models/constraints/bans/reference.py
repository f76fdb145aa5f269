"""What a ban means, without an automaton: substrings of folded text. Slow, and the specification."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from salience_models.constraints.bans.folding import fold, is_word_symbol
from salience_models.constraints.bans.spellings import Spelling, check_phrases, spellings

__all__ = ["PhrasePattern", "banned_tokens", "compile_phrases", "contains_banned", "is_banned", "may_end"]

_WELL_FORMED = (
    (range(0x80),),
    (range(0xC2, 0xE0), range(0x80, 0xC0)),
    (range(0xE0, 0xE1), range(0xA0, 0xC0), range(0x80, 0xC0)),
    (range(0xE1, 0xED), range(0x80, 0xC0), range(0x80, 0xC0)),
    (range(0xED, 0xEE), range(0x80, 0xA0), range(0x80, 0xC0)),
    (range(0xEE, 0xF0), range(0x80, 0xC0), range(0x80, 0xC0)),
    (range(0xF0, 0xF1), range(0x90, 0xC0), range(0x80, 0xC0), range(0x80, 0xC0)),
    (range(0xF1, 0xF4), range(0x80, 0xC0), range(0x80, 0xC0), range(0x80, 0xC0)),
    (range(0xF4, 0xF5), range(0x80, 0x90), range(0x80, 0xC0), range(0x80, 0xC0)),
)
"""Unicode's table 3-7: no overlong form, no surrogate, nothing beyond U+10FFFF."""

_N_BLANK = 100

_FORM_BY_LEAD = {lead: form for form in _WELL_FORMED for lead in form[0]}


@dataclass(frozen=True)
class PhrasePattern:
    """A phrase and how it is looked for in folded text; `symbols` is its only spelling, where it has one."""

    phrase: str
    pattern: re.Pattern[str]
    symbols: str | None
    begins_word: bool
    ends_word: bool

    def is_in(self, symbols: str, is_final: bool) -> bool:
        """Whether folded text holds the phrase; unless final, not yet in a word that the text's end leaves
        open."""
        return any(self._is_whole(symbols, match, is_final) for match in self.pattern.finditer(symbols))

    def _is_whole(self, symbols: str, match: re.Match[str], is_final: bool) -> bool:
        start, end = match.span(1)
        if self.begins_word and start > 0 and is_word_symbol(symbols[start - 1]):
            return False
        if not self.ends_word:
            return True
        return not is_word_symbol(symbols[end]) if end < len(symbols) else is_final


def compile_phrases(
    phrases: Iterable[str], *, whole_word: bool = False, confusables: bool = False, in_json: bool = False
) -> tuple[PhrasePattern, ...]:
    """The patterns of each phrase, every spelling included."""
    return _compile_all(check_phrases(phrases), whole_word, confusables, in_json)


@lru_cache(maxsize=32)
def _compile_all(
    phrases: tuple[str, ...], whole_word: bool, confusables: bool, in_json: bool
) -> tuple[PhrasePattern, ...]:
    return tuple(
        _compile(phrase, spelling, whole_word)
        for phrase in dict.fromkeys(phrases)
        for spelling in spellings(phrase, whole_word=whole_word, confusables=confusables, in_json=in_json)
    )


def _compile(phrase: str, spelling: Spelling, whole_word: bool) -> PhrasePattern:
    groups = ("|".join(map(re.escape, symbol)) for symbol in spelling)
    is_plain = all(len(symbol) == 1 for symbol in spelling)
    return PhrasePattern(
        phrase,
        # Looking ahead, matches may overlap: a whole word can begin inside what is none.
        re.compile(f"(?=({''.join(f'(?:{group})' for group in groups)}))", re.DOTALL),
        "".join(symbol[0] for symbol in spelling) if is_plain else None,
        whole_word and is_word_symbol(spelling[0][0][0]),
        whole_word and is_word_symbol(spelling[-1][0]),
    )


def contains_banned(
    text: str, phrases: Iterable[str], *, whole_word: bool = False, confusables: bool = False
) -> tuple[str, ...]:
    """The phrases that `text` holds, in their order; the independent check of an answer.

    Raises:
        ValueError: A phrase that cannot be banned.
    """
    patterns = compile_phrases(phrases, whole_word=whole_word, confusables=confusables)
    return tuple(pattern.phrase for pattern in _find(patterns, fold(text), is_final=True))


def is_banned(data: bytes, patterns: Sequence[PhrasePattern]) -> bool:
    """Whether no text without a phrase begins with `data`."""
    n_whole = _whole_characters(data)
    if n_whole is None:
        return True
    text = data[:n_whole].decode()
    return not any(
        not _find(patterns, fold(text + rest), is_final=False) for rest in _completions(data[n_whole:])
    )


@lru_cache(maxsize=512)
def _completions(tail: bytes) -> tuple[str, ...]:
    """What an unfinished character may become; only the empty string where none is.

    Of the unassigned and the private code points, which fold to themselves and are no word symbols, the first
    ones stand for all: no phrases are compared here that hold hundreds of those.
    """
    if not tail:
        return ("",)
    forms = [form for form in _WELL_FORMED if len(form) > len(tail)]
    fitting = [f for f in forms if all(byte in span for byte, span in zip(tail, f, strict=False))]
    found = [(tail + bytes(rest)).decode() for form in fitting for rest in product(*form[len(tail) :])]
    blank = [character for character in found if unicodedata.category(character) in ("Cn", "Co")]
    return tuple(sorted(set(found) - set(blank[_N_BLANK:])))


def banned_tokens(
    prefix: bytes, token_bytes: Sequence[bytes | None], patterns: Sequence[PhrasePattern]
) -> list[int]:
    """Ids that must not follow `prefix`, ascending, found by trying every one; None is never listed."""
    return [
        i for i, data in enumerate(token_bytes) if data is not None and is_banned(prefix + data, patterns)
    ]


def may_end(data: bytes, patterns: Sequence[PhrasePattern]) -> bool:
    """Whether a text may be `data`."""
    return _whole_characters(data) == len(data) and not _find(patterns, fold(data.decode()), is_final=True)


def _find(patterns: Sequence[PhrasePattern], symbols: str, *, is_final: bool) -> list[PhrasePattern]:
    """The patterns that folded text holds."""
    # Most phrases have one spelling and are in no text: plain substrings sort those out before any pattern.
    possible = [
        p for p in patterns if (p.pattern.search(symbols) if p.symbols is None else p.symbols in symbols)
    ]
    return [pattern for pattern in possible if pattern.is_in(symbols, is_final)]


def _whole_characters(data: bytes) -> int | None:
    """Bytes of the whole characters before at most one unfinished one; None if `data` begins no text."""
    if data.isascii():
        return len(data)
    at = 0
    while at < len(data):
        form = _FORM_BY_LEAD.get(data[at])
        given = data[at : at + len(form)] if form else b""
        if form is None or any(byte not in span for byte, span in zip(given, form, strict=False)):
            return None
        if len(given) < len(form):
            return at
        at += len(form)
    return at
