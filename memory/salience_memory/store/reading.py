"""Reading memories: by id, by filter, their history, and what changed since a seq."""

import sqlite3
from collections.abc import Iterator, Sequence

from salience_memory.errors import MemoryNotFound
from salience_memory.records import MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store.bodies import decode_body
from salience_memory.store.results import Change, MemoryVersion, ProjectionRow
from salience_memory.store.store_part import StorePart, can_see, chunks, owners_of, placeholders

__all__ = ["MemoryReading"]

_BATCH_ROWS = 1000

_CHANGES = """
SELECT seq, memory_id, 'put' AS kind, version FROM memories WHERE seq > :after
UNION ALL
SELECT seq, memory_id, 'delete' AS kind, version FROM tombstones WHERE seq > :after
ORDER BY seq LIMIT :limit
"""


class MemoryReading(StorePart):
    """What is read on behalf of a viewer, and what indexes read on nobody's."""

    def get(self, memory_id: str, viewer: Viewer, *, version: int | None = None) -> StoredMemory:
        """One memory by its id, archived and expired ones too: for looking at, not for rendering.

        Args:
            memory_id: Its id.
            viewer: On whose behalf.
            version: An earlier version; default, the current one.

        Raises:
            MemoryNotFound: No such memory or version, or not the viewer's.
        """
        with self._database.reading() as connection:
            row = self._visible_row(connection, memory_id, viewer)
            if version is None or version == row["version"]:
                return self._stored(row, self._clock())
            old = connection.execute(
                "SELECT * FROM old_versions WHERE memory_id = ? AND version = ?", (memory_id, version)
            ).fetchone()
            if old is None:
                raise MemoryNotFound(f"memory {memory_id!r} has no version {version}")
            found = self._version(old, self._clock())
            return StoredMemory.model_construct(
                **{name: getattr(found, name) for name in StoredMemory.model_fields}
            )

    def get_many(
        self,
        memory_ids: Sequence[str],
        viewer: Viewer,
        *,
        include_archived: bool = False,
        include_expired: bool = False,
    ) -> dict[str, StoredMemory]:
        """Those of the ids that the viewer may be shown now, in the order asked.

        Every recall goes through here: whatever an index says, what is forgotten, out of scope, archived or
        past its `valid_until` is left out.
        """
        now_ns = self._clock()
        wanted = list(dict.fromkeys(memory_ids))
        rows: dict[str, sqlite3.Row] = {}
        with self._database.reading() as connection:
            for chunk in chunks(wanted):
                query = f"SELECT * FROM memories WHERE memory_id IN ({placeholders(len(chunk))})"
                rows |= {row["memory_id"]: row for row in connection.execute(query, chunk)}
            return {
                memory_id: self._stored(rows[memory_id], now_ns)
                for memory_id in wanted
                if memory_id in rows
                and can_see(viewer, rows[memory_id])
                and (include_archived or rows[memory_id]["state"] == MemoryState.ACTIVE)
                and (include_expired or not has_expired(rows[memory_id], now_ns))
            }

    def history(self, memory_id: str, viewer: Viewer) -> list[MemoryVersion]:
        """Every version of a memory, oldest first, the current one last.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
        """
        with self._database.reading() as connection:
            current = self._visible_row(connection, memory_id, viewer)
            old = connection.execute(
                "SELECT * FROM old_versions WHERE memory_id = ? ORDER BY version", (memory_id,)
            ).fetchall()
            now_ns = self._clock()
            return [self._version(row, now_ns) for row in (*old, current)]

    def count(self) -> int:
        """How many memories there are, whosever, archived and expired ones included."""
        with self._database.reading() as connection:
            return connection.execute("SELECT COUNT(*) FROM memories").fetchone()[0]

    def latest_seq(self) -> int:
        """The number of the latest change of any memory by any process; 0 for a new store.

        Equal numbers, equal memories, `used_ns` apart.
        """
        return self._database.latest_seq()

    def changes_since(self, seq: int, *, limit: int = 1000) -> list[Change]:
        """The latest change of every memory changed after `seq`, in order; fewer than `limit`: no more."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        with self._database.reading() as connection:
            rows = connection.execute(_CHANGES, {"after": seq, "limit": limit})
            return [Change(row["seq"], row["memory_id"], row["kind"], row["version"]) for row in rows]

    def iter_rows(self, after_seq: int = 0, *, batch_rows: int = _BATCH_ROWS) -> Iterator[ProjectionRow]:
        """Every live row by rising `seq`, archived and expired ones too, for building an index.

        Rows are read in batches, between which others may write: a row changed meanwhile comes again with
        its new `seq`, and what was forgotten meanwhile is told by `changes_since`.
        """
        query = "SELECT * FROM memories WHERE seq > ? ORDER BY seq LIMIT ?"
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(query, (after_seq, batch_rows)).fetchall()
            yield from map(_projection_row, rows)
            if len(rows) < batch_rows:
                return
            after_seq = rows[-1]["seq"]

    def rows_past(self, *, idle_since_ns: int, expired_since_ns: int | None = None) -> list[ProjectionRow]:
        """The rows that maintenance must look at, by rising `seq`: the columns say that they are old.

        Args:
            idle_since_ns: Active ones that were neither verified nor used after it.
            expired_since_ns: And any whose `valid_until` had come by then.
        """
        query = (
            "SELECT * FROM memories WHERE valid_until <= ?2 OR (state = 'active' AND NOT pinned "
            "AND type != 'constraint' AND MAX(verified_ns, IFNULL(used_ns, verified_ns)) < ?1) ORDER BY seq"
        )
        with self._database.reading() as connection:
            return [*map(_projection_row, connection.execute(query, (idle_since_ns, expired_since_ns)))]

    def rows_of(self, memory_ids: Sequence[str]) -> list[ProjectionRow]:
        """The rows of those ids that exist, for an index that catches up; in no particular order."""
        found: list[ProjectionRow] = []
        with self._database.reading() as connection:
            for chunk in chunks(dict.fromkeys(memory_ids)):
                query = f"SELECT * FROM memories WHERE memory_id IN ({placeholders(len(chunk))})"
                found += map(_projection_row, connection.execute(query, chunk))
        return found

    def list(
        self,
        viewer: Viewer,
        *,
        types: Sequence[MemoryType | str] = (),
        tags: Sequence[str] = (),
        key: str | None = None,
        pinned: bool | None = None,
        include_archived: bool = False,
        include_expired: bool = False,
        limit: int = 100,
        after_seq: int = 0,
    ) -> list[StoredMemory]:
        """The memories the viewer may be shown, the one longest unchanged first.

        Args:
            viewer: On whose behalf.
            types: Any of these; none named, every type.
            tags: All of these.
            key: That key.
            pinned: Only pinned ones, or only others.
            include_archived: Archived ones too.
            include_expired: Those past their `valid_until` too.
            limit: At most so many.
            after_seq: Only those with a larger `seq`: the last one's, for the next page.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        now_ns = self._clock()
        kinds = [MemoryType(kind).value for kind in types]
        conditions: list[str] = ["seq > ?"]
        bound: list[object] = [after_seq]
        filters: list[tuple[bool, str, Sequence[object]]] = [
            (bool(kinds), f"type IN ({placeholders(len(kinds))})", kinds),
            (key is not None, "key = ?", (key,)),
            (pinned is not None, "pinned = ?", (pinned,)),
            (not include_archived, "state = 'active'", ()),
            (not include_expired, "(valid_until IS NULL OR valid_until > ?)", (now_ns,)),
        ]
        filters += [(True, "has_tag(body, ?)", (tag,)) for tag in tags]
        for is_wanted, condition, operands in filters:
            if is_wanted:
                conditions.append(condition)
                bound += operands
        query = (
            "SELECT * FROM memories WHERE scope = ? AND user_id IS ? AND session_id IS ? AND "
            f"{' AND '.join(conditions)} ORDER BY seq LIMIT ?"
        )
        with self._database.reading() as connection:
            rows: list[sqlite3.Row] = []
            for owner in owners_of(viewer):
                rows += connection.execute(query, (*owner, *bound, limit))
            rows.sort(key=lambda row: row["seq"])
            return [self._stored(row, now_ns) for row in rows[:limit]]


def has_expired(row: sqlite3.Row, now_ns: int) -> bool:
    """Whether a row's `valid_until` has come; at that very nanosecond it has."""
    return row["valid_until"] is not None and now_ns >= row["valid_until"]


def _projection_row(row: sqlite3.Row) -> ProjectionRow:
    memory = decode_body(row["body"], row["memory_id"])
    assert memory.scope is not None  # decode_body refuses a row without one
    return ProjectionRow(
        memory.memory_id,
        row["seq"],
        row["version"],
        memory.type,
        memory.content,
        memory.key,
        memory.tags,
        memory.scope,
        memory.user_id,
        memory.session_id,
        memory.valid_until,
        MemoryState(row["state"]),
        memory.pinned,
    )
