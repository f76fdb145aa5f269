"""Forgetting: a memory's versions, vectors and sources go, and a tombstone keeps them from coming back."""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress

from salience_memory.errors import StoreCorrupt
from salience_memory.records import Memory, derive_memory_id
from salience_memory.scopes import Scope, Viewer
from salience_memory.store.bodies import decode_body
from salience_memory.store.store_part import can_see
from salience_memory.store.versioning import VersionWriting

__all__ = ["MemoryForgetting"]

_IN_SESSION = "session_id = ? AND (user_id IS NULL OR user_id IS ?)"
_BURY = "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?)"


class MemoryForgetting(VersionWriting):
    """What deletes. Each call outlasts a power cut, and what it deletes is overwritten in the file.

    The write-ahead log is emptied too, unless another process is reading it at that moment; then the next
    deletion, or the last process to close the file, does so.
    """

    def forget(self, memory_id: str, viewer: Viewer) -> bool:
        """Delete a memory, all its versions and vectors, and the episodes it came from.

        Read-only memories can be forgotten. Indexes learn of it by `changes_since`. Neither a late update or
        declaration (see `declare`) nor the import of an older snapshot brings it back.

        Returns:
            Whether there was one that the viewer may see.
        """
        with self._database.writing(durable=True) as connection:
            row = self._find_row(connection, memory_id)
            if row is None or not can_see(viewer, row):
                return False
            self._bury(connection, [row])
        return True

    def forget_all(self, viewer: Viewer, *, scope: Scope) -> int:
        """Delete everything of the viewer's in one scope: memories, tasks and episodes.

        Args:
            viewer: Whose.
            scope: `user`: what was stored for the user alone, and the user's episodes of all sessions.
                `session`: what the viewer sees of the session. Global memories are everybody's and are
                forgotten one by one.

        Returns:
            How many memories were deleted.

        Raises:
            ValueError: Scope global, or the viewer names no owner of that scope.
        """
        scope = Scope(scope)
        if scope is Scope.GLOBAL:
            raise ValueError("scope must be user or session, got global: forget global memories one by one")
        if scope is Scope.SESSION:
            if viewer.session_id is None:
                raise ValueError("viewer must name a session_id to forget scope session, got None")
            where, bound = _IN_SESSION, (viewer.session_id, viewer.user_id)
        else:
            if viewer.user_id is None:
                raise ValueError("viewer must name a user_id to forget scope user, got None")
            where, bound = "user_id = ?", (viewer.user_id,)
        return self._forget_where(scope, where, bound, with_episodes=True)

    def end_session(self, session_id: str, *, user_id: str | None = None) -> int:
        """Delete a session's memories and tasks; its episodes stay.

        Args:
            session_id: Which.
            user_id: Whose: without one, only what names no user is deleted.

        Returns:
            How many memories were deleted.
        """
        viewer = Viewer(session_id=session_id, user_id=user_id)
        bound = (viewer.session_id, viewer.user_id)
        return self._forget_where(Scope.SESSION, _IN_SESSION, bound, with_episodes=False)

    def _forget_where(
        self, scope: Scope, where: str, bound: tuple[str | None, ...], *, with_episodes: bool
    ) -> int:
        with self._database.writing(durable=True) as connection:
            query = f"SELECT * FROM memories WHERE scope = '{scope.value}' AND {where} ORDER BY seq"
            rows = connection.execute(query, bound).fetchall()
            self._bury(connection, rows, with_episodes=with_episodes)
            connection.execute(f"DELETE FROM tasks WHERE scope = '{scope.value}' AND {where}", bound)
            if with_episodes:
                episodes = f"SELECT episode_id FROM episodes WHERE {where}"
                connection.execute(f"DELETE FROM episode_memories WHERE episode_id IN ({episodes})", bound)
                connection.execute(f"DELETE FROM episodes WHERE {where}", bound)
        return len(rows)

    def _bury(
        self, connection: sqlite3.Connection, rows: Iterable[sqlite3.Row], *, with_episodes: bool = True
    ) -> None:
        now_ns = self._clock()
        self._database.purge_after()
        for row in rows:
            memory_id: str = row["memory_id"]
            seq, version = self._database.take_seq(), row["version"]
            aliases = self._other_ids(connection, row)
            if with_episodes:
                _delete_sources(connection, memory_id)
            for table in ("memories", "old_versions", "vectors", "episode_memories"):
                connection.execute(f"DELETE FROM {table} WHERE memory_id = ?", (memory_id,))
            connection.execute(_BURY, (memory_id, seq, version, now_ns))
            for alias in aliases:
                connection.execute(_BURY, (alias, self._database.take_seq(), version, now_ns))
            self._cache.drop(memory_id)

    def _other_ids(self, connection: sqlite3.Connection, row: sqlite3.Row) -> set[str]:
        """Ids under which what the memory said at any time would be declared anew, where nothing lives."""
        memory_id: str = row["memory_id"]
        old = connection.execute("SELECT body FROM old_versions WHERE memory_id = ?", (memory_id,)).fetchall()
        memories: list[Memory] = []
        for body in (row["body"], *(body for (body,) in old)):
            with suppress(StoreCorrupt):  # what is damaged can be forgotten too
                memories.append(decode_body(body, memory_id))
        ids = {derive_memory_id(m.content, m.scope, m.user_id, m.session_id) for m in memories} - {memory_id}
        return {i for i in ids if self._find_row(connection, i) is None}


def _delete_sources(connection: sqlite3.Connection, memory_id: str) -> None:
    """Delete the episodes a memory came from, and what linked them to any memory."""
    query = "SELECT episode_id FROM episode_memories WHERE memory_id = ?"
    for (episode_id,) in connection.execute(query, (memory_id,)).fetchall():
        connection.execute("DELETE FROM episodes WHERE episode_id = ?", (episode_id,))
        connection.execute("DELETE FROM episode_memories WHERE episode_id = ?", (episode_id,))
