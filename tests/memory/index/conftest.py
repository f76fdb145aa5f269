"""Rows without a store: what an index reads is given by hand."""

from dataclasses import replace

import numpy as np
import pytest

from salience_memory import MemoryState, MemoryType, Scope
from salience_memory.store import Change, ProjectionRow, VectorBatch


class RowSource:
    """Rows and vectors by hand, with the four methods that a projection reads."""

    def __init__(self):
        self.rows, self.vectors, self.deleted, self.seq = {}, {}, {}, 0

    def put(self, memory_id, content="text", user=None, vector=None, fingerprint="e/4", **fields):
        self.seq += 1
        row = ProjectionRow(
            memory_id=memory_id,
            seq=self.seq,
            version=1,
            type=MemoryType.CONTEXT,
            content=content,
            key=None,
            tags=("domain:general",),
            scope=Scope.USER if user else Scope.GLOBAL,
            user_id=user,
            session_id=None,
            valid_until=None,
            state=MemoryState.ACTIVE,
            pinned=False,
        )
        self.rows[memory_id] = replace(row, **fields)
        self.deleted.pop(memory_id, None)
        if vector is not None:
            self.vectors[memory_id] = (fingerprint, np.asarray(vector, dtype=np.float32))

    def delete(self, memory_id):
        self.seq += 1
        del self.rows[memory_id]
        self.vectors.pop(memory_id, None)
        self.deleted[memory_id] = self.seq

    def latest_seq(self):
        return self.seq

    def changes_since(self, seq, *, limit=1000):
        changes = [Change(row.seq, key, "put", 1) for key, row in self.rows.items()]
        changes += [Change(at, key, "delete", 1) for key, at in self.deleted.items()]
        return sorted((c for c in changes if c.seq > seq), key=lambda change: change.seq)[:limit]

    def iter_rows(self, after_seq=0):
        return iter(sorted((r for r in self.rows.values() if r.seq > after_seq), key=lambda row: row.seq))

    def iter_vectors(self, fingerprint, *, after_seq=0):
        rows = [row for row in self.iter_rows(after_seq) if self._fingerprint(row) == fingerprint]
        if rows:
            vectors = np.stack([self.vectors[row.memory_id][1] for row in rows])
            yield VectorBatch([row.memory_id for row in rows], np.array([row.seq for row in rows]), vectors)

    def _fingerprint(self, row):
        return self.vectors.get(row.memory_id, (None,))[0]


@pytest.fixture
def source():
    return RowSource()
