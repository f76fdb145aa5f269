"""`TokenConstraint`: all rules of a request as one mask a step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch

from salience_kernels import BannedIds, TokenMask, intersect_masks
from salience_models.constraints.ban_constraint import BanConstraint, BanState
from salience_models.constraints.checker import find_violations, find_violations_in_value
from salience_models.constraints.engine import Matcher
from salience_models.constraints.events import ConstraintEvent, EventKind, Violation
from salience_models.constraints.grammar_constraint import GrammarConstraint, compile_grammars, json_escapes
from salience_models.constraints.json_schema import spell_values
from salience_models.constraints.rule import Rule, RuleKind
from salience_models.constraints.vocabulary import Vocabulary
from salience_models.errors import ConstraintContradiction

__all__ = ["ConstraintState", "TokenConstraint", "compile_rules", "winning_rules"]


@dataclass(frozen=True, eq=False)
class TokenConstraint:
    """Rules compiled for a vocabulary: immutable, shared by any number of answers.

    Attributes:
        rules: Those that bind, `check` rules included.
        vocabulary: The model's; another model's logits are refused.
        events: What compiling did: rules and values that do not count.
        prompt_tail: What stands right before the answer, so that no banned phrase lies across the border.
    """

    rules: tuple[Rule, ...]
    vocabulary: Vocabulary
    events: tuple[ConstraintEvent, ...]
    bans: BanConstraint | None = field(repr=False)
    grammars: tuple[GrammarConstraint, ...] = field(repr=False)
    prompt_tail: str = ""

    @property
    def rule_ids(self) -> tuple[str, ...]:
        """Of the rules that bind."""
        return tuple(rule.rule_id for rule in self.rules)

    @property
    def masked_rule_ids(self) -> tuple[str, ...]:
        """Of the rules that are masked, not only verified."""
        return tuple(rule.rule_id for rule in self.rules if rule.is_enforced)

    @property
    def fingerprint(self) -> str:
        """Of the rules and the vocabulary; masks at equal fingerprints are equal."""
        return "-".join([self.vocabulary.fingerprint, *(rule.fingerprint for rule in self.rules)])

    @property
    def says_when_to_end(self) -> bool:
        """Whether a rule asks for a whole text, so that an answer cannot go on past its end."""
        return any(grammar.says_when_to_end for grammar in self.grammars)

    @property
    def breaks_on_violation(self) -> bool:
        """Whether nothing may be shown before the check."""
        return any(rule.break_on_violation for rule in self.rules)

    def after(self, prompt_tail: str) -> "TokenConstraint":
        """The same rules for an answer that continues this text."""
        return replace(self, prompt_tail=prompt_tail)

    def start(self) -> "ConstraintState":
        """The state at the start of an answer."""
        bans = None if self.bans is None else self.bans.start(self.prompt_tail)
        return ConstraintState(self, bans, [grammar.start() for grammar in self.grammars], n_tokens=0)

    def may_be_cut_to(self, text: str) -> bool:
        """Whether an answer cut to `text` by a limit or a stop string keeps the bans."""
        if self.bans is None or not self.bans.needs_end_check:
            return True
        return self.bans.may_end_as(text, self.prompt_tail)

    def find_violations(self, text: str, *, is_complete: bool = True) -> tuple[Violation, ...]:
        """The independent check of a whole answer."""
        return find_violations(text, self.rules, is_complete=is_complete, prompt_tail=self.prompt_tail)


class ConstraintState:
    """Where one answer stands; its own, whatever else uses the constraint."""

    def __init__(
        self, constraint: TokenConstraint, bans: BanState | None, matchers: list[Matcher], *, n_tokens: int
    ) -> None:
        self.constraint = constraint
        self._bans = bans
        self._matchers = matchers
        self._n_tokens = n_tokens
        self._mask: TokenMask | None = None
        self._is_known = False

    def fork(self) -> "ConstraintState":
        """An independent copy."""
        bans = None if self._bans is None else self._bans.fork()
        matchers = [matcher.fork() for matcher in self._matchers]
        return ConstraintState(self.constraint, bans, matchers, n_tokens=self._n_tokens)

    def mask(self) -> TokenMask | None:
        """What may come next; None where everything may.

        End tokens are in it where the answer may end. Special and padded ids never are.
        """
        if not self._is_known:
            self._mask, self._is_known = self._find_mask(), True
        return self._mask

    def _find_mask(self) -> TokenMask | None:
        n_vocab = self.constraint.vocabulary.n_vocab
        mask = None if self._bans is None else self._bans.mask()
        for matcher in self._matchers:
            mask = intersect_masks(mask, matcher.mask(), n_vocab)
        if self._matchers and not self._n_tokens:
            mask = intersect_masks(mask, _stripped_starts(self.constraint.vocabulary), n_vocab)
        return mask

    def grammar_masks(self) -> list[tuple[tuple[str, ...], TokenMask]]:
        """What each grammar alone lets come next, and the rules that make it up."""
        pairs = zip(self.constraint.grammars, self._matchers, strict=True)
        return [(grammar.rule_ids, matcher.mask()) for grammar, matcher in pairs]

    @property
    def is_dead(self) -> bool:
        """Whether nothing may come next, not even an end."""
        mask = self.mask()
        if mask is None:
            return False
        if isinstance(mask, BannedIds):
            return mask.ids.numel() == self.constraint.vocabulary.n_vocab
        return not bool(mask.words.any())

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        bans = self._bans is None or self._bans.is_accepting
        return bans and all(matcher.is_accepting for matcher in self._matchers)

    def advance(self, token_id: int) -> None:
        """Take a token that the mask allows; an end token ends the answer and is not taken."""
        for matcher in self._matchers:
            matcher.advance(token_id)
        if self._bans is not None:
            self._bans.advance(token_id)
        self._n_tokens += 1
        self._is_known = False

    def rollback(self, n_tokens: int) -> None:
        """Take the last tokens back."""
        for matcher in self._matchers:
            matcher.rollback(n_tokens)
        if self._bans is not None:
            self._bans.rollback(n_tokens)
        self._n_tokens -= n_tokens
        self._is_known = False


@lru_cache(maxsize=8)
def _stripped_starts(vocabulary: Vocabulary) -> BannedIds | None:
    """Tokens that begin with a space, where decoding would drop it: a grammar counts every character."""
    if not vocabulary.strips_leading_space:
        return None
    ids = [i for i, data in enumerate(vocabulary.token_bytes) if data and data.startswith(b" ")]
    return BannedIds(torch.tensor(ids, dtype=torch.int32))


def compile_rules(rules: Sequence[Rule], vocabulary: Vocabulary) -> TokenConstraint:
    """One constraint out of `rules`; the same rules and vocabulary give the same object.

    Of rules with one key the strongest binds. Rules that can be weighed against each other before any token
    is chosen are: banned values are left out of `allow_values` and schemas, patterns and values intersected.

    Raises:
        ConstraintContradiction: The rules leave no answer; the message and `rule_ids` name those involved.
        ConstraintFailed: The grammar engine's limits.
        ValueError: Two rules with one id, or a vocabulary without end tokens where a rule needs one.
    """
    ids = [rule.rule_id for rule in rules]
    if len(set(ids)) < len(ids):
        raise ValueError(f"rules must have an id each, got {ids}")
    return _compile(json.dumps([rule.model_dump(mode="json") for rule in rules]), vocabulary)


def winning_rules(rules: Sequence[Rule]) -> tuple[tuple[Rule, ...], tuple[ConstraintEvent, ...]]:
    """The rules that bind, in their order, and an event for each that does not.

    On one key the most trusted wins, then the newest, then the last.
    """
    strongest: dict[str, Rule] = {}
    for rule in rules:
        if rule.key is not None:
            other = strongest.get(rule.key, rule)
            if (rule.trust, rule.declared_at) >= (other.trust, other.declared_at):
                strongest[rule.key] = rule
    kept = tuple(rule for rule in rules if rule.key is None or strongest[rule.key] is rule)
    events = tuple(
        ConstraintEvent(
            EventKind.DROPPED_RULE,
            (rule.rule_id, winner.rule_id),
            f"{winner.rule_id!r} is stronger on the key {rule.key!r}",
        )
        for rule in rules
        if rule.key is not None and (winner := strongest[rule.key]) is not rule
    )
    return kept, events


@lru_cache(maxsize=64)
def _compile(rules_json: str, vocabulary: Vocabulary) -> TokenConstraint:
    rules, events = winning_rules([Rule.model_validate(data) for data in json.loads(rules_json)])
    phrase_rules = [rule for rule in rules if rule.kind is RuleKind.FORBID_PHRASES]
    values, dropped = _values_left(rules, vocabulary)
    in_json = values is None and any(
        rule.kind is RuleKind.JSON_SCHEMA or (rule.grammar is not None and "%json" in rule.grammar)
        for rule in rules
    )
    bans = BanConstraint(phrase_rules, vocabulary, in_json=in_json) if phrase_rules else None
    schemas = _SchemaValues(rules, bans)
    try:
        grammars = compile_grammars(
            rules,
            values,
            vocabulary,
            escapes=schemas.escapes,
            take=schemas.take,
            ban_ids=tuple(rule.rule_id for rule in schemas.ban_rules),
        )
    except ConstraintContradiction as error:
        if not schemas.dropped:
            raise
        (first, *_) = schemas.dropped.values()
        raise ConstraintContradiction(f"{error} ({first.detail})", error.rule_ids) from error
    events = (*events, *dropped, *schemas.dropped.values())
    constraint = TokenConstraint(rules, vocabulary, events, bans, grammars)
    if constraint.start().is_dead:
        ids = constraint.masked_rule_ids
        raise ConstraintContradiction(f"rules {list(ids)} must leave an answer together, got none", ids)
    return constraint


class _SchemaValues:
    """Which constants and names of properties, in schemas, bans leave, and how those taken away are reported.

    The check of an answer has the word on what is banned; what is not, the masks must let through as it is.
    """

    def __init__(self, rules: Sequence[Rule], bans: BanConstraint | None) -> None:
        kinds = (RuleKind.FORBID_PHRASES, RuleKind.FORBID_REGEX)
        self.ban_rules = [rule for rule in rules if rule.kind in kinds]
        self.escapes = json_escapes(rules)
        self.dropped: dict[tuple[str, str], ConstraintEvent] = {}
        self._bans = bans

    def take(self, rule_id: str, escapes: str, values: Sequence[Any]) -> list[bool]:
        """Whether an answer may hold each value."""
        taken = []
        for value, written in zip(values, spell_values(values, escapes=escapes), strict=True):
            text = json.dumps(value, ensure_ascii=False) if written is None else written
            found = find_violations_in_value(value, text, self.ban_rules)
            ids = tuple(violation.rule_id for violation in found) or tuple(r.rule_id for r in self.ban_rules)
            reason = "; ".join(f"{v.rule_id!r}: {v.detail}" for v in found)
            if written is None or (self._bans is not None and not self._bans.may_end_as(text, "")):
                reason = reason or f"its escapes cannot be told from what {list(ids)} forbid"
            if reason:
                detail = f"{text} cannot be in the answer: {reason}"
                event = ConstraintEvent(EventKind.DROPPED_VALUE, (rule_id, *ids), detail)
                self.dropped.setdefault((rule_id, text), event)
            taken.append(not reason)
        return taken


def _values_left(
    rules: Sequence[Rule], vocabulary: Vocabulary
) -> tuple[tuple[str, ...] | None, tuple[ConstraintEvent, ...]]:
    """The values that every rule allows; None without a rule of values.

    A value is a whole answer, so each other rule's verdict on it is its check.
    """
    holders = [rule for rule in rules if rule.allow_values is not None]
    if not holders:
        return None, ()
    others = [rule for rule in rules if rule.is_enforced and rule is not holders[0]]
    left, events, blamed = [], [], {holders[0].rule_id: None}
    for value in dict.fromkeys(holders[0].allow_values or ()):
        violations = find_violations(value, others)
        details = "; ".join(f"{v.rule_id!r}: {v.detail}" for v in violations)
        if vocabulary.strips_leading_space and value.startswith(" "):
            details = "; ".join(filter(None, [details, "the tokenizer drops its leading space"]))
        if not details:
            left.append(value)
            continue
        ids = tuple(violation.rule_id for violation in violations)
        blamed |= dict.fromkeys(ids)
        detail = f"{value!r} cannot be the answer: {details}"
        events.append(ConstraintEvent(EventKind.DROPPED_VALUE, (holders[0].rule_id, *ids), detail))
    if not left:
        raise ConstraintContradiction(
            f"rules {list(blamed)} must leave a value together, got none: {events[0].detail}", tuple(blamed)
        )
    return tuple(left), tuple(events)
