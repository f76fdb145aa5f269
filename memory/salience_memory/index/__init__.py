"""Indexes over the store's rows: filtered before anything is ranked, built anew from the rows at any time."""

from salience_memory.index.lexical_index import LEXICAL_FINGERPRINT, LexicalIndex, QueryWords
from salience_memory.index.projection import ProjectedStore, Projection
from salience_memory.index.projections import Projections
from salience_memory.index.roster import RowFilter
from salience_memory.index.vector_index import VectorIndex

__all__ = [
    "LEXICAL_FINGERPRINT",
    "LexicalIndex",
    "ProjectedStore",
    "Projection",
    "Projections",
    "QueryWords",
    "RowFilter",
    "VectorIndex",
]
