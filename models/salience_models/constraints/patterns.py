"""Regular expressions that two engines must agree on: llguidance's, which masks, and Python's, which checks.

What only one of them knows (look-around and `\\b` here, `\\p{L}` there) is refused, and what they read in two
ways is written out, so that no pattern is masked by one meaning and checked by another.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from llguidance import regex_to_lark

from salience_models.constraints.engine import NO_TEXT, grammar_error
from salience_models.constraints.pattern_syntax import explicit_pattern, pattern_parts

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
        except (re.error, ValueError, RecursionError, OverflowError, Warning) as error:
            raise ValueError(f"{name} must be a regular expression, got {pattern!r}: {error}") from error


def check_pattern(pattern: str, name: str) -> None:
    """Refuse what either engine cannot read."""
    compile_python(pattern, name)
    error = grammar_error(f"start: T\nT: {lark_literal(pattern, name)} & {ANY_TEXT}\n")
    if error:
        raise ValueError(f"{name} must be a regular expression that can be masked, got {pattern!r}: {error}")


def lark_literal(pattern: str, name: str = "pattern") -> str:
    """`pattern`, a field's value, as a terminal expression of its own, so that its `|` ends with it."""
    return f"(/{regex_to_lark(f'(?:{explicit_pattern(pattern, name)})', use_ascii='')}/)"


@dataclass(frozen=True)
class ForbiddenPattern:
    """What no part of an answer may match.

    The engine knows `^` and `$` at the ends of a whole text only, so they are taken off here, at the ends of
    the pattern or as an alternative of a group there: `(^|[^0-9])15%` is the way to say "not inside 115%".
    Flags of the whole pattern, `(?i)`, become those of each part.

    Attributes:
        before: Alternatives of what stands before the body unless the text begins there; empty after `^`;
            None where anything may stand before it.
        body: Free of anchors.
        after: As `before`, at the end.
    """

    before: tuple[str, ...] | None
    body: str
    after: tuple[str, ...] | None

    @classmethod
    @lru_cache(maxsize=1024)  # read at declaration, when compiled, and for every answer that is checked
    def parse(cls, pattern: str, name: str) -> "ForbiddenPattern":
        """Split `pattern`.

        Raises:
            ValueError: It matches the empty text, has anchors elsewhere, or one engine cannot read it.
        """
        compile_python(pattern, name)
        flags, bare = _take_flags(pattern)
        if "m" in flags:
            raise ValueError(f"{name} must not have flag m: '^' and '$' are the text's, got {pattern!r}")
        if "x" in flags:
            raise ValueError(f"{name} must not be in verbose mode, got {pattern!r}")
        if "(?#" in "".join(
            "." if is_class or text[0] == "\\" else text for _, _, text, is_class in pattern_parts(bare)
        ):
            raise ValueError(f"{name} must have no comments, got {pattern!r}")
        before, body = _take_start(bare)
        after, body = _take_end(body)
        parts = [text for _, depth, text, is_class in pattern_parts(body) if not depth and not is_class]
        if (before is not None or after is not None) and "|" in parts:
            raise ValueError(f"{name} must group alternatives beside '^' or '$', got {pattern!r}")
        if any(
            text in ("^", "$", r"\A", r"\Z") for _, _, text, is_class in pattern_parts(body) if not is_class
        ):
            raise ValueError(
                f"{name} must hold '^' and '$' at its ends only, alone or as '(^|...)' and '(...|$)', "
                f"got {pattern!r}"
            )
        if compile_python(body, name).fullmatch("") is not None:
            raise ValueError(
                f"{name} must not match the empty text, which every answer holds, got {pattern!r}"
            )

        def flagged(part: str) -> str:
            return f"(?{flags}:{part})" if flags else part

        forbidden = cls(
            None if before is None else tuple(map(flagged, before)),
            flagged(body),
            None if after is None else tuple(map(flagged, after)),
        )
        for part in (forbidden.body, *(forbidden.before or ()), *(forbidden.after or ())):
            check_pattern(part, name)
        return forbidden

    def find(self, text: str, *, is_whole: bool = True) -> re.Match[str] | None:
        """Where Python's engine sees it in `text`, whose ends count if it is a whole answer."""
        start, end = _border(self.before, r"\A", is_whole), _border(self.after, r"\Z", is_whole)
        return re.search(f"{start}(?:{self.body}){end}", text)

    def is_hidden_by(self, meaning: str, *, ends: str) -> bool:
        """Whether a match in a decoded JSON string may be none where an escape is written in it.

        Never if the body holds no such character, and where one may stand beside the body, an end of the
        escape may stand there as well.

        Args:
            meaning: Characters that the escape stands for.
            ends: Characters that it may end in; it begins with a backslash.
        """
        if () in (self.before, self.after):  # only a whole answer's ends count, and a string is none
            return False
        if _may_hold(self.body, meaning):
            return True
        for alternatives, edge in ((self.before or (), ends), (self.after or (), "\\")):
            if any(_may_hold(part, meaning, beside_others=True) for part in alternatives):
                return True
            stands = [c for c in edge if any(re.fullmatch(part, c) for part in alternatives)]
            if len(stands) < len(edge) and any(_may_hold(part, meaning) for part in alternatives):
                return True
        return False


