"""The store's tables, how a file is told to be ours, and how an older one is brought up to date.

`application_id` marks the file, `user_version` counts the migrations it has seen. `MIGRATIONS` only ever
grows: one that has been released is not edited, because files out there have run it.
"""

import sqlite3
import time
from pathlib import Path

from salience_memory.errors import StoreCorrupt, StoreForeign, StoreTooNew

__all__ = ["APPLICATION_ID", "MIGRATIONS", "check_schema_version", "migrate", "recognise", "use_wal"]

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
