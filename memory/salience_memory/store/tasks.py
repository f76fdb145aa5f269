"""Task states: what a session or a user is in the middle of."""

import json
import sqlite3

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from salience_memory.scopes import Scope, Viewer
from salience_memory.store.bodies import encode_json
from salience_memory.store.store_part import Owner, StorePart, owners_of

__all__ = ["TaskState", "TaskStates"]


class TaskState(BaseModel):
    """Where one task stands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    status: str = Field(description="Such as `open`, `waiting`, `done`.")
    value: JsonValue
    scope: Scope = Field(description="Whether it ends with the session.")
    updated_ns: int


class TaskStates(StorePart):
    """One state for each owner and key; setting it replaces what was there."""

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
        owner = _owner(viewer, scope)
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
        return TaskState(key=key, status=status, value=value, scope=Scope(owner[0]), updated_ns=row[-1])

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


def _owner(viewer: Viewer, scope: Scope | None) -> Owner:
    scope = Scope(scope or (Scope.SESSION if viewer.session_id is not None else Scope.USER))
    if scope is Scope.SESSION and viewer.session_id is not None:
        return (scope.value, viewer.user_id, viewer.session_id)
    if scope is Scope.USER and viewer.user_id is not None:
        return (scope.value, viewer.user_id, None)
    raise ValueError(f"viewer must name the owner of a task of scope {scope.value}, got {viewer!r}")
