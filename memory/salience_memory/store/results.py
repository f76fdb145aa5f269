"""What the store returns beside memories."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from salience_memory.records import MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Scope

__all__ = ["Change", "MemoryVersion", "ProjectionRow", "VectorBatch"]


class MemoryVersion(StoredMemory):
    """One version in a memory's history, and why and by whom it came about."""

    reason: str = Field(description="Such as `declared`, `archived`, or what the caller gave.")
    actor: str = Field(description="Who changed it; empty where nobody said.")

    __hash__ = StoredMemory.__hash__


@dataclass(frozen=True, slots=True)
class Change:
    """The latest change of one memory. Earlier ones of the same memory are not told."""

    seq: int
    memory_id: str
    kind: Literal["put", "delete"]
    version: int
    """The row's version; of a deletion, the last one there was."""


@dataclass(frozen=True, slots=True)
class ProjectionRow:
    """What an index needs of one row. Nobody's eyes: recalled ids are looked up on behalf of a viewer."""

    memory_id: str
    seq: int
    version: int
    type: MemoryType
    content: str
    key: str | None
    tags: tuple[str, ...]
    scope: Scope
    user_id: str | None
    session_id: str | None
    valid_until: int | None
    state: MemoryState
    pinned: bool


class VectorBatch(NamedTuple):
    """Vectors of one embedding, in the order of their rows' `seq`."""

    memory_ids: list[str]
    seqs: NDArray[np.int64]
    vectors: NDArray[np.float32]
    """[record, embed]."""
