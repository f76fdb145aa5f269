"""The lexical projection: which stored memories share words with a query, within its filter.

Words are looked up rarest first, and the rows that hold them are read newest first, up to a number of rows
that the filter allows; those are ranked by all of their words. A row that shares with the query only words
so common that their turn does not come, and that is not among the newest, is no lexical candidate; embeddings
may still find it.
"""

import hashlib
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import ProjectionInvalid
from salience_memory.index.lexical_file import LexicalFile, remove_database
from salience_memory.index.projection import ProjectedStore, forgotten_since, replace_file
from salience_memory.index.roster import Roster, RosterEntry, RowFilter, entry_of, visible_owners
from salience_memory.index.word_table import WordTable
from salience_memory.lexical import tokenize
from salience_memory.ranking import weigh_tokens
from salience_memory.scopes import Viewer
from salience_memory.store.rows import ProjectionRow

__all__ = ["LEXICAL_FINGERPRINT", "LexicalIndex", "QueryWords"]

LEXICAL_FINGERPRINT = f"tokens-1/unicode-{unicodedata.unidata_version}"
"""How texts are cut: Python's Unicode tables have a say in it."""

_READ_ROWS = 1_000
"""How many allowed rows a search reads from the lists of words, all words together, at least."""

_READ_ROWS_PER_RESULT = 4

