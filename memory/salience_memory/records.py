"""Memory records: what one declared memory holds, and what a declaration is refused for."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

from salience_memory.clock import to_ns
from salience_memory.scopes import Scope

__all__ = [
    "DEFAULT_WEIGHT",
    "MAX_SEMANTIC_WEIGHT",
    "NEUTRAL_WEIGHT",
    "Memory",
    "MemoryState",
    "MemoryType",
    "Provenance",
    "StoredMemory",
    "Urgency",
    "Verification",
    "derive_memory_id",
]

NEUTRAL_WEIGHT = 0.5
"""The weight at even odds: a memory that carries it gets no attention bias."""

MAX_SEMANTIC_WEIGHT = 0.99

DEFAULT_WEIGHT = 0.9
"""Of a memory that is declared without one: whoever declares it means it to be used."""


class MemoryType(StrEnum):
    """What a memory is, which decides where a template puts it."""

    CONSTRAINT = "constraint"
    CONTEXT = "context"
    HISTORY = "history"
    EXTERNAL = "external"
    SEMANTIC = "semantic"
    EPISODIC = "episodic"
    TASK = "task"
    TOOL_RESULT = "tool_result"


class Urgency(StrEnum):
    """How much it matters that a memory is seen, most urgent first."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Verification(StrEnum):
    """How a memory's content came to be believed."""

    VERIFIED = "verified"
    USER_CLAIMED = "user_claimed"


_DEFAULT_TRUST = {Verification.VERIFIED: 1.0, Verification.USER_CLAIMED: 0.6}

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Owner = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Provenance(BaseModel):
    """Where a memory comes from. `content_sha256` is that of the source, not of the memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source_id: _Text
    source_format: _Text = "text"
    source_location: _Text | None = Field(default=None, description='Such as "page:12, line:45-48".')
    verification: Verification = Verification.USER_CLAIMED
    content_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


def derive_memory_id(
    content: str, scope: Scope | None = None, user_id: str | None = None, session_id: str | None = None
) -> str:
    """`m-` and 12 hex digits of a SHA-256: equal content of equal owners, equal id.

    A memory without a scope hashes by its content alone.
    """
    owner = () if scope is None else (scope.value, user_id or "", session_id or "")
    # Refusing a lone surrogate is left to the validation of the content.
    text = "\0".join((content, *owner)).encode(errors="surrogatepass")
    return f"m-{hashlib.sha256(text).hexdigest()[:12]}"


class Memory(BaseModel):
    """One declared memory. Immutable: to change one, declare a new version.

    `semantic_weight` is the probability that the memory is what an answer should rest on: 0.5 says nothing,
    0.9 is the default, 0.99 the highest. `trust` (how far the source is believed; default 1.0, 0.6 for what
    a user claimed) and `freshness` (how far the content still holds; the store computes it when it reads)
    shrink what exceeds 0.5; see `effective_weight`.

    Without a `scope` a memory lives for one call. With one it can be stored, and must then hold what its
    scope and type need: a user's `user_id`, a session's `session_id`, the `key` of a task, the `provenance`
    of an external memory or a tool result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: str
    type: MemoryType = MemoryType.EXTERNAL
    scope: Scope | None = None
    user_id: _Owner | None = None
    session_id: _Owner | None = None
    key: _Text | None = Field(default=None, description="What the memory is about, such as `diet`.")
    value: JsonValue = Field(default=None, description="The structured value that `content` words.")
    tags: tuple[_Text, ...] = Field(default=(), description="`word` or `name:value`; stored sorted.")
    semantic_weight: float = DEFAULT_WEIGHT
    trust: float = Field(default=1.0, ge=0.0, le=1.0)
    freshness: float = Field(default=1.0, ge=0.0, le=1.0)
    valid_until: int | None = Field(
        default=None, description="Nanoseconds UTC; also an aware datetime or ISO 8601 text. None: for ever."
    )
    stale_after: float = Field(default=0.75, gt=0.0, le=1.0, description="Fraction of the lifetime.")
    timezone_offset_min: int = Field(default=0, ge=-1439, le=1439)
    urgency: Urgency = Urgency.MEDIUM
    read_only: bool = False
    provenance: Provenance | None = None
    rule: dict[str, JsonValue] | None = Field(default=None, description="What a constraint enforces.")
    break_on_violation: bool = False
    pinned: bool = False
    memory_id: str = Field(default="", min_length=1, max_length=256, description="Default: derived.")

    def __init__(self, content: str | None = None, /, **fields: Any) -> None:
        """`Memory("text", weight=0.9)`: the content may stand first, and `weight` means `semantic_weight`."""
        super().__init__(**({"content": content} if content is not None else {}) | fields)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, declaration: Any) -> Any:
        """Derive the id and the trust where the declaration is silent."""
        if not isinstance(declaration, Mapping):
            return declaration
        fields = dict(cast(Mapping[str, Any], declaration))
        if "weight" in fields and "semantic_weight" not in fields:
            fields["semantic_weight"] = fields.pop("weight")
        if fields.get("memory_id") is None and isinstance(fields.get("content"), str):
            fields["memory_id"] = _derive_id(fields)
        if fields.get("trust") is None:
            fields["trust"] = _trust_of(fields.get("provenance"))
        return fields

    @field_validator("content")
    @classmethod
    def _refuse_what_is_no_text(cls, content: str) -> str:
        if not content.strip():
            raise ValueError(f"content must hold text, got {content!r}")
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise ValueError("content must be Unicode text, got a lone surrogate")
        return content

    @field_validator("semantic_weight")
    @classmethod
    def _refuse_weight_out_of_range(cls, weight: float) -> float:
        if NEUTRAL_WEIGHT <= weight <= MAX_SEMANTIC_WEIGHT:
            return weight
        reason = ": a weight of 1 means infinite odds, no room for being wrong" if weight == 1.0 else ""
        bounds = f"[{NEUTRAL_WEIGHT}, {MAX_SEMANTIC_WEIGHT}]"
        raise ValueError(f"semantic_weight must be in {bounds}, got {weight}{reason}")

    @field_validator("valid_until", mode="before")
    @classmethod
    def _to_ns(cls, moment: Any) -> Any:
        return to_ns(moment) if isinstance(moment, datetime | str | int) else moment

    @model_validator(mode="after")
    def _refuse_what_its_kind_lacks(self) -> Self:
        if self.rule is not None and self.type is not MemoryType.CONSTRAINT:
            raise ValueError(f"rule must stand on a memory of type constraint, got type {self.type.value}")
        if self.break_on_violation and self.type is not MemoryType.CONSTRAINT:
            raise ValueError(
                f"break_on_violation must stand on a memory of type constraint, got type {self.type.value}"
            )
        if self.scope is None:
            return self
        needed = {Scope.USER: ("user_id",), Scope.SESSION: ("session_id",)}.get(self.scope, ())
        needed += _NEEDED.get(self.type, ())
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(
                    f"{name} must be given for a stored {self.type.value} memory of scope {self.scope.value}"
                )
        if self.scope is Scope.GLOBAL and (self.user_id or self.session_id):
            raise ValueError("user_id and session_id must be left out of a memory of scope global")
        if self.scope is Scope.USER and self.session_id:
            raise ValueError("session_id must be left out of a memory of scope user")
        return self

    @property
    def effective_weight(self) -> float:
        """`0.5 + (semantic_weight - 0.5) * trust * freshness`, in [0.5, 0.99]; 0.5 is neutral."""
        return NEUTRAL_WEIGHT + (self.semantic_weight - NEUTRAL_WEIGHT) * self.trust * self.freshness

    def __hash__(self) -> int:
        return hash((self.memory_id, self.content))


