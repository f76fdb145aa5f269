"""`Rule`: one thing that an answer must never do, or always be, as plain JSON data."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from salience_models.constraints.bans import BanAutomaton
from salience_models.constraints.engine import grammar_error
from salience_models.constraints.json_schema import check_schema, schema_grammar
from salience_models.constraints.lark_source import LarkSource
from salience_models.constraints.patterns import (
    ForbiddenPattern,
    check_pattern,
    compile_python,
    texts_that_match,
)

__all__ = ["Rule", "RuleKind"]


class RuleKind(StrEnum):
    """What a rule says."""

    FORBID_PHRASES = "forbid_phrases"
    """No phrase occurs anywhere, however it is cased, accented, composed or tokenised."""
    FORBID_REGEX = "forbid_regex"
    """No part of the answer matches."""
    ALLOW_VALUES = "allow_values"
    """The answer is one of these, to the letter."""
    REGEX = "regex"
    """The whole answer matches."""
    JSON_SCHEMA = "json_schema"
    """The answer is one JSON value of this schema."""
    GRAMMAR = "grammar"
    """The answer is a sentence of this Lark grammar."""
    CHECK = "check"
    """Verified after the answer, never masked: the answer holds a match of this Python regular expression."""


class Rule(BaseModel):
    """Exactly one kind with its value, and how it takes its place among other rules.

    A rule that could not be enforced is refused here, by a sentence that names the part.

    Attributes:
        rule_id: Names the rule in events, errors and `finish_reason`'s rule ids.
        key: Of rules with one key only the strongest binds: the most trusted, then the newest, then the last.
        whole_word: `forbid_phrases` count only where no letter or digit touches them.
        confusables: `forbid_phrases` count in look-alikes too: Cyrillic letters, `@` for a, `0` for o.
        max_whitespace: Most whitespace characters in a row between the parts of JSON.
        trust: In [0, 1].
        declared_at: Nanoseconds UTC.
        break_on_violation: Nothing of the answer is shown before it has passed the check; an answer that
            fails is replaced by an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule_id: str = Field(min_length=1)
    key: str | None = None
    forbid_phrases: tuple[str, ...] | None = None
    forbid_regex: str | None = None
    allow_values: tuple[str, ...] | None = None
    regex: str | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    check: str | None = None
    whole_word: bool = False
    confusables: bool = False
    max_whitespace: int = Field(default=2, ge=0, le=64)
    trust: float = Field(default=1.0, ge=0.0, le=1.0)
    declared_at: int = Field(default=0, ge=0)
    break_on_violation: bool = False

    @model_validator(mode="after")
    def _is_enforceable(self) -> "Rule":
        given = [kind.value for kind in RuleKind if getattr(self, kind.value) is not None]
        if len(given) != 1:
            kinds = ", ".join(RuleKind)
            raise ValueError(f"a rule must have exactly one of {kinds}, got {' and '.join(given) or 'none'}")
        for option in ("whole_word", "confusables"):
            if getattr(self, option) and self.forbid_phrases is None:
                raise ValueError(f"{option} must be left out except beside forbid_phrases, got {given[0]}")
        _CHECKS[self.kind](self)
        return self

    @property
    def kind(self) -> RuleKind:
        """Which of the kinds this rule is."""
        return next(kind for kind in RuleKind if getattr(self, kind.value) is not None)

    @property
    def is_enforced(self) -> bool:
        """Whether the rule is masked; a `check` is only verified."""
        return self.kind is not RuleKind.CHECK

    @property
    def says_when_to_end(self) -> bool:
        """Whether a text must be complete to satisfy the rule, so that one cut short does not."""
        return self.kind not in (RuleKind.FORBID_PHRASES, RuleKind.FORBID_REGEX)

    @property
    def fingerprint(self) -> str:
        """sha256 of the rule's data; the order of a schema's properties counts."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def _check_phrases(rule: Rule) -> None:
    assert rule.forbid_phrases is not None
    try:
        BanAutomaton(rule.forbid_phrases, whole_word=rule.whole_word, confusables=rule.confusables)
    except ValueError as error:
        raise ValueError(f"forbid_phrases cannot be enforced: {error}") from error


def _check_forbidden_pattern(rule: Rule) -> None:
    assert rule.forbid_regex is not None
    _check_text(rule.forbid_regex, "forbid_regex")
    forbidden = ForbiddenPattern.parse(rule.forbid_regex, "forbid_regex")
    _refuse_dead(f"start: T\nT: /(?s:.*)/ & ~{texts_that_match([forbidden])}\n", "forbid_regex")


def _check_values(rule: Rule) -> None:
    assert rule.allow_values is not None
    if not rule.allow_values:
        raise ValueError("allow_values must hold at least one value, got none")
    for value in rule.allow_values:
        if not value:
            raise ValueError("allow_values must hold no empty value, got one")
        _check_text(value, "allow_values")


def _check_whole_pattern(rule: Rule) -> None:
    assert rule.regex is not None
    _check_text(rule.regex, "regex")
    check_pattern(rule.regex, "regex")


def _check_schema(rule: Rule) -> None:
    assert rule.json_schema is not None
    check_schema(rule.json_schema, "json_schema")
    source = schema_grammar(rule.json_schema, max_whitespace=rule.max_whitespace)
    _refuse_dead(f"start: {source}\n", "json_schema")


def _check_grammar(rule: Rule) -> None:
    assert rule.grammar is not None
    _check_text(rule.grammar, "grammar")
    source = LarkSource.parse(rule.grammar, "grammar")

    def render(schema: Mapping[str, Any]) -> str:
        return schema_grammar(schema, max_whitespace=rule.max_whitespace)

    _refuse_dead(source.grammar(render), "grammar")


def _check_verified_pattern(rule: Rule) -> None:
    assert rule.check is not None
    compile_python(rule.check, "check")


def _check_text(text: str, name: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} must be valid Unicode, got a lone surrogate in {text!r}")


def _refuse_dead(grammar: str, name: str) -> None:
    error = grammar_error(grammar)
    if error:
        raise ValueError(f"{name} cannot be enforced: {error}")


_CHECKS = {
    RuleKind.FORBID_PHRASES: _check_phrases,
    RuleKind.FORBID_REGEX: _check_forbidden_pattern,
    RuleKind.ALLOW_VALUES: _check_values,
    RuleKind.REGEX: _check_whole_pattern,
    RuleKind.JSON_SCHEMA: _check_schema,
    RuleKind.GRAMMAR: _check_grammar,
    RuleKind.CHECK: _check_verified_pattern,
}
