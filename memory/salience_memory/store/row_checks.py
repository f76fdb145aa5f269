"""Whether the file's tables agree with each other, and mending what can be mended without a choice."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from salience_memory.errors import StoreCorrupt
from salience_memory.store.rows import decode_body

__all__ = ["StoreFault", "find_faults", "mend"]

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


def find_faults(connection: sqlite3.Connection, path: Path) -> list[StoreFault]:
    """Everything wrong with the file; reads all of it and changes nothing."""
    damage = [text for (text,) in connection.execute("PRAGMA integrity_check(20)") if text != "ok"]
    if damage:
        return [StoreFault("damaged_file", str(path), text, False) for text in damage]
    found: list[StoreFault] = []
    for row in connection.execute("SELECT * FROM memories ORDER BY seq"):
        memory_id: str = row["memory_id"]
        try:
            memory = decode_body(row["body"], memory_id)
        except StoreCorrupt as error:
            found.append(StoreFault("invalid_row", memory_id, str(error), False))
            continue
        wrong = [name for name in _COLUMNS if row[name] != getattr(memory, name)]
        if wrong:
            message = f"the columns {', '.join(wrong)} must say what the body says"
            found.append(StoreFault("column", memory_id, message, True))
    for row in connection.execute("SELECT memory_id, version, body FROM old_versions ORDER BY memory_id"):
        try:
            decode_body(row["body"], row["memory_id"])
        except StoreCorrupt as error:
            message = f"version {row['version']}: {error}"
            found.append(StoreFault("invalid_row", row["memory_id"], message, False))
    for index, (table, where) in enumerate(_ORPHANS):
        (count,) = connection.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}").fetchone()
        if count:
            message = f"{count} rows of {table} belong to nothing"
            found.append(StoreFault("orphan", str(index), message, True))
    for row in connection.execute(_TORN):
        message = "the vector has another size than its embedding"
        found.append(StoreFault("torn_vector", row["memory_id"], message, True))
    for (memory_id,) in connection.execute(_BURIED_ALIVE):
        found.append(StoreFault("tombstone", memory_id, "is both stored and marked as forgotten", True))
    (highest,) = connection.execute(_HIGHEST).fetchone()
    (counter,) = connection.execute("SELECT value FROM counters WHERE name = 'seq'").fetchone()
    if counter < highest:
        found.append(StoreFault("counter", "seq", f"must be at least {highest}, got {counter}", True))
    # Weights that are all alike tell the model nothing about what matters more.
    query = (
        "SELECT COUNT(*), COUNT(DISTINCT json_extract(body, '$.semantic_weight')), "
        "MIN(json_extract(body, '$.semantic_weight')) FROM memories WHERE state = 'active'"
    )
    count, distinct, weight = connection.execute(query).fetchone()
    if count >= _ALIKE_AT and distinct == 1:
        message = f"all {count} memories have the semantic weight {weight}: none stands out"
        found.append(StoreFault("alike_weights", "semantic_weight", message, False))
    return found


def mend(connection: sqlite3.Connection, path: Path) -> list[StoreFault]:
    """Mend what `find_faults` calls mendable, inside a writing transaction; returns what was mended."""
    found = [fault for fault in find_faults(connection, path) if fault.can_mend]
    for fault in found:
        if fault.kind == "column":
            query = "SELECT body FROM memories WHERE memory_id = ?"
            (body,) = connection.execute(query, (fault.subject,)).fetchone()
            fields = {name: json.loads(body)[name] for name in _COLUMNS}
            assignments = ", ".join(f"{name} = :{name}" for name in _COLUMNS)
            update = f"UPDATE memories SET {assignments} WHERE memory_id = :memory_id"
            connection.execute(update, fields | {"memory_id": fault.subject})
        elif fault.kind == "orphan":
            table, where = _ORPHANS[int(fault.subject)]
            connection.execute(f"DELETE FROM {table} WHERE {where}")
        elif fault.kind == "torn_vector":
            connection.execute(f"DELETE FROM vectors WHERE rowid IN (SELECT vector_row FROM ({_TORN}))")
        elif fault.kind == "tombstone":
            connection.execute("DELETE FROM tombstones WHERE memory_id = ?", (fault.subject,))
        elif fault.kind == "counter":
            connection.execute(f"UPDATE counters SET value = ({_HIGHEST}) WHERE name = 'seq'")
    return found