_NEEDED = {
    MemoryType.TASK: ("key",),
    MemoryType.EXTERNAL: ("provenance",),
    MemoryType.TOOL_RESULT: ("provenance",),
}
"""What a stored memory of a type must hold."""


def _derive_id(fields: Mapping[str, Any]) -> str:
    scope, *owner = (fields.get(name) for name in ("scope", "user_id", "session_id"))
    if scope not in list(Scope) or not all(name is None or isinstance(name, str) for name in owner):
        return derive_memory_id(fields["content"])  # without a scope, or refused by its own field
    return derive_memory_id(fields["content"], Scope(scope), *owner)


def _trust_of(provenance: Any) -> float:
    if isinstance(provenance, Provenance):
        return _DEFAULT_TRUST[provenance.verification]
    if isinstance(provenance, Mapping):
        said = cast(Mapping[str, Any], provenance).get("verification", Verification.USER_CLAIMED)
        return _DEFAULT_TRUST.get(said, 1.0)  # an unknown word is refused by its own field
    return 1.0


class MemoryState(StrEnum):
    """Where a stored row stands. An archived memory is recalled only on request."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class StoredMemory(Memory):
    """A memory as the store holds it: one version of one row. Times are nanoseconds UTC.

    `freshness` is computed for the moment of reading and never stored.
    """

    seq: int = Field(ge=1, description="Grows with every change of the store; unique.")
    version: int = Field(ge=1, description="Counts the changes of this memory.")
    created_ns: int
    updated_ns: int
    verified_ns: int = Field(description="When the content was last confirmed.")
    used_ns: int | None = Field(default=None, description="When an answer last referred to it.")
    state: MemoryState = MemoryState.ACTIVE

    __hash__ = Memory.__hash__  # pydantic gives every class that defines fields its own
