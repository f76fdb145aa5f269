"""Rules: what to notice in an utterance, and which memory to make of it. In YAML, one pack a language."""

import re
from enum import StrEnum
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self, cast

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from salience_memory.errors import NoticingPackInvalid
from salience_memory.records import MAX_SEMANTIC_WEIGHT, NEUTRAL_WEIGHT, MemoryType
from salience_memory.registrar.patterns import compile_pattern, make_finder, template_names
from salience_memory.scopes import Scope

__all__ = [
    "ConflictFilter",
    "CorrectionRules",
    "IntentFilter",
    "LifetimeFilter",
    "NoticingPack",
    "NoticingRule",
    "Phrases",
    "Trigger",
    "load_noticing_pack",
    "parse_noticing_pack",
    "shipped_noticing_packs",
]


class Trigger(StrEnum):
    """Why the registrar acts."""

    PREFERENCE = "preference"
    CONSTRAINT = "constraint"
    TASK = "task"
    ENTITY = "entity"
    CORRECTION = "correction"
    REVIEW = "review"


class IntentFilter(StrEnum):
    """Ways in which a sentence states nothing about its speaker."""

    QUESTION = "question"
    HYPOTHETICAL = "hypothetical"
    REPORTED = "reported"
    QUOTED = "quoted"
    IRONIC = "ironic"


class LifetimeFilter(StrEnum):
    """What becomes of something said to hold for the moment only."""

    STABLE = "stable"
    """It is passed over."""
    SESSION = "session"
    """It is kept until the session ends."""
    ANY = "any"
    """It is kept like anything else."""


class ConflictFilter(StrEnum):
    """What becomes of another value that is known on the same key."""

    SUPERSEDE = "supersede"
    """The new one takes its place; the old one stays in the history."""
    KEEP = "keep"
    """Both stand, and a conflict is logged."""
    ASK = "ask"
    """The user is asked which holds."""


def _checked_pattern(pattern: str) -> str:
    compile_pattern(pattern)
    return pattern


def _checked_template(template: str) -> str:
    template_names(template)
    return template


Pattern = Annotated[str, StringConstraints(min_length=1), AfterValidator(_checked_pattern)]
Template = Annotated[str, StringConstraints(min_length=1), AfterValidator(_checked_template)]


class NoticingRule(BaseModel):
    """One thing to notice. Templates name the pattern's groups: `{name}`, or `{name:slug}` within a key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    trigger: Trigger
    pattern: Pattern
    type: MemoryType
    key: Template
    value: Template
    content: Template
    scope: Scope = Scope.USER
    ttl_days: float | None = Field(default=None, gt=0.0, description="None: for ever.")
    weight: float = Field(default=0.75, ge=NEUTRAL_WEIGHT, le=MAX_SEMANTIC_WEIGHT)
    tags: tuple[str, ...] = ()
    status: str | None = Field(default=None, description="The state a task is in from now on.")
    is_certain: bool = Field(default=True, description="False: a judge must agree.")
    refused_intents: tuple[IntentFilter, ...] = tuple(IntentFilter)
    lifetime: LifetimeFilter = LifetimeFilter.STABLE
    conflict: ConflictFilter = ConflictFilter.SUPERSEDE

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return compile_pattern(self.pattern)

    @model_validator(mode="after")
    def _refuse_unknown_captures(self) -> Self:
        groups = set(self.compiled.groupindex)
        for field, template in (("key", self.key), ("value", self.value), ("content", self.content)):
            if unknown := template_names(template) - groups:
                names = ", ".join(sorted(groups)) or "it has none"
                raise ValueError(
                    f"{field} must name groups of the pattern ({names}), got {', '.join(sorted(unknown))}"
                )
        if (self.trigger is Trigger.TASK) != (self.status is not None):
            raise ValueError(f"status must be given for trigger task and no other, got {self.status!r}")
        if self.trigger in (Trigger.CORRECTION, Trigger.REVIEW):
            raise ValueError(f"trigger must be one a single statement sets off, got {self.trigger.value}")
        if self.scope is Scope.GLOBAL:
            raise ValueError(
                "scope must be user or session: what one user says is not everybody's, got global"
            )
        return self


class CorrectionRules(BaseModel):
    """How a speaker takes something back. `replaces` patterns have the groups `new`, `old` or both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strong: tuple[Pattern, ...] = Field(description="Always a correction.")
    weak: tuple[Pattern, ...] = Field(description="One, unless it answers a question or opens the talk.")
    never: tuple[Pattern, ...] = Field(default=(), description="Looks like one and is none.")
    replaces: tuple[Pattern, ...] = ()

    @model_validator(mode="after")
    def _refuse_other_groups(self) -> Self:
        for pattern in self.replaces:
            groups = set(compile_pattern(pattern).groupindex)
            if not groups or groups - {"old", "new"}:
                raise ValueError(f"replaces must have the groups new and old, got {sorted(groups)}")
        return self


