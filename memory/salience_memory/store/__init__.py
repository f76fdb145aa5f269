"""The durable store: `MemoryStore`, and what it returns."""

from salience_memory.store.episodes import Episode, StoredEpisode
from salience_memory.store.events import AuditEvent
from salience_memory.store.memory_store import MemoryStore
from salience_memory.store.results import Change, MemoryVersion, ProjectionRow, VectorBatch
from salience_memory.store.store_part import CheckRule, Decay
from salience_memory.store.tasks import TaskState

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
