"""Recall from a store of generated memories: time, and what it finds against looking at everything.

A store holds global memories and those of a thousand users; vectors lie around centres, words follow Zipf's
law, some memories have expired. Every query is made from a memory that its viewer may see and comes with
its vector; half ask for a tag. The peer compares every allowed memory in 32-bit floats by one matrix
product.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from salience_experiments.bench.measure import Bar, Row, Timing, build_table
from salience_memory import Memory, MemoryType
from salience_memory.index import RowFilter
from salience_memory.lexical import tokenize
from salience_memory.memory_recall import MemoryRecall
from salience_memory.scopes import Scope, Viewer
from salience_memory.store import MemoryStore

__all__ = ["Corpus", "Query", "fill_store", "make_corpus", "measure_recall", "recall_bars", "recall_table"]

DIMENSION = 384
FINGERPRINT = f"generated/{DIMENSION}/l2/bench"
NOW_NS = 1_800_000_000 * 10**9
TOP_K = 5

_USERS = 1_000
_GLOBAL_SHARE = 0.7
_EXPIRED_SHARE = 0.05
_TAGS = tuple(f"topic:{number}" for number in range(10))
_WORDS = 50_000
_WORDS_PER_TEXT = 14
_CENTRES = 1_000
_SPREAD = 0.6
"""Length of the noise around a unit centre: neighbours of a text at a cosine of 0.7, as MiniLM has them."""
_BATCH = 5_000

P95_LIMITS_S = {100_000: 0.015, 1_000_000: 0.060}


@dataclass(frozen=True)
class Corpus:
    """Generated memories; what memory `i` is stands at place `i` of each column."""

    vectors: NDArray[np.float32]
    words: NDArray[np.int32]
    users: NDArray[np.int32]
    """-1 for a global memory."""
    tags: NDArray[np.int8]
    is_expired: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.users)

    def text(self, place: int) -> str:
        return " ".join(_spell(word) for word in self.words[place].tolist())

    def allowed(self, query: "Query") -> NDArray[np.bool_]:
        """What may be recalled for a query."""
        allowed = ((self.users == -1) | (self.users == query.user)) & ~self.is_expired
        return allowed if query.tag is None else allowed & (self.tags == query.tag)


@dataclass(frozen=True)
class Query:
    """A question with its vector, who asks, and the tag asked for."""

    text: str
    vector: NDArray[np.float32]
    user: int
    tag: int | None


def make_corpus(size: int, seed: int = 0) -> Corpus:
    """`size` memories, the same for every call."""
    draw = np.random.default_rng(seed)
    centres = _unit(draw.standard_normal((_CENTRES, DIMENSION), dtype=np.float32))
    vectors = np.empty((size, DIMENSION), dtype=np.float32)
    for start in range(0, size, 100_000):
        part = slice(start, min(size, start + 100_000))
        vectors[part] = _around(draw, centres[draw.integers(_CENTRES, size=part.stop - start)])
    odds = 1.0 / np.arange(1, _WORDS + 1)
    words = draw.choice(_WORDS, size=(size, _WORDS_PER_TEXT), p=odds / odds.sum()).astype(np.int32)
    users = draw.integers(_USERS, size=size, dtype=np.int32)
    users[draw.random(size) < _GLOBAL_SHARE] = -1
    tags = draw.integers(len(_TAGS), size=size, dtype=np.int8)
    return Corpus(vectors, words, users, tags, draw.random(size) < _EXPIRED_SHARE)


def make_queries(corpus: Corpus, count: int, seed: int = 1) -> list[Query]:
    """Questions made from memories: a vector nearby, half of the words."""
    draw = np.random.default_rng(seed)
    queries: list[Query] = []
    for number, place in enumerate(draw.choice(len(corpus), size=count).tolist()):
        user = int(corpus.users[place])
        words = draw.permutation(corpus.words[place])[: _WORDS_PER_TEXT // 2].tolist()
        queries.append(
            Query(
                text=" ".join(_spell(word) for word in words),
                vector=_around(draw, corpus.vectors[place : place + 1])[0],
                user=user if user >= 0 else int(draw.integers(_USERS)),
                tag=int(corpus.tags[place]) if number % 2 else None,
            )
        )
    return queries


def fill_store(store: MemoryStore, corpus: Corpus, say: Callable[[str], None]) -> float:
    """Declare everything; returns the seconds it took."""
    started = time.perf_counter()
    for start in range(0, len(corpus), _BATCH):
        end = min(len(corpus), start + _BATCH)
        memories = []
        for place in range(start, end):
            user = int(corpus.users[place])
            memories.append(
                Memory(
                    memory_id=f"bench-{place}",
                    content=corpus.text(place),
                    type=MemoryType.CONTEXT,
                    scope=Scope.GLOBAL if user < 0 else Scope.USER,
                    user_id=None if user < 0 else f"user-{user}",
                    tags=(_TAGS[corpus.tags[place]],),
                    valid_until=NOW_NS - 1 if corpus.is_expired[place] else None,
                )
            )
        store.declare(memories, vectors=corpus.vectors[start:end], fingerprint=FINGERPRINT)
        say(f"{end:,} of {len(corpus):,} memories declared")
    return time.perf_counter() - started


def measure_recall(
    size: int, n_queries: int, folder: Path, say: Callable[[str], None]
) -> tuple[Row, dict[str, float]]:
    """Time each query against exact search, and compare what is found."""
    say(f"generating {size:,} memories")
    corpus = make_corpus(size)
    queries = make_queries(corpus, n_queries)
    with MemoryStore(folder / "memories.db", clock=lambda: NOW_NS) as store:
        facts = {"declare_s": fill_store(store, corpus, say)}
        say(f"building the indexes of {size:,} memories")
        started = time.perf_counter()
        recall = MemoryRecall(store, fingerprint=FINGERPRINT, folder=folder / "index", clock=lambda: NOW_NS)
        recall.sync()
        facts["build_s"] = time.perf_counter() - started
        with recall:
            row, found = _measure(corpus, queries, recall, say)
        started = time.perf_counter()
        with MemoryRecall(
            store, fingerprint=FINGERPRINT, folder=folder / "index", clock=lambda: NOW_NS
        ) as again:
            again.recall("warm", Viewer())
            facts["open_s"] = time.perf_counter() - started
    return row, facts | found


def recall_bars(rows: Sequence[Row], facts: dict[str, dict[str, float]]) -> list[Bar]:
    """Time, completeness and scope, for each size."""
    bars: list[Bar] = []
    for row in rows:
        size = int(row.case["memories"])
        if (limit := P95_LIMITS_S.get(size)) is not None:
            bars.append(Bar(f"recall of {size:,}, P95 ms", facts[str(size)]["p95_ms"], limit * 1e3))
        found = facts[str(size)]
        bars.append(Bar(f"vector recall@{TOP_K} of {size:,}", found["vector_recall"], 0.99, is_floor=True))
        bars.append(Bar(f"ranking recall@{TOP_K} of {size:,}", found["ranking_recall"], 0.99, is_floor=True))
        bars.append(Bar(f"ids outside their scope, {size:,}", found["n_outside"], 0))
    return bars


def recall_table(facts: Mapping[str, Mapping[str, float]]) -> Table:
    """What each store took, and how complete its answers were."""
    columns = {
        "p50_ms": "P50 ms",
        "p95_ms": "P95 ms",
        "p99_ms": "P99 ms",
        "cpu_p95_ms": "CPU P95 ms",
        "vector_recall": "vectors @5",
        "ranking_recall": "ranking @5",
        "n_outside": "outside",
        "declare_s": "declare s",
        "build_s": "build s",
        "open_s": "open s",
    }
    rows = [
        (f"{int(count):,}", *(f"{found[name]:.3g}" for name in columns)) for count, found in facts.items()
    ]
    return build_table((), ("memories", *columns.values()), rows)


def _measure(
    corpus: Corpus, queries: Sequence[Query], recall: MemoryRecall, say: Callable[[str], None]
) -> tuple[Row, dict[str, float]]:
    holders = _holders(corpus, queries)
    _recall(recall, queries[0])
    ours_s: list[float] = []
    cpu_s: list[float] = []
    peer_s: list[float] = []
    n_outside = 0
    vector_shares: list[float] = []
    ranking_shares: list[float] = []
    for number, query in enumerate(queries):
        say(f"{len(corpus):,} memories: query {number + 1} of {len(queries)}")
        started, started_cpu = time.perf_counter(), time.process_time()
        places = _recall(recall, query)
        ours_s.append(time.perf_counter() - started)
        cpu_s.append(time.process_time() - started_cpu)
        started = time.perf_counter()
        similarities = corpus.vectors @ query.vector
        similarities[~corpus.allowed(query)] = -np.inf
        np.argpartition(-similarities, TOP_K)[:TOP_K]
        peer_s.append(time.perf_counter() - started)
        n_outside += int(np.count_nonzero(~corpus.allowed(query)[places]))
        tags = () if query.tag is None else (_TAGS[query.tag],)
        nearest = recall.search_vectors(query.vector, RowFilter(_viewer(query), NOW_NS, tags=tags), TOP_K)
        vector_shares.append(_share([_place(memory_id) for memory_id in nearest], similarities))
        ranking_shares.append(_share(places, _relevance(corpus, query, similarities, holders)))
    timing = Timing(tuple(ours_s), tuple(peer_s))
    facts = {
        "p50_ms": float(np.percentile(ours_s, 50)) * 1e3,
        "p95_ms": float(np.percentile(ours_s, 95)) * 1e3,
        "p99_ms": float(np.percentile(ours_s, 99)) * 1e3,
        # what a machine that does nothing else would need, however many threads share the scan
        "cpu_p95_ms": float(np.percentile(cpu_s, 95)) * 1e3,
        "vector_recall": float(np.mean(vector_shares)),
        "ranking_recall": float(np.mean(ranking_shares)),
        "n_outside": n_outside,
    }
    case: dict[str, str | int] = {"memories": len(corpus), "dimension": DIMENSION}
    return Row("recall", "exact search by vectors alone", case, timing), facts


def _recall(recall: MemoryRecall, query: Query) -> list[int]:
    found = recall.recall(
        query.text,
        _viewer(query),
        top_k=TOP_K,
        tags=() if query.tag is None else (_TAGS[query.tag],),
        query_vector=query.vector,
    )
    return [_place(result.memory.memory_id) for result in found]


def _share(places: Sequence[int], scores: NDArray[np.floating]) -> float:
    """How many of the best `TOP_K` by score were found; one that scores as high as the last counts as it."""
    last = np.partition(scores, len(scores) - TOP_K)[len(scores) - TOP_K]
    return float(np.count_nonzero(scores[list(places)] >= last - 2e-6)) / TOP_K


def _relevance(
    corpus: Corpus,
    query: Query,
    similarities: NDArray[np.float32],
    holders: dict[str, NDArray[np.int64]],
) -> NDArray[np.float64]:
    """What every memory would score, by the definition in memory/README.md."""
    visible = (corpus.users == -1) | (corpus.users == query.user)
    coverage = np.zeros(len(corpus))
    total, n_texts = 0.0, int(np.count_nonzero(visible))
    for token in dict.fromkeys(tokenize(query.text)):
        n = int(np.count_nonzero(visible[holders[token]]))
        nats = math.log1p((n_texts - n + 0.5) / (n + 0.5))
        coverage[holders[token]] += nats
        total += nats
    relevance = (np.clip(similarities, 0.0, 1.0) + coverage / total) / 2.0
    relevance[~np.isfinite(similarities)] = -np.inf
    return relevance


def _holders(corpus: Corpus, queries: Sequence[Query]) -> dict[str, NDArray[np.int64]]:
    """For each word of the queries, the memories that hold it."""
    asked = {word for query in queries for word in query.text.split()}
    numbers = np.array(sorted(int(word[1:]) for word in asked))
    places, columns = np.nonzero(np.isin(corpus.words, numbers))
    words = corpus.words[places, columns]
    order = np.argsort(words, kind="stable")
    bounds = np.searchsorted(words[order], [*numbers.tolist(), numbers[-1] + 1])
    return {
        _spell(number): np.unique(places[order][bounds[at] : bounds[at + 1]])
        for at, number in enumerate(numbers.tolist())
    }


def _place(memory_id: str) -> int:
    return int(memory_id.removeprefix("bench-"))


def _viewer(query: Query) -> Viewer:
    return Viewer(user_id=f"user-{query.user}")


def _spell(word: int) -> str:
    return f"w{word}"


def _around(draw: np.random.Generator, centres: NDArray[np.float32]) -> NDArray[np.float32]:
    noise = _unit(draw.standard_normal(centres.shape, dtype=np.float32))
    return _unit(centres + _SPREAD * noise)


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
