"""Everything but phrases, as grammars of the engine: one for each rule, unless languages must be intersected.

Two grammars are intersected token by token, which can lead where neither may go on: where only a few texts
are allowed (values, `regex`), rules are intersected with them as languages instead. `forbid_regex` rules
allow nearly everything, so they meet one another token by token: their union can take minutes to build.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from salience_models.constraints.engine import Matcher, grammar_error, random_sentence
from salience_models.constraints.json_schema import (
    ALL_ESCAPES,
    escapes_within,
    schema_grammar,
    without_values,
)
from salience_models.constraints.lark_source import LarkSource
from salience_models.constraints.patterns import ANY_TEXT, ForbiddenPattern, lark_literal, texts_that_match
from salience_models.constraints.rule import Rule, RuleKind
from salience_models.constraints.vocabulary import Vocabulary
from salience_models.errors import ConstraintContradiction, ConstraintFailed

__all__ = ["GrammarConstraint", "compile_grammars", "json_escapes"]

_MAX_JOINED = 3
"""`forbid_regex` rules that are intersected with one another beside `regex`; each more can cost tenfold."""
_N_TRIALS = 4
_MAX_TRIAL_BYTES = 64


@dataclass(frozen=True, eq=False)
class GrammarConstraint:
    """A grammar that some rules make up, compiled for a vocabulary."""

    grammar: str
    rule_ids: tuple[str, ...]
    says_when_to_end: bool
    template: Matcher

    def start(self) -> Matcher:
        """A matcher at the start of an answer."""
        return self.template.fork()


def compile_grammars(
    rules: Sequence[Rule],
    values: Sequence[str] | None,
    vocabulary: Vocabulary,
    *,
    escapes: str = ALL_ESCAPES,
    take: Callable[[str, str, Sequence[Any]], Sequence[bool]],
    ban_ids: tuple[str, ...] = (),
) -> tuple[GrammarConstraint, ...]:
    """The grammars of `rules`, phrases and checks among them left out.

    Args:
        rules: All that bind.
        values: What `allow_values` rules leave after every other rule, which then need no grammar; None where
            there are none.
        vocabulary: The model's.
        escapes: For strings in JSON, as `json_escapes` says.
        take: Which values and names of properties may be in an answer: given the id of the schema's rule
            and the escapes there.
        ban_ids: The rules behind `take`, to be named where nothing is left.

    Raises:
        ConstraintContradiction: Some rules leave no answer.
        ValueError: The vocabulary has no end tokens, which every grammar needs.
    """
    bound = [rule for rule in rules if rule.is_enforced and rule.kind is not RuleKind.FORBID_PHRASES]
    if bound and not vocabulary.eos_token_ids:
        raise ValueError(
            f"eos_token_ids must hold a token that ends an answer for rules {list(_ids(bound))}, got none"
        )
    if values is not None:
        terms = f"start: T\nT: {' | '.join(json.dumps(value) for value in values)}\n"
        return (_compile(terms, _ids([rule for rule in rules if rule.is_enforced]), True, vocabulary),)
    sources: list[tuple[str, tuple[str, ...], bool]] = []
    patterns = [rule for rule in rules if rule.kind is RuleKind.REGEX]
    forbidden = [rule for rule in rules if rule.kind is RuleKind.FORBID_REGEX]
    for rule in forbidden:
        _try_out(rule, vocabulary)
    for group in _met_as_languages(forbidden) if patterns else [[rule] for rule in forbidden]:
        joined = [*patterns, *group]
        sources.append((_regular_grammar(joined), _ids(joined), bool(patterns)))

    def render(schema: Mapping[str, Any], rule: Rule) -> str:
        within = escapes_within(schema, escapes)
        left = without_values(schema, partial(take, rule.rule_id, within))
        return schema_grammar(left, max_whitespace=rule.max_whitespace, escapes=within)

    for rule in rules:
        if rule.kind is RuleKind.JSON_SCHEMA and rule.json_schema is not None:
            source = f"start: {render(rule.json_schema, rule)}\n"
            sources.append((source, (rule.rule_id, *ban_ids), True))
        elif rule.kind is RuleKind.GRAMMAR and rule.grammar is not None:
            source = LarkSource.parse(rule.grammar, "grammar").grammar(partial(render, rule=rule))
            sources.append((source, (rule.rule_id, *ban_ids), True))
    return tuple(_compile(*source, vocabulary) for source in sources)


def _met_as_languages(forbidden: Sequence[Rule]) -> list[list[Rule]]:
    """The rules of the shortest patterns together, whatever their order, and those of each other alone."""
    by_pattern: dict[str, list[Rule]] = {}
    for rule in sorted(forbidden, key=lambda rule: (len(rule.forbid_regex or ""), rule.forbid_regex)):
        by_pattern.setdefault(rule.forbid_regex or "", []).append(rule)
    groups = list(by_pattern.values())
    return [list(chain(*groups[:_MAX_JOINED])), *groups[_MAX_JOINED:]]


def _regular_grammar(rules: Sequence[Rule]) -> str:
    """All that every pattern allows, less the union of what is forbidden (a complement each is too much)."""
    terms = [ANY_TEXT, *(lark_literal(rule.regex) for rule in rules if rule.regex is not None)]
    forbidden = [
        ForbiddenPattern.parse(pattern, "forbid_regex")
        for pattern in dict.fromkeys(rule.forbid_regex for rule in rules)
        if pattern is not None
    ]
    if forbidden:
        terms.append(f"~{texts_that_match(forbidden)}")
    return f"start: T\nT: {' & '.join(terms)}\n"


def _try_out(rule: Rule, vocabulary: Vocabulary) -> None:
    """Refuse a `forbid_regex` that the engine, masking it alone, gives up on at texts that nearly match.

    Raises:
        ConstraintFailed: As for "a, at most 40 characters, b", each of which may begin another match.
    """
    assert rule.forbid_regex is not None
    try:
        _follow_matches(rule.forbid_regex, _regular_grammar([rule]), vocabulary)
    except ConstraintFailed as error:
        raise ConstraintFailed(
            f"rule {rule.rule_id!r} cannot be masked: forbid_regex must be simpler (narrower gaps, fewer "
            f"repetitions), got {rule.forbid_regex!r}: {error}"
        ) from error


@lru_cache(maxsize=256)
def _follow_matches(pattern: str, grammar: str, vocabulary: Vocabulary) -> None:
    forbidden = ForbiddenPattern.parse(pattern, "forbid_regex")
    matches = f"start: T\nT: {lark_literal(forbidden.body)} & {ANY_TEXT}\n"
    template = _template(grammar, vocabulary)
    tokens = {data: i for i, data in enumerate(vocabulary.token_bytes) if data is not None and len(data) == 1}
    for seed in range(_N_TRIALS):
        matcher = template.fork()
        for byte in random_sentence(matches, random.Random(seed), max_bytes=_MAX_TRIAL_BYTES):
            allowed, token = matcher.mask().unpack(vocabulary.n_vocab), tokens.get(bytes([byte]))
            if token is None or not allowed[token]:
                break
            matcher.advance(token)


def _compile(
    grammar: str, rule_ids: tuple[str, ...], says_when_to_end: bool, vocabulary: Vocabulary
) -> GrammarConstraint:
    error = grammar_error(grammar)
    if error:
        raise ConstraintContradiction(
            f"rules {list(rule_ids)} must leave an answer together, got none: {error}", rule_ids
        )
    try:
        template = _template(grammar, vocabulary)
    except ConstraintFailed as error:
        raise ConstraintFailed(f"rules {list(rule_ids)} cannot be masked: {error}") from error
    return GrammarConstraint(grammar, rule_ids, says_when_to_end, template)


@lru_cache(maxsize=256)
def _template(grammar: str, vocabulary: Vocabulary) -> Matcher:
    """A matcher that is forked only, so that rules are compiled once, in whatever company they bind."""
    template = Matcher(grammar, vocabulary)
    template.fork().mask()
    return template


def json_escapes(rules: Sequence[Rule]) -> str:
    """The escapes that strings in JSON may use beside these rules.

    A `forbid_regex` is masked on what is written, and must hold for what it means. So no escape stands for a
    character that it could match. Phrases need no such care: their automaton reads escapes.
    """
    forbidden = [
        ForbiddenPattern.parse(rule.forbid_regex, "forbid_regex")
        for rule in rules
        if rule.forbid_regex is not None
    ]
    controls = "".join(map(chr, (*range(0x20), 0x7F)))
    meanings = dict(zip(ALL_ESCAPES, ("\n", "\r", "\b", "\t", "\f", "\\", '"', controls), strict=True))
    return "".join(
        letter
        for letter, meaning in meanings.items()
        if not any(
            pattern.is_hidden_by(meaning, ends="0123456789abcdefABCDEF" if letter == "u" else letter)
            for pattern in forbidden
        )
    )


def _ids(rules: Sequence[Rule]) -> tuple[str, ...]:
    return tuple(rule.rule_id for rule in rules)
