"""The doctor: whether rows, and the indexes built from them, are as they should be, and how to mend them."""

import sqlite3
from collections.abc import Sequence

from salience_memory.errors import ProjectionInvalid
from salience_memory.index.projection import Projection
from salience_memory.store.memory_store import MemoryStore
from salience_memory.store.row_checks import StoreFault

__all__ = ["check_store", "repair_store"]


def check_store(store: MemoryStore, projections: Sequence[Projection]) -> list[StoreFault]:
    """Everything wrong with a store and its indexes; nothing is changed.

    An index that is merely behind is not wrong: what it has not applied yet is applied before it is asked.

    Args:
        store: The truth.
        projections: Indexes, as `MemoryRecall.projections`.
    """
    return [*store.find_faults(), *_projection_faults(store, projections)]


def repair_store(store: MemoryStore, projections: Sequence[Projection]) -> list[StoreFault]:
    """Mend what can be mended and return it: rows are never invented, indexes are built from them anew."""
    mended = store.mend()
    found = _projection_faults(store, projections)
    for projection in projections:
        if any(fault.subject == projection.fingerprint for fault in found):
            projection.rebuild(store)
    return [*mended, *found]


def _projection_faults(store: MemoryStore, projections: Sequence[Projection]) -> list[StoreFault]:
    found: list[StoreFault] = []
    for projection in projections:
        if projection.applied_seq > store.latest_seq():
            message = f"holds changes up to {projection.applied_seq}, the store has {store.latest_seq()}"
            found.append(StoreFault("projection", projection.fingerprint, message, True))
            continue
        try:
            projection.catch_up(store)
            wrong = projection.find_differences(store)
        except (ProjectionInvalid, sqlite3.DatabaseError) as error:
            found.append(StoreFault("projection", projection.fingerprint, str(error), True))
            continue
        if wrong:
            message = f"{len(wrong)} memories are not as the rows say, such as {wrong[0]!r}"
            found.append(StoreFault("projection", projection.fingerprint, message, True))
    return found
