"""The audit log: facts about renders and generations, never what a memory says."""

import json
import re
from collections.abc import Mapping
from typing import cast

from pydantic import BaseModel, ConfigDict, JsonValue

from salience_memory.store.bodies import encode_json
from salience_memory.store.store_part import StorePart

__all__ = ["AuditEvent", "AuditLog"]

_IDENTIFIER = re.compile(r"[!-~]{0,128}")
"""Printable ASCII without a space: ids, hashes, names, not sentences."""

_ID_FIELDS = ("memory_id", "memory_ids")
"""Whoever declares a memory may choose its id, in any script."""


class AuditEvent(BaseModel):
    """One entry. Its time is the store's clock's, and stands beside the facts, never among them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: int
    kind: str
    request_id: str
    ns: int
    facts: dict[str, JsonValue]


class AuditLog(StorePart):
    """Events in the order they were appended."""

    def append_event(self, kind: str, request_id: str, facts: Mapping[str, JsonValue]) -> int:
        """Add an event; returns its id.

        Args:
            kind: Such as `render`, `generation`, `conflict`.
            request_id: Which request it belongs to; empty for none.
            facts: Numbers, booleans, hashes, ids and names, nested as need be.

        Raises:
            ValueError: Text among the facts that could be content: longer than 128 characters, with a space
                or outside ASCII. Only `memory_id` and `memory_ids` may hold any text.
        """
        for name, text in (("kind", kind), ("request_id", request_id)):
            _refuse_content(text, name)
        if not kind:
            raise ValueError("kind must name the event, got ''")
        for name, fact in facts.items():
            _refuse_content(name, "a name of facts")
            _refuse_content(fact, f"facts.{name}")
        text = encode_json(dict(facts), "facts")
        with self._database.writing(durable=False) as connection:
            cursor = connection.execute(
                "INSERT INTO events (kind, request_id, ns, facts) VALUES (?, ?, ?, ?)",
                (kind, request_id, self._clock(), text),
            )
            return cursor.lastrowid or 0

    def events(
        self, *, kind: str | None = None, request_id: str | None = None, after: int = 0, limit: int = 100
    ) -> list[AuditEvent]:
        """Events of a kind, of a request, after an event's id; oldest first, at most `limit`."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        query, bound = "SELECT * FROM events WHERE event_id > ?", [after]
        conditions: list[object] = [*bound]
        for column, wanted in (("kind", kind), ("request_id", request_id)):
            if wanted is not None:
                query += f" AND {column} = ?"
                conditions.append(wanted)
        with self._database.reading() as connection:
            rows = connection.execute(f"{query} ORDER BY event_id LIMIT ?", (*conditions, limit)).fetchall()
        return [AuditEvent(**{**dict(row), "facts": json.loads(row["facts"])}) for row in rows]


def _refuse_content(fact: object, name: str) -> None:
    """Let through what cannot be a sentence."""
    if isinstance(fact, Mapping):
        for inner, value in cast(Mapping[object, object], fact).items():
            _refuse_content(inner, f"a name of {name}")
            _refuse_content(value, f"{name}.{inner}")
    elif isinstance(fact, list | tuple):
        for value in cast("list[object]", fact):
            _refuse_content(value, name)
    elif (
        isinstance(fact, str)
        and name.rpartition(".")[2] not in _ID_FIELDS
        and not _IDENTIFIER.fullmatch(fact)
    ):
        raise ValueError(
            f"{name} must be a number, a hash or a name of at most 128 ASCII characters without spaces, "
            f"got text of {len(fact)} characters: the audit log never holds content"
        )
