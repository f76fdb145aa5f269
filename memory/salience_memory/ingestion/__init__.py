"""Documents into memories: PDF and Markdown, clause by clause, each with its place in the document."""

from salience_memory.ingestion.clauses import Clause, Refusal, split_clauses
from salience_memory.ingestion.documents import read_document
from salience_memory.ingestion.elements import SourceText
from salience_memory.ingestion.ingest import (
    ClauseReport,
    DocumentFields,
    IngestReport,
    RefusedClause,
    ingest_document,
)

__all__ = [
    "Clause",
    "ClauseReport",
    "DocumentFields",
    "IngestReport",
    "Refusal",
    "RefusedClause",
    "SourceText",
    "ingest_document",
    "read_document",
    "split_clauses",
]
