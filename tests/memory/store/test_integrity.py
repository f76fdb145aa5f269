import sqlite3
from contextlib import closing

import numpy as np
import pytest

from salience_memory import Viewer
from salience_memory.integrity import check_store, repair_store
from salience_memory.memory_recall import MemoryRecall

ANN = Viewer(user_id="ann")


@pytest.fixture
def filled(store, remember):
    memories = [remember(f"fact {name}", memory_id=name) for name in "abc"]
    store.declare(memories, vectors=np.eye(3, dtype=np.float32), fingerprint="f")
    store.update("a", ANN, changes={"trust": 0.5}, reason="edit")
    return store


def damage(store, *statements):
    with store._database.writing(durable=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_sound_store_has_no_findings(filled):
    assert check_store(filled, []) == []


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE memories SET user_id = 'bob' WHERE memory_id = 'a'", "column"),
        ("UPDATE memories SET pinned = 1 WHERE memory_id = 'a'", "column"),
        ("INSERT INTO vectors VALUES ('gone', 1, zeroblob(12))", "orphan"),
        ("INSERT INTO vectors VALUES ('a', 9, x'00')", "orphan"),
        ("INSERT INTO episode_memories VALUES ('a', 9)", "orphan"),
        ("UPDATE vectors SET vector = x'0011' WHERE memory_id = 'b'", "torn_vector"),
        ("INSERT INTO tombstones VALUES ('a', 0, 1, 1)", "tombstone"),
    ],
)
def test_what_can_be_mended_is_found_and_mended(filled, statement, kind):
    damage(filled, statement)
    (finding,) = check_store(filled, [])
    assert (finding.kind, finding.can_mend) == (kind, True)
    assert repair_store(filled, []) == [finding]
    assert check_store(filled, []) == []
    assert sorted(memory.content for memory in filled.list(ANN)) == ["fact a", "fact b", "fact c"]


def test_a_counter_that_fell_behind_is_raised(filled, remember):
    damage(filled, "SELECT 1")
    with filled._database.writing(durable=True) as connection:
        connection.execute("UPDATE counters SET value = 1")
    assert [finding.kind for finding in repair_store(filled, [])] == ["counter"]
    (stored,) = filled.declare([remember("next")])
    assert stored.seq == 5


def test_a_row_without_a_memory_is_found_and_left_to_its_owner(filled):
    damage(filled, "UPDATE memories SET body = '{}' WHERE memory_id = 'b'")
    (finding,) = check_store(filled, [])
    assert (finding.kind, finding.subject, finding.can_mend) == ("invalid_row", "b", False)
    assert repair_store(filled, []) == []
    filled.forget("b", ANN)
    assert check_store(filled, []) == []


def test_weights_that_are_all_alike_are_named(store, remember):
    store.declare([remember(f"fact {number}", semantic_weight=0.7) for number in range(10)])
    (finding,) = check_store(store, [])
    assert (finding.kind, finding.can_mend) == ("alike_weights", False)
    assert "all 10 memories have the semantic weight 0.7" in finding.message
    store.declare([remember("another", semantic_weight=0.8)])
    assert check_store(store, []) == []


def test_an_index_that_differs_from_the_rows_is_built_anew(filled):
    with MemoryRecall(filled, fingerprint="f") as recall:
        recall.sync()
        assert check_store(filled, recall.projections) == []
        # The rows change behind the change log's back, as when a file is restored under a running process.
        damage(
            filled, "UPDATE memories SET body = json_set(body, '$.content', 'other') WHERE memory_id = 'a'"
        )
        found = check_store(filled, recall.projections)
        assert {finding.kind for finding in found} == {"projection"}
        assert repair_store(filled, recall.projections) == found
        assert check_store(filled, recall.projections) == []


def test_an_index_of_a_store_that_was_put_back_is_built_anew(filled, tmp_path, clock):
    from salience_memory import MemoryStore

    with MemoryStore(tmp_path / "young.db", clock=clock) as young, MemoryRecall(filled) as recall:
        recall.sync()
        found = check_store(young, recall.projections)
        assert "holds changes up to 4, the store has 0" in found[0].message
        repair_store(young, recall.projections)
        assert check_store(young, recall.projections) == []


def test_damaged_postings_are_a_finding_and_built_anew(store, remember, tmp_path):
    store.declare([remember(f"river {i}", semantic_weight=0.6 + i / 100) for i in range(20)])
    with MemoryRecall(store, folder=tmp_path / "index") as recall:
        recall.sync()
    with closing(sqlite3.connect(tmp_path / "index" / "lexical.db")) as lexical, lexical:
        lexical.execute("UPDATE posting_data SET block = zeroblob(length(block)) WHERE id > 10")
    with MemoryRecall(store, folder=tmp_path / "index") as recall:
        (found,) = check_store(store, recall.projections)
        assert (found.kind, found.can_mend) == ("projection", True)
        assert "the postings must agree with their texts" in found.message
        assert repair_store(store, recall.projections) == [found]
        assert check_store(store, recall.projections) == []
