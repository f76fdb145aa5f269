"""The episodic log: what was said, turn by turn, and which memories came of it."""

import sqlite3
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from salience_memory.scopes import Viewer
from salience_memory.store.bodies import encode_json
from salience_memory.store.store_part import StorePart

__all__ = ["Episode", "EpisodeLog", "StoredEpisode"]


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


class EpisodeLog(StorePart):
    """Episodes by session, in the order they were appended."""

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
            return [_episode(connection, row) for row in reversed(rows)]


def _link(connection: sqlite3.Connection, episode_id: int, memory_ids: Sequence[str]) -> None:
    connection.executemany(
        "INSERT OR IGNORE INTO episode_memories VALUES (?, ?)",
        [(memory_id, episode_id) for memory_id in memory_ids],
    )


def _episode(connection: sqlite3.Connection, row: sqlite3.Row) -> StoredEpisode:
    query = "SELECT memory_id FROM episode_memories WHERE episode_id = ? ORDER BY memory_id"
    linked = tuple(memory_id for (memory_id,) in connection.execute(query, (row["episode_id"],)))
    return StoredEpisode(**dict(row), memory_ids=linked)
