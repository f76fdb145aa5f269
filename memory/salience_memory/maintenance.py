"""Maintenance: what is too old goes to the archive, and what is long past its end is deleted."""

from dataclasses import dataclass

from salience_memory.clock import DAY_NS
from salience_memory.decay import DecayPolicy, assess
from salience_memory.errors import MemoryNotFound
from salience_memory.records import MemoryState, MemoryType, StoredMemory
from salience_memory.scopes import Viewer
from salience_memory.store import MemoryStore, ProjectionRow

__all__ = ["MaintenanceReport", "maintain"]

_ARCHIVED_AT_ONCE = 500


@dataclass(frozen=True)
class MaintenanceReport:
    """What a run changed, by id."""

    archived_ids: tuple[str, ...]
    deleted_ids: tuple[str, ...]


def maintain(store: MemoryStore, now_ns: int, policy: DecayPolicy | None = None) -> MaintenanceReport:
    """Look once at every row that is old. Nothing else is written: weights decay when they are read.

    A memory is archived when it is older than its last age step. It is deleted, with its history and
    sources, when `valid_until` lies `delete_expired_after_days` back. Read-only memories and constraints
    are never deleted for having expired: what bound somebody once must stay provable.

    What is deleted goes in one transaction; the archive is filled by many, between which others may write.
    """
    policy = policy or DecayPolicy()
    days = min(policy.steps_of(kind)[-1].until_days for kind in MemoryType)
    kept_days = policy.delete_expired_after_days
    rows = store.rows_past(
        idle_since_ns=now_ns - int(days * DAY_NS),
        expired_since_ns=None if kept_days is None else now_ns - int(kept_days * DAY_NS),
    )
    deleted: list[str] = []
    if expired := [row for row in rows if row.valid_until is not None]:
        with store.transaction():
            for row in expired:
                memory = _find(store, row)
                if memory is None or memory.valid_until is None or kept_days is None:
                    continue
                if memory.read_only or memory.type is MemoryType.CONSTRAINT:
                    continue
                if now_ns - memory.valid_until >= kept_days * DAY_NS:
                    store.forget(row.memory_id, _owner_of(row))
                    deleted.append(row.memory_id)
    archived: list[str] = []
    for start in range(0, len(rows), _ARCHIVED_AT_ONCE):
        with store.transaction():
            for row in rows[start : start + _ARCHIVED_AT_ONCE]:
                memory = _find(store, row)
                # The store changes no read-only row; reading treats it as archived all the same.
                if memory is None or memory.read_only or memory.state is MemoryState.ARCHIVED:
                    continue
                if assess(memory, now_ns, policy).should_archive:
                    why = "older than the last age step"
                    store.archive(row.memory_id, _owner_of(row), reason=why, actor="maintenance")
                    archived.append(row.memory_id)
    return MaintenanceReport(tuple(archived), tuple(deleted))


def _owner_of(row: ProjectionRow) -> Viewer:
    return Viewer(user_id=row.user_id, session_id=row.session_id)


def _find(store: MemoryStore, row: ProjectionRow) -> StoredMemory | None:
    """The memory as it is now; None if somebody has forgotten it since the rows were listed."""
    try:
        return store.get(row.memory_id, _owner_of(row))
    except MemoryNotFound:
        return None
