"""A memory that was recalled, and why it stands where it does."""

from dataclasses import dataclass

from salience_memory.records import StoredMemory

__all__ = ["RecallBreakdown", "RecalledMemory", "recalled_of", "standing_of"]


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


def recalled_of(memory: StoredMemory, score: float, breakdown: RecallBreakdown) -> RecalledMemory:
    """A result without a conflict."""
    return RecalledMemory(memory, score, memory.trust * memory.freshness, False, breakdown)


def standing_of(result: RecalledMemory) -> tuple[float, float, float, str]:
    """What results are sorted by: relevance, then trust, then freshness, then the id."""
    memory = result.memory
    return (-result.score, -memory.trust, -memory.freshness, memory.memory_id)
