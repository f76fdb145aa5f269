"""The one ranker: texts that may be about a query, ordered, with what speaks for each and how likely it is.

Stored memories (`memory_recall.py`) and plain texts (`text_recall.py`) are ranked here alike.

*Relevance* orders them. It is the mean of two figures in [0, 1]: the similarity of the embeddings, and the
share of the query's information that a text contains word for word. Similarity alone cannot tell two uuids
apart, words alone miss a paraphrase; memory/README.md has the measurements. *Probability* says how likely it
is that the text bears on the query at all: the best of five facts may still be about something else.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from salience_memory.lexical import FUNCTION_WORDS

__all__ = ["Ranked", "RecallBreakdown", "probability_features", "rank", "weigh_tokens"]

_FUSION_OFFSET = 60
"""The k of reciprocal-rank fusion, as Cormack, Clarke and Büttcher (2009) set it."""

_TERM_SATURATION = 1.2
_LENGTH_PENALTY = 0.75
"""BM25's k1 and b, as SQLite's FTS5 sets them."""

_CROWD_MARGIN = 0.1
_MOST_CROWD = 4

_WITH_SIMILARITY = (8.216, 2.559, -8.503, -2.697, -2.545)
_BY_WORDS = (7.590, -2.731, -1.493, -1.781)
"""Logistic coefficients of `probability_features`, the intercept last.

Fitted on 1 December 2026 by `python -m salience_experiments.recall_probability --questions 120` with
all-MiniLM-L6-v2, in English: 2,309 pairs (2,024 by words) of a message with one of its five best texts, from
facts about a person, SQuAD 2.0 and HotpotQA. On messages that were held out, area under the ROC curve .979 on
facts, .998 on SQuAD, .818 on HotpotQA (.893, .994, .803 by words); of the pairs given .8 or more, mean .93,
.95 and .95, the shares that bear are .89, .97 and .94. On LoCoMo, 400 turns of one conversation and not
fitted on, it is too high: of pairs given .93, .51 are named as evidence. memory/README.md has the table.
"""

_Item = TypeVar("_Item", int, str)


@dataclass(frozen=True, slots=True)
class RecallBreakdown:
    """What speaks for a text. Ranks count from 1 among what was compared; None: not in that ranking."""

    similarity: float | None
    """Cosine of query and text; None without embeddings."""
    coverage: float
    """Share of the query's information, by inverse document frequency, whose words the text contains."""
    content_coverage: float
    """The same over the query's words that are no function words; 0 for a query of nothing else."""
    bm25: float
    """0 where no word is shared."""
    fused: float
    """Sum of `1 / (60 + rank)` over the rankings by similarity and BM25; reported, not ordered by."""
    vector_rank: int | None
    lexical_rank: int | None
    behind: float
    """How much less relevant than the best text it is."""
    crowd: int
    """How many others are more relevant, or less so by a tenth at most; 4 stands for more."""


@dataclass(frozen=True, slots=True)
class Ranked(Generic[_Item]):
    """One text that has any relevance."""

    item: _Item
    score: float
    """Relevance in (0, 1], what results are ordered by."""
    probability: float
    """That the text bears on the query."""
    breakdown: RecallBreakdown


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


def rank(
    weights: Mapping[str, float],
    mean_tokens: float,
    tokens: Mapping[_Item, Sequence[str]],
    similarities: Mapping[_Item, float] | None,
) -> list[Ranked[_Item]]:
    """The texts that have any relevance for a query, the most relevant first, ties by item.

    Args:
        weights: The query's tokens, by `weigh_tokens` over everything that is searched.
        mean_tokens: How long a searched text is on average.
        tokens: Each text's, repeats kept.
        similarities: Cosines with the query. None: there are no embeddings. A text that has none beside
            others that do is ranked as if it meant something else.
    """
    total = sum(weights.values()) or 1.0
    content = {token: weight for token, weight in weights.items() if token not in FUNCTION_WORDS}
    content_total = sum(content.values()) or 1.0
    counts = {item: Counter(found) for item, found in tokens.items()}
    bm25: dict[_Item, float] = {}
    for item, count in counts.items():
        length = 1.0 - _LENGTH_PENALTY + _LENGTH_PENALTY * len(tokens[item]) / (mean_tokens or 1.0)
        bm25[item] = math.fsum(
            weight * count[token] * (_TERM_SATURATION + 1.0) / (count[token] + _TERM_SATURATION * length)
            for token, weight in weights.items()
            if token in count
        )
    lexical_ranks = _rank_scores({item: score for item, score in bm25.items() if score > 0.0})
    vector_ranks = _rank_scores(similarities or {})
    coverage: dict[_Item, float] = {}
    content_coverage: dict[_Item, float] = {}
    scores: dict[_Item, float] = {}
    for item, count in counts.items():
        coverage[item] = sum(weight for token, weight in weights.items() if token in count) / total
        shared = sum(weight for token, weight in content.items() if token in count)
        content_coverage[item] = shared / content_total
        scores[item] = coverage[item]
        if similarities is not None:
            # Rounded so that equal texts tie exactly, wherever they stood in a block of products.
            similarity = min(max(similarities.get(item, 0.0), 0.0), 1.0)
            scores[item] = round((similarity + coverage[item]) / 2.0, 6)
    ordered = sorted((item for item in scores if scores[item] > 0.0), key=lambda item: (-scores[item], item))
    results: list[Ranked[_Item]] = []
    for place, item in enumerate(ordered):
        score = scores[item]
        ranks = (vector_ranks.get(item), lexical_ranks.get(item))
        near = ordered[place + 1 : _MOST_CROWD + 1]
        breakdown = RecallBreakdown(
            similarity=None if similarities is None else similarities.get(item),
            coverage=coverage[item],
            content_coverage=content_coverage[item],
            bm25=bm25[item],
            fused=sum(1.0 / (_FUSION_OFFSET + place) for place in ranks if place is not None),
            vector_rank=ranks[0],
            lexical_rank=ranks[1],
            behind=scores[ordered[0]] - score,
            crowd=min(_MOST_CROWD, place + sum(score - scores[other] < _CROWD_MARGIN for other in near)),
        )
        features = probability_features(breakdown)
        *slopes, intercept = _WITH_SIMILARITY if breakdown.similarity is not None else _BY_WORDS
        evidence = intercept + sum(slope * value for slope, value in zip(slopes, features, strict=True))
        results.append(Ranked(item, score, 1.0 / (1.0 + math.exp(-evidence)), breakdown))
    return results


def probability_features(breakdown: RecallBreakdown) -> tuple[float, ...]:
    """What the probability is computed from.

    A message that is about none of the texts is about as close to one as to the next, so how a text stands
    out among the others tells as much as how close it is.
    """
    features = (breakdown.content_coverage, breakdown.behind, breakdown.crowd / _MOST_CROWD)
    if breakdown.similarity is None:
        return features
    return (min(max(breakdown.similarity, 0.0), 1.0), *features)


def _rank_scores(scores: Mapping[_Item, float]) -> dict[_Item, int]:
    """Ranks from 1; equal scores share the better rank, so that a tie is no evidence for either."""
    ranks: dict[float, int] = {}
    for place, score in enumerate(sorted(scores.values(), reverse=True), start=1):
        ranks.setdefault(score, place)
    return {item: ranks[score] for item, score in scores.items()}
