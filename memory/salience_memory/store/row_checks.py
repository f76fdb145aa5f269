"""Whether the file's tables agree with each other, and mending what can be mended without a choice."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from salience_memory.errors import StoreCorrupt
from salience_memory.records import Memory
from salience_memory.store.bodies import decode_body
from salience_memory.store.store_part import StorePart

__all__ = ["RowChecks", "StoreFault"]

_ALIKE_AT = 10
"""From so many memories on, weights that are all alike are no chance."""


@dataclass(frozen=True, slots=True)
class StoreFault:
    """One thing that is not as it should be."""

    kind: str
    """`damaged_file`, `invalid_row`, `column`, `orphan`, `torn_vector`, `tombstone`, `counter`,
    `alike_weights`; of an index, `projection`."""
    subject: str
    """Which memory, table or index."""
    message: str
    can_mend: bool


_ORPHANS = (
    ("vectors", "memory_id NOT IN (SELECT memory_id FROM memories)"),
    ("vectors", "fingerprint_id NOT IN (SELECT fingerprint_id FROM fingerprints)"),
    ("old_versions", "memory_id NOT IN (SELECT memory_id FROM memories)"),
    ("episode_memories", "episode_id NOT IN (SELECT episode_id FROM episodes)"),
)
"""Rows that belong to none: leftovers that must not outlive what was forgotten."""

_TORN = (
    "SELECT v.rowid AS vector_row, v.memory_id "
    "FROM vectors AS v JOIN fingerprints AS f USING (fingerprint_id) "
    "WHERE length(v.vector) != 4 * f.dimension"
)

_BURIED_ALIVE = "SELECT memory_id FROM tombstones WHERE memory_id IN (SELECT memory_id FROM memories)"

_HIGHEST = (
    "SELECT MAX(IFNULL((SELECT MAX(seq) FROM memories), 0), IFNULL((SELECT MAX(seq) FROM tombstones), 0))"
)

_COLUMNS = ("type", "scope", "user_id", "session_id", "key", "pinned", "valid_until")


class RowChecks(StorePart):
    """The doctor's questions to the file."""

    def find_faults(self) -> list[StoreFault]:
        """Everything wrong with the file; reads all of it and changes nothing."""
        with self._database.reading() as connection:
            damage = [text for (text,) in connection.execute("PRAGMA integrity_check(20)") if text != "ok"]
            if damage:
                return [StoreFault("damaged_file", str(self._database.path), text, False) for text in damage]
            return [
                *_row_faults(connection),
                *_leftovers(connection),
                *_alike_weights(connection),
            ]

    def mend(self) -> list[StoreFault]:
        """Mend what `find_faults` calls mendable, in one transaction; returns what was mended.

        Rows are the truth: columns are set from bodies, leftovers deleted, torn vectors dropped so that they
        are computed anew. A row that holds no valid memory is left for `rollback`, `forget` or a snapshot.
        """
        with self._database.writing(durable=True) as connection:
            found = [fault for fault in self.find_faults() if fault.can_mend]
            for fault in found:
                _MENDERS[fault.kind](connection, fault)
            self._cache.clear()
        return found


def _row_faults(connection: sqlite3.Connection) -> list[StoreFault]:
    found: list[StoreFault] = []
    for row in connection.execute("SELECT * FROM memories ORDER BY seq"):
        memory_id: str = row["memory_id"]
        try:
            memory = decode_body(row["body"], memory_id)
        except StoreCorrupt as error:
            found.append(StoreFault("invalid_row", memory_id, str(error), False))
            continue
        wrong = [name for name, value in _fields(memory).items() if row[name] != value]
        if wrong:
            message = f"the columns {', '.join(wrong)} must say what the body says"
            found.append(StoreFault("column", memory_id, message, True))
    for row in connection.execute("SELECT memory_id, version, body FROM old_versions ORDER BY memory_id"):
        try:
            decode_body(row["body"], row["memory_id"])
        except StoreCorrupt as error:
            message = f"version {row['version']}: {error}"
            found.append(StoreFault("invalid_row", row["memory_id"], message, False))
    return found


def _leftovers(connection: sqlite3.Connection) -> list[StoreFault]:
    found: list[StoreFault] = []
    for index, (table, where) in enumerate(_ORPHANS):
        (count,) = connection.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}").fetchone()
        if count:
            found.append(StoreFault("orphan", str(index), f"{count} rows of {table} belong to nothing", True))
    for row in connection.execute(_TORN):
        found.append(
            StoreFault(
                "torn_vector", row["memory_id"], "the vector has another size than its embedding", True
            )
        )
    for (memory_id,) in connection.execute(_BURIED_ALIVE):
        found.append(StoreFault("tombstone", memory_id, "is both stored and marked as forgotten", True))
    (highest,) = connection.execute(_HIGHEST).fetchone()
    (counter,) = connection.execute("SELECT value FROM counters WHERE name = 'seq'").fetchone()
    if counter < highest:
        found.append(StoreFault("counter", "seq", f"must be at least {highest}, got {counter}", True))
    return found


def _alike_weights(connection: sqlite3.Connection) -> list[StoreFault]:
    """Weights that are all alike tell the model nothing about what matters more."""
    query = (
        "SELECT COUNT(*), COUNT(DISTINCT json_extract(body, '$.semantic_weight')), "
        "MIN(json_extract(body, '$.semantic_weight')) FROM memories WHERE state = 'active'"
    )
    count, distinct, weight = connection.execute(query).fetchone()
    if count < _ALIKE_AT or distinct != 1:
        return []
    message = f"all {count} memories have the semantic weight {weight}: none stands out"
    return [StoreFault("alike_weights", "semantic_weight", message, False)]


def _fields(memory: Memory) -> dict[str, object]:
    return {name: getattr(memory, name) for name in _COLUMNS}


def _mend_columns(connection: sqlite3.Connection, fault: StoreFault) -> None:
    query = "SELECT body FROM memories WHERE memory_id = ?"
    (body,) = connection.execute(query, (fault.subject,)).fetchone()
    fields = {name: json.loads(body)[name] for name in _COLUMNS}
    assignments = ", ".join(f"{name} = :{name}" for name in _COLUMNS)
    connection.execute(
        f"UPDATE memories SET {assignments} WHERE memory_id = :memory_id",
        fields | {"memory_id": fault.subject},
    )


def _delete_orphans(connection: sqlite3.Connection, fault: StoreFault) -> None:
    table, where = _ORPHANS[int(fault.subject)]
    connection.execute(f"DELETE FROM {table} WHERE {where}")


def _drop_torn(connection: sqlite3.Connection, fault: StoreFault) -> None:
    connection.execute(f"DELETE FROM vectors WHERE rowid IN (SELECT vector_row FROM ({_TORN}))")


def _lift_tombstone(connection: sqlite3.Connection, fault: StoreFault) -> None:
    connection.execute("DELETE FROM tombstones WHERE memory_id = ?", (fault.subject,))


def _raise_counter(connection: sqlite3.Connection, fault: StoreFault) -> None:
    connection.execute(f"UPDATE counters SET value = ({_HIGHEST}) WHERE name = 'seq'")


_MENDERS: dict[str, Callable[[sqlite3.Connection, StoreFault], None]] = {
    "column": _mend_columns,
    "orphan": _delete_orphans,
    "torn_vector": _drop_torn,
    "tombstone": _lift_tombstone,
    "counter": _raise_counter,
}
