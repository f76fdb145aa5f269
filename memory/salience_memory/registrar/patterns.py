"""Patterns and templates of rules: refused where they could run away or name what is not there."""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from string import Formatter
from typing import Any, cast

from salience_memory.normalisation import make_slug
from salience_memory.registrar.utterances import MAX_SENTENCE_CHARS

__all__ = [
    "MAX_PATHS",
    "clean_capture",
    "compile_pattern",
    "count_paths",
    "fill_template",
    "make_finder",
    "read_grams",
    "required_grams",
    "template_names",
]

MAX_PATHS = 200_000
"""Most ways in which a pattern may match at one place of the longest sentence; bounds a search's time."""

_UNSAFE = 10**12
_MAX_WORDS = 500
_CAPTURE_EDGES = " ,.;:!?，。；：！？、\"'“”‘’「」()（）"


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, case ignored.

    Raises:
        ValueError: It is no regular expression, matches nothing at all, or could take exponential time.
    """
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"pattern must be a regular expression, got {pattern!r}: {error}") from error
    if compiled.match(""):
        raise ValueError(f"pattern must not match the empty text, got {pattern!r}")
    if (paths := count_paths(pattern)) > MAX_PATHS:
        raise ValueError(
            f"pattern must have at most {MAX_PATHS:,} ways to match at one place, got {pattern!r} with "
            f"{'more than 10^12' if paths >= _UNSAFE else f'{paths:,}'}: bound its repeats, as in {{1,40}}"
        )
    return compiled


@cache
def make_finder(pattern: str) -> Callable[..., re.Match[str] | None]:
    """`find(text, start)`: the first match from there on. Compiled once in the life of the process."""
    compiled = compile_pattern(pattern)
    parser: Any = importlib.import_module("re._parser")
    tokens = list(parser.parse(pattern, re.IGNORECASE))
    # A search for what can only stand at the beginning would try every other place as well.
    is_anchored = str(tokens[0]) == "(AT, AT_BEGINNING)"
    return compiled.match if is_anchored else compiled.search


def read_grams(text: str) -> frozenset[str]:
    """Every three letters in a row, small ones; of other scripts, every two as well."""
    text = text.lower().replace("ı", "i")  # which a pattern that ignores case takes for one letter
    grams = {text[start : start + 3] for start in range(len(text) - 2)}
    if not text.isascii():
        grams.update(text[start : start + 2] for start in range(len(text) - 1))
    return frozenset(grams)


@cache
def required_grams(pattern: str) -> tuple[frozenset[str], ...]:
    """Sets of which each must share something with a text's grams, else the pattern cannot match in it.

    Asking them costs a hundredth of a search; nearly every rule is nearly always ruled out by them.
    """
    parser: Any = importlib.import_module("re._parser")
    return tuple(_required(parser.parse(pattern, re.IGNORECASE)))


def _required(tokens: Any) -> list[frozenset[str]]:
    found: list[frozenset[str]] = []
    run = ""
    steps = [*cast("list[tuple[Any, Any]]", list(tokens)), cast("tuple[Any, Any]", ("END", ""))]
    for name, argument in steps:
        if str(name) == "LITERAL":
            run += chr(argument).lower()
            continue
        if len(run) >= 3:
            found.append(frozenset((run[-3:],)))
        elif len(run) == 2 and not run.isascii():
            found.append(frozenset((run,)))
        run = ""
        if str(name) == "SUBPATTERN":
            found += _required(argument[-1])
        elif str(name) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and int(argument[0]) > 0:
            found += _required(argument[2])
        elif str(name) == "BRANCH":
            branches = [_required(branch) for branch in cast("list[Any]", argument[1])]
            if all(branches):
                found.append(frozenset(gram for one in branches for gram in min(one, key=len)))
    return found


def count_paths(pattern: str) -> int:
    """Upper bound of the ways a backtracking engine may try at one place; an unbounded repeat counts as long
    as a sentence may be."""
    # The engine's own parser, so that what is counted is what will run.
    parser: Any = importlib.import_module("re._parser")
    return min(_UNSAFE, _paths(parser.parse(pattern, re.IGNORECASE)))


def _paths(tokens: Any) -> int:
    total = 1
    for name, argument in cast("list[tuple[Any, Any]]", list(tokens)):
        total *= _token_paths(str(name), argument)
        if total > _UNSAFE:
            return _UNSAFE
    return total


def _token_paths(name: str, argument: Any) -> int:
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, item = argument
        texts = _expand(item)
        inner = _paths(item) if texts is None else _word_paths(texts)
        high = min(int(high), MAX_SENTENCE_CHARS)
        if inner == 1:
            return high - int(low) + 1
        return min(_UNSAFE, sum(min(_UNSAFE, inner**count) for count in range(int(low), min(high, 40) + 1)))
    if name == "SUBPATTERN":
        return _paths(argument[-1])
    if name == "BRANCH":
        texts = _expand([(name, argument)])
        return sum(_paths(branch) for branch in argument[1]) if texts is None else _word_paths(texts)
    if name in ("ASSERT", "ASSERT_NOT"):
        return _paths(argument[1])
    if name in ("POSSESSIVE_REPEAT", "ATOMIC_GROUP"):
        return _paths(argument[2] if name == "POSSESSIVE_REPEAT" else argument)
    if name == "GROUPREF_EXISTS":
        return sum(_paths(branch) for branch in argument[1:] if branch is not None)
    return 1


def _word_paths(texts: list[str]) -> int:
    """Of words, only those can match at one place that begin each other."""
    return max(sum(text.startswith(other) for other in texts) for text in texts)


def _expand(tokens: Any) -> list[str] | None:
    """Every text that a group of words matches, once for each way; None for another group, or a large one."""
    texts = [""]
    for name, argument in cast("list[tuple[Any, Any]]", list(tokens)):
        parts: list[str] | None = None
        if str(name) == "LITERAL":
            parts = [chr(argument)]
        elif str(name) == "SUBPATTERN":
            parts = _expand(argument[-1])
        elif str(name) == "BRANCH":
            branches = [_expand(branch) for branch in argument[1]]
            parts = None if None in branches else [text for branch in branches for text in branch or ()]
        elif str(name) in ("MAX_REPEAT", "MIN_REPEAT") and int(argument[1]) == 1:
            inner = _expand(argument[2])
            parts = None if inner is None else inner + ([""] if not argument[0] else [])
        if parts is None or len(texts) * len(parts) > _MAX_WORDS:
            return None
        texts = [text + part for text in texts for part in parts]
    return texts


class _Capture(str):
    """A captured text; `{name:slug}` writes it as part of a key."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return make_slug(self) if spec == "slug" else str(self)


def template_names(template: str) -> set[str]:
    """The captures a template names.

    Raises:
        ValueError: It holds something other than `{name}` and `{name:slug}`.
    """
    try:
        fields = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template must hold only {{name}} and {{name:slug}}, got {template!r}") from error
    names: set[str] = set()
    for _, name, spec, conversion in fields:
        if name is None:
            continue
        if not name.isidentifier() or spec not in ("", "slug") or conversion:
            raise ValueError(f"template must hold only {{name}} and {{name:slug}}, got {template!r}")
        names.add(name)
    return names


def fill_template(template: str, captures: Mapping[str, str]) -> str:
    """The template with the captures in their places; what they hold is text, never a template."""
    return template.format_map({name: _Capture(text) for name, text in captures.items()}).strip()


def clean_capture(text: str, fillers: re.Pattern[str] | None) -> str:
    """A capture without punctuation at its edges and without trailing filler words."""
    text = text.strip(_CAPTURE_EDGES)
    while fillers and (match := fillers.search(text)) and match.start() > 0:
        text = text[: match.start()].strip(_CAPTURE_EDGES)
    return text