_APPLIED_AT_ONCE = 5_000
_DIGEST_MODULUS = 2**256


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The words of a query and how much each says, over everything its viewer can see."""

    weights: Mapping[str, float]
    """Nats by token, `ranking.weigh_tokens`."""
    counts: Mapping[tuple[int, str], int]
    """How many rows of an owner hold a token; only those that some row holds."""
    n_texts: int
    mean_tokens: float
    """How long a text is on average, in tokens."""


class LexicalIndex:
    """Words by row. Not for use by several threads at once; the file must be one process's alone."""

    def __init__(self, path: Path | None = None) -> None:
        """An empty index in a new file at `path`, in place of any there; in memory without one."""
        self._roster, self._words = Roster(), WordTable()
        self._applied_seq = 0
        self._digest = 0
        self._file = LexicalFile(path, self._state(0))

    def __len__(self) -> int:
        """How many memories are here."""
        return len(self._roster)

    @property
    def applied_seq(self) -> int:
        """The store's `seq` that this holds every row up to."""
        return self._applied_seq

    @property
    def fingerprint(self) -> str:
        """How texts are cut."""
        return LEXICAL_FINGERPRINT

    @property
    def sha256(self) -> str:
        """Sum of the rows' SHA-256, each of id, `seq`, owner, filters and words."""
        return f"{self._digest:064x}"

    def newest(self, count: int) -> dict[str, int]:
        """The `seq`s of the rows applied last, by id."""
        return self._roster.newest(count)

    def weigh(self, query: str, viewer: Viewer, include_archived: bool) -> QueryWords:
        """What the words of a query say about the texts that a viewer can see."""
        tokens = list(dict.fromkeys(tokenize(query)))
        owners = visible_owners(viewer, include_archived)
        known = [found for owner in owners if (found := self._file.find_owner(owner)) is not None]
        counts: dict[tuple[int, str], int] = {}
        for number, _, _ in known:
            counts |= self._file.count_holders(number, tokens)
        totals: Counter[str] = Counter()
        for (_, token), n in counts.items():
            totals[token] += n
        n_texts, n_tokens = sum(found[1] for found in known), sum(found[2] for found in known)
        return QueryWords(weigh_tokens(tokens, n_texts, totals), counts, n_texts, n_tokens / max(1, n_texts))

    def search(self, words: QueryWords, wanted: RowFilter, count: int) -> list[str]:
        """The memories that share the most information with a query among those that the filter allows.

        Returns:
            Their ids, the most first, equal ones newest first.
        """
        parts = list(self._read(words, wanted, max(_READ_ROWS, _READ_ROWS_PER_RESULT * count)))
        if not parts:
            return []
        rows = np.unique(np.concatenate(parts))
        order = np.lexsort((-rows, -self._words.sum_shared(words.weights, rows)))[:count]
        return [self._roster.id_of(row) for row in rows[order].tolist()]

    def cover(self, words: QueryWords, memory_ids: Sequence[str]) -> NDArray[np.float64]:
        """The nats that each of some visible memories shares with a query; 0 for one that is not here."""
        found = [self._roster.row_of(memory_id) for memory_id in memory_ids]
        rows = np.array([-1 if row is None else row for row in found], dtype=np.int64)
        nats = np.zeros(len(rows))
        nats[rows >= 0] = self._words.sum_shared(words.weights, rows[rows >= 0])
        return nats

    def catch_up(self, store: ProjectedStore) -> None:
        """Apply what changed since `applied_seq`; a store that is behind it is another one, and read anew."""
        latest = store.latest_seq()
        if latest < self._applied_seq:
            self._clear()
        if latest == self._applied_seq:
            return
        after = self._applied_seq
        forgotten = forgotten_since(store, after, latest) if after else []
        rows = (row for row in store.iter_rows(after_seq=after) if row.seq <= latest)
        with self._applying(latest):
            self._drop(forgotten)
            while part := list(islice(rows, _APPLIED_AT_ONCE)):
                self._drop(row.memory_id for row in part)
                self._put(part)
        if forgotten:
            self._file.erase_residue()
        if self._roster.is_sparse:
            with self._reading_again_on_failure():
                self._words.compact(self._roster.compact())

    def rebuild(self, store: ProjectedStore) -> None:
        """Forget everything and read all rows; a file is replaced by a new one only when that is whole."""
        path = self._file.path
        if path is None:
            self._clear()
            self.catch_up(store)
            return
        with replace_file(path) as temporary:
            fresh = LexicalIndex(temporary)
            fresh.catch_up(store)
            fresh.close()
            self.close()
            remove_database(path)
        self._file.reopen()
        self._roster, self._words = fresh._roster, fresh._words
        self._applied_seq, self._digest = fresh._applied_seq, fresh._digest

    def find_differences(self, store: ProjectedStore) -> list[str]:
        """Ids of the memories whose words, owner or filters are not what the store's rows say, sorted.

        Raises:
            ProjectionInvalid: The postings do not agree with the texts they were made from.
        """
        self._file.check_postings()
        mine = {entry.memory_id: (entry, words) for entry, words in self._file.documents()}
        theirs = {
            row.memory_id: (entry_of(row), frozenset(tokenize(row.content))) for row in store.iter_rows()
        }
        return sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))

    def close(self) -> None:
        """Close the file; what was applied is on disk."""
        self._file.close()

    @classmethod
    def load(cls, path: Path, *, is_shared: bool = False) -> "LexicalIndex":
        """Open what a process left at `path`.

        Args:
            path: The file.
            is_shared: Another process owns the file: work on a private copy in memory.

        Raises:
            ProjectionInvalid: There is no file, it is torn or altered, or texts are cut otherwise by now.
        """
        if not path.is_file():
            raise ProjectionInvalid(f"{path} must be a file, got none")
        index = cls.__new__(cls)
        try:
            index._file = LexicalFile.open(path, is_shared=is_shared)
            try:
                index._read_file()
            except BaseException:
                index.close()
                raise
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            raise ProjectionInvalid(f"{path} must hold what was written, got: {error}") from error
        return index

    def _read_file(self) -> None:
        state = self._file.read_state()
        if state["fingerprint"] != LEXICAL_FINGERPRINT:
            raise ProjectionInvalid(f"texts must be cut by {LEXICAL_FINGERPRINT}, got {state['fingerprint']}")
        self._roster, self._words = Roster(), WordTable()
        self._digest, self._applied_seq = 0, int(state["applied_seq"])
        for entry, words in self._file.documents():
            self._roster.put(*entry)
            self._words.put(words)
            self._digest = (self._digest + _digest(entry, words)) % _DIGEST_MODULUS
        if self.sha256 != state["digest"]:
            raise ProjectionInvalid("the rows must be those that were written, got others: torn or altered")

    def _state(self, applied_seq: int) -> dict[str, str]:
        return {
            "fingerprint": LEXICAL_FINGERPRINT,
            "applied_seq": str(applied_seq),
            "digest": self.sha256,
        }

    def _clear(self) -> None:
        self._roster, self._words = Roster(), WordTable()
        self._applied_seq = self._digest = 0
        self._file.clear(self._state(0))

    @contextmanager
    def _applying(self, latest: int) -> Generator[None]:
        """One transaction; if it fails, what is in memory is read from the file again."""
        with self._reading_again_on_failure(), self._file.writing() as state:
            yield
            state |= self._state(latest)
        self._applied_seq = latest

    @contextmanager
    def _reading_again_on_failure(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            with suppress(sqlite3.DatabaseError, ProjectionInvalid):
                self._read_file()
            raise

    def _put(self, rows: Sequence[ProjectionRow]) -> None:
        entries = [entry_of(row) for row in rows]
        texts = [tokenize(row.content) for row in rows]
        words = [frozenset(tokens) for tokens in texts]
        self._file.put(entries, words, [len(tokens) for tokens in texts])
        for entry, found in zip(entries, words, strict=True):
            self._roster.put(*entry)
            self._words.put(found)
            self._digest = (self._digest + _digest(entry, found)) % _DIGEST_MODULUS

    def _drop(self, memory_ids: Iterable[str]) -> None:
        known: list[str] = []
        for memory_id in memory_ids:
            if (row := self._roster.drop(memory_id)) is not None:
                self._words.erase(row)
                known.append(memory_id)
        for entry, words in self._file.drop(known):
            self._digest = (self._digest - _digest(entry, words)) % _DIGEST_MODULUS

    def _read(self, words: QueryWords, wanted: RowFilter, left: int) -> Iterator[NDArray[np.int64]]:
        """Allowed rows that share a word, until enough were read."""
        for (owner, token), _ in sorted(words.counts.items(), key=lambda item: (item[1], item[0])):
            for seqs in self._file.iter_holders(owner, token, wanted):
                rows = self._roster.keep_allowed(self._roster.rows_of_seqs(seqs), wanted)
                if len(rows):
                    yield rows[:left]
                left -= len(rows)
                if left <= 0:
                    return


def _digest(entry: RosterEntry, words: Iterable[str]) -> int:
    owner = (entry.owner.scope.value, *entry.owner[1:])
    facts = (entry.memory_id, entry.seq, owner, entry.facet.type.value, entry.facet.tags, entry.valid_until)
    return int.from_bytes(hashlib.sha256("\0".join((repr(facts), *sorted(words))).encode()).digest())
