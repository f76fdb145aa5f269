"""The one SQLite file: its tables and migrations, its transactions, what SQLite complains of.

`application_id` marks the file, `user_version` counts the migrations it has seen. `MIGRATIONS` only ever
grows: one that has been released is not edited, because files out there have run it.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from salience_memory.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreTooNew,
    StoreUnavailable,
)
from salience_memory.store.rows import has_tag

__all__ = ["APPLICATION_ID", "MIGRATIONS", "Database"]

_PRIMARY_CODE = 0xFF
"""SQLite's extended result codes carry the primary one in their lowest byte."""

_PURGE_TIMEOUT_MS = 250

_ERRORS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusy, "was kept locked by another process"),
    sqlite3.SQLITE_LOCKED: (StoreBusy, "was kept locked by another connection"),
    sqlite3.SQLITE_CORRUPT: (StoreCorrupt, "is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreCorrupt, "is damaged"),
    sqlite3.SQLITE_CANTOPEN: (StoreUnavailable, "cannot be opened"),
    sqlite3.SQLITE_FULL: (StoreUnavailable, "cannot be written"),
    sqlite3.SQLITE_IOERR: (StoreUnavailable, "cannot be read or written"),
    sqlite3.SQLITE_PERM: (StoreUnavailable, "cannot be opened"),
    sqlite3.SQLITE_READONLY: (StoreUnavailable, "cannot be written"),
}

