"""The parts of a regular expression that two engines would read in two ways, made explicit or refused."""

import re
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["PatternPart", "explicit_classes", "pattern_parts"]

_POSSESSIVE = re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+")
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")

PatternPart = tuple[int, int, str, bool]
"""Position, depth in groups, text (one character, or a backslash and one), whether inside a class."""


def pattern_parts(pattern: str) -> Iterator[PatternPart]:
    """The parts of a pattern; a group's parentheses are at the depth outside it, a class's brackets in it."""
    depth, at, is_class = 0, 0, False
    while at < len(pattern):
        text = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        if is_class:
            yield at, depth, text, True
            is_class = text != "]" or _is_first_of_class(pattern, at)
        elif text == "[":
            is_class = True
            yield at, depth, text, True
        else:
            depth -= text == ")"
            yield at, depth, text, False
            depth += text == "("
        at += len(text)


def _is_first_of_class(pattern: str, at: int) -> bool:
    """Whether a `]` is the first member of its class, which it does not close then."""
    return pattern[:at].endswith("[") or pattern[:at].endswith("[^")


def explicit_classes(pattern: str, name: str, *, is_ascii: bool = False) -> str:
    r"""`pattern` with `\d`, `\w`, `\s` and their opposites spelled out as Python reads them.

    Engines differ in what they count as a word (Rust: combining marks too) and as space.

    Args:
        pattern: Python compiles it.
        name: Of the field, for errors.
        is_ascii: Whether the classes are ASCII's, as in JSON Schema.

    Raises:
        ValueError: A bracket inside a class, a possessive quantifier or verbose mode: others read them
            otherwise.
    """
    outside = "".join(text if not is_class else "." for _, _, text, is_class in pattern_parts(pattern))
    if _POSSESSIVE.search(re.sub(r"\\.", ".", outside, flags=re.DOTALL)):
        raise ValueError(f"{name} must have no possessive quantifiers, got {pattern!r}")
    if _VERBOSE.search(outside):
        raise ValueError(f"{name} must not be in verbose mode, got {pattern!r}")
    found, previous_is_class = [], False
    for _, _, text, is_class in pattern_parts(pattern):
        if text == "[" and previous_is_class:
            raise ValueError(f"{name} must escape '[' inside a character class, got {pattern!r}")
        if text[0] == "\\" and text[1:] in tuple("dDwWsS"):
            ranges = _ranges(text, is_ascii)
            found.append(ranges if is_class else f"[{ranges}]")
        else:
            found.append(text)
        previous_is_class = is_class and not (text == "]" and len(found) > 1)
    return "".join(found)


@lru_cache(maxsize=12)
def _ranges(escape: str, is_ascii: bool) -> str:
    """The members of a class as ranges; surrogates do not count, for no text holds them."""
    characters = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    runs = re.findall(f"{escape}+", characters, re.ASCII if is_ascii else 0)
    return "".join(f"\\U{ord(run[0]):08X}-\\U{ord(run[-1]):08X}" for run in runs)
