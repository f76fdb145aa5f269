"""What counts as writing a phrase: for each of its symbols, every way to spell it."""

import unicodedata
from collections.abc import Iterable
from functools import cache

from salience_models.constraints.bans.confusables import look_alikes
from salience_models.constraints.bans.folding import fold, is_word_symbol

__all__ = ["Spelling", "check_phrases", "spell", "spellings"]

Spelling = tuple[tuple[str, ...], ...]
"""A phrase as a row of symbols, each a tuple of the strings that may stand for it, its own first."""

# As `fold` leaves them, so with small hexadecimal digits. An answer escapes only what JSON must escape.
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\b": r"\b", "\t": r"\t", "\f": r"\f", '"': r"\"", "\\": r"\\"}
_LONG_ESCAPES = {chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F)}

_WORDLIKE_ESCAPES = (*(e for e in _SHORT_ESCAPES.values() if e[1].isalpha()), *_LONG_ESCAPES.values())
"""Those that end in what looks like a word's letter, and mean none."""


def check_phrases(phrases: Iterable[str]) -> tuple[str, ...]:
    """The phrases, after refusing what could not be banned; the message names the phrase.

    Raises:
        ValueError: No phrases, one that is no string or no valid Unicode, or of which folding leaves nothing.
    """
    if isinstance(phrases, str | bytes):
        raise ValueError(f"phrases must be a list of strings, got {type(phrases).__name__} {phrases!r}")
    checked = tuple(phrases)
    if not checked:
        raise ValueError("phrases must hold at least one phrase, got none")
    for phrase in checked:
        if not isinstance(phrase, str):
            raise ValueError(f"phrases must be strings, got {type(phrase).__name__} {phrase!r}")
        if any("\ud800" <= character <= "\udfff" for character in phrase):
            raise ValueError(f"phrases must be valid Unicode, got a lone surrogate in {phrase!r}")
        if not fold(phrase):
            what = "an empty phrase" if not phrase else f"{phrase!r}, all marks or invisible characters"
            raise ValueError(f"phrases must hold a visible character each, got {what}")
    return checked


def spellings(
    phrase: str, *, whole_word: bool = False, confusables: bool = False, in_json: bool = False
) -> tuple[Spelling, ...]:
    """Every way to write `phrase` that a ban catches, in a text that may be or hold JSON if `in_json`.

    There a symbol may be written as its escape; and `\\ncat` is the word `cat` after a line break, though an
    `n` touches it.
    """
    spelling = spell(phrase, confusables=confusables, in_json=in_json)
    if in_json and whole_word and is_word_symbol(spelling[0][0]):
        return spelling, (_WORDLIKE_ESCAPES, *spelling)
    return (spelling,)


def spell(phrase: str, *, confusables: bool = False, in_json: bool = False) -> Spelling:
    """Every way to write `phrase` that a ban catches: each symbol composed or decomposed, on its own.

    Spelling symbol by symbol keeps this linear: a phrase of n kana has 2^n spellings.

    Args:
        phrase: One that `check_phrases` lets through.
        confusables: Whether look-alikes stand for a symbol too.
        in_json: Whether escapes do.
    """
    symbols = fold(unicodedata.normalize("NFC", phrase))
    return tuple(
        (
            *_compositions(s),
            *(look_alikes(s) if confusables else ""),
            *(table[s] for table in (_SHORT_ESCAPES, _LONG_ESCAPES) if in_json and s in table),
        )
        for s in symbols
    )


@cache
def _compositions(symbol: str) -> tuple[str, ...]:
    """A symbol and its canonical decompositions, partial ones included: 각 is also 가+ᆨ and ᄀ+ᅡ+ᆨ."""
    found = [symbol]
    parts = unicodedata.normalize("NFD", symbol)
    for cut in range(1, len(parts)):
        head, rest = unicodedata.normalize("NFC", parts[:cut]), parts[cut:]
        if len(head) == 1 and unicodedata.normalize("NFC", head + rest) == symbol:
            found.append(fold(head + rest))
    return tuple(dict.fromkeys(found))
