"""Maintenance: what is too old goes to the archive, and what is long past its end is deleted."""

from dataclasses import dataclass

from salience_memory.clock import DAY_NS
from salience_memory.decay import DecayPolicy, assess
from salience_memory.errors import MemoryNotFound
from salience_memory.records import MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store import MemoryStore, ProjectionRow

__all__ = ["MaintenanceReport", "maintain"]


@dataclass(frozen=True)
class MaintenanceReport:
    """What a run changed, by id."""

    archived_ids: tuple[str, ...]
    deleted_ids: tuple[str, ...]


def maintain(store: MemoryStore, now_ns: int, policy: DecayPolicy | None = None) -> MaintenanceReport:
    """Go through every row once. Nothing else is written: weights decay when they are read.

    A memory is archived when it is older than its last age step. It is deleted, with its history and
    sources, when `valid_until` lies `delete_expired_after_days` back. Read-only memories and constraints
    are never deleted for having expired: what bound somebody once must stay provable.
    """
    policy = policy or DecayPolicy()
    archived: list[str] = []
    deleted: list[str] = []
    for row in list(store.iter_rows()):
        viewer = Viewer(user_id=row.user_id, session_id=row.session_id)
        try:
            memory = store.get(row.memory_id, viewer)
            if _is_at_its_end(memory, now_ns, policy):
                deleted += [row.memory_id] if store.forget(row.memory_id, viewer) else []
            elif _belongs_in_archive(row, memory, now_ns, policy):
                store.archive(
                    row.memory_id, viewer, reason="older than the last age step", actor="maintenance"
                )
                archived.append(row.memory_id)
        except MemoryNotFound:
            continue  # forgotten by somebody since the rows were listed
    return MaintenanceReport(tuple(archived), tuple(deleted))


def _is_at_its_end(memory: StoredMemory, now_ns: int, policy: DecayPolicy) -> bool:
    if policy.delete_expired_after_days is None or memory.valid_until is None:
        return False
    if memory.read_only or memory.type is MemoryType.CONSTRAINT:
        return False
    return now_ns - memory.valid_until >= policy.delete_expired_after_days * DAY_NS


def _belongs_in_archive(row: ProjectionRow, memory: StoredMemory, now_ns: int, policy: DecayPolicy) -> bool:
    if row.state is MemoryState.ARCHIVED or memory.read_only:
        return False  # the store changes no read-only row; reading treats it as archived all the same
    return assess(memory, now_ns, policy).should_archive
