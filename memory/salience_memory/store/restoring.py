"""Whole memories, with all they ever said, out of one store and into another."""

import sqlite3
from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from salience_memory.records import Memory, MemoryState
from salience_memory.scopes import Viewer
from salience_memory.store.memory_rows import INSERT, INSERT_OLD, ChangeOrigin, MemoryRows
from salience_memory.store.rows import can_see, decode_body, encode_body

__all__ = ["ImportReport", "MemoryRecord", "RecordExchange", "RecordedVersion"]


class RecordedVersion(BaseModel):
    """What a memory said from some moment on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(ge=1)
    state: MemoryState
    updated_ns: int
    verified_ns: int
    reason: str
    actor: str
    memory: Memory


class MemoryRecord(BaseModel):
    """One memory and its history, oldest version first. `seq` is left out: each store counts its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_id: str
    created_ns: int
    used_ns: int | None
    versions: tuple[RecordedVersion, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _refuse_what_is_not_one_memory(self) -> Self:
        for step in self.versions:
            if step.memory.memory_id != self.memory_id or step.memory.scope is None:
                raise ValueError(f"versions of {self.memory_id!r} must all be of that stored memory")
        for before, after in pairwise(self.versions):
            if after.version <= before.version:
                raise ValueError(f"versions of {self.memory_id!r} must rise, got {after.version} after")
            owners = [(m.scope, m.user_id, m.session_id) for m in (before.memory, after.memory)]
            if owners[0] != owners[1]:
                raise ValueError(f"versions of {self.memory_id!r} must have one owner")
        return self

    @property
    def current(self) -> RecordedVersion:
        return self.versions[-1]


class ImportReport(BaseModel):
    """Ids of the records of a snapshot by what became of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    added: tuple[str, ...]
    updated: tuple[str, ...] = Field(description="The snapshot's versions follow on the store's.")
    kept: tuple[str, ...] = Field(
        description="The store has that version, or a later one of the same history."
    )
    conflicting: tuple[str, ...] = Field(description="The store has another history, which is kept.")
    forgotten: tuple[str, ...] = Field(description="Forgotten here, and not brought back.")


class RecordExchange(MemoryRows):
    """Records out and in."""

    def iter_records(self, viewer: Viewer | None = None) -> Generator[MemoryRecord]:
        """Every memory with its history, by id, as one state of the store; with a viewer, the viewer's alone.

        The store is locked for this process until the iteration ends; do not write to it meanwhile.
        """
        with self._database.reading() as connection:
            rows = connection.execute("SELECT * FROM memories ORDER BY memory_id")
            for row in rows:
                if viewer is None or can_see(viewer, row):
                    memory_id: str = row["memory_id"]
                    query = "SELECT * FROM old_versions WHERE memory_id = ? ORDER BY version"
                    steps = [*connection.execute(query, (memory_id,)), row]
                    yield MemoryRecord(
                        memory_id=memory_id,
                        created_ns=row["created_ns"],
                        used_ns=row["used_ns"],
                        versions=tuple(
                            RecordedVersion(
                                version=step["version"],
                                state=step["state"],
                                updated_ns=step["updated_ns"],
                                verified_ns=step["verified_ns"],
                                reason=step["reason"],
                                actor=step["actor"],
                                memory=decode_body(step["body"], memory_id),
                            )
                            for step in steps
                        ),
                    )

    def restore(self, records: Sequence[MemoryRecord], *, restore_forgotten: bool = False) -> ImportReport:
        """Take records in, all or none, keeping what the store has where it differs.

        Args:
            records: As `iter_records` of some store gave them.
            restore_forgotten: Bring back memories that were forgotten here.

        Raises:
            ValueError: A rule that cannot be enforced.
        """
        outcomes: dict[str, list[str]] = {name: [] for name in ImportReport.model_fields}
        with self._database.writing(durable=True) as connection:
            for record in records:
                self._refuse_rule(record.current.memory)
                outcome = self._restore_one(connection, record, restore_forgotten)
                outcomes[outcome].append(record.memory_id)
        return ImportReport.model_validate(outcomes)

    def _restore_one(
        self, connection: sqlite3.Connection, record: MemoryRecord, restore_forgotten: bool
    ) -> str:
        """What became of one record: the name of a field of `ImportReport`."""
        row = self._find_row(connection, record.memory_id)
        if row is not None:
            bodies = {step.version: encode_body(step.memory) for step in record.versions}
            if bodies.get(row["version"]) == row["body"]:  # the row is one of the record's versions
                if record.current.version == row["version"]:
                    return "kept"
                connection.execute("DELETE FROM old_versions WHERE memory_id = ?", (record.memory_id,))
                connection.execute("DELETE FROM memories WHERE memory_id = ?", (record.memory_id,))
                if record.current.memory.content != self._memory_of(row).content:
                    connection.execute("DELETE FROM vectors WHERE memory_id = ?", (record.memory_id,))
                self._write(connection, record, record.versions)
                return "updated"
            query = "SELECT version, body FROM old_versions WHERE memory_id = ?"
            old = map(tuple, connection.execute(query, (record.memory_id,)))
            version = record.current.version
            return "kept" if (version, bodies[version]) in old else "conflicting"
        grave = connection.execute(
            "SELECT version FROM tombstones WHERE memory_id = ?", (record.memory_id,)
        ).fetchone()
        if grave is None:
            self._write(connection, record, record.versions)
            return "added"
        if not restore_forgotten:
            return "forgotten"
        connection.execute("DELETE FROM tombstones WHERE memory_id = ?", (record.memory_id,))
        steps = record.versions
        if record.current.version <= grave["version"]:
            # A number once used must not come to mean something else: caches and late vectors go by it.
            because = {"version": grave["version"] + 1, "reason": "restored after it was forgotten"}
            steps = (*steps, record.current.model_copy(update=because))
        self._write(connection, record, steps)
        return "added"

    def _write(
        self, connection: sqlite3.Connection, record: MemoryRecord, steps: Sequence[RecordedVersion]
    ) -> None:
        """Write versions as if they had come about here, one after the other."""
        content_version = 0
        content: str | None = None
        for step in steps:
            if step.memory.content != content:
                content, content_version = step.memory.content, step.version
            statement = ChangeOrigin(step.reason, step.actor, step.updated_ns)
            columns = self._columns(step.memory, step.state, step.version, content_version, statement)
            columns |= {"created_ns": record.created_ns, "used_ns": None}
            columns |= {"updated_ns": step.updated_ns, "verified_ns": step.verified_ns}
            if step is steps[-1]:
                connection.execute(INSERT, columns | {"used_ns": record.used_ns})
            else:
                connection.execute(INSERT_OLD, columns)