APPLICATION_ID = 0x53414C4D
"""`SALM`."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO counters VALUES ('seq', 0)",
        # seq is the row's address: reading what changed since is one range of the table.
        """CREATE TABLE memories (
            seq INTEGER PRIMARY KEY,
            memory_id TEXT NOT NULL UNIQUE CHECK (memory_id != ''),
            version INTEGER NOT NULL CHECK (version >= 1),
            content_version INTEGER NOT NULL CHECK (content_version BETWEEN 1 AND version),
            type TEXT NOT NULL,
            scope TEXT NOT NULL CHECK (scope IN ('session', 'user', 'global')),
            user_id TEXT,
            session_id TEXT,
            key TEXT,
            pinned INTEGER NOT NULL CHECK (pinned IN (0, 1)),
            valid_until INTEGER,
            state TEXT NOT NULL CHECK (state IN ('active', 'archived')),
            created_ns INTEGER NOT NULL,
            updated_ns INTEGER NOT NULL,
            verified_ns INTEGER NOT NULL,
            used_ns INTEGER,
            reason TEXT NOT NULL,
            actor TEXT NOT NULL,
            body TEXT NOT NULL CHECK (json_valid(body)),
            CHECK (scope != 'global' OR (user_id IS NULL AND session_id IS NULL)),
            CHECK (scope != 'user' OR (user_id IS NOT NULL AND session_id IS NULL)),
            CHECK (scope != 'session' OR session_id IS NOT NULL)
        )""",
        "CREATE INDEX memories_by_owner ON memories (scope, user_id, session_id)",
        "CREATE INDEX memories_by_session ON memories (session_id) WHERE session_id IS NOT NULL",
        "CREATE INDEX memories_by_key ON memories (key, scope, user_id, session_id) WHERE key IS NOT NULL",
        """CREATE TABLE old_versions (
            memory_id TEXT NOT NULL,
            version INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            state TEXT NOT NULL,
            created_ns INTEGER NOT NULL,
            updated_ns INTEGER NOT NULL,
            verified_ns INTEGER NOT NULL,
            used_ns INTEGER,
            reason TEXT NOT NULL,
            actor TEXT NOT NULL,
            body TEXT NOT NULL,
            UNIQUE (memory_id, version)
        )""",
        """CREATE TABLE tombstones (
            memory_id TEXT PRIMARY KEY,
            seq INTEGER NOT NULL UNIQUE,
            version INTEGER NOT NULL,
            forgotten_ns INTEGER NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE fingerprints (
            fingerprint_id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            dimension INTEGER NOT NULL CHECK (dimension >= 1)
        )""",
        """CREATE TABLE vectors (
            memory_id TEXT NOT NULL,
            fingerprint_id INTEGER NOT NULL,
            vector BLOB NOT NULL,
            UNIQUE (memory_id, fingerprint_id)
        )""",
        "CREATE INDEX vectors_by_fingerprint ON vectors (fingerprint_id)",
        """CREATE TABLE episodes (
            episode_id INTEGER PRIMARY KEY AUTOINCREMENT,
            session_id TEXT NOT NULL,
            user_id TEXT,
            role TEXT NOT NULL,
            text TEXT NOT NULL,
            ns INTEGER NOT NULL
        )""",
        "CREATE INDEX episodes_by_session ON episodes (session_id)",
        "CREATE INDEX episodes_by_user ON episodes (user_id) WHERE user_id IS NOT NULL",
        """CREATE TABLE episode_memories (
            memory_id TEXT NOT NULL,
            episode_id INTEGER NOT NULL,
            PRIMARY KEY (memory_id, episode_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX episode_memories_by_episode ON episode_memories (episode_id)",
        """CREATE TABLE tasks (
            task_id INTEGER PRIMARY KEY,
            scope TEXT NOT NULL CHECK (scope IN ('session', 'user')),
            user_id TEXT,
            session_id TEXT,
            key TEXT NOT NULL,
            status TEXT NOT NULL,
            value TEXT NOT NULL CHECK (json_valid(value)),
            updated_ns INTEGER NOT NULL
        )""",
        "CREATE INDEX tasks_by_owner ON tasks (scope, user_id, session_id, key)",
        """CREATE TABLE events (
            event_id INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            request_id TEXT NOT NULL,
            ns INTEGER NOT NULL,
            facts TEXT NOT NULL CHECK (json_valid(facts))
        )""",
        "CREATE INDEX events_by_kind ON events (kind)",
        "CREATE INDEX events_by_request ON events (request_id)",
    ),
)
"""Migration `i` brings a file from `user_version` i to i + 1; the first makes an empty file a store."""


class Database:
    """A connection that threads share by turns and that several processes may open on one file.

    Writing transactions take SQLite's write lock at their start, so what they read stays true until they
    end. One inside another is a savepoint: it can fail alone, and is kept when the outer one commits.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float, on_rollback: Callable[[], None]) -> None:
        """Open or create the file.

        Args:
            path: The file; its folders are made, and a new file is its owner's alone.
            busy_timeout_s: How long to wait for another process's transaction.
            on_rollback: Called when written rows were taken back.
        """
        self.path = path.absolute()
        self._busy_timeout_s = busy_timeout_s
        self._on_rollback = on_rollback
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._depth = 0
        self._is_durable = False
        self._must_purge = False
        self._is_closed = False
        self._seq: int | None = None
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be created: {error.strerror}") from error
        with self._named_errors():
            connection = sqlite3.connect(
                self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            connection.row_factory = sqlite3.Row
            connection.create_function("has_tag", 2, has_tag, deterministic=True)
            try:
                recognise(connection, self.path)
                # Deleted content is overwritten; nothing spills into temporary files.
                for pragma in ("secure_delete = ON", "temp_store = MEMORY", "synchronous = NORMAL"):
                    connection.execute(f"PRAGMA {pragma}").close()
                migrate(connection, self.path)
                use_wal(connection, self._busy_timeout_s)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """One state of the file for all that is read inside."""
        with self._lock, self._named_errors():
            self._refuse_unusable()
            if self._connection.in_transaction:
                yield self._connection
                return
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def writing(self, *, durable: bool) -> Generator[sqlite3.Connection]:
        """All that is written inside, or, on any exception, none of it.

        Args:
            durable: Outlasts a power cut once the block has ended; what is not durable outlasts the death
                of the process. A durable block inside one that is not is refused.
        """
        with self._lock, self._named_errors():
            self._refuse_unusable()
            if durable and self._depth and not self._is_durable:
                raise ValueError(
                    "durable must be True for a transaction that stores a constraint or forgets, got False"
                )
            if self._connection.in_transaction and not self._depth:
                raise ValueError(f"{self.path} must not be written to while its records are being iterated")
            with self._savepoint() if self._depth else self._transaction(durable):
                self._depth += 1
                try:
                    yield self._connection
                finally:
                    self._depth -= 1
            if self._must_purge and not self._depth:
                # Move the log into the file and cut it off, unless another process stays in it.
                self._must_purge = False
                self._connection.execute(f"PRAGMA busy_timeout = {_PURGE_TIMEOUT_MS}")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self._connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")

    @contextmanager
    def _transaction(self, durable: bool) -> Generator[None]:
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")
        self._is_durable, self._must_purge = durable, False
        try:
            check_schema_version(self._connection, self.path)
            yield
            if self._seq is not None:
                self._connection.execute("UPDATE counters SET value = ? WHERE name = 'seq'", (self._seq,))
            self._connection.execute("COMMIT")
        except BaseException:
            self._on_rollback()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self._seq = None
            self._is_durable = False

    @contextmanager
    def _savepoint(self) -> Generator[None]:
        if not self._connection.in_transaction:  # SQLite itself ends one when the disk is full
            raise StoreUnavailable(f"{self.path} took the transaction back; nothing more fits into it")
        self._connection.execute("SAVEPOINT inner")
        try:
            yield
        except BaseException:
            self._on_rollback()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO inner")
                self._connection.execute("RELEASE inner")
            raise
        self._connection.execute("RELEASE inner")

    @property
    def is_writing(self) -> bool:
        """Whether a transaction is open that may yet be taken back."""
        return self._depth > 0

    def latest_seq(self) -> int:
        """The number taken last."""
        with self.reading() as connection:
            if self._seq is not None:
                return self._seq
            return connection.execute("SELECT value FROM counters WHERE name = 'seq'").fetchone()[0]

    def take_seq(self) -> int:
        """The next number, inside a writing transaction; it is nobody else's, whatever becomes of it."""
        # Counted here and written once, when the transaction ends: the write lock is ours until then.
        self._seq = self.latest_seq() + 1
        return self._seq

    def purge_after(self) -> None:
        """Empty the write-ahead log once this transaction is committed: what it deletes is in no file."""
        self._must_purge = True

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._process == os.getpid():  # SQLite forbids closing what was carried across a fork
                self._connection.close()

    def _refuse_unusable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self.path} was closed")
        if self._process != os.getpid():
            raise StoreUnavailable(f"{self.path} must be opened anew in a forked process")

    @contextmanager
    def _named_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", -1) & _PRIMARY_CODE
            if code not in _ERRORS:
                raise
            kind, what = _ERRORS[code]
            raise kind(f"{self.path} {what}: {error}") from error


