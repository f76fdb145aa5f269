"""The vector projection: which stored memories a query vector is nearest to, exactly and within its filter.

Rows outside the filter are masked before anything is ranked. A scan of 8-bit codes (`scan.py`) proposes
rows, the 32-bit vectors decide, and the scan's ceiling proves that nothing better was left out; where it
does not, every row that may reach the last place is looked at. The result is that of exact search.
"""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import ProjectionInvalid
from salience_memory.index.projection import ProjectedStore, forgotten_since
from salience_memory.index.roster import Roster, RosterEntry, RowFilter, entry_of
from salience_memory.index.scan import Scan, SelectorScan, gpu_scan
from salience_memory.index.vector_file import read_vector_file, write_vector_file

__all__ = ["VectorIndex"]

_EXACT_ROWS = 4096
"""Up to so many allowed rows are compared exactly, without a scan."""

_SCANNED_AT_LEAST = 512
_SCANNED_PER_RESULT = 4


class VectorIndex:
    """The vectors of one embedding. Not for use by several threads at once."""

    def __init__(self, fingerprint: str, *, device: str = "cpu") -> None:
        """An empty index.

        Args:
            fingerprint: Of the embedding whose vectors are read from the store.
            device: `cpu`, or `cuda` for the first CUDA device, which needs faiss-gpu.
        """
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, got {device!r}")
        self._fingerprint = fingerprint
        self._device = device
        self._applied_seq = 0
        self._roster = Roster()
        self._vectors = np.empty((0, 0), dtype=np.float32)
        self._scan: Scan | None = None
        self._is_stale = False
        self.changed_rows = 0
        """Rows put or dropped since the index was loaded, saved or made."""

    def __len__(self) -> int:
        """How many memories are here."""
        return len(self._roster)

    @property
    def applied_seq(self) -> int:
        """The store's `seq` that this holds every vector up to."""
        return self._applied_seq

    @property
    def fingerprint(self) -> str:
        """The embedding's."""
        return self._fingerprint

    @property
    def device(self) -> str:
        """Where it is scanned."""
        return self._device

    @property
    def dimension(self) -> int | None:
        """Length of the vectors; None before the first."""
        return self._vectors.shape[1] or None

    @property
    def sha256(self) -> str:
        """Hash of fingerprint, ids, `seq`s and vectors."""
        digest = hashlib.sha256(self._fingerprint.encode())
        for row in sorted(self._roster.rows().tolist(), key=self._roster.id_of):
            digest.update(f"\0{self._roster.id_of(row)}\0{self._roster.seqs[row]}\0".encode())
            digest.update(self._vectors[row].tobytes())
        return digest.hexdigest()

    def seq_of(self, memory_id: str) -> int | None:
        """The `seq` of the row whose vector is here."""
        row = self._roster.row_of(memory_id)
        return None if row is None else int(self._roster.seqs[row])

    def newest(self, count: int) -> dict[str, int]:
        """The `seq`s of the rows applied last, by id."""
        return self._roster.newest(count)

    def search(
        self, query: NDArray[np.float32], wanted: RowFilter, count: int, *, spare: int = 0
    ) -> dict[str, float]:
        """The memories nearest to a query among those that the filter allows, nearest first.

        Args:
            query: Unit vector, [embed].
            wanted: What may be returned.
            count: How many are surely the nearest.
            spare: How many more are returned that are near, though one left out may be nearer.

        Returns:
            Similarity by id, rounded to 6 decimals so that equal vectors tie wherever they stand.
        """
        allowed = self._roster.select(wanted)
        n_allowed = int(np.count_nonzero(allowed))
        if not n_allowed:
            return {}
        query = self._checked(query)
        is_few = n_allowed <= _EXACT_ROWS
        rows = np.flatnonzero(allowed) if is_few else self._scanned(query, allowed, count, spare)
        similarities = self._similarities(query, rows)
        order = np.lexsort((rows, -similarities))[: count + spare]
        return {self._roster.id_of(int(rows[place])): float(similarities[place]) for place in order}

    def compare(self, query: NDArray[np.float32], memory_ids: list[str]) -> NDArray[np.float32]:
        """Similarity to each of some memories, rounded as `search` does; NaN where there is no vector."""
        rows = np.array([self._roster.row_of(memory_id) for memory_id in memory_ids], dtype=np.float64)
        is_known = ~np.isnan(rows)
        similarities = np.full(len(rows), np.nan, dtype=np.float32)
        if is_known.any():
            similarities[is_known] = self._similarities(self._checked(query), rows[is_known].astype(np.int64))
        return similarities

    def catch_up(self, store: ProjectedStore) -> None:
        """Apply what changed since `applied_seq`; a store that is behind it is another one, and read anew."""
        latest = store.latest_seq()
        if latest < self._applied_seq:
            self._clear()
        if latest == self._applied_seq:
            return
        after = self._applied_seq
        if after:
            self._drop(forgotten_since(store, after, latest))
        entries = {
            row.memory_id: entry_of(row) for row in store.iter_rows(after_seq=after) if row.seq <= latest
        }
        self._drop(entries)
        for batch in store.iter_vectors(self._fingerprint, after_seq=after):
            # A row that changed between the two readings comes with its change.
            places = [
                place
                for place, (memory_id, seq) in enumerate(
                    zip(batch.memory_ids, batch.seqs.tolist(), strict=True)
                )
                if memory_id in entries and entries[memory_id].seq == seq
            ]
            self._append([batch.memory_ids[place] for place in places], batch.vectors[places], entries)
        self._applied_seq = latest
        if self._roster.is_sparse:
            self._vectors = self._vectors[self._roster.compact()]
            self._is_stale = True

    def rebuild(self, store: ProjectedStore) -> None:
        """Forget everything and read all vectors."""
        self._clear()
        self.catch_up(store)

    def find_differences(self, store: ProjectedStore) -> list[str]:
        """Ids of the memories whose row or vector is not what the store holds, sorted."""
        fresh = VectorIndex(self._fingerprint)
        fresh.rebuild(store)
        mine, theirs = self._contents(), fresh._contents()
        return sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))

    def save(self, path: Path) -> None:
        """Write everything; the file is whole or the one before it, whatever happens meanwhile."""
        vectors = self._vectors[self._roster.rows()]
        write_vector_file(path, self._fingerprint, self._applied_seq, self._roster.as_state(), vectors)
        self.changed_rows = 0

    @classmethod
    def load(cls, path: Path, fingerprint: str, *, device: str = "cpu") -> "VectorIndex":
        """Read what `save` wrote.

        Raises:
            ProjectionInvalid: The file is torn or altered, or holds another embedding's vectors.
        """
        applied_seq, found, state, vectors = read_vector_file(path)
        if found != fingerprint:
            raise ProjectionInvalid(f"{path} must hold vectors of {fingerprint}, got {found}")
        index = cls(fingerprint, device=device)
        index._roster.extend(state)
        index._vectors, index._applied_seq, index._is_stale = vectors, applied_seq, True
        return index

    def _clear(self) -> None:
        self._roster, self._applied_seq, self._scan = Roster(), 0, None
        self._vectors = np.empty((0, 0), dtype=np.float32)

    def _contents(self) -> dict[str, tuple[object, ...]]:
        state = self._roster.as_state()
        rows = self._roster.rows().tolist()
        return {
            memory_id: (
                int(seq),
                state.owners[owner],
                state.facets[facet],
                int(until),
                self._vectors[row].tobytes(),
            )
            for memory_id, seq, owner, facet, until, row in zip(
                state.ids,
                state.seqs,
                state.owner_places,
                state.facet_places,
                state.valid_until,
                rows,
                strict=True,
            )
        }

    def _checked(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        query = np.ascontiguousarray(query, dtype=np.float32)
        if query.shape != self._vectors.shape[1:]:
            raise ValueError(
                f"query_vector must have shape {list(self._vectors.shape[1:])}, got {list(query.shape)}"
            )
        if not np.isfinite(query).all():
            raise ValueError("query_vector must be finite, got NaN or infinity")
        return query

    def _scanned(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], count: int, spare: int
    ) -> NDArray[np.int64]:
        """Allowed rows among which the `count` nearest are."""
        scan = self._fitted()
        n_scanned = max(_SCANNED_AT_LEAST, _SCANNED_PER_RESULT * count, count + spare)
        rows, ceiling = scan.nearest(query, allowed, n_scanned)
        if ceiling == -np.inf:
            return rows
        if len(rows) < count:
            return scan.reaching(query, allowed, -np.inf)
        last = float(np.partition(self._similarities(query, rows), len(rows) - count)[len(rows) - count])
        return rows if last >= ceiling else scan.reaching(query, allowed, last)

    def _similarities(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        parts = [
            self._vectors[rows[start : start + _EXACT_ROWS]] @ query
            for start in range(0, len(rows), _EXACT_ROWS)
        ]
        return np.round(np.concatenate(parts), 6)

    def _fitted(self) -> Scan:
        if self._scan is None:
            dimension = self._vectors.shape[1]
            self._scan = SelectorScan(dimension) if self._device == "cpu" else gpu_scan(dimension)
            self._is_stale = True
        if self._is_stale:
            self._scan.fit(self._vectors[: self._roster.size])
            self._is_stale = False
        return self._scan

    def _append(
        self, memory_ids: list[str], vectors: NDArray[np.float32], entries: dict[str, RosterEntry]
    ) -> None:
        if not memory_ids:
            return
        start, end = self._roster.size, self._roster.size + len(memory_ids)
        if not self._vectors.shape[1]:
            self._vectors = np.empty((0, vectors.shape[1]), dtype=np.float32)
        if end > len(self._vectors):
            grown = np.empty((max(end, len(self._vectors) * 3 // 2), vectors.shape[1]), dtype=np.float32)
            grown[:start] = self._vectors[:start]
            self._vectors = grown
        self._vectors[start:end] = vectors
        for memory_id in memory_ids:
            self._roster.put(*entries[memory_id])
        if self._scan is not None and not self._is_stale:
            self._is_stale = not self._scan.append(self._vectors[start:end])
        self.changed_rows += len(memory_ids)

    def _drop(self, memory_ids: list[str] | dict[str, RosterEntry]) -> None:
        found = [row for memory_id in memory_ids if (row := self._roster.drop(memory_id)) is not None]
        if not found:
            return
        rows = np.array(found, dtype=np.int64)
        self._vectors[rows] = 0.0
        if self._scan is not None and not self._is_stale:
            self._is_stale = not self._scan.erase(rows)
        self.changed_rows += len(found)
