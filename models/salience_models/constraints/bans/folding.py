"""The homomorphism under which bans are checked: each code point to the symbols that stand for it.

`fold` forgets case, width, ligatures, Latin, Greek and Cyrillic accents, and everything invisible. It works
code point by code point, so `fold(a + b) == fold(a) + fold(b)`: what a text may still become depends on the
symbols so far, never on how they were cut into tokens.
"""

import unicodedata
from functools import cache

__all__ = ["fold", "fold_character", "is_word_symbol"]


def _characters(*ranges: tuple[int, int]) -> frozenset[str]:
    return frozenset(chr(code) for first, last in ranges for code in range(first, last + 1))


_MARKS = _characters((0x0300, 0x036F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF))
"""Marks of European scripts and of notation. Kana's, Hangul's and Indic ones make another letter."""

_INVISIBLE = _characters(
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""Default_Ignorable_Code_Point of Unicode, which Python's `unicodedata` does not tell."""

_VANISHING = _MARKS | _INVISIBLE


class _FoldTable(dict[int, str]):
    """Filled as code points come, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = fold_character(chr(code))
        return folded


def fold(text: str) -> str:
    """The symbols of `text`: it holds a phrase if its symbols hold the phrase's."""
    return text.translate(_TABLE)


def fold_character(character: str) -> str:
    """The symbols of one code point; none for a mark or an invisible one.

    casefold(NFKC), each letter without its accents where all of these are in `_MARKS`, until nothing changes.
    """
    folded = "".join(_reduce(c) for c in unicodedata.normalize("NFKC", character).casefold())
    return folded if folded == character else "".join(fold_character(c) for c in folded)


def _reduce(character: str) -> str:
    if character in _VANISHING:
        return ""
    base, *marks = unicodedata.normalize("NFD", character)
    return base if marks and _MARKS.issuperset(marks) else character


@cache
def is_word_symbol(symbol: str) -> bool:
    """Whether a symbol belongs to a word: a letter, a digit, an underscore or a mark upon a letter."""
    return symbol.isalnum() or symbol == "_" or unicodedata.category(symbol)[0] == "M"


_TABLE = _FoldTable()
