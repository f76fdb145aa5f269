"""What lies beside the memories: the episodic log, task states and the audit log.

An episode is a turn as it was said. A task state is what a session or a user is in the middle of. An audit
event holds facts about a render or a generation, never what a memory says.
"""

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from salience_memory.scopes import Scope, Viewer
from salience_memory.store.memory_rows import MemoryRows
from salience_memory.store.rows import encode_json, owners_of

__all__ = ["AuditEvent", "Episode", "StoreLogs", "StoredEpisode", "TaskState"]

_IDENTIFIER = re.compile(r"[!-~]{0,128}")
"""Printable ASCII without a space: ids, hashes, names, not sentences."""

_ID_FIELDS = ("memory_id", "memory_ids")
"""Whoever declares a memory may choose its id, in any script."""


class Episode(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_id: str = Field(min_length=1)
    user_id: str | None = Field(default=None, min_length=1)
    role: str = Field(min_length=1, description="Such as `user`, `assistant`, `tool`.")
    text: str
    ns: int = Field(description="When, in nanoseconds UTC.")
    memory_ids: tuple[str, ...] = Field(default=(), description="Memories that came of it.")


class StoredEpisode(Episode):
    """An episode of the log. Forgetting a memory deletes the episodes it came from."""

    episode_id: int


class TaskState(BaseModel):
    """Where one task stands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    status: str = Field(description="Such as `open`, `waiting`, `done`.")
    value: JsonValue
    scope: Scope = Field(description="Whether it ends with the session.")
    updated_ns: int


class AuditEvent(BaseModel):
    """One entry. Its time is the store's clock's, and stands beside the facts, never among them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: int
    kind: str
    request_id: str
    ns: int
    facts: dict[str, JsonValue]


class StoreLogs(MemoryRows):
    """Episodes and events in the order they were appended; one task state for each owner and key."""

    def append_episode(self, episode: Episode) -> int:
        """Add a turn; returns its id, for `link_episode`."""
        encode_json(episode.model_dump(), "episode")  # refuses what is no Unicode text
        with self._database.writing(durable=False) as connection:
            cursor = connection.execute(
                "INSERT INTO episodes (session_id, user_id, role, text, ns) VALUES (?, ?, ?, ?, ?)",
                (episode.session_id, episode.user_id, episode.role, episode.text, episode.ns),
            )
            episode_id = cursor.lastrowid or 0
            _link(connection, episode_id, episode.memory_ids)
        return episode_id

    def link_episode(self, episode_id: int, memory_ids: Sequence[str]) -> None:
        """Note that memories came of an episode; of one that is gone, nothing."""
        with self._database.writing(durable=False) as connection:
            found = connection.execute(
                "SELECT 1 FROM episodes WHERE episode_id = ?", (episode_id,)
            ).fetchone()
            if found is not None:
                _link(connection, episode_id, memory_ids)

    def episodes(self, viewer: Viewer, session_id: str, *, limit: int = 100) -> list[StoredEpisode]:
        """The last turns of a session, oldest first.

        Args:
            viewer: On whose behalf.
            session_id: Which session. A user sees the own turns of any; turns that name no user are seen by
                a viewer of that session.
            limit: At most so many.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        query = (
            "SELECT * FROM episodes WHERE session_id = ?1 "
            "AND (user_id = ?2 OR (user_id IS NULL AND session_id = ?3)) ORDER BY episode_id DESC LIMIT ?4"
        )
        with self._database.reading() as connection:
            bound = (session_id, viewer.user_id, viewer.session_id, limit)
            rows = connection.execute(query, bound).fetchall()
            linked = "SELECT memory_id FROM episode_memories WHERE episode_id = ? ORDER BY memory_id"
            return [
                StoredEpisode(
                    **dict(row),
                    memory_ids=tuple(i for (i,) in connection.execute(linked, (row["episode_id"],))),
                )
                for row in reversed(rows)
            ]

    def set_task(
        self, viewer: Viewer, key: str, value: JsonValue, status: str, *, scope: Scope | None = None
    ) -> TaskState:
        """Set where a task stands.

        Args:
            viewer: Whose task.
            key: Which task.
            value: Whatever belongs to the state.
            status: A word for it.
            scope: `session` or `user`; default, the session where the viewer names one.

        Raises:
            ValueError: A blank key or status, a value that is no JSON, or the viewer names no such owner.
        """
        for name, text in (("key", key), ("status", status)):
            if not text.strip():
                raise ValueError(f"{name} must hold text, got {text!r}")
        scope = Scope(scope or (Scope.SESSION if viewer.session_id is not None else Scope.USER))
        session_id = viewer.session_id if scope is Scope.SESSION else None
        if scope is Scope.GLOBAL or (viewer.user_id if scope is Scope.USER else session_id) is None:
            raise ValueError(
                f"viewer must name the owner of a task of scope {scope.value}, got {viewer!r}"
            )
        owner = (scope.value, viewer.user_id, session_id)
        row = (*owner, key, status, encode_json(value, "value"), self._clock())
        with self._database.writing(durable=False) as connection:
            connection.execute(
                "DELETE FROM tasks WHERE scope = ? AND user_id IS ? AND session_id IS ? AND key = ?",
                (*owner, key),
            )
            connection.execute(
                "INSERT INTO tasks (scope, user_id, session_id, key, status, value, updated_ns) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
        return TaskState(key=key, status=status, value=value, scope=scope, updated_ns=row[-1])

    def task(self, viewer: Viewer, key: str) -> TaskState | None:
        """Where a task stands: the session's own, else the user's; None for one never set."""
        found = [state for state in self.tasks(viewer) if state.key == key]
        return next((state for state in found if state.scope is Scope.SESSION), found[0] if found else None)

    def tasks(self, viewer: Viewer) -> list[TaskState]:
        """Every task of the viewer's session and user, the one set last at the end."""
        query = "SELECT * FROM tasks WHERE scope = ? AND user_id IS ? AND session_id IS ?"
        rows: list[sqlite3.Row] = []
        with self._database.reading() as connection:
            for owner in owners_of(viewer):
                rows += connection.execute(query, owner).fetchall()
        rows.sort(key=lambda row: row["task_id"])
        return [
            TaskState(
                key=row["key"],
                status=row["status"],
                value=json.loads(row["value"]),
                scope=Scope(row["scope"]),
                updated_ns=row["updated_ns"],
            )
            for row in rows
        ]

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


def _link(connection: sqlite3.Connection, episode_id: int, memory_ids: Sequence[str]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO episode_memories VALUES (?, ?)",
        [(memory_id, episode_id) for memory_id in memory_ids],
    )


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
