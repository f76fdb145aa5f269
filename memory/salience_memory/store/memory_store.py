"""The memory store: one SQLite file that is the only truth about what is remembered."""

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import MemoryExists, MemoryNotFound, StoreCorrupt, VersionConflict
from salience_memory.records import Memory, MemoryState, MemoryType, StoredMemory, derive_memory_id
from salience_memory.scopes import Scope, Viewer
from salience_memory.store.index_feed import IndexFeed
from salience_memory.store.logs import StoreLogs
from salience_memory.store.memory_rows import (
    INSERT,
    ChangeOrigin,
    find_tombstone,
    refuse_outdated,
    refuse_read_only,
)
from salience_memory.store.restoring import RecordExchange
from salience_memory.store.row_checks import StoreFault, find_faults, mend
from salience_memory.store.rows import (
    can_see,
    complete_tags,
    decode_body,
    encode_body,
    has_expired,
    with_status_tag,
)

__all__ = ["MemoryStore"]

_ROWS_OF_KEY = """
SELECT * FROM memories
WHERE key = ? AND scope = ? AND user_id IS ? AND session_id IS ? AND type = ? AND state = 'active'
ORDER BY verified_ns DESC, seq DESC
"""

_FIXED = ("memory_id", "scope", "user_id", "session_id", "freshness")
"""What an update leaves: whose and which memory it is, and what is computed on reading."""

_IN_SESSION = "session_id = ? AND (user_id IS NULL OR user_id IS ?)"
_BURY = "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?, ?)"


