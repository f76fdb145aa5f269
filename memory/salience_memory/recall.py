"""Which of some texts a query is about: vector and lexical search, fused, then reranked.

Candidates are the best of the two rankings' reciprocal-rank fusion and of each ranking alone. Among them the
order is by relevance (`relevance.py`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from salience_memory.lexical import score_lexically, tokenize
from salience_memory.relevance import (
    best_of,
    compute_coverage,
    compute_relevance,
    fuse_ranks,
    rank_scores,
    weigh_tokens,
)
from salience_memory.vectors import Embed, EmbeddingCache, search_vectors

__all__ = ["Recalled", "TextRecall", "rank_texts"]

_CANDIDATES_PER_RESULT = 4


@dataclass(frozen=True, slots=True)
class Recalled:
    """One recalled text and why it stands where it does. Ranks count from 1; None: not in that ranking."""

    index: int
    """Where the text stands in the list that was searched."""
    score: float
    """Relevance in [0, 1], what the results are ordered by."""
    similarity: float | None
    """Cosine of query and text; None without embeddings."""
    coverage: float
    """Share of the query's information, by inverse document frequency, whose words the text contains."""
    lexical: float
    """BM25; 0 where no word is shared."""
    fused: float
    """Sum of `1 / (60 + rank)` over the rankings."""
    vector_rank: int | None
    lexical_rank: int | None


class TextRecall:
    """Ranks texts against queries and remembers the texts' embeddings between calls."""

    def __init__(self, embed: Embed | None = None, *, cache_bytes: int = 64 * 2**20) -> None:
        """Search with `embed` and words, or without it by words alone.

        Args:
            embed: Texts to unit vectors, float32 [record, embed].
            cache_bytes: How much the remembered texts and vectors may take.
        """
        self._cache = None if embed is None else EmbeddingCache(embed, cache_bytes=cache_bytes)

    def rank(self, query: str, texts: Sequence[str], top_k: int = 5) -> list[Recalled]:
        """The texts a query is about, best first; equally relevant ones in the order given.

        A blank query recalls nothing, and a blank text or one without any relevance is not recalled.

        Args:
            query: What is asked.
            texts: What is searched. Word statistics are taken over these alone.
            top_k: Most results returned.

        Raises:
            MissingExtra: there is an `embed` and FAISS is not installed.
            EmbeddingMismatch: `embed` broke its contract.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        places = [place for place, text in enumerate(texts) if text.strip()]
        if not query.strip() or not places:
            return []
        searched = [texts[place] for place in places]
        lexical = score_lexically(query, searched)
        lexical_ranks = rank_scores(lexical)
        similarities = self._similarities(query, searched)
        vector_ranks = {} if similarities is None else rank_scores(dict(enumerate(similarities)))
        fused = fuse_ranks(vector_ranks, lexical_ranks)
        candidates = set(best_of(fused, top_k * _CANDIDATES_PER_RESULT))
        candidates.update(best_of(lexical, top_k), best_of(dict(enumerate(similarities or ())), top_k))
        coverage = _cover(query, searched)
        results: list[Recalled] = []
        for i in candidates:
            similarity = None if similarities is None else similarities[i]
            recalled = Recalled(
                index=places[i],
                score=compute_relevance(similarity, coverage[i]),
                similarity=similarity,
                coverage=coverage[i],
                lexical=lexical.get(i, 0.0),
                fused=fused[i],
                vector_rank=vector_ranks.get(i),
                lexical_rank=lexical_ranks.get(i),
            )
            if recalled.score > 0.0:
                results.append(recalled)
        return sorted(results, key=lambda recalled: (-recalled.score, recalled.index))[:top_k]

    def _similarities(self, query: str, texts: Sequence[str]) -> list[float] | None:
        if self._cache is None:
            return None
        vectors = self._cache.embed([query, *texts])
        # Rounded so that equal texts tie exactly wherever they stand in FAISS's blocks.
        return [round(float(similarity), 6) for similarity in search_vectors(vectors[0], vectors[1:])]


def rank_texts(
    query: str, texts: Sequence[str], embed: Embed | None = None, top_k: int = 5
) -> list[Recalled]:
    """`TextRecall(embed).rank(query, texts, top_k)`, for a single query."""
    return TextRecall(embed).rank(query, texts, top_k)


def _cover(query: str, texts: Sequence[str]) -> list[float]:
    contents = [frozenset(tokenize(text)) for text in texts]
    counts = Counter(token for tokens in contents for token in tokens)
    weights = weigh_tokens(tokenize(query), len(texts), counts)
    return [compute_coverage(weights, tokens) for tokens in contents]
