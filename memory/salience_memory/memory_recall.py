"""Recall from the store: which of the memories that a viewer may see a query is about, and why each one is.

Indexes only propose. What is returned is read from the store's rows on behalf of the viewer, and scored by
what those rows say: an index that is behind, torn or wrong can hide a memory, never show one.
"""

import math
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from salience_memory.clock import Clock, system_clock
from salience_memory.conflicts import find_conflicts
from salience_memory.errors import EmbeddingMismatch
from salience_memory.index.lexical_index import QueryWords
from salience_memory.index.projection import Projection
from salience_memory.index.projections import Projections
from salience_memory.index.roster import RowFilter
from salience_memory.index.vector_index import VectorIndex
from salience_memory.lexical import tokenize
from salience_memory.records import MemoryType, StoredMemory
from salience_memory.relevance import best_of, compute_coverage, compute_relevance, fuse_ranks, rank_scores
from salience_memory.scopes import Viewer
from salience_memory.store import MemoryStore
from salience_memory.vectors import Embed, EmbeddingCache, check_vectors

__all__ = ["MemoryRecall", "RecallBreakdown", "RecalledMemory"]

_PROPOSED_BY_WORDS = 512
_FINALISTS = 20
_FINALISTS_PER_RESULT = 4
_EMBEDDED_AT_ONCE = 256
_TERM_SATURATION = 1.2
_LENGTH_PENALTY = 0.75
"""BM25's k1 and b, as FTS5 sets them."""


@dataclass(frozen=True, slots=True)
class RecallBreakdown:
    """Why a memory stands where it does. Ranks count from 1 among candidates; None: not in that ranking."""

    similarity: float | None
    """Cosine of query and memory; None without embeddings."""
    coverage: float
    """Share of the query's information, over all that the viewer can see, whose words the memory contains."""
    bm25: float
    """0 where no word is shared."""
    fused: float
    """Sum of `1 / (60 + rank)` over the rankings by similarity and BM25; reported, not ordered by."""
    vector_rank: int | None
    lexical_rank: int | None
    trust: float
    freshness: float


