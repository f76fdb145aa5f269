"""The SQLite file of the lexical projection: postings by FTS5, and what filters and statistics need.

Every token is stored with the number of its owner in front (`7.refund`), so that the list of a word holds
one owner's rows alone, and how rare it is is known for each. Types and tags are tokens too (`7.#` and a
hash). A row's number is the store's `seq`.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import ProjectionInvalid
from salience_memory.index.roster import Facet, Owner, RosterEntry, RowFilter
from salience_memory.records import MemoryType
from salience_memory.scopes import Scope

__all__ = ["LexicalFile", "remove_database"]

_SECURE_DELETE_SINCE = (3, 42)
"""From this SQLite on FTS5 overwrites what is deleted; before, it marks it, and only merging takes it out."""

_BOUND_AT_ONCE = 500
_FETCHED_AT_ONCE = 512

_SCHEMA = (
    "CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE owner (
        owner INTEGER PRIMARY KEY AUTOINCREMENT,
        scope TEXT NOT NULL, user_id TEXT, session_id TEXT, is_archived INTEGER NOT NULL,
        n_texts INTEGER NOT NULL, n_tokens INTEGER NOT NULL
    )""",
    "CREATE INDEX owner_by_name ON owner (scope, user_id, session_id, is_archived)",
    """CREATE TABLE document (
        seq INTEGER PRIMARY KEY, memory_id TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL,
        type TEXT NOT NULL, tags TEXT NOT NULL, valid_until INTEGER, n_tokens INTEGER NOT NULL
    )""",
    """CREATE TABLE frequency (
        owner INTEGER NOT NULL, token TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (owner, token)
    ) WITHOUT ROWID""",
    # The `ascii` tokenizer takes every character beyond ASCII for a letter: it cuts at our spaces alone.
    "CREATE VIRTUAL TABLE posting USING fts5(tokens, detail=none, columnsize=0, "
    "tokenize=\"ascii tokenchars '-_.#'\")",
)
_DOCUMENTS = """
SELECT memory_id, seq, scope, user_id, session_id, is_archived, type, tags, valid_until, tokens
FROM document JOIN owner USING (owner) JOIN posting ON posting.rowid = seq ORDER BY seq
"""
_DOCUMENT = """
SELECT memory_id, seq, scope, user_id, session_id, is_archived, type, tags, valid_until, tokens, owner,
document.n_tokens FROM document JOIN owner USING (owner) JOIN posting ON posting.rowid = seq WHERE memory_id
= ?
"""