class MemoryStore(IndexFeed, RecordExchange, StoreLogs):
    """Memories, their versions and vectors, episodes, task states and audit events in one file.

    Several processes may have the file open, and threads may share a store; each write is one transaction.
    Every change of a memory gets a `seq` larger than all before, whichever process made it. What is read
    is what is in the file now, not what was when it was read last.

    Methods: `declare`, `update`, `rollback`, `verify`, `touch`, `archive`, `unarchive`, `forget`,
    `forget_all`, `end_session`; `get`, `get_many`, `list`, `history`, `count`; for indexes `latest_seq`,
    `changes_since`, `iter_rows`, `rows_past`, `rows_of`, `put_vectors`, `iter_vectors`, `vectors_of`,
    `missing_vectors`, `fingerprints`, `drop_vectors`; `append_episode`, `link_episode`, `episodes`;
    `set_task`, `task`, `tasks`; `append_event`, `events`; `iter_records`, `restore`; `find_faults`, `mend`;
    `transaction`, `close`.
    """

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Generator[None]:
        """Commit all writes of the block together, or, on an exception, none: many at the cost of one.

        Other processes' writes wait until the block ends, so ask no model inside. A call that fails takes
        back its own writes alone if its exception is caught inside the block.

        Args:
            durable: Outlast a power cut, too. Without, the block outlasts only the death of the process, and
                constraints and forgetting are refused in it.
        """
        with self._database.writing(durable=durable):
            yield

    def close(self) -> None:
        """Close the file. Closing twice is allowed; using a closed store is not."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def declare(
        self,
        memories: Sequence[Memory],
        *,
        vectors: NDArray[np.float32] | None = None,
        fingerprint: str | None = None,
        reason: str = "declared",
        actor: str = "",
        supersede: bool = False,
        stated_ns: int | None = None,
    ) -> list[StoredMemory]:
        """Store memories, all or none; once it returns they outlast the death of the process.

        Constraints outlast a power cut too. Declaring again what is stored changes nothing, so two
        processes that declare one fact make one row. A row that is archived or past its `valid_until` is
        revived as a new version by a declaration of its id.

        Args:
            memories: Each with a scope; tags are completed and sorted, the freshness is not stored.
            vectors: Their embeddings, float32 [record, embed]; with a `fingerprint`.
            fingerprint: Names the embedding, as `Embedder.fingerprint` does.
            reason: For the history.
            actor: For the history: who declared it.
            supersede: A memory replaces the live one of its owner, type and key, as a new version of that
                row; should there be several, the others are archived. Constraints never replace each other.
            stated_ns: When the statement was made, for writers that come late: then it neither replaces
                what was stated or confirmed later nor brings back what was forgotten since.

        Returns:
            What is stored for each declaration, in order.

        Raises:
            ValueError: A declaration without a scope, a rule that cannot be enforced, content that is no
                JSON or Unicode.
            EmbeddingMismatch: Vectors that do not fit the memories or the fingerprint's dimension.
            MemoryExists: An id is taken by a live memory that says something else.
            MemoryReadOnly: What would be superseded is read-only.
            MemoryForgotten: Forgotten after `stated_ns`.
            StatementOutdated: What would be superseded was stated or confirmed after `stated_ns`.
        """
        checked = self._checked_vectors([memory.memory_id for memory in memories], vectors, fingerprint)
        durable = any(memory.type is MemoryType.CONSTRAINT for memory in memories)
        statement = ChangeOrigin(reason, actor, self._clock(), stated_ns)
        with self._database.writing(durable=durable) as connection:
            changed: dict[str, Memory] = {}
            ids = [
                self._declare_one(connection, memory, statement, supersede, changed) for memory in memories
            ]
            if checked is not None:
                self._attach_vectors(connection, ids, changed, checked)
            return [
                self._stored(self._row(connection, memory_id), statement.now_ns, changed.get(memory_id))
                for memory_id in ids
            ]

    def _declare_one(
        self,
        connection: sqlite3.Connection,
        declared: Memory,
        statement: ChangeOrigin,
        supersede: bool,
        changed: dict[str, Memory],
    ) -> str:
        """Insert, replace or leave; returns the id of the row that now says it, noted if it changed."""
        if declared.scope is None:
            raise ValueError(f"scope must be given to store memory {declared.memory_id!r}, got None")
        memory = complete_tags(declared)
        self._refuse_rule(memory)
        owner = (declared.scope.value, memory.user_id, memory.session_id)
        of_key: list[sqlite3.Row] = []
        if memory.key is not None:
            of_key = connection.execute(_ROWS_OF_KEY, (memory.key, *owner, memory.type.value)).fetchall()
        rivals: list[sqlite3.Row] = []  # the one verified last first
        if supersede and memory.type is not MemoryType.CONSTRAINT:
            rivals = [rival for rival in of_key if not has_expired(rival, statement.now_ns)]
        row, grave = self._find_row(connection, memory.memory_id), None
        if row is None:
            grave = find_tombstone(connection, memory.memory_id, statement)
            if rivals:
                row = rivals[0]
            elif memory.memory_id == derive_memory_id(memory.content, memory.scope, *owner[1:]):
                # It may be said already under another id, as by a row that superseded; given ids count.
                for twin in of_key:
                    renamed = memory.model_copy(update={"memory_id": twin["memory_id"]})
                    if encode_body(renamed) == twin["body"]:
                        row = twin
                        break
        elif (row["scope"], row["user_id"], row["session_id"]) != owner or not (
            row["state"] == MemoryState.ARCHIVED
            or has_expired(row, statement.now_ns)
            or encode_body(memory) == row["body"]
            or any(rival["memory_id"] == memory.memory_id for rival in rivals)
        ):
            raise MemoryExists(f"memory_id {memory.memory_id!r} is taken by a memory that says otherwise")
        if row is None:
            # Of an id that was forgotten, the version after its last: what was computed from the forgotten
            # one (a vector, an index entry) must not fit.
            version = 1 if grave is None else grave["version"] + 1
            if grave is not None:
                connection.execute("DELETE FROM tombstones WHERE memory_id = ?", (memory.memory_id,))
            times = {"created_ns": statement.ns, "updated_ns": statement.now_ns, "verified_ns": statement.ns}
            columns = self._columns(memory, MemoryState.ACTIVE, version, version, statement)
            connection.execute(INSERT, columns | times | {"used_ns": None})
            changed[memory.memory_id] = memory
            return memory.memory_id
        memory_id: str = row["memory_id"]
        memory = memory.model_copy(update={"memory_id": memory_id})
        if row["state"] == MemoryState.ARCHIVED or encode_body(memory) != row["body"]:
            refuse_read_only(self._memory_of(row))
            refuse_outdated(row, statement)
            self._replace(connection, row, memory, statement, confirms=True)
            changed[memory_id] = memory
        because = ChangeOrigin(
            f"superseded by {memory_id}", statement.actor, statement.now_ns, statement.stated_ns
        )
        for rival in rivals:  # so that one live memory of the key remains
            if rival["memory_id"] == memory_id:
                continue
            loser = self._memory_of(rival)
            refuse_read_only(loser)
            refuse_outdated(rival, statement)
            archived = with_status_tag(loser, MemoryState.ARCHIVED)
            self._replace(connection, rival, archived, because, MemoryState.ARCHIVED)
            changed.pop(loser.memory_id, None)  # its row no longer says what was declared
        return memory_id

    def update(
        self,
        memory_id: str,
        viewer: Viewer,
        *,
        changes: Mapping[str, object],
        reason: str,
        actor: str = "",
        expected_version: int | None = None,
        vector: NDArray[np.float32] | None = None,
        fingerprint: str | None = None,
    ) -> StoredMemory:
        """Change fields of a memory by a new version; what it said before stays in the history.

        New content or a new value counts as verified now; new content drops the vectors.

        Args:
            memory_id: Which.
            viewer: On whose behalf.
            changes: New values by field name; all but the id, the scope and the owner can change.
            reason: For the history.
            actor: For the history.
            expected_version: Refuse unless this is the current one: what others did since then stays.
            vector: The embedding of the new content, float32 [embed]; with a `fingerprint`.
            fingerprint: Names the embedding.

        Returns:
            The new version, or the current one if nothing differs.

        Raises:
            ValueError: A field that cannot change or a value that a declaration may not have.
            MemoryNotFound: No such memory, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
            VersionConflict: Another version than the expected one is stored.
        """
        if fixed := [name for name in changes if name in _FIXED]:
            raise ValueError(f"changes must leave {', '.join(_FIXED)} as they are, got {', '.join(fixed)}")
        if unknown := [name for name in changes if name not in Memory.model_fields]:
            raise ValueError(f"changes must name fields of a memory, got {', '.join(unknown)}")
        vectors = None if vector is None else np.asarray(vector, dtype=np.float32)[None]
        checked = self._checked_vectors([memory_id], vectors, fingerprint)
        statement = ChangeOrigin(reason, actor, self._clock())
        durable = changes.get("type") == MemoryType.CONSTRAINT
        with self._changing(memory_id, viewer, durable, expected_version) as (connection, row):
            before = self._memory_of(row)
            declared = {name: getattr(before, name) for name in Memory.model_fields}
            if "type" in changes and "tags" not in changes:
                declared["tags"] = tuple(tag for tag in before.tags if tag != f"type:{before.type.value}")
            after = Memory.model_validate(declared | dict(changes))
            after = complete_tags(after, MemoryState(row["state"]))
            self._refuse_rule(after, before)
            if encode_body(after) != row["body"]:
                self._replace(connection, row, after, statement, MemoryState(row["state"]))
            if checked is not None:
                self._attach_vectors(connection, [memory_id], {memory_id}, checked)
            return self._stored(self._row(connection, memory_id), statement.now_ns)

    def rollback(
        self, memory_id: str, version: int, viewer: Viewer, *, reason: str = "", actor: str = ""
    ) -> StoredMemory:
        """Make a memory say what a version of it said, by a new version; the state comes back with it.

        Raises:
            MemoryNotFound: No such memory or version, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
        """
        statement = ChangeOrigin(reason or f"rolled back to version {version}", actor, self._clock())
        with self._changing(memory_id, viewer) as (connection, row):
            old = connection.execute(
                "SELECT * FROM old_versions WHERE memory_id = ? AND version = ?", (memory_id, version)
            ).fetchone()
            if old is None and version != row["version"]:
                raise MemoryNotFound(f"memory {memory_id!r} has no version {version}")
            if old is not None:
                memory = decode_body(old["body"], memory_id)
                self._refuse_rule(memory, self._memory_of(row))
                self._replace(connection, row, memory, statement, MemoryState(old["state"]))
            return self._stored(self._row(connection, memory_id), statement.now_ns)

    def archive(
        self, memory_id: str, viewer: Viewer, *, reason: str = "archived", actor: str = ""
    ) -> StoredMemory:
        """Set a memory aside by a new version: it is recalled only on request.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
        """
        return self._set_state(memory_id, viewer, MemoryState.ARCHIVED, reason, actor)

    def unarchive(
        self, memory_id: str, viewer: Viewer, *, reason: str = "unarchived", actor: str = ""
    ) -> StoredMemory:
        """Bring an archived memory back, by a new version that counts as verified now.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
            MemoryReadOnly: It was declared read-only.
        """
        return self._set_state(memory_id, viewer, MemoryState.ACTIVE, reason, actor)

    def _set_state(
        self, memory_id: str, viewer: Viewer, state: MemoryState, reason: str, actor: str
    ) -> StoredMemory:
        statement = ChangeOrigin(reason, actor, self._clock())
        with self._changing(memory_id, viewer) as (connection, row):
            if row["state"] != state:
                memory = with_status_tag(self._memory_of(row), state)
                is_back = state is MemoryState.ACTIVE
                self._replace(connection, row, memory, statement, state, confirms=is_back)
            return self._stored(self._row(connection, memory_id), statement.now_ns)

    def verify(self, memory_id: str, viewer: Viewer) -> StoredMemory:
        """Confirm that a memory still holds: no new version, a new `seq`. Read-only ones can be verified.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
        """
        now_ns = self._clock()
        with self._database.writing(durable=False) as connection:
            self._visible_row(connection, memory_id, viewer)
            connection.execute(
                "UPDATE memories SET seq = ?, verified_ns = MAX(verified_ns, ?) WHERE memory_id = ?",
                (self._database.take_seq(), now_ns, memory_id),
            )
            return self._stored(self._row(connection, memory_id), now_ns)

    def touch(self, memory_ids: Sequence[str], viewer: Viewer) -> int:
        """Note that an answer referred to memories now: neither a new version nor a new `seq`.

        Returns:
            How many there were; unknown ids and ones that are not the viewer's are passed over.
        """
        now_ns = self._clock()
        with self._database.writing(durable=False) as connection:
            rows = [self._find_row(connection, memory_id) for memory_id in dict.fromkeys(memory_ids)]
            seen = [row["memory_id"] for row in rows if row is not None and can_see(viewer, row)]
            connection.executemany(
                "UPDATE memories SET used_ns = MAX(IFNULL(used_ns, ?1), ?1) WHERE memory_id = ?2",
                [(now_ns, memory_id) for memory_id in seen],
            )
        return len(seen)

    @contextmanager
    def _changing(
        self, memory_id: str, viewer: Viewer, durable: bool = False, expected_version: int | None = None
    ) -> Generator[tuple[sqlite3.Connection, sqlite3.Row]]:
        """A transaction around one row that the viewer may change; durable if it is a constraint."""
        with self._database.reading() as connection:
            kind = self._visible_row(connection, memory_id, viewer)["type"]
        with self._database.writing(durable=durable or kind == MemoryType.CONSTRAINT) as connection:
            row = self._visible_row(connection, memory_id, viewer)
            if expected_version is not None and row["version"] != expected_version:
                raise VersionConflict(
                    f"expected_version of memory {memory_id!r} must be its current {row['version']}, "
                    f"got {expected_version}"
                )
            refuse_read_only(self._memory_of(row))
            yield connection, row

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
        self, connection: sqlite3.Connection, rows: Sequence[sqlite3.Row], *, with_episodes: bool = True
    ) -> None:
        """Delete rows with all their versions and vectors, and leave a tombstone for each.

        What is deleted is overwritten in the file. The write-ahead log is emptied too, unless another process
        is reading it at that moment; then the next deletion, or the last process to close the file, does so.
        """
        now_ns = self._clock()
        self._database.purge_after()
        for row in rows:
            memory_id: str = row["memory_id"]
            seq, version = self._database.take_seq(), row["version"]
            # Under these ids what the memory said at any time would be declared anew.
            aliases: set[str] = set()
            old = connection.execute("SELECT body FROM old_versions WHERE memory_id = ?", (memory_id,))
            for body in (row["body"], *(body for (body,) in old)):
                with suppress(StoreCorrupt):  # what is damaged can be forgotten too
                    said = decode_body(body, memory_id)
                    aliases.add(derive_memory_id(said.content, said.scope, said.user_id, said.session_id))
            aliases -= {memory_id}
            aliases = {alias for alias in aliases if self._find_row(connection, alias) is None}
            if with_episodes:
                query = "SELECT episode_id FROM episode_memories WHERE memory_id = ?"
                for source in connection.execute(query, (memory_id,)).fetchall():
                    connection.execute("DELETE FROM episodes WHERE episode_id = ?", tuple(source))
                    connection.execute("DELETE FROM episode_memories WHERE episode_id = ?", tuple(source))
            for table in ("memories", "old_versions", "vectors", "episode_memories"):
                connection.execute(f"DELETE FROM {table} WHERE memory_id = ?", (memory_id,))
            connection.execute(_BURY, (memory_id, seq, version, now_ns))
            for alias in aliases:
                connection.execute(_BURY, (alias, self._database.take_seq(), version, now_ns))
            self._cache.drop(memory_id)

    def find_faults(self) -> list[StoreFault]:
        """Everything wrong with the file; reads all of it and changes nothing."""
        with self._database.reading() as connection:
            return find_faults(connection, self.path)

    def mend(self) -> list[StoreFault]:
        """Mend what `find_faults` calls mendable, in one transaction; returns what was mended.

        Rows are the truth: columns are set from bodies, leftovers deleted, torn vectors dropped so that they
        are computed anew. A row that holds no valid memory is left for `rollback`, `forget` or a snapshot.
        """
        with self._database.writing(durable=True) as connection:
            self._cache.clear()
            return mend(connection, self.path)
