"""A Python regular expression written out so that every engine reads it as Python does, or refused.

What is written has neither flags nor named classes: engines differ in what they count as a word (Rust:
combining marks too), as space, and as another case of a letter (Python: `ı` and `İ` are cases of `i`).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]  # the one reading that Python uses
from typing import Any, NoReturn

__all__ = ["PatternPart", "explicit_pattern", "pattern_parts"]

PatternPart = tuple[int, int, str, bool]
"""Position, depth in groups, text (one character, or a backslash and one), whether inside a class."""

_CATEGORIES = {
    f"CATEGORY_{prefix}{name}": escape.upper() if prefix else escape
    for name, escape in (("DIGIT", r"\d"), ("SPACE", r"\s"), ("WORD", r"\w"))
    for prefix in ("", "NOT_")
}
_KINDS_OF_TEXT = re.ASCII | re.UNICODE

# A member of a class: a character, a range of two, or the escape of a named class.
_Member = str | tuple[str, str]


def pattern_parts(pattern: str) -> Iterator[PatternPart]:
    """The parts of a pattern; a group's parentheses are at the depth outside it, a class's brackets in it."""
    depth, at, first = 0, 0, None
    while at < len(pattern):
        text = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        if first is not None:  # where the first member of the class stands, which `]` may be
            yield at, depth, text, True
            if text == "]" and at > first:
                first = None
        elif text == "[":
            first = at + 1 + (pattern[at + 1 : at + 2] == "^")
            yield at, depth, text, True
        else:
            depth -= text == ")"
            yield at, depth, text, False
            depth += text == "("
        at += len(text)


def explicit_pattern(pattern: str, name: str, *, is_ascii: bool = False) -> str:
    r"""`pattern` without flags, names, comments, and classes such as `\w`: what matches is written out.

    Args:
        pattern: Python compiles it.
        name: Of the field, for errors.
        is_ascii: Whether classes and cases are ASCII's, as in JSON Schema.

    Raises:
        ValueError: It cannot be written so (look-around, back-references, word boundaries, possessive
            quantifiers), or is in verbose or multi-line mode.
    """
    try:
        tree = _parser.parse(pattern, re.ASCII if is_ascii else 0)
    except (re.error, ValueError) as error:
        raise ValueError(f"{name} must be a regular expression, got {pattern!r}: {error}") from error
    try:
        return _Writer(pattern, name).write(tree, tree.state.flags)
    except RecursionError as error:
        raise ValueError(f"{name} must have fewer groups within groups, got {pattern!r}") from error


class _Writer:
    """Writes the tree (`SubPattern`: operators, each with its value) that Python parses a pattern into."""

    def __init__(self, pattern: str, name: str) -> None:
        self._pattern, self._name = pattern, name

    def write(self, tree: Any, flags: int) -> str:
        if flags & re.VERBOSE:
            self._refuse("must not be in verbose mode")
        return "".join(self._part(operator.name, value, flags) for operator, value in tree)

    def _part(self, operator: str, value: Any, flags: int) -> str:
        match operator:
            case "LITERAL":
                return self._literal(value, flags)
            case "NOT_LITERAL":
                return self._class([self._character(value)], True, flags)
            case "IN":
                is_negated = value[0][0].name == "NEGATE"
                return self._class([self._member(*item) for item in value[is_negated:]], is_negated, flags)
            case "ANY":
                return "(?s:.)" if flags & re.DOTALL else "."
            case "BRANCH":
                return f"(?:{'|'.join(self.write(branch, flags) for branch in value[1])})"
            case "SUBPATTERN":
                _, added, dropped, inner = value
                kept = flags & ~_KINDS_OF_TEXT if added & _KINDS_OF_TEXT else flags
                return f"(?:{self.write(inner, (kept | added) & ~dropped)})"
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                most = "" if most is _parser.MAXREPEAT else most
                return f"(?:{self.write(inner, flags)}){{{least},{most}}}"
            case "AT":
                return self._anchor(value.name, flags)
            case "POSSESSIVE_REPEAT" | "ATOMIC_GROUP":
                self._refuse("must have no possessive quantifiers")
            case _:
                self._refuse("must have no look-around or back-references")

    def _literal(self, value: int, flags: int) -> str:
        character = self._character(value)
        if flags & re.IGNORECASE and character in _cased_characters():
            return self._class([character], False, flags)
        return _escaped(character)

    def _member(self, operator: Any, value: Any) -> _Member:
        match operator.name:
            case "LITERAL":
                return self._character(value)
            case "RANGE":
                return self._character(value[0]), self._character(value[1])
            case _:
                return _CATEGORIES[value.name]

    def _class(self, members: list[_Member], is_negated: bool, flags: int) -> str:
        return _explicit_class(tuple(members), is_negated, flags & (re.ASCII | re.IGNORECASE))

    def _character(self, value: int) -> str:
        if 0xD800 <= value < 0xE000:
            self._refuse("must name no surrogates, which are in no text")
        return chr(value)

    def _anchor(self, place: str, flags: int) -> str:
        if flags & re.MULTILINE:
            self._refuse("must not have flag m: '^' and '$' are the text's")
        if place.startswith("AT_BEGINNING"):
            return "^"
        if place.startswith("AT_END"):
            return "$"
        self._refuse("must have no word boundaries")

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"{self._name} {reason}, got {self._pattern!r}")


@lru_cache(maxsize=1024)
def _explicit_class(members: tuple[_Member, ...], is_negated: bool, flags: int) -> str:
    negation = "^" if is_negated else ""
    explicit = "".join(_explicit_member(member, flags & re.ASCII) for member in members)
    if flags & re.IGNORECASE:
        # Python is asked which characters of other cases it adds to the members.
        escaped = "".join(map(_escaped_member, members))
        plain, folded = (
            set(re.findall(f"[{negation}{escaped}]", _cased_characters(), kind))
            for kind in (flags & ~re.IGNORECASE, flags)
        )
        explicit += "".join(map(_escaped, sorted(plain ^ folded)))
    return f"[{negation}{explicit}]"


def _explicit_member(member: _Member, flags: int) -> str:
    return _ranges(member, flags) if member in _CATEGORIES.values() else _escaped_member(member)


def _escaped_member(member: _Member) -> str:
    if isinstance(member, tuple):
        return f"{_escaped(member[0])}-{_escaped(member[1])}"
    return member if len(member) > 1 else _escaped(member)


def _escaped(character: str) -> str:
    return character if character.isalnum() else f"\\U{ord(character):08X}"


@lru_cache(maxsize=12)
def _ranges(escape: str, flags: int) -> str:
    """The members of a named class as ranges."""
    runs = re.findall(f"{escape}+", _characters(), flags)
    return "".join(f"\\U{ord(run[0]):08X}-\\U{ord(run[-1]):08X}" for run in runs)


@lru_cache(maxsize=1)
def _cased_characters() -> str:
    """All that have another case."""
    return "".join(c for c in _characters() if c.lower() != c or c.upper() != c)


def _characters() -> str:
    """All but surrogates, which no text holds."""
    return "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
