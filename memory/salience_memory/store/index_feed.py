"""What indexes read: rows and vectors on nobody's behalf, and what changed since a `seq`.

A vector carries the fingerprint of the embedding that made it; two fingerprints never meet. What an index
proposes is looked up in the rows on behalf of a viewer.
"""

import sqlite3
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import EmbeddingMismatch, StoreCorrupt
from salience_memory.records import MemoryState, StoredMemory
from salience_memory.store.memory_rows import MemoryRows
from salience_memory.store.rows import (
    Change,
    ProjectionRow,
    VectorBatch,
    chunks,
    decode_body,
    placeholders,
)

__all__ = ["CheckedVectors", "IndexFeed"]

_ROWS_AT_ONCE = 1000

_CHANGES = """
SELECT seq, memory_id, 'put' AS kind, version FROM memories WHERE seq > :after
UNION ALL
SELECT seq, memory_id, 'delete' AS kind, version FROM tombstones WHERE seq > :after
ORDER BY seq LIMIT :limit
"""
_VECTORS_AT_ONCE = 2000

_LITTLE_ENDIAN = np.dtype("<f4")
"""BLOBs are read the same on every machine."""

# CROSS JOIN keeps SQLite from beginning with all vectors of an embedding, sorted anew for every batch.
_COLUMNS = "SELECT m.memory_id, m.seq, v.vector FROM memories AS m CROSS JOIN vectors AS v USING (memory_id)"

_MISSING = """
SELECT m.* FROM memories AS m WHERE m.seq > ? AND NOT EXISTS (
    SELECT 1 FROM vectors AS v WHERE v.memory_id = m.memory_id AND v.fingerprint_id = ?
) ORDER BY m.seq LIMIT ?
"""


class CheckedVectors(NamedTuple):
    """Finite vectors [record, embed], one a memory, and what made them."""

    fingerprint: str
    vectors: NDArray[np.float32]