class Phrases(BaseModel):
    """What the registrar says in the pack's language. `{text}` is what it is about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    which: Template = Field(description="Asks what a word points at.")
    what_instead: Template = Field(description="Asks what is right, after a bare correction.")
    whether: Template = Field(description="Asks whether to remember something.")
    which_holds: Template = Field(description="Asks which of two values holds: `{old}` or `{new}`.")
    whether_still: Template = Field(description="Asks whether a memory still holds.")


class NoticingPack(BaseModel):
    """The rules of one language."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(ge=1, le=1, description="Of this format.")
    language: str = Field(pattern=r"^[a-z]{2,3}$")
    script: Pattern = Field(description="A sentence without a match is none of this pack's.")
    intents: dict[IntentFilter, tuple[Pattern, ...]] = Field(
        default_factory=dict[IntentFilter, tuple[Pattern, ...]]
    )
    transient: tuple[Pattern, ...] = ()
    openers: tuple[Pattern, ...] = Field(
        default=(), description="Words that open a sentence and say nothing."
    )
    personal: tuple[Pattern, ...] = Field(
        default=(), description="A sentence about its speaker; where no rule takes it, a judge is asked."
    )
    correction: CorrectionRules
    suspicious: tuple[Pattern, ...] = Field(default=(), description="Orders to the model, kept as data.")
    referents: tuple[Pattern, ...] = Field(description="A capture that one thing said before may explain.")
    vague: tuple[Pattern, ...] = Field(description="A capture or a sentence that only the user can explain.")
    pointers: tuple[Pattern, ...] = Field(
        default=(), description="Words within a capture that only the user can explain."
    )
    mentions: tuple[Pattern, ...] = Field(
        default=(), description="Things named in earlier turns; group `name`."
    )
    when: tuple[Pattern, ...] = Field(default=(), description="A time that the sentence names.")
    fillers: Pattern = Field(description="Words to drop from the end of a capture.")
    judge_prompt: Template = Field(description="A question answered by yes or no; `{text}` is the sentence.")
    phrases: Phrases
    rules: tuple[NoticingRule, ...]

    @model_validator(mode="after")
    def _refuse_equal_names(self) -> Self:
        names = [rule.name for rule in self.rules]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"rules must have names of their own, got {', '.join(twice)} twice")
        return self

    def compiled(self, patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
        """The patterns, compiled once in the life of the process."""
        return tuple(_compile(pattern) for pattern in patterns)

    def finds(self, patterns: tuple[str, ...], text: str) -> bool:
        """Whether any of the patterns occurs in the text."""
        return any(make_finder(pattern)(text) for pattern in patterns)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return compile_pattern(pattern)


def parse_noticing_pack(text: str, name: str) -> NoticingPack:
    """A pack from YAML.

    Args:
        text: The YAML.
        name: What to call the pack in errors.

    Raises:
        NoticingPackInvalid: One sentence that names the pack, the rule and the field.
    """
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NoticingPackInvalid(f"{name} must be YAML: {' '.join(str(error).split())}") from error
    try:
        return NoticingPack.model_validate(data)
    except ValidationError as error:
        raise NoticingPackInvalid(f"{name}: {_first_fault(data, error)}") from error


def _first_fault(data: Any, error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    place = list(fault["loc"])
    if len(place) > 1 and place[0] == "rules":
        rule = data["rules"][place[1]]
        name = cast("dict[str, Any]", rule).get("name") if isinstance(rule, dict) else None
        place[:2] = [f"rule {name or place[1]}"]
    reason = fault["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, place)) or 'the pack'}: {reason}"


def load_noticing_pack(path: Path) -> NoticingPack:
    """A pack from a YAML file."""
    return parse_noticing_pack(path.read_text(encoding="utf-8"), path.name)


@cache
def shipped_noticing_packs() -> tuple[NoticingPack, ...]:
    """The packs that come with Salience: English and Chinese."""
    folder = resources.files("salience_memory.registrar") / "packs"
    names = ("en.yaml", "zh.yaml")
    return tuple(parse_noticing_pack((folder / name).read_text(encoding="utf-8"), name) for name in names)
