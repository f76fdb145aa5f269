"""The durable store: `MemoryStore`, and what it returns."""

from salience_memory.store.logs import AuditEvent, Episode, StoredEpisode, TaskState
from salience_memory.store.memory_rows import CheckRule, Decay
from salience_memory.store.memory_store import MemoryStore
from salience_memory.store.rows import Change, MemoryVersion, ProjectionRow, VectorBatch

__all__ = [
    "AuditEvent",
    "Change",
    "CheckRule",
    "Decay",
    "Episode",
    "MemoryStore",
    "MemoryVersion",
    "ProjectionRow",
    "StoredEpisode",
    "TaskState",
    "VectorBatch",
]