class IndexFeed(MemoryRows):
    """Rows by `seq`, and vectors as float32 BLOBs beside them."""

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

    def iter_rows(self, after_seq: int = 0, *, batch_rows: int = _ROWS_AT_ONCE) -> Iterator[ProjectionRow]:
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

    def put_vectors(
        self,
        memory_ids: Sequence[str],
        versions: Sequence[int],
        vectors: NDArray[np.float32],
        fingerprint: str,
    ) -> int:
        """Store vectors computed from memories as they were read.

        A vector whose memory was forgotten meanwhile, or says something else since that version, is left
        out. A row that gets one gets a new `seq`, so that every process's index learns of it.

        Args:
            memory_ids: Whose they are.
            versions: The version each was computed from.
            vectors: float32 [record, embed].
            fingerprint: Names the embedding.

        Returns:
            How many were stored.

        Raises:
            EmbeddingMismatch: Not one finite vector a memory, or not of the fingerprint's dimension.
        """
        if len(versions) != len(memory_ids):
            raise ValueError(f"versions must hold {len(memory_ids)} numbers, got {len(versions)}")
        checked = self._checked_vectors(memory_ids, vectors, fingerprint)
        assert checked is not None  # both were given
        with self._database.writing(durable=False) as connection:
            fingerprint_id = _fingerprint_id(connection, checked)
            count = 0
            for memory_id, version, vector in zip(memory_ids, versions, checked.vectors, strict=True):
                row = self._find_row(connection, memory_id)
                if row is None or not row["content_version"] <= version <= row["version"]:
                    continue
                self._put_vector(connection, memory_id, fingerprint_id, vector)
                self._renumber(connection, memory_id)
                count += 1
        return count

    def iter_vectors(
        self, fingerprint: str, *, after_seq: int = 0, batch_rows: int = _VECTORS_AT_ONCE
    ) -> Iterator[VectorBatch]:
        """All vectors of one embedding in batches, by rising `seq`; none for an unknown fingerprint.

        As with `iter_rows`, others may write between two batches.
        """
        query = f"{_COLUMNS} WHERE v.fingerprint_id = ? AND m.seq > ? ORDER BY m.seq LIMIT ?"
        while True:
            with self._database.reading() as connection:
                known = _find_fingerprint(connection, fingerprint)
                if known is None:
                    return
                rows = connection.execute(query, (known["fingerprint_id"], after_seq, batch_rows)).fetchall()
            if rows:
                yield _batch(rows, known["dimension"])
            if len(rows) < batch_rows:
                return
            after_seq = rows[-1]["seq"]

    def vectors_of(self, memory_ids: Sequence[str], fingerprint: str) -> VectorBatch:
        """The vectors of those of the ids that have one of that embedding, by rising `seq`."""
        rows: list[sqlite3.Row] = []
        with self._database.reading() as connection:
            known = _find_fingerprint(connection, fingerprint)
            if known is None:
                return VectorBatch([], np.empty(0, np.int64), np.empty((0, 0), np.float32))
            for chunk in chunks(dict.fromkeys(memory_ids)):
                query = (
                    f"{_COLUMNS} WHERE v.fingerprint_id = ? AND m.memory_id IN ({placeholders(len(chunk))})"
                )
                rows += connection.execute(query, (known["fingerprint_id"], *chunk)).fetchall()
        return _batch(sorted(rows, key=lambda row: row["seq"]), known["dimension"])

    def missing_vectors(
        self, fingerprint: str, limit: int = 256, *, after_seq: int = 0
    ) -> list[StoredMemory]:
        """Memories without a vector of that embedding, whosever, by rising `seq`.

        A memory that loses its vector gets a new `seq`: whoever has seen to all up to one need not look
        there again.
        """
        with self._database.reading() as connection:
            known = _find_fingerprint(connection, fingerprint)
            fingerprint_id = None if known is None else known["fingerprint_id"]
            rows = connection.execute(_MISSING, (after_seq, fingerprint_id, limit)).fetchall()
            now_ns = self._clock()
            return [self._stored(row, now_ns) for row in rows]

    def fingerprints(self) -> dict[str, int]:
        """How many vectors there are of each embedding that has any."""
        with self._database.reading() as connection:
            return dict(
                connection.execute(
                    "SELECT name, COUNT(*) FROM vectors JOIN fingerprints USING (fingerprint_id) "
                    "GROUP BY fingerprint_id ORDER BY name"
                ).fetchall()
            )

    def drop_vectors(self, fingerprint: str) -> int:
        """Delete the vectors of an embedding that is no longer used; returns how many there were."""
        with self._database.writing(durable=False) as connection:
            known = _find_fingerprint(connection, fingerprint)
            if known is None:
                return 0
            bound = (known["fingerprint_id"],)
            count = connection.execute("DELETE FROM vectors WHERE fingerprint_id = ?", bound).rowcount
            connection.execute("DELETE FROM fingerprints WHERE fingerprint_id = ?", bound)
        return count

    def _checked_vectors(
        self, memory_ids: Sequence[str], vectors: NDArray[np.float32] | None, fingerprint: str | None
    ) -> CheckedVectors | None:
        if vectors is None and fingerprint is None:
            return None
        if vectors is None or not fingerprint:
            given = "vectors" if fingerprint is None else "fingerprint"
            raise ValueError(f"vectors and fingerprint must be given together, got {given} alone")
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(memory_ids) or not vectors.shape[1]:
            raise EmbeddingMismatch(
                f"vectors must have shape [{len(memory_ids)}, embed], got {list(vectors.shape)}"
            )
        if not np.isfinite(vectors).all():
            raise EmbeddingMismatch("vectors must be finite, got NaN or infinity")
        return CheckedVectors(fingerprint, vectors)

    def _attach_vectors(
        self,
        connection: sqlite3.Connection,
        ids: Sequence[str],
        changed: Container[str],
        checked: CheckedVectors,
    ) -> None:
        """Put the vectors of memories just declared; unchanged ones keep what they have."""
        fingerprint_id = _fingerprint_id(connection, checked)
        has_one = "SELECT 1 FROM vectors WHERE memory_id = ? AND fingerprint_id = ?"
        for memory_id, vector in zip(ids, checked.vectors, strict=True):
            if memory_id in changed:
                self._put_vector(connection, memory_id, fingerprint_id, vector)
            elif connection.execute(has_one, (memory_id, fingerprint_id)).fetchone() is None:
                self._put_vector(connection, memory_id, fingerprint_id, vector)
                self._renumber(connection, memory_id)

    def _put_vector(
        self, connection: sqlite3.Connection, memory_id: str, fingerprint_id: int, vector: NDArray[np.float32]
    ) -> None:
        connection.execute(
            "INSERT INTO vectors VALUES (?, ?, ?) "
            "ON CONFLICT (memory_id, fingerprint_id) DO UPDATE SET vector = excluded.vector",
            (memory_id, fingerprint_id, vector.astype(_LITTLE_ENDIAN).tobytes()),
        )

    def _renumber(self, connection: sqlite3.Connection, memory_id: str) -> None:
        connection.execute(
            "UPDATE memories SET seq = ? WHERE memory_id = ?", (self._database.take_seq(), memory_id)
        )


def _find_fingerprint(connection: sqlite3.Connection, name: str) -> sqlite3.Row | None:
    return connection.execute("SELECT * FROM fingerprints WHERE name = ?", (name,)).fetchone()


def _fingerprint_id(connection: sqlite3.Connection, checked: CheckedVectors) -> int:
    """The row of a fingerprint, made when it is new."""
    dimension = checked.vectors.shape[1]
    known = _find_fingerprint(connection, checked.fingerprint)
    if known is None:
        insert = "INSERT INTO fingerprints (name, dimension) VALUES (?, ?)"
        return connection.execute(insert, (checked.fingerprint, dimension)).lastrowid or 0
    if known["dimension"] != dimension:
        raise EmbeddingMismatch(
            f"vectors of {checked.fingerprint} must have dimension {known['dimension']}, got {dimension}"
        )
    return known["fingerprint_id"]


def _batch(rows: Sequence[sqlite3.Row], dimension: int) -> VectorBatch:
    size = dimension * _LITTLE_ENDIAN.itemsize
    if torn := [row["memory_id"] for row in rows if len(row["vector"]) != size]:
        raise StoreCorrupt(f"the vector of {torn[0]!r} must have {size} bytes")
    joined = b"".join(row["vector"] for row in rows)
    vectors = np.frombuffer(joined, _LITTLE_ENDIAN).reshape(len(rows), dimension)
    seqs = np.array([row["seq"] for row in rows], dtype=np.int64)
    return VectorBatch([row["memory_id"] for row in rows], seqs, vectors.astype(np.float32))


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
