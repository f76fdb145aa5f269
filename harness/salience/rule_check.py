"""Rules against a vocabulary: which compile, in what time, with how many states, and which contradict."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic import JsonValue

from salience.errors import RulePackInvalid
from salience.rule_pack import parse_rule
from salience_kernels import AllowedBits, BannedIds
from salience_models import ConstraintContradiction, ConstraintError, Rule, TokenConstraint, compile_rules
from salience_models.constraints import ConstraintEvent, RuleKind, Vocabulary

__all__ = ["RuleReport", "RulesReport", "check_rules"]


@dataclass(frozen=True)
class RuleReport:
    """One rule. `refusal` is None where it can be enforced; else it names the part that cannot.

    Attributes:
        n_states: Different masks met on a walk of random allowed tokens; 0 for a rule that is only verified.
        mask_us: Mean time of a mask on that walk, states met for the first time included.
    """

    rule_id: str
    kind: str
    refusal: str | None
    compile_ms: float = 0.0
    n_states: int = 0
    mask_us: float = 0.0


@dataclass(frozen=True)
class RulesReport:
    """All rules, each alone and then together. `compile_ms` is None where they do not go together."""

    rules: tuple[RuleReport, ...]
    contradictions: tuple[str, ...]
    events: tuple[ConstraintEvent, ...]
    compile_ms: float | None
    n_vocab: int

    @property
    def is_ok(self) -> bool:
        return self.compile_ms is not None and all(rule.refusal is None for rule in self.rules)


def check_rules(
    declared: Sequence[Mapping[str, JsonValue]], vocabulary: Vocabulary, *, walk_tokens: int = 256
) -> RulesReport:
    """Compile each rule alone, walk it, then compile all that can be enforced together.

    Args:
        declared: Rules as data, some of which may be refused.
        vocabulary: The model's.
        walk_tokens: Length of each rule's walk.
    """
    reports: list[RuleReport] = []
    rules: list[Rule] = []
    for i, data in enumerate(declared):
        try:
            rule = parse_rule(data, f"rules[{i}]")
            reports.append(_check(rule, vocabulary, walk_tokens))
            rules.append(rule)
        except (RulePackInvalid, ConstraintError, ValueError) as error:
            kinds = [kind for kind in RuleKind if data.get(kind) is not None]
            reports.append(RuleReport(str(data.get("rule_id", i)), " + ".join(kinds) or "none", str(error)))
    contradictions, together, compile_ms = [], None, None
    started = time.perf_counter()
    try:
        together = compile_rules(rules, vocabulary)
        compile_ms = (time.perf_counter() - started) * 1e3
    except ConstraintContradiction as error:
        contradictions = _contradicting_pairs(rules, error, vocabulary) or [str(error)]
    except (ConstraintError, ValueError) as error:
        contradictions = [f"rules cannot be compiled together: {error}"]
    events = () if together is None else together.events
    return RulesReport(tuple(reports), tuple(contradictions), events, compile_ms, vocabulary.n_vocab)


def _check(rule: Rule, vocabulary: Vocabulary, walk_tokens: int) -> RuleReport:
    started = time.perf_counter()
    constraint = compile_rules([rule], vocabulary)
    compile_ms = (time.perf_counter() - started) * 1e3
    n_states, mask_us = _walk(constraint, walk_tokens) if rule.is_enforced else (0, 0.0)
    return RuleReport(rule.rule_id, rule.kind.value, None, compile_ms, n_states, mask_us)


def _walk(constraint: TokenConstraint, n_tokens: int) -> tuple[int, float]:
    """Different masks on a walk of random tokens that starts anew at each end, and a mask's microseconds."""
    ends, n_vocab = set(constraint.vocabulary.eos_token_ids), constraint.vocabulary.n_vocab
    draw, met, seconds = random.Random(0), set[bytes](), 0.0
    state = constraint.start()
    for _ in range(n_tokens):
        started = time.perf_counter()
        mask = state.mask()
        seconds += time.perf_counter() - started
        if mask is None:
            break
        met.add(_bytes_of(mask))
        allowed = mask.unpack(n_vocab).nonzero()[:, 0].tolist()
        token = draw.choice(allowed) if allowed else None
        if token is None or token in ends:
            state = constraint.start()
        else:
            state.advance(token)
    return len(met), seconds / n_tokens * 1e6


def _bytes_of(mask: BannedIds | AllowedBits) -> bytes:
    return (mask.ids if isinstance(mask, BannedIds) else mask.words).numpy().tobytes()


def _contradicting_pairs(
    rules: Sequence[Rule], error: ConstraintContradiction, vocabulary: Vocabulary
) -> list[str]:
    """The contradiction narrowed to two rules each; nothing where only more than two leave no answer."""
    found: list[str] = []
    for pair in combinations([rule for rule in rules if rule.rule_id in error.rule_ids], 2):
        try:
            compile_rules(list(pair), vocabulary)
        except ConstraintContradiction as contradiction:
            found.append(str(contradiction))
    return found