def recognise(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is neither ours nor empty, by reading alone.

    Raises:
        StoreForeign: Another program's database, or no database at all.
        StoreTooNew: A later version's store.
        StoreCorrupt: Ours, but a table is gone.
    """
    try:
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise StoreForeign(
                f"{path} must be a memory store, got a file that is no SQLite database"
            ) from error
        raise
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    if mark != APPLICATION_ID and (tables or mark or _user_version(connection)):
        raise StoreForeign(
            f"{path} must be a memory store (application_id {APPLICATION_ID:#x}), "
            f"got a database with application_id {mark:#x} and {len(tables)} tables"
        )
    check_schema_version(connection, path)
    if mark == APPLICATION_ID and "counters" not in tables:
        raise StoreCorrupt(
            f"{path} must hold the table counters, got {', '.join(sorted(tables)) or 'no table'}"
        )


def check_schema_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that a later version has migrated, be it since this process opened it."""
    if (version := _user_version(connection)) > len(MIGRATIONS):
        raise StoreTooNew(
            f"{path} has schema version {version} and this Salience reads up to {len(MIGRATIONS)}: "
            "update Salience to open it"
        )


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the migrations a file has not seen, all of them or none; no-op on a file that is up to date."""
    if _user_version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        recognise(connection, path)  # again: another process may have come first
        for statements in MIGRATIONS[_user_version(connection) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to the write-ahead log; SQLite does not wait for others by itself here."""
    give_up = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(0.005)


def _user_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return version
