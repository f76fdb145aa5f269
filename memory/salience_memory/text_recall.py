"""Which of some plain texts a query is about: the ranker of stored memories, over a list."""

from collections import Counter
from collections.abc import Sequence

from salience_memory.lexical import tokenize
from salience_memory.ranking import Ranked, rank, weigh_tokens
from salience_memory.vectors import Embed, EmbeddingCache

__all__ = ["TextRecall"]


class TextRecall:
    """Ranks texts against queries and remembers the texts' embeddings between calls."""

    def __init__(self, embed: Embed | None = None, *, cache_bytes: int = 64 * 2**20) -> None:
        """Search with `embed` and words, or without it by words alone.

        Args:
            embed: Texts to unit vectors, float32 [record, embed].
            cache_bytes: How much the remembered texts and vectors may take.
        """
        self._cache = None if embed is None else EmbeddingCache(embed, cache_bytes=cache_bytes)

    def rank(self, query: str, texts: Sequence[str], top_k: int = 5) -> list[Ranked[int]]:
        """The texts a query is about, best first; equally relevant ones in the order given.

        A blank query recalls nothing, and a blank text or one without any relevance is not recalled.

        Args:
            query: What is asked.
            texts: What is searched. Word statistics are taken over these alone.
            top_k: Most results returned.

        Returns:
            Each with the text's place in `texts` as its `item`.

        Raises:
            EmbeddingMismatch: `embed` broke its contract.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        tokens = {place: tokenize(text) for place, text in enumerate(texts) if text.strip()}
        if not query.strip() or not tokens:
            return []
        similarities = None
        if self._cache is not None:
            vectors = self._cache.embed([query, *(texts[place] for place in tokens)])
            cosines = (vectors[1:] @ vectors[0]).round(6).tolist()
            similarities = dict(zip(tokens, cosines, strict=True))
        counts = Counter(token for found in tokens.values() for token in set(found))
        weights = weigh_tokens(tokenize(query), len(tokens), counts)
        mean_tokens = sum(map(len, tokens.values())) / len(tokens)
        return rank(weights, mean_tokens, tokens, similarities)[:top_k]
