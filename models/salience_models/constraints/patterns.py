"""Regular expressions that two engines must agree on: llguidance's, which masks, and Python's, which checks.

What only one of them knows (look-around and `\\b` here, `\\p{L}` there) is refused, so that no pattern is
masked by one meaning and checked by another.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import regex_to_lark

from salience_models.constraints.engine import grammar_error

__all__ = [
    "ANY_TEXT",
    "ForbiddenPattern",
    "check_pattern",
    "compile_python",
    "lark_literal",
    "texts_that_match",
]

ANY_TEXT = "/(?s:.*)/"
"""Any valid UTF-8: what `~` alone would not insist on."""


def compile_python(pattern: str, name: str) -> re.Pattern[str]:
    """Python's reading of `pattern`; what it warns of (`[[:alpha:]]`, `[a&&b]`) others read in other ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return re.compile(pattern)
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise ValueError(f"{name} must be a regular expression, got {pattern!r}: {error}") from error


def check_pattern(pattern: str, name: str) -> None:
    """Refuse what either engine cannot read."""
    compile_python(pattern, name)
    error = grammar_error(f"start: T\nT: {lark_literal(pattern)} & {ANY_TEXT}\n")
    if error:
        raise ValueError(
            f"{name} must be a regular expression without look-around, word boundaries or back-references, "
            f"got {pattern!r}: {error}"
        )


def lark_literal(pattern: str) -> str:
    """`pattern` as a terminal expression of its own, so that its flags and `|` end with it."""
    return f"(/{regex_to_lark(pattern, use_ascii='')}/)"


@dataclass(frozen=True)
class ForbiddenPattern:
    """What no part of an answer may match.

    The engine knows `^` and `$` at the ends of a whole text only, so they are taken off here, at the ends of
    the pattern or as an alternative of a group there: `(^|[^0-9])15%` is the way to say "not inside 115%".

    Attributes:
        before: "any" text before the body; "none" (`^`); else a pattern that stands before it, unless the
            text begins there.
        body: Free of anchors.
        after: As `before`, at the end.
    """

    before: str
    body: str
    after: str

    @classmethod
    def parse(cls, pattern: str, name: str) -> "ForbiddenPattern":
        compile_python(pattern, name)
        before, body = _take_start(pattern)
        after, body = _take_end(body)
        if (before == "none" or after == "none") and _has_alternatives(body):
            raise ValueError(f"{name} must group alternatives beside '^' or '$', got {pattern!r}")
        if _anchors(body):
            raise ValueError(
                f"{name} must hold '^' and '$' at its ends only, alone or as '(^|...)' and '(...|$)', "
                f"got {pattern!r}"
            )
        if re.compile(body).fullmatch("") is not None:
            raise ValueError(
                f"{name} must not match the empty text, which every answer holds, got {pattern!r}"
            )
        for part in {before, body, after} - {"any", "none"}:
            check_pattern(part, name)
        return cls(before, body, after)

    def find(self, text: str) -> re.Match[str] | None:
        """Where Python's engine sees it in `text`."""
        start = {"any": "", "none": r"\A"}.get(self.before, rf"(?:\A|{self.before})")
        end = {"any": "", "none": r"\Z"}.get(self.after, rf"(?:\Z|{self.after})")
        return re.search(f"{start}(?:{self.body}){end}", text)


def texts_that_match(patterns: Sequence[ForbiddenPattern]) -> str:
    """The terminal expression of all texts that hold a match of any of the patterns."""
    bodies: dict[tuple[str, str], list[str]] = {}
    for pattern in patterns:
        bodies.setdefault((pattern.before, pattern.after), []).append(lark_literal(pattern.body))
    whole = []
    for (before, after), alternatives in bodies.items():
        parts = [f"({' | '.join(alternatives)})"]
        if before != "none":
            parts.insert(0, ANY_TEXT if before == "any" else f"({ANY_TEXT} {lark_literal(before)})?")
        if after != "none":
            parts.append(ANY_TEXT if after == "any" else f"({lark_literal(after)} {ANY_TEXT})?")
        whole.append(" ".join(parts))
    return f"({' | '.join(whole)})"


def _take_start(pattern: str) -> tuple[str, str]:
    for opening in ("(?:^|", "(^|"):
        if pattern.startswith(opening):
            end = _group_end(pattern)
            if pattern[end : end + 1] not in ("*", "+", "?", "{"):
                return pattern[len(opening) : end - 1], pattern[end:]
    return ("none", pattern[1:]) if pattern.startswith("^") else ("any", pattern)


def _take_end(pattern: str) -> tuple[str, str]:
    if pattern.endswith("|$)"):
        starts = [at for at, depth, char in _walk(pattern) if char == "(" and depth == 0]
        start = starts[-1] if starts else -1
        if start >= 0 and start + _group_end(pattern[start:]) == len(pattern):
            inner = pattern[start + 1 : -3].removeprefix("?:")
            return inner, pattern[:start]
    if pattern.endswith("$") and any(at == len(pattern) - 1 for at, _, char in _walk(pattern) if char == "$"):
        return "none", pattern[:-1]
    return "any", pattern


def _walk(pattern: str) -> list[tuple[int, int, str]]:
    """Position, group depth and character of what is neither escaped nor in a character class."""
    found, depth, at = [], 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
            continue
        depth -= char == ")"
        found.append((at, depth, char))
        depth += char == "("
        at += 1
    return found


def _class_end(pattern: str, start: int) -> int:
    """Behind the `]` of the class that opens at `start`; a `]` that comes first in it is a member."""
    at = start + 1 + (pattern[start + 1 : start + 2] == "^")
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _group_end(pattern: str) -> int:
    """Behind the `)` of the group that `pattern` begins with."""
    return next(at for at, depth, char in _walk(pattern) if char == ")" and depth == 0) + 1


def _has_alternatives(pattern: str) -> bool:
    return any(char == "|" and depth == 0 for _, depth, char in _walk(pattern))


def _anchors(pattern: str) -> bool:
    return any(char in "^$" for _, _, char in _walk(pattern)) or bool(
        re.search(r"(?<!\\)(\\\\)*\\[AZz]", pattern)
    )