class LexicalFile:
    """Words by row, in a file or in memory. Says nothing of which row may be shown to whom."""

    def __init__(self, path: Path | None, state: Mapping[str, str]) -> None:
        """An empty one, in place of any file at `path`; in memory without one."""
        self.path = path
        self._initial = state
        self._connection = self._create()

    @classmethod
    def open(cls, path: Path, *, is_shared: bool) -> "LexicalFile":
        """What lies at `path`; if `is_shared`, a private copy in memory: another process may be writing it.

        Raises:
            sqlite3.DatabaseError: It is no database.
        """
        file = cls.__new__(cls)
        file.path = None if is_shared else path
        file._connection = _copy_to_memory(path) if is_shared else _connect(path)
        try:
            file._initial = file.read_state()
        except sqlite3.DatabaseError:
            file.close()
            raise
        return file

    def read_state(self) -> dict[str, str]:
        """What `writing` wrote last."""
        return dict(self._connection.execute("SELECT name, value FROM state").fetchall())

    def clear(self, state: Mapping[str, str]) -> None:
        """Begin anew."""
        self._connection.close()
        self._initial = state
        self._connection = self._create()

    def close(self) -> None:
        self._connection.close()

    def reopen(self) -> None:
        """Open what has taken the file's place."""
        assert self.path is not None  # only files are replaced
        self._connection = _connect(self.path)

    @contextmanager
    def writing(self) -> Generator[dict[str, str]]:
        """All that is written inside or, on any exception, nothing; the dict takes the new state."""
        state: dict[str, str] = {}
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield state
            values = [(value, name) for name, value in state.items()]
            self._connection.executemany("UPDATE state SET value = ? WHERE name = ?", values)
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.DatabaseError):  # SQLite itself ends it when the disk is full
                self._connection.execute("ROLLBACK")
            raise

    def put(
        self, entries: Sequence[RosterEntry], words: Sequence[frozenset[str]], n_tokens: Sequence[int]
    ) -> None:
        """Add rows that are not here, with their distinct words and how many tokens they have."""
        documents: list[tuple[object, ...]] = []
        postings: list[tuple[int, str]] = []
        counts: Counter[tuple[int, str]] = Counter()
        sizes: dict[int, list[int]] = {}
        for entry, found, length in zip(entries, words, n_tokens, strict=True):
            facet, known = entry.facet, self.find_owner(entry.owner)
            if known is None:
                statement = "INSERT INTO owner VALUES (NULL, ?, ?, ?, ?, 0, 0)"
                named = (entry.owner.scope.value, *entry.owner[1:])
                owner = self._connection.execute(statement, named).lastrowid
                assert owner is not None  # an INSERT that did not raise has one
            else:
                owner = known[0]
            labels = [_label("type", facet.type.value), *(_label("tag", tag) for tag in facet.tags)]
            tags = json.dumps(facet.tags)
            kind, until = facet.type.value, entry.valid_until
            documents.append((entry.seq, entry.memory_id, owner, kind, tags, until, length))
            postings.append((entry.seq, " ".join(f"{owner}.{word}" for word in (*sorted(found), *labels))))
            counts.update((owner, word) for word in found)
            size = sizes.setdefault(owner, [0, 0])
            size[0], size[1] = size[0] + 1, size[1] + length
        self._connection.executemany("INSERT INTO document VALUES (?, ?, ?, ?, ?, ?, ?)", documents)
        self._connection.executemany("INSERT INTO posting (rowid, tokens) VALUES (?, ?)", postings)
        self._count(counts, sizes)

    def drop(self, memory_ids: Sequence[str]) -> list[tuple[RosterEntry, frozenset[str]]]:
        """Delete rows that are here; returns them with their words."""
        counts: Counter[tuple[int, str]] = Counter()
        sizes: dict[int, list[int]] = {}
        gone: list[tuple[RosterEntry, frozenset[str]]] = []
        for memory_id in memory_ids:
            *columns, owner, length = self._connection.execute(_DOCUMENT, (memory_id,)).fetchone()
            entry, words = _document(columns)
            counts.subtract((owner, word) for word in words)
            size = sizes.setdefault(owner, [0, 0])
            size[0], size[1] = size[0] - 1, size[1] - length
            gone.append((entry, words))
        seqs = [(entry.seq,) for entry, _ in gone]
        self._connection.executemany("DELETE FROM posting WHERE rowid = ?", seqs)
        self._connection.executemany("DELETE FROM document WHERE seq = ?", seqs)
        self._count(counts, sizes)
        return gone

    def documents(self) -> Iterator[tuple[RosterEntry, frozenset[str]]]:
        """Every row with its words, by `seq`."""
        return map(_document, self._connection.execute(_DOCUMENTS))

    def find_owner(self, owner: Owner) -> tuple[int, int, int] | None:
        """An owner's number, how many texts there are and how many tokens; None for one without a text."""
        return self._connection.execute(
            "SELECT owner, n_texts, n_tokens FROM owner "
            "WHERE scope = ? AND user_id IS ? AND session_id IS ? AND is_archived = ?",
            (owner.scope.value, *owner[1:]),
        ).fetchone()

    def count_holders(self, owner: int, tokens: Sequence[str]) -> dict[tuple[int, str], int]:
        """How many rows of an owner hold each token; none for a token that no row holds."""
        counts: dict[tuple[int, str], int] = {}
        for start in range(0, len(tokens), _BOUND_AT_ONCE):
            part = tokens[start : start + _BOUND_AT_ONCE]
            marks = ",".join("?" * len(part))
            statement = f"SELECT token, n FROM frequency WHERE owner = ? AND token IN ({marks})"
            counts |= {(owner, token): n for token, n in self._connection.execute(statement, (owner, *part))}
        return counts

    def iter_holders(self, owner: int, token: str, wanted: RowFilter) -> Iterator[NDArray[np.int64]]:
        """`seq`s of an owner's rows that hold a token and have the type and tags asked for, newest first."""
        match = f'"{owner}.{token}"'
        for tag in wanted.tags:
            match += f' AND "{owner}.{_label("tag", tag)}"'
        if wanted.types:
            kinds = (f'"{owner}.{_label("type", kind.value)}"' for kind in wanted.types)
            match += f" AND ({' OR '.join(kinds)})"
        statement = "SELECT rowid FROM posting WHERE posting MATCH ? ORDER BY rowid DESC"
        with closing(self._connection.execute(statement, (match,))) as cursor:
            while fetched := cursor.fetchmany(_FETCHED_AT_ONCE):
                yield np.fromiter((seq for (seq,) in fetched), dtype=np.int64, count=len(fetched))

    def check_postings(self) -> None:
        """Compare the postings with the texts they were made from.

        Raises:
            ProjectionInvalid: They do not agree.
        """
        try:
            self._connection.execute("INSERT INTO posting (posting) VALUES ('integrity-check')")
        except sqlite3.DatabaseError as error:
            raise ProjectionInvalid(f"the postings must agree with their texts: {error}") from error

    def erase_residue(self) -> None:
        """Take what was deleted out of the postings and the write-ahead log; outside any transaction."""
        if sqlite3.sqlite_version_info < _SECURE_DELETE_SINCE:
            self._connection.execute("INSERT INTO posting (posting) VALUES ('optimize')")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _create(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            remove_database(self.path)
        connection = _connect(self.path)
        connection.execute("BEGIN")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.executemany("INSERT INTO state VALUES (?, ?)", list(self._initial.items()))
        if sqlite3.sqlite_version_info >= _SECURE_DELETE_SINCE:
            connection.execute("INSERT INTO posting (posting, rank) VALUES ('secure-delete', 1)")
        connection.execute("COMMIT")
        return connection

    def _count(self, counts: Counter[tuple[int, str]], sizes: dict[int, list[int]]) -> None:
        """Add to the statistics; what falls to zero leaves no name behind."""
        self._connection.executemany(
            "INSERT INTO frequency VALUES (?, ?, ?) "
            "ON CONFLICT (owner, token) DO UPDATE SET n = n + excluded.n",
            [(owner, token, n) for (owner, token), n in sorted(counts.items())],
        )
        fallen = [key for key, n in counts.items() if n < 0]
        self._connection.executemany("DELETE FROM frequency WHERE owner = ? AND token = ? AND n <= 0", fallen)
        self._connection.executemany(
            "UPDATE owner SET n_texts = n_texts + ?, n_tokens = n_tokens + ? WHERE owner = ?",
            [(n_texts, n_tokens, owner) for owner, (n_texts, n_tokens) in sizes.items()],
        )
        emptied = [(owner,) for owner, (n_texts, _) in sizes.items() if n_texts < 0]
        self._connection.executemany("DELETE FROM owner WHERE owner = ? AND n_texts <= 0", emptied)


def remove_database(path: Path) -> None:
    """Delete a database and what SQLite keeps beside it, if they are there."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


def _connect(path: Path | None) -> sqlite3.Connection:
    where = ":memory:" if path is None else str(path)
    connection = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "secure_delete = ON",
            "temp_store = MEMORY",
            "journal_mode = WAL",
            "synchronous = NORMAL",
        ):
            connection.execute(f"PRAGMA {pragma}").close()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _copy_to_memory(path: Path) -> sqlite3.Connection:
    """One state of a file that another process may be writing."""
    copy = _connect(None)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source:
            source.backup(copy)
    except sqlite3.DatabaseError:
        copy.close()
        raise
    return copy


def _document(columns: Iterable[Any]) -> tuple[RosterEntry, frozenset[str]]:
    memory_id, seq, scope, user, session, is_archived, kind, tags, until, tokens = columns
    owner = Owner(Scope(scope), user, session, bool(is_archived))
    facet = Facet(MemoryType(kind), tuple(json.loads(tags)))
    found = (token.partition(".")[2] for token in str(tokens).split(" "))
    words = frozenset(word for word in found if not word.startswith("#"))
    return RosterEntry(memory_id, seq, owner, facet, until), words


def _label(name: str, value: str) -> str:
    """The token of a type or tag: no text has it, since `#` is in no token of a text."""
    return f"#{blake2b(f'{name}={value}'.encode(), digest_size=8).hexdigest()}"
