"""Memories: what is declared, and what of it a query recalls. Knows nothing of the language model."""

from salience_memory.embedder import Embedder
from salience_memory.errors import EmbedderNotFound, EmbeddingMismatch, MemoryRoomError, MissingExtra
from salience_memory.lexical import score_lexically, tokenize
from salience_memory.recall import Recalled, TextRecall, rank_texts
from salience_memory.records import MAX_SEMANTIC_WEIGHT, NEUTRAL_WEIGHT, Memory, MemoryType, derive_memory_id
from salience_memory.vectors import Embed, EmbeddingCache, search_vectors

__all__ = [
    "MAX_SEMANTIC_WEIGHT",
    "NEUTRAL_WEIGHT",
    "Embed",
    "Embedder",
    "EmbedderNotFound",
    "EmbeddingCache",
    "EmbeddingMismatch",
    "Memory",
    "MemoryRoomError",
    "MemoryType",
    "MissingExtra",
    "Recalled",
    "TextRecall",
    "derive_memory_id",
    "rank_texts",
    "score_lexically",
    "search_vectors",
    "tokenize",
]
