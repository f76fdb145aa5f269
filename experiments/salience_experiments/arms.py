"""Arms: each is an edit of one step of the way that every message takes, or of none."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from salience.turn import Parts, Rendering, Step, Steps, Turn
from salience_experiments.errors import SpecError
from salience_experiments.prompt_edits import PROMPT_RULE, PromptEdit, resolve_prompt_edit
from salience_experiments.tasks.base import Item, Layout, Task, plain_layout
from salience_models import (
    LanguageModel,
    Phase,
    QueryScope,
    Rule,
    Steering,
    SteeringMethod,
    TokenConstraint,
    compile_rules,
)
from salience_models.constraints.token_sequence_ban import ban_token_sequences

__all__ = ["Arm", "ArmName", "ConstraintArm", "EditArm", "Setting", "SteeringArm", "build_arm", "published"]


class ArmName(StrEnum):
    """Built-in arms that are neither a prompt edit nor a steering method."""

    NONE = "none"
    DEFAULT = "default"
    """What the product does when nothing is said."""
    PROMPT_RULE = PROMPT_RULE
    """The item's rule, asked for in words."""
    TOKEN_SEQUENCE_BAN = "token_sequence_ban"
    """The stock processor for bad words."""
    CONSTRAINT_MASK = "constraint_mask"
    """The item's rule as an exact mask."""


@dataclass(frozen=True)
class Setting:
    """What an arm is given beside the steps: one item of one task.

    Attributes:
        weights: Semantic weights by block name, of the blocks that its weight source chose.
        is_published: Whether the task's published prompt stands in the place of the render step.
    """

    task: Task
    item: Item
    weights: Mapping[str, float]
    is_published: bool


class Arm:
    """An arm that changes nothing; a user's own subclasses it and is named `package.module:Class` in a spec.

    The constructor takes the spec's `params` as keyword arguments.
    """

    needs_rule = False
    """Whether it can only be run on items that have a rule and draw their answers."""

    edits_prompt = False
    """Whether it replaces the render step, so that it needs a published prompt and its prompts differ."""

    def edit(self, steps: Steps, setting: Setting) -> Steps:
        """The steps with one of them replaced."""
        return steps


def published(setting: Setting, layout: Layout) -> Step:
    """A render step that writes the task's published prompt, its blocks laid out so."""

    def render(turn: Turn, parts: Parts) -> None:
        prompt = setting.task.render(setting.item, layout)
        turn.rendered = Rendering(prompt.messages, setting.weights, is_chat=prompt.chat)

    return render


class EditArm(Arm):
    """A prompt-only control: the published prompt under another layout."""

    edits_prompt = True

    def __init__(self, layout: Callable[[Item, Mapping[str, float]], Layout]) -> None:
        self._layout = layout

    def edit(self, steps: Steps, setting: Setting) -> Steps:
        if not setting.is_published:
            raise SpecError("arms that edit the published prompt need a spec with render 'published'")
        return replace(steps, render=published(setting, self._layout(setting.item, setting.weights)))


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
    """A steering method; `params` are the fields of `Steering`.

    Beside a published prompt, weights are the spec's own constant, and `share` is what a block of that weight
    gets, not what one of weight 1 would.
    """

    def __init__(self, **params: Any) -> None:
        self.steering = Steering(**(_STEERING_DEFAULTS | params))

    def edit(self, steps: Steps, setting: Setting) -> Steps:
        steering = self.steering
        top = max(setting.weights.values(), default=1.0)
        if setting.is_published and 0.5 < top < 1.0:
            asked = steering.share / (2 * top - 1)  # so that a block of weight `top` asks for `share` itself
            steering = steering.model_copy(update={"share": asked})

        def plan(turn: Turn, parts: Parts) -> None:
            turn.steering = steering
            steps.plan(turn, parts)

        return replace(steps, plan=plan)


class ConstraintArm(Arm):
    """A mask over the answer, made of the item's rule."""

    needs_rule = True

    def __init__(self, compile_rule: Callable[[LanguageModel, Rule], TokenConstraint]) -> None:
        self._compile_rule = compile_rule

    def edit(self, steps: Steps, setting: Setting) -> Steps:
        assert setting.item.rule is not None
        rule = Rule(rule_id="rule", **setting.item.rule)

        def plan(turn: Turn, parts: Parts) -> None:
            steps.plan(turn, parts)
            turn.request = replace(turn.request, constraint=self._compile_rule(parts.lm, rule))

        return replace(steps, plan=plan)


def _prompt_rule() -> Arm:
    arm = EditArm(lambda item, weights: replace(plain_layout(item), states_rule=True))
    arm.needs_rule = True
    return arm


_PLAIN_ARMS: dict[str, Callable[[], Arm]] = {
    ArmName.NONE: Arm,
    ArmName.DEFAULT: lambda: SteeringArm(**Steering().model_dump()),
    ArmName.PROMPT_RULE: _prompt_rule,
    # `NoBadWordsLogitsProcessor` over usual encodings of the rule's phrases: the peer that lets most pass.
    ArmName.TOKEN_SEQUENCE_BAN: lambda: ConstraintArm(
        lambda lm, rule: ban_token_sequences(rule, lm.tokenizer, lm.vocabulary)
    ),
    ArmName.CONSTRAINT_MASK: lambda: ConstraintArm(lambda lm, rule: compile_rules([rule], lm.vocabulary)),
}


def build_arm(name: str, params: Mapping[str, Any]) -> Arm:
    """The arm called `name`.

    Raises:
        SpecError: No such arm, or parameters that it does not take.
    """
    try:
        if name in _PLAIN_ARMS or name in list(PromptEdit):
            if params:
                raise SpecError(f"arm {name!r} takes no params, got {', '.join(params)}")
            return _PLAIN_ARMS[name]() if name in _PLAIN_ARMS else EditArm(resolve_prompt_edit(name))
        if name in list(SteeringMethod):
            return SteeringArm(method=SteeringMethod(name), **params)
        if ":" in name:
            return import_class(name, Arm, "arm")(**params)
    except ValidationError as error:
        problems = "; ".join(describe_param(e, "params") for e in error.errors())
        raise SpecError(f"arm {name!r}: {problems}") from error
    except TypeError as error:
        raise SpecError(f"arm {name!r} does not take these params: {error}") from error
    known = [ArmName.NONE, *PromptEdit, *list(ArmName)[1:], *list(SteeringMethod)[1:]]
    raise SpecError(f"arm must be one of {', '.join(known)} or package.module:Class, got {name!r}")


def describe_param(error: Any, where: str) -> str:
    """One refused parameter of an arm or a task: which, and why."""
    place = ".".join([where, *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        return f"{place} is not one of its parameters"
    if error["type"] == "missing_keyword_only_argument":
        return f"{place} is missing"
    return f"{place}: {error['msg']}, got {error['input']!r}"


def import_class(path: str, base: type[Any] | None, what: str) -> type[Any]:
    """A user's own class by `package.module:Class`.

    Raises:
        SpecError: It cannot be imported, or is no subclass of `base`.
    """
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            f"{what} {path!r} cannot be imported: {error} (its module must be installed or on PYTHONPATH)"
        ) from error
    if not isinstance(found, type) or (base is not None and not issubclass(found, base)):
        wanted = "a class" if base is None else f"a subclass of {base.__module__}.{base.__name__}"
        raise SpecError(f"{what} {path!r} must be {wanted}, got {found!r}")
    return found