@lru_cache(maxsize=1024)
def _may_hold(pattern: str, characters: str, *, beside_others: bool = False) -> bool:
    """Whether a match of a checked pattern holds one of `characters`, if `beside_others` among others."""
    one = "[" + "".join(f"\\x{ord(character):02x}" for character in characters) + "]"
    texts = f"(?s:.+{one}.*|.*{one}.+)" if beside_others else f"(?s:.*{one}.*)"
    error = grammar_error(f"start: T\nT: {lark_literal(pattern)} & {lark_literal(texts)}\n")
    return error != NO_TEXT


def _border(alternatives: tuple[str, ...] | None, edge: str, is_whole: bool) -> str:
    if alternatives is None:
        return ""
    options = [edge, *alternatives] if is_whole else alternatives
    return f"(?:{'|'.join(options) or '(?!)'})"


def texts_that_match(patterns: Sequence[ForbiddenPattern]) -> str:
    """The terminal expression of all texts that hold a match of any of the patterns."""
    bodies: dict[tuple[tuple[str, ...] | None, tuple[str, ...] | None], list[str]] = {}
    for pattern in patterns:
        bodies.setdefault((pattern.before, pattern.after), []).append(lark_literal(pattern.body))
    whole = []
    for (before, after), alternatives in bodies.items():
        parts = [f"({' | '.join(alternatives)})"]
        if before is None:
            parts.insert(0, ANY_TEXT)
        elif before:
            parts.insert(0, f"({ANY_TEXT} ({' | '.join(map(lark_literal, before))}))?")
        if after is None:
            parts.append(ANY_TEXT)
        elif after:
            parts.append(f"(({' | '.join(map(lark_literal, after))}) {ANY_TEXT})?")
        whole.append(" ".join(parts))
    return f"({' | '.join(whole)})"


def _take_flags(pattern: str) -> tuple[str, str]:
    """The flags of the whole pattern, which may stand at its start only, and the rest."""
    groups = re.match(r"(?:\(\?[a-zA-Z]+\))*", pattern)
    assert groups is not None
    return "".join(sorted(set(groups[0]) - set("(?)"))), pattern[groups.end() :]


def _take_start(pattern: str) -> tuple[tuple[str, ...] | None, str]:
    if pattern.startswith("^"):
        return (), pattern[1:]
    if pattern.startswith("("):
        end = next(at for at, depth, text, _ in pattern_parts(pattern) if text == ")" and not depth) + 1
        alternatives = _alternatives(pattern[:end])
        if "^" in alternatives and pattern[end : end + 1] not in ("*", "+", "?", "{"):
            return tuple(part for part in alternatives if part != "^"), pattern[end:]
    return None, pattern


def _take_end(pattern: str) -> tuple[tuple[str, ...] | None, str]:
    parts = list(pattern_parts(pattern))
    if parts and parts[-1][2] == "$" and not parts[-1][3]:
        return (), pattern[:-1]
    if parts and parts[-1][2] == ")" and not parts[-1][3]:
        start = [at for at, depth, text, is_class in parts if text == "(" and not depth and not is_class][-1]
        alternatives = _alternatives(pattern[start:])
        if "$" in alternatives:
            return tuple(part for part in alternatives if part != "$"), pattern[:start]
    return None, pattern


def _alternatives(group: str) -> list[str]:
    """What a plain group chooses among; nothing where it is of another kind."""
    inner = group[1:-1].removeprefix("?:")
    if inner.startswith("?"):
        return []
    bars = [
        at for at, depth, text, is_class in pattern_parts(inner) if text == "|" and not depth and not is_class
    ]
    return [inner[a:b] for a, b in zip([0, *(at + 1 for at in bars)], [*bars, len(inner)], strict=True)]
