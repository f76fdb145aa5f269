"""Recall from the store: which of the memories that a viewer may see a query is about, and why each one is.

Indexes only propose. What is returned is read from the store's rows on behalf of the viewer, and scored by
what those rows say: an index that is behind, torn or wrong can hide a memory, never show one.
"""

import math
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from salience_memory.clock import Clock, system_clock
from salience_memory.conflicts import find_conflicts
from salience_memory.decay import DecayPolicy, assess
from salience_memory.errors import EmbeddingMismatch
from salience_memory.index.lexical_index import QueryWords
from salience_memory.index.projection import Projection
from salience_memory.index.projections import Projections
from salience_memory.index.roster import RowFilter
from salience_memory.lexical import tokenize
from salience_memory.ranking import RecallBreakdown, rank
from salience_memory.records import MemoryType, StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store import MemoryStore
from salience_memory.vectors import Embed, EmbeddingCache, check_vectors

__all__ = ["MemoryRecall", "RecalledMemory"]

_PROPOSED_BY_WORDS = 256
_PROPOSED_BY_VECTORS = 128
_MEMORIES_PER_SPARE = 1_400
"""In how many memories one more is proposed by vectors: in a large store very many mean nearly the same."""
_FINALISTS = 20
_FINALISTS_PER_RESULT = 4
_WIDENED_BY = 4
_WIDEST = 64
"""Times as many candidates as usual are looked at, at most, where those found are too old to be shown."""
_EMBEDDED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class RecalledMemory:
    """A memory that a query is about."""

    memory: StoredMemory
    score: float
    """Relevance in [0, 1]; 0 for one that a cold start returns without having compared it."""
    probability: float
    """That the memory bears on the query, calibrated (`ranking.py`); 0 for one that was not compared."""
    breakdown: RecallBreakdown
    has_conflict: bool = False
    """Another memory that the viewer may see says something else on the same key."""

    @property
    def content(self) -> str:
        """What the memory says."""
        return self.memory.content

    @property
    def confidence(self) -> float:
        """Trust times freshness: how far the memory is to be believed, whatever the query."""
        return self.memory.trust * self.memory.freshness