@dataclass(frozen=True, slots=True)
class RecalledMemory:
    """A memory that a query is about."""

    memory: StoredMemory
    score: float
    """Relevance in [0, 1]; 0 for one that a cold start returns without having compared it."""
    confidence: float
    """Trust times freshness: how far the memory is to be believed, whatever the query."""
    has_conflict: bool
    """Another memory that the viewer may see says something else on the same key."""
    breakdown: RecallBreakdown


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
    ) -> None:
        """Open the indexes, or begin empty ones; nothing is embedded or read of the rows yet.

        Args:
            store: The rows. Left open by `close`.
            embed: Texts to unit vectors. Without it only words are searched, unless queries bring vectors.
            fingerprint: Names the embedding, of `embed` and of vectors that come with queries.
            folder: Where indexes are kept between runs. None: built anew from the rows each time.
            clock: What validity is judged by; the store's own clock has its say as well.
            device: Where vectors are scanned: `cpu`, or `cuda` (faiss-gpu).
        """
        if embed is not None and not fingerprint:
            raise ValueError("fingerprint must name the embedding that embed makes, got none")
        self._store = store
        self._embed = embed
        self._cache = None if embed is None else EmbeddingCache(embed)
        self._fingerprint = fingerprint
        self._clock = clock
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
        constraints are returned instead.

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
        vector = self._query_vector(query, query_vector)
        moment = self._clock() if now_ns is None else max(now_ns, self._clock())
        wanted = RowFilter(viewer, moment, kinds, tuple(tags), include_archived)
        if not self._lock.acquire(blocking=self._projections.is_ready):
            return self._cold_start(wanted, top_k)
        try:
            words, similarities, has_vectors = self._propose(query, vector, wanted, top_k)
        finally:
            self._lock.release()
        found = self._store.get_many(list(similarities), viewer, include_archived=include_archived)
        memories = [memory for memory in found.values() if _passes(memory, wanted)]
        results = self._rank(memories, words, similarities, vector, top_k)
        if not results and vector is not None and not has_vectors:
            return self._cold_start(wanted, top_k)
        return self._marked(results, viewer)

    def search_vectors(self, vector: NDArray[np.float32], wanted: RowFilter, count: int) -> dict[str, float]:
        """The nearest memories by the vector index alone, with their similarities; rows are not looked up."""
        with self._lock:
            self._projections.catch_up()
            vectors = self._projections.vectors
            return {} if vectors is None else vectors.search(vector, wanted, count)

    def sync(self) -> int:
        """Embed the memories that lack a vector and bring the indexes up to date; returns how many lacked one.

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

    def _query_vector(self, query: str, given: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        if given is not None and self._fingerprint is None:
            raise ValueError("fingerprint must name the embedding of query_vector, got none")
        if given is None and self._cache is None:
            return None
        self._refuse_foreign()
        return given if given is not None or self._cache is None else self._cache.embed([query])[0]

    def _propose(
        self, query: str, vector: NDArray[np.float32] | None, wanted: RowFilter, top_k: int
    ) -> tuple[QueryWords, dict[str, tuple[float, int] | None], bool]:
        """The query's words; candidates, each with similarity and the `seq` compared; if any vector is here."""
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
        count = max(_FINALISTS, _FINALISTS_PER_RESULT * top_k)
        ids, nats = lexical.search(words, wanted, max(_PROPOSED_BY_WORDS, count))
        coverage = nats / (sum(words.weights.values()) or 1.0)
        if vectors is None or vector is None or not len(vectors):
            return words, dict.fromkeys(ids[:count]), False
        near = vectors.search(vector, wanted, count)
        similarities = vectors.compare(vector, ids)
        guesses = coverage + np.clip(np.nan_to_num(similarities), 0.0, 1.0)
        best = np.argsort(-guesses, kind="stable")[:count].tolist()
        total = {memory_id: max(0.0, similarity) for memory_id, similarity in near.items()}
        total |= {ids[place]: float(guesses[place]) for place in best}
        near |= {ids[place]: float(similarities[place]) for place in best if np.isfinite(similarities[place])}
        finalists = dict.fromkeys([*best_of(total, count), *ids[:top_k], *list(near)[:top_k]])
        return words, {memory_id: _compared(vectors, near, memory_id) for memory_id in finalists}, True

    def _rank(
        self,
        memories: Sequence[StoredMemory],
        words: QueryWords,
        compared: Mapping[str, tuple[float, int] | None],
        vector: NDArray[np.float32] | None,
        top_k: int,
    ) -> list[RecalledMemory]:
        similarities = self._similarities(memories, compared, vector)
        tokens = {memory.memory_id: tokenize(memory.content) for memory in memories}
        bm25 = {key: score for key, found in tokens.items() if (score := _bm25(words, found)) > 0.0}
        vector_ranks, lexical_ranks = rank_scores(similarities), rank_scores(bm25)
        fused = fuse_ranks(vector_ranks, lexical_ranks)
        results: list[RecalledMemory] = []
        for memory in memories:
            key = memory.memory_id
            similarity = similarities.get(key)
            coverage = compute_coverage(words.weights, frozenset(tokens[key]))
            # One that has no vector yet ranks by its words, as if it meant something else.
            score = compute_relevance(None if vector is None else similarity or 0.0, coverage)
            if score > 0.0:
                breakdown = RecallBreakdown(
                    similarity=similarity,
                    coverage=coverage,
                    bm25=bm25.get(key, 0.0),
                    fused=fused.get(key, 0.0),
                    vector_rank=vector_ranks.get(key),
                    lexical_rank=lexical_ranks.get(key),
                    trust=memory.trust,
                    freshness=memory.freshness,
                )
                results.append(_recalled(memory, score, breakdown))
        return sorted(results, key=_standing)[:top_k]

    def _similarities(
        self,
        memories: Sequence[StoredMemory],
        compared: Mapping[str, tuple[float, int] | None],
        vector: NDArray[np.float32] | None,
    ) -> dict[str, float]:
        """By id; what the index compared counts only if the row is still the one it knew."""
        if vector is None:
            return {}
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
        memories = {memory.memory_id: memory for memory in found if _passes(memory, wanted)}
        results = [
            _recalled(
                memory, 0.0, RecallBreakdown(None, 0.0, 0.0, 0.0, None, None, memory.trust, memory.freshness)
            )
            for memory in memories.values()
        ]
        results.sort(key=lambda result: (result.memory.type is not MemoryType.CONSTRAINT, *_standing(result)))
        return self._marked(results[:top_k], viewer)

    def _marked(self, results: Sequence[RecalledMemory], viewer: Viewer) -> list[RecalledMemory]:
        """The same, with those marked that another visible memory contradicts."""
        memories = {result.memory.memory_id: result.memory for result in results}
        for key in {memory.key for memory in memories.values() if memory.key is not None}:
            memories |= {memory.memory_id: memory for memory in self._store.list(viewer, key=key)}
        marked = {key for conflict in find_conflicts(memories.values()) for key in conflict.memory_ids}
        return [
            RecalledMemory(
                result.memory,
                result.score,
                result.confidence,
                result.memory.memory_id in marked,
                result.breakdown,
            )
            for result in results
        ]


def _compared(vectors: VectorIndex, near: Mapping[str, float], memory_id: str) -> tuple[float, int] | None:
    seq = vectors.seq_of(memory_id)
    return None if seq is None or memory_id not in near else (near[memory_id], seq)


def _recalled(memory: StoredMemory, score: float, breakdown: RecallBreakdown) -> RecalledMemory:
    return RecalledMemory(memory, score, memory.trust * memory.freshness, False, breakdown)


def _standing(result: RecalledMemory) -> tuple[float, float, float, str]:
    memory = result.memory
    return (-result.score, -memory.trust, -memory.freshness, memory.memory_id)


def _passes(memory: StoredMemory, wanted: RowFilter) -> bool:
    """The filter once more, on the row itself."""
    is_valid = memory.valid_until is None or memory.valid_until > wanted.now_ns
    is_wanted = (not wanted.types or memory.type in wanted.types) and set(wanted.tags) <= set(memory.tags)
    owner = (memory.scope, memory.user_id, memory.session_id)
    return is_valid and is_wanted and wanted.viewer.can_see(*owner)


def _bm25(words: QueryWords, tokens: Iterable[str]) -> float:
    counts: dict[str, int] = {}
    for token in (found := list(tokens)):
        counts[token] = counts.get(token, 0) + 1
    length = 1.0 - _LENGTH_PENALTY + _LENGTH_PENALTY * len(found) / (words.mean_tokens or 1.0)
    return math.fsum(
        weight * counts[token] * (_TERM_SATURATION + 1.0) / (counts[token] + _TERM_SATURATION * length)
        for token, weight in words.weights.items()
        if token in counts
    )
