"""Memory records: what one declared memory holds, and what a declaration is refused for."""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

__all__ = ["MAX_SEMANTIC_WEIGHT", "NEUTRAL_WEIGHT", "Memory", "MemoryType", "derive_memory_id"]

NEUTRAL_WEIGHT = 0.5
"""The weight at even odds: a memory that carries it gets no attention bias."""

MAX_SEMANTIC_WEIGHT = 0.99


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


def derive_memory_id(content: str) -> str:
    """`m-` and the first 12 hex digits of the content's SHA-256: equal content, equal id."""
    # Refusing a lone surrogate is left to the validation of the content.
    return f"m-{hashlib.sha256(content.encode(errors='surrogatepass')).hexdigest()[:12]}"


class Memory(BaseModel):
    """One declared memory. Immutable: to change one, declare a new one.

    `semantic_weight` is the probability that the memory is what an answer should rest on: 0.5 says nothing,
    0.99 is the highest. `trust` (how far the source is believed) and `freshness` (how far the content still
    holds) shrink what exceeds 0.5; see `effective_weight`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: str
    type: MemoryType = MemoryType.EXTERNAL
    semantic_weight: float = NEUTRAL_WEIGHT
    trust: float = Field(default=1.0, ge=0.0, le=1.0)
    freshness: float = Field(default=1.0, ge=0.0, le=1.0)
    tags: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...] = ()
    memory_id: str = Field(default="", min_length=1, description="Default: derived from the content.")

    @model_validator(mode="before")
    @classmethod
    def _derive_missing_id(cls, declaration: Any) -> Any:
        if not isinstance(declaration, dict):
            return declaration
        fields = cast(dict[str, Any], declaration)
        if fields.get("memory_id") is None and isinstance(fields.get("content"), str):
            return fields | {"memory_id": derive_memory_id(fields["content"])}
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

    @property
    def effective_weight(self) -> float:
        """`0.5 + (semantic_weight - 0.5) * trust * freshness`, in [0.5, 0.99]; 0.5 is neutral."""
        return NEUTRAL_WEIGHT + (self.semantic_weight - NEUTRAL_WEIGHT) * self.trust * self.freshness