class MemoryRecall:
    """Searches one store by meaning and by words. Threads may share it; processes may share its folder."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        embed: Embed | None = None,
        fingerprint: str | None = None,
        folder: Path | None = None,
        clock: Clock = system_clock,
        device: str = "cpu",
        policy: DecayPolicy | None = None,
    ) -> None:
        """Open the indexes, or begin empty ones; nothing is embedded or read of the rows yet.

        Args:
            store: The rows. Left open by `close`.
            embed: Texts to unit vectors. Without it only words are searched, unless queries bring vectors.
            fingerprint: Names the embedding, of `embed` and of vectors that come with queries.
            folder: Where indexes are kept between runs. None: built anew from the rows each time.
            clock: What validity is judged by; the store's own clock has its say as well.
            device: Where vectors are scanned: `cpu`, or `cuda` (faiss-gpu).
            policy: From which age on a memory counts as archived, whether its row says so yet or not.
        """
        if embed is not None and not fingerprint:
            raise ValueError("fingerprint must name the embedding that embed makes, got none")
        self._store = store
        self._embed = embed
        self._cache = None if embed is None else EmbeddingCache(embed)
        self._fingerprint = fingerprint
        self._clock = clock
        self._policy = policy
        self._lock = threading.RLock()
        self._projections = Projections(store, fingerprint, folder, device)
        self._foreign = self._find_foreign()

    def recall(
        self,
        query: str,
        viewer: Viewer,
        *,
        top_k: int = 5,
        types: Sequence[MemoryType | str] = (),
        tags: Sequence[str] = (),
        include_archived: bool = False,
        query_vector: NDArray[np.float32] | None = None,
        now_ns: int | None = None,
    ) -> list[RecalledMemory]:
        """The memories a query is about: most relevant first, then most trusted, then freshest.

        Every change that any process committed before the call is seen. A memory without a vector is found
        by its words until `sync`. A blank query recalls nothing. While the very first index is still being
        built by another thread, or no memory has a vector yet and words find nothing, pinned memories and
        constraints are returned instead. What is too old counts as archived; without a `maintain` now and
        then, very many such rows may hide a young one that fits less well.

        Args:
            query: What is asked.
            viewer: On whose behalf.
            top_k: Most memories returned.
            types: Of any of these; none named, every type.
            tags: With all of these.
            include_archived: Archived memories too.
            query_vector: The query's unit vector [embed], if the caller has it.
            now_ns: When memories must be valid; default, the clock's time. Never one that is already invalid.

        Raises:
            EmbeddingMismatch: The store holds vectors of another embedding; `reembed` replaces them.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        kinds = tuple(MemoryType(kind) for kind in types)
        if not query.strip():
            return []
        if query_vector is not None and self._fingerprint is None:
            raise ValueError("fingerprint must name the embedding of query_vector, got none")
        vector = query_vector
        if query_vector is not None or self._cache is not None:
            self._refuse_foreign()
        if query_vector is None and self._cache is not None:
            vector = self._cache.embed([query])[0]
        moment = self._clock() if now_ns is None else max(now_ns, self._clock())
        wanted = RowFilter(viewer, moment, kinds, tuple(tags), include_archived)
        breadth = top_k
        while True:
            if not self._lock.acquire(blocking=self._projections.is_ready):
                return self._cold_start(wanted, top_k)
            try:
                words, similarities, has_vectors = self._propose(query, vector, wanted, breadth)
            finally:
                self._lock.release()
            found = self._store.get_many([*similarities], viewer, include_archived=include_archived)
            memories = [memory for memory in found.values() if self._passes(memory, wanted)]
            # Indexes don't know ages: where some were too old, the next ones might be hidden behind them.
            is_enough = len(memories) >= min(len(found), _finalists(top_k))
            if is_enough or len(similarities) < _finalists(breadth) or breadth >= _WIDEST * top_k:
                break
            breadth *= _WIDENED_BY
        by_id = {memory.memory_id: memory for memory in memories}
        ranked = rank(
            words.weights,
            words.mean_tokens,
            {memory.memory_id: tokenize(memory.content) for memory in memories},
            None if vector is None else self._similarities(memories, similarities, vector),
        )
        results = [
            RecalledMemory(by_id[one.item], one.score, one.probability, one.breakdown) for one in ranked
        ]
        results = sorted(results, key=_standing_of)[:top_k]
        if not results and vector is not None and not has_vectors:
            return self._cold_start(wanted, top_k)
        return self._marked(results, wanted)

    def search_vectors(self, vector: NDArray[np.float32], wanted: RowFilter, count: int) -> dict[str, float]:
        """The nearest memories by the vector index alone, with their similarities; rows are not looked up."""
        with self._lock:
            self._projections.catch_up()
            vectors = self._projections.vectors
            return {} if vectors is None else vectors.search(vector, wanted, count)

    def sync(self) -> int:
        """Embed the memories that lack a vector and bring the indexes up to date; returns how many lacked it.

        Raises:
            EmbeddingMismatch: The store holds vectors of another embedding, or `embed` broke its contract.
        """
        self._foreign = self._find_foreign()
        self._refuse_foreign()
        count = self._embed_missing()
        with self._lock:
            self._projections.catch_up()
            self._projections.save_if_worthwhile()
        return count

    def reembed(self) -> int:
        """Replace vectors of other embeddings by this one's; returns how many memories were embedded.

        What was embedded stays when this is interrupted, and is not embedded again; until it has ended,
        recall refuses.
        """
        if self._embed is None:
            raise ValueError("embed must be given to embed memories anew, got none")
        count = self._embed_missing()
        for name in self._find_foreign():
            self._store.drop_vectors(name)
        self._foreign = self._find_foreign()
        with self._lock:
            self._projections.catch_up()
            self._projections.save_if_worthwhile()
        return count

    def rebuild(self) -> None:
        """Read every index anew from the rows."""
        with self._lock:
            self._projections.rebuild()

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The indexes, for comparing with the rows."""
        return self._projections.all

    @property
    def foreign_fingerprints(self) -> tuple[str, ...]:
        """Other embeddings whose vectors the store held when last looked; with any, recall refuses."""
        return tuple(self._foreign)

    def close(self) -> None:
        """Keep the indexes in their folder and let another process have it."""
        with self._lock:
            self._projections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find_foreign(self) -> list[str]:
        if self._fingerprint is None:
            return []
        return [name for name in self._store.fingerprints() if name != self._fingerprint]

    def _refuse_foreign(self) -> None:
        if self._foreign:
            raise EmbeddingMismatch(
                f"the store holds vectors of {', '.join(self._foreign)} and queries are embedded by "
                f"{self._fingerprint}: call reembed(), or recall with that embedding"
            )

    def _embed_missing(self) -> int:
        if self._embed is None or self._fingerprint is None:
            return 0
        count = after = 0
        while True:
            memories = self._store.missing_vectors(self._fingerprint, _EMBEDDED_AT_ONCE, after_seq=after)
            if not memories:
                return count
            vectors = check_vectors(self._embed([memory.content for memory in memories]), len(memories))
            ids, versions = [m.memory_id for m in memories], [m.version for m in memories]
            count += self._store.put_vectors(ids, versions, vectors, self._fingerprint)
            after = memories[-1].seq

    def _propose(
        self, query: str, vector: NDArray[np.float32] | None, wanted: RowFilter, top_k: int
    ) -> tuple[QueryWords, dict[str, tuple[float, int] | None], bool]:
        """The words; candidates, each with similarity and the `seq` compared; whether any vector is here."""
        try:
            self._projections.catch_up()
            return self._search(query, vector, wanted, top_k)
        except sqlite3.DatabaseError:  # torn under our feet: rows know better
            self._projections.rebuild()
            return self._search(query, vector, wanted, top_k)

    def _search(
        self, query: str, vector: NDArray[np.float32] | None, wanted: RowFilter, top_k: int
    ) -> tuple[QueryWords, dict[str, tuple[float, int] | None], bool]:
        lexical, vectors = self._projections.lexical, self._projections.vectors
        words = lexical.weigh(query, wanted.viewer, wanted.include_archived)
        count = _finalists(top_k)
        ids = lexical.search(words, wanted, max(_PROPOSED_BY_WORDS, count))
        if vectors is None or vector is None or not len(vectors):
            return words, dict.fromkeys(ids[:count]), False
        spare = max(_PROPOSED_BY_VECTORS, len(vectors) // _MEMORIES_PER_SPARE)
        near = vectors.search(vector, wanted, count, spare=spare)
        others = [memory_id for memory_id in ids if memory_id not in near]
        similarities = near | dict(zip(others, vectors.compare(vector, others).tolist(), strict=True))
        pool = list(similarities)
        meaning = np.clip(np.nan_to_num(np.fromiter(similarities.values(), dtype=np.float64)), 0.0, 1.0)
        scores = meaning + lexical.cover(words, pool) / (sum(words.weights.values()) or 1.0)
        places: list[int] = np.argsort(-scores, kind="stable")[:count].tolist()
        best = [pool[place] for place in places]
        finalists = dict.fromkeys([*best, *ids[:top_k], *list(near)[:top_k]])
        compared: dict[str, tuple[float, int] | None] = {}
        for key in finalists:
            seq, similarity = vectors.seq_of(key), similarities[key]
            compared[key] = None if seq is None or math.isnan(similarity) else (similarity, seq)
        return words, compared, True

    def _similarities(
        self,
        memories: Sequence[StoredMemory],
        compared: Mapping[str, tuple[float, int] | None],
        vector: NDArray[np.float32],
    ) -> dict[str, float]:
        """By id; what the index compared counts only if the row is still the one it knew."""
        found: dict[str, float] = {}
        missing: list[StoredMemory] = []
        for memory in memories:
            known = compared.get(memory.memory_id)
            if known is not None and known[1] == memory.seq:
                found[memory.memory_id] = known[0]
            else:
                missing.append(memory)
        if missing and self._cache is not None:
            vectors = self._cache.embed([memory.content for memory in missing])
            for memory, similarity in zip(missing, np.round(vectors @ vector, 6).tolist(), strict=True):
                found[memory.memory_id] = similarity
        return found

    def _cold_start(self, wanted: RowFilter, top_k: int) -> list[RecalledMemory]:
        """Pinned memories and constraints, constraints first."""
        viewer, archived = wanted.viewer, wanted.include_archived
        found = self._store.list(
            viewer, types=(MemoryType.CONSTRAINT,), include_archived=archived, limit=1000
        )
        found += self._store.list(viewer, pinned=True, include_archived=archived, limit=1000)
        memories = {memory.memory_id: memory for memory in found if self._passes(memory, wanted)}
        results = [
            RecalledMemory(memory, 0.0, 0.0, RecallBreakdown(None, 0.0, 0.0, 0.0, 0.0, None, None, 0.0, 0))
            for memory in memories.values()
        ]
        results.sort(
            key=lambda result: (result.memory.type is not MemoryType.CONSTRAINT, *_standing_of(result))
        )
        return self._marked(results[:top_k], wanted)

    def _marked(self, results: Sequence[RecalledMemory], wanted: RowFilter) -> list[RecalledMemory]:
        """The same, with those marked that another visible memory contradicts."""
        memories = {result.memory.memory_id: result.memory for result in results}
        for key in {memory.key for memory in memories.values() if memory.key is not None}:
            for memory in self._store.list(wanted.viewer, key=key):
                if not self._is_overaged(memory, wanted):
                    memories[memory.memory_id] = memory
        marked = {key for conflict in find_conflicts(memories.values()) for key in conflict.memory_ids}
        return [replace(result, has_conflict=result.memory.memory_id in marked) for result in results]

    def _passes(self, memory: StoredMemory, wanted: RowFilter) -> bool:
        """The filter once more, on the row itself, and on its age."""
        is_valid = memory.valid_until is None or memory.valid_until > wanted.now_ns
        is_wanted = (not wanted.types or memory.type in wanted.types) and set(wanted.tags) <= set(memory.tags)
        is_theirs = wanted.viewer.can_see(memory.scope, memory.user_id, memory.session_id)
        return is_valid and is_wanted and is_theirs and not self._is_overaged(memory, wanted)

    def _is_overaged(self, memory: StoredMemory, wanted: RowFilter) -> bool:
        """Whether it belongs in the archive and that was not asked for."""
        return not wanted.include_archived and assess(memory, wanted.now_ns, self._policy).should_archive


def _finalists(top_k: int) -> int:
    """How many candidates are looked at for so many results."""
    return max(_FINALISTS, _FINALISTS_PER_RESULT * top_k)


def _standing_of(result: RecalledMemory) -> tuple[float, float, float, str]:
    """What results are sorted by: relevance, then trust, then freshness, then the id."""
    memory = result.memory
    return (-result.score, -memory.trust, -memory.freshness, memory.memory_id)
