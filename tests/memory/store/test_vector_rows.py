import sqlite3
from contextlib import closing

import numpy as np
import pytest

from salience_memory import EmbeddingMismatch, StoreCorrupt, Viewer
from salience_memory.store.index_feed import _COLUMNS

ANN = Viewer(user_id="ann")


def vectors(count, dimension=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)


@pytest.fixture
def abc(store, remember):
    return store.declare([remember(name, memory_id=name) for name in "abc"])


def put(store, ids, values, fingerprint="f", versions=None):
    return store.put_vectors(list(ids), versions or [1] * len(ids), values, fingerprint)


def test_vectors_come_back_bit_for_bit_by_rising_seq(store, abc):
    values = vectors(3)
    assert put(store, "cab", values) == 3
    (batch,) = store.iter_vectors("f")
    assert batch.memory_ids == ["c", "a", "b"]
    assert np.array_equal(batch.vectors, values)
    assert batch.vectors.dtype == np.float32
    assert batch.seqs.tolist() == [store.get(name, ANN).seq for name in "cab"] == [4, 5, 6]
    pieces = list(store.iter_vectors("f", batch_rows=2))
    assert [piece.memory_ids for piece in pieces] == [["c", "a"], ["b"]]
    (rest,) = store.iter_vectors("f", after_seq=5)
    assert rest.memory_ids == ["b"]
    some = store.vectors_of(["b", "a", "unknown"], "f")
    assert some.memory_ids == ["a", "b"]
    assert np.array_equal(some.vectors, values[1:])


def test_a_new_vector_is_told_as_a_change(store, abc):
    seq = store.latest_seq()
    put(store, "b", vectors(1))
    assert [(change.memory_id, change.version) for change in store.changes_since(seq)] == [("b", 1)]


def test_new_content_drops_the_vectors_and_other_changes_keep_them(store, abc):
    put(store, "abc", vectors(3))
    store.update("a", ANN, changes={"trust": 0.3}, reason="edit")
    assert store.fingerprints() == {"f": 3}
    store.update("a", ANN, changes={"content": "new"}, reason="edit")
    assert store.fingerprints() == {"f": 2}
    assert [memory.memory_id for memory in store.missing_vectors("f", 10)] == ["a"]
    given = vectors(1, seed=1)
    store.update("b", ANN, changes={"content": "new b"}, reason="edit", vector=given[0], fingerprint="f")
    assert np.array_equal(store.vectors_of(["b"], "f").vectors, given)


def test_a_vector_of_what_the_memory_no_longer_says_is_left_out(store, abc):
    store.update("a", ANN, changes={"content": "new"}, reason="edit")
    store.update("b", ANN, changes={"trust": 0.3}, reason="edit")
    assert put(store, "ab", vectors(2)) == 1
    assert store.vectors_of(["a", "b"], "f").memory_ids == ["b"]
    assert put(store, "a", vectors(1), versions=[9]) == 0
    assert put(store, "a", vectors(1), versions=[2]) == 1


def test_vectors_of_two_embeddings_never_meet(store, abc):
    put(store, "abc", vectors(3), "old")
    put(store, "ab", vectors(2, 6), "new")
    assert store.fingerprints() == {"new": 2, "old": 3}
    assert [batch.vectors.shape for batch in store.iter_vectors("new")] == [(2, 6)]
    assert [batch.vectors.shape for batch in store.iter_vectors("old")] == [(3, 4)]
    assert [memory.memory_id for memory in store.missing_vectors("new", 10)] == ["c"]
    assert store.drop_vectors("old") == 3
    assert (store.fingerprints(), list(store.iter_vectors("old"))) == ({"new": 2}, [])
    assert store.drop_vectors("old") == 0


def test_a_changed_dimension_is_refused_by_name_and_nothing_is_stored(store, remember, abc):
    put(store, "a", vectors(1, 4))
    with pytest.raises(EmbeddingMismatch, match="vectors of f must have dimension 4, got 6"):
        put(store, "b", vectors(1, 6))
    with pytest.raises(EmbeddingMismatch, match="vectors of f must have dimension 4, got 6"):
        store.declare([remember("d")], vectors=vectors(1, 6), fingerprint="f")
    assert (store.fingerprints(), store.count()) == ({"f": 1}, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 4)), r"vectors must have shape \[1, embed\], got \[2, 4\]"),
        (np.zeros(4), r"vectors must have shape \[1, embed\], got \[4\]"),
        (np.zeros((1, 0)), r"vectors must have shape \[1, embed\], got \[1, 0\]"),
        (np.full((1, 4), np.nan), "vectors must be finite, got NaN or infinity"),
    ],
)
def test_vectors_that_are_none_are_refused(store, abc, values, message):
    with pytest.raises(EmbeddingMismatch, match=message):
        put(store, "a", values)
    with pytest.raises(ValueError, match="versions must hold 2 numbers, got 1"):
        put(store, "ab", vectors(2), versions=[1])
    assert store.fingerprints() == {}


def test_missing_vectors_are_told_by_page_and_after_a_seq(store, abc):
    assert [memory.memory_id for memory in store.missing_vectors("f", 2)] == ["a", "b"]
    assert [memory.memory_id for memory in store.missing_vectors("f", 2, after_seq=2)] == ["c"]


def test_a_torn_vector_is_an_error_and_no_result(store, abc):
    put(store, "abc", vectors(3))
    with store._database.writing(durable=False) as connection:
        connection.execute("UPDATE vectors SET vector = substr(vector, 1, 7) WHERE memory_id = 'b'")
    with pytest.raises(StoreCorrupt, match="the vector of 'b' must have 16 bytes"):
        list(store.iter_vectors("f"))


def test_batches_are_read_where_the_last_one_ended_without_sorting_what_is_left(store, abc, tmp_path):
    """Sorted for every batch, a million vectors took ten minutes to read."""
    put(store, "cab", vectors(3))
    query = f"EXPLAIN QUERY PLAN {_COLUMNS} WHERE v.fingerprint_id = 1 AND m.seq > 1 ORDER BY m.seq LIMIT 2"
    with closing(sqlite3.connect(tmp_path / "memories.db")) as connection:
        steps = [row[3] for row in connection.execute(query)]
    assert steps
    assert not any("B-TREE" in step for step in steps)
