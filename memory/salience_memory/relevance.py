"""Relevance: the arithmetic by which texts and stored memories are ranked against a query.

*Relevance* is the mean of two figures in [0, 1]: the similarity of the embeddings, and the share of the
query's information that a text contains word for word. Similarity alone cannot tell two uuids apart, words
alone miss a paraphrase; memory/README.md has the measurements.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

__all__ = [
    "best_of",
    "compute_bm25",
    "compute_coverage",
    "compute_relevance",
    "fuse_ranks",
    "rank_scores",
    "weigh_tokens",
]

_FUSION_OFFSET = 60
"""The k of reciprocal-rank fusion, as Cormack, Clarke and Büttcher (2009) set it."""

_TERM_SATURATION = 1.2
_LENGTH_PENALTY = 0.75
"""BM25's k1 and b, as FTS5 sets them."""

_Item = TypeVar("_Item", int, str)


def best_of(scores: Mapping[_Item, float], count: int) -> list[_Item]:
    """The `count` items that score highest; equal ones in their own order."""
    return sorted(scores, key=lambda item: (-scores[item], item))[:count]


def rank_scores(scores: Mapping[_Item, float]) -> dict[_Item, int]:
    """Ranks from 1; equal scores share the better rank, so that a tie is no evidence for either."""
    ranks: dict[float, int] = {}
    for rank, score in enumerate(sorted(scores.values(), reverse=True), start=1):
        ranks.setdefault(score, rank)
    return {item: ranks[score] for item, score in scores.items()}


def fuse_ranks(*rankings: Mapping[_Item, int]) -> dict[_Item, float]:
    """Reciprocal-rank fusion: each ranking adds `1 / (60 + rank)`."""
    fused: dict[_Item, float] = {}
    for ranking in rankings:
        for item, rank in ranking.items():
            fused[item] = fused.get(item, 0.0) + 1.0 / (_FUSION_OFFSET + rank)
    return fused


def weigh_tokens(tokens: Iterable[str], n_texts: int, counts: Mapping[str, int]) -> dict[str, float]:
    """Nats of information of each distinct token: BM25's inverse document frequency.

    A token that no text holds carries the most, so that a query which shares only common words with the
    texts covers little.

    Args:
        tokens: Those of the query, repeats allowed.
        n_texts: How many texts are searched.
        counts: How many of them hold a token; 0 for one that is not here.
    """
    return {
        token: math.log1p((n_texts - counts.get(token, 0) + 0.5) / (counts.get(token, 0) + 0.5))
        for token in dict.fromkeys(tokens)
    }


def compute_coverage(weights: Mapping[str, float], tokens: Collection[str]) -> float:
    """The share in [0, 1] of a query's information (`weigh_tokens`) that a text's tokens contain."""
    total = sum(weights.values()) or 1.0
    return sum(weight for token, weight in weights.items() if token in tokens) / total


def compute_relevance(similarity: float | None, coverage: float) -> float:
    """What results are ordered by, in [0, 1]: the mean of both; without embeddings, the coverage."""
    if similarity is None:
        return coverage
    return round((min(max(similarity, 0.0), 1.0) + coverage) / 2.0, 6)


def compute_bm25(weights: Mapping[str, float], mean_tokens: float, tokens: Sequence[str]) -> float:
    """BM25 of a text for a query, 0 where no word is shared.

    Args:
        weights: The query's, `weigh_tokens`.
        mean_tokens: How long a searched text is on average.
        tokens: The text's, repeats kept.
    """
    counts: dict[str, int] = {}
    for token in tokens:
        counts[token] = counts.get(token, 0) + 1
    length = 1.0 - _LENGTH_PENALTY + _LENGTH_PENALTY * len(tokens) / (mean_tokens or 1.0)
    return math.fsum(
        weight * counts[token] * (_TERM_SATURATION + 1.0) / (counts[token] + _TERM_SATURATION * length)
        for token, weight in weights.items()
        if token in counts
    )
