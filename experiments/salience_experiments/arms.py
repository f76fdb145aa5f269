"""Arms: one interface from an item and its weights to an edited prompt, a bias plan, a constraint."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from salience_experiments.errors import SpecError
from salience_experiments.prompt_edits import PROMPT_RULE, PromptEdit, resolve_prompt_edit
from salience_experiments.tasks.base import Item, Layout, plain_layout
from salience_models import (
    BiasPlan,
    LanguageModel,
    Phase,
    QueryScope,
    Steering,
    SteeringMethod,
    TokenConstraint,
    TokenSpan,
    plan_from_weights,
)
from salience_models.constraints import Rule, compile_rules
from salience_models.constraints.token_sequence_ban import ban_token_sequences

__all__ = [
    "Arm",
    "ArmName",
    "ConstraintMaskArm",
    "EditArm",
    "PromptRuleArm",
    "SteeringArm",
    "TokenSequenceBanArm",
    "build_arm",
]


class ArmName(StrEnum):
    """Built-in arms that are neither a prompt edit nor a steering method."""

    NONE = "none"
    PROMPT_RULE = PROMPT_RULE
    """The item's rule, asked for in words."""
    TOKEN_SEQUENCE_BAN = "token_sequence_ban"
    """The stock processor for bad words."""
    CONSTRAINT_MASK = "constraint_mask"
    """The item's rule as an exact mask."""


class Arm:
    """An arm that changes nothing; a user's own subclasses it and is named `package.module:Class` in a spec.

    The constructor takes the spec's `params` as keyword arguments.
    """

    needs_rule = False
    """Whether it can only be run on items that have a rule and draw their answers."""

    def layout(self, item: Item, weights: Mapping[str, float]) -> Layout:
        """How to lay the item's blocks out, given semantic weights by block name."""
        return plain_layout(item)

    def plan(
        self, spans: tuple[TokenSpan, ...], weights: Mapping[str, float], n_layers: int, question_start: int
    ) -> BiasPlan:
        """The plan for the blocks' token spans; a span that asks for nothing is measured all the same."""
        neutral = tuple(TokenSpan(name=s.name, start=s.start, end=s.end) for s in spans)
        return BiasPlan(spans=neutral, question_start=question_start)

    def constraint(self, lm: LanguageModel, item: Item) -> TokenConstraint | None:
        """What masks the item's answer."""
        return None


class EditArm(Arm):
    """A prompt-only control."""

    def __init__(self, edit: str) -> None:
        self._edit = resolve_prompt_edit(edit)

    def layout(self, item: Item, weights: Mapping[str, float]) -> Layout:
        return self._edit(item, weights)


_STEERING_DEFAULTS: dict[str, Any] = {
    "strength": 1.0,
    "share": 0.2,
    "max_total_share": 0.4,
    "depth": (0.5, 1.0),
    "heads": None,
    "query_scope": QueryScope.QUESTION,
    "phase": Phase.BOTH,
    "length_normalised": False,
    "only_raise": True,
}
"""What a spec leaves out. Kept apart from the harness's defaults, so that a spec always means the same."""


class SteeringArm(Arm):
    """A steering method; `params` are the fields of `Steering`."""

    def __init__(self, **params: Any) -> None:
        self.steering = Steering(**(_STEERING_DEFAULTS | params))

    def plan(
        self, spans: tuple[TokenSpan, ...], weights: Mapping[str, float], n_layers: int, question_start: int
    ) -> BiasPlan:
        return plan_from_weights(spans, weights, self.steering, n_layers, question_start)


class PromptRuleArm(Arm):
    """The rule in words, and nothing that would enforce it."""

    needs_rule = True

    def layout(self, item: Item, weights: Mapping[str, float]) -> Layout:
        return replace(plain_layout(item), states_rule=True)


class TokenSequenceBanArm(Arm):
    """`NoBadWordsLogitsProcessor` over the usual encodings of the rule's phrases."""

    needs_rule = True

    def constraint(self, lm: LanguageModel, item: Item) -> TokenConstraint:
        assert lm.tokenizer is not None
        return ban_token_sequences(_rule(item), lm.tokenizer, lm.vocabulary)


class ConstraintMaskArm(Arm):
    """The rule as the harness enforces it."""

    needs_rule = True

    def constraint(self, lm: LanguageModel, item: Item) -> TokenConstraint:
        return compile_rules([_rule(item)], lm.vocabulary)


def _rule(item: Item) -> Rule:
    assert item.rule is not None
    return Rule(rule_id="rule", **item.rule)


_PLAIN_ARMS: dict[str, type[Arm]] = {
    ArmName.NONE: Arm,
    ArmName.PROMPT_RULE: PromptRuleArm,
    ArmName.TOKEN_SEQUENCE_BAN: TokenSequenceBanArm,
    ArmName.CONSTRAINT_MASK: ConstraintMaskArm,
}


def build_arm(name: str, params: Mapping[str, Any]) -> Arm:
    """The arm called `name`.

    Raises:
        SpecError: No such arm, or parameters that it does not take.
    """
    try:
        if name in _PLAIN_ARMS:
            return _without_params(name, params, _PLAIN_ARMS[name]())
        if name in list(PromptEdit):
            return _without_params(name, params, EditArm(name))
        if name in list(SteeringMethod)[1:]:
            return SteeringArm(method=SteeringMethod(name), **params)
        if ":" in name:
            return _imported(name)(**params)
    except ValidationError as error:
        problems = "; ".join(_problem(e) for e in error.errors())
        raise SpecError(f"arm {name!r}: {problems}") from error
    except TypeError as error:
        raise SpecError(f"arm {name!r} does not take these params: {error}") from error
    known = [ArmName.NONE, *PromptEdit, *list(ArmName)[1:], *SteeringMethod]
    raise SpecError(f"arm must be one of {', '.join(known)} or package.module:Class, got {name!r}")


def _problem(error: Any) -> str:
    where = ".".join(["params", *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        return f"{where} is not one of its parameters"
    return f"{where}: {error['msg']}, got {error['input']!r}"


def _without_params(name: str, params: Mapping[str, Any], arm: Arm) -> Arm:
    if params:
        raise SpecError(f"arm {name!r} takes no params, got {', '.join(params)}")
    return arm


def _imported(path: str) -> type[Arm]:
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            f"arm {path!r} cannot be imported: {error} (its module must be installed or on PYTHONPATH)"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Arm)):
        raise SpecError(f"arm {path!r} must be a subclass of salience_experiments.arms.Arm")
    return found
