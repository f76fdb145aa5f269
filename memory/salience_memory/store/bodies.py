"""A memory as the text of a row: canonical JSON, so that equal declarations are equal texts."""

import json
from typing import Any

from pydantic import ValidationError

from salience_memory.errors import StoreCorrupt
from salience_memory.records import Memory, MemoryState

__all__ = [
    "complete_tags",
    "decode_body",
    "describe_fault",
    "encode_body",
    "encode_json",
    "has_tag",
    "with_status_tag",
]

_DECLARED = {name for name in Memory.model_fields if name != "freshness"}
_STATUS_TAGS = {f"status:{state.value}": state for state in MemoryState}


def encode_body(memory: Memory) -> str:
    """Everything declared, in canonical JSON. The freshness is left out: it is computed on reading."""
    return encode_json(memory.model_dump(mode="json", include=_DECLARED), memory.memory_id)


def encode_json(value: Any, name: str) -> str:
    """Canonical JSON: sorted keys, no spaces, Unicode as it is.

    Raises:
        ValueError: Not JSON, a number that is none, or text with a lone surrogate.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be Unicode text throughout, got a lone surrogate") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON with finite numbers, got: {error}") from error
    return text


def decode_body(body: str, memory_id: str) -> Memory:
    """The memory of a row.

    Raises:
        StoreCorrupt: The row holds no valid memory, or another one's.
    """
    try:
        memory = Memory.model_validate_json(body)
    except ValueError as error:
        raise StoreCorrupt(
            f"the row of {memory_id!r} must hold a valid memory: {describe_fault(error)}"
        ) from error
    if memory.memory_id != memory_id or memory.scope is None:
        raise StoreCorrupt(f"the row of {memory_id!r} must hold that memory, got {memory.memory_id!r}")
    return memory


def complete_tags(memory: Memory, state: MemoryState = MemoryState.ACTIVE) -> Memory:
    """The memory with sorted tags, and a domain, its type and its status where no tag of that name is."""
    named = {tag.partition(":")[0] for tag in memory.tags}
    defaults = {"domain": "general", "type": memory.type.value, "status": state.value}
    missing = (f"{name}:{value}" for name, value in defaults.items() if name not in named)
    return memory.model_copy(update={"tags": tuple(sorted({*memory.tags, *missing}))})


def describe_fault(error: ValueError) -> str:
    """One line about a refused record: the first field at fault and why."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def has_tag(body: str, tag: str) -> bool:
    """Whether a row's text has a tag; for SQL, whose own JSON functions end a text at its first NUL."""
    return tag in json.loads(body)["tags"]


def with_status_tag(memory: Memory, state: MemoryState) -> Memory:
    """The memory with the status tag of a state, where its tag is one of the store's own."""
    kept = [tag for tag in memory.tags if tag not in _STATUS_TAGS]
    return complete_tags(memory.model_copy(update={"tags": tuple(kept)}), state)
