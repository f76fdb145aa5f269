import numpy as np
import pytest

from salience_memory import NOBODY, MemoryState, MemoryType, Scope, Viewer
from salience_memory.errors import ProjectionInvalid
from salience_memory.index import RowFilter, VectorIndex

ANN, BEN = Viewer(user_id="ann"), Viewer(user_id="ben")
EAST, NORTH = [1, 0, 0, 0], [0, 1, 0, 0]


def index_of(source):
    index = VectorIndex("e/4")
    index.catch_up(source)
    return index


def search(index, viewer, query=EAST, count=5, now_ns=0, **filters):
    return list(index.search(np.array(query, dtype=np.float32), RowFilter(viewer, now_ns, **filters), count))


def test_each_viewer_finds_their_own_and_global_rows(source):
    source.put("g", vector=EAST)
    source.put("a", user="ann", vector=EAST)
    source.put("b", user="ben", vector=NORTH)
    source.put("s", vector=EAST, scope=Scope.SESSION, session_id="s1")
    source.put("as", vector=EAST, scope=Scope.SESSION, session_id="s1", user_id="ann")
    index = index_of(source)
    assert search(index, NOBODY) == ["g"]
    assert search(index, ANN) == ["g", "a"]
    assert search(index, BEN) == ["g", "b"]
    assert search(index, Viewer(session_id="s1")) == ["g", "s"]
    assert search(index, Viewer(session_id="s1", user_id="ben")) == ["g", "s", "b"]
    assert search(index, Viewer(session_id="s1", user_id="ann")) == ["g", "a", "s", "as"]


def test_a_users_only_memory_is_found_behind_anothers_many_near_duplicates(source):
    for number in range(5_000):
        source.put(f"a{number}", user="ann", vector=EAST)
    source.put("b", user="ben", vector=NORTH)
    index = index_of(source)
    assert search(index, BEN) == ["b"]
    assert search(index, ANN, count=3) == ["a0", "a1", "a2"]


def test_search_is_exact_under_filters_however_many_rows(source, monkeypatch):
    monkeypatch.setattr("salience_memory.index.vector_index._EXACT_ROWS", 64)
    monkeypatch.setattr("salience_memory.index.vector_index._SCANNED_AT_LEAST", 16)
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((3_000, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    users, until = draw.random(len(vectors)) < 0.5, draw.integers(0, 100, size=len(vectors))
    for place, vector in enumerate(vectors):
        user = "ann" if users[place] else None
        source.put(f"m{place}", user=user, vector=vector, valid_until=int(until[place]))
    index = index_of(source)
    for query in vectors[:50]:
        for viewer, allowed in ((NOBODY, ~users & (until > 50)), (ANN, until > 50)):
            exact = np.where(allowed, np.round(vectors @ query, 6), -9)
            best = np.lexsort((np.arange(len(exact)), -exact))[:7]
            nearest = [f"m{place}" for place in best]
            assert search(index, viewer, query, count=7, now_ns=50) == nearest
            more = index.search(query, RowFilter(viewer, 50), 7, spare=20)
            assert list(more)[:7] == nearest
            assert len(more) == 27
            assert all(allowed[int(key[1:])] and more[key] == exact[int(key[1:])] for key in more)


def test_types_tags_archive_and_validity_filter_before_the_best_are_taken(source):
    for number in range(50):
        source.put(f"near{number}", vector=EAST)
    source.put("rule", vector=NORTH, type=MemoryType.CONSTRAINT)
    source.put("tagged", vector=NORTH, tags=("domain:law", "lang:en"))
    source.put("old", vector=NORTH, state=MemoryState.ARCHIVED)
    source.put("late", vector=NORTH, valid_until=10, tags=("late",))
    index = index_of(source)
    assert search(index, NOBODY, count=1, types=(MemoryType.CONSTRAINT,)) == ["rule"]
    assert search(index, NOBODY, count=1, tags=("lang:en", "domain:law")) == ["tagged"]
    assert search(index, NOBODY, count=1, tags=("lang:en", "domain:general")) == []
    assert search(index, NOBODY, count=1, tags=("late",), now_ns=9) == ["late"]
    assert search(index, NOBODY, count=1, tags=("late",), now_ns=10) == []
    assert "old" not in search(index, NOBODY, count=99)
    assert "old" in search(index, NOBODY, count=99, include_archived=True)


def test_catching_up_equals_building_anew_whatever_happened(source):
    draw = np.random.default_rng(0)
    index = VectorIndex("e/4")
    for step in range(400):
        name = f"m{draw.integers(30)}"
        if name in source.rows and draw.random() < 0.4:
            source.delete(name)
        else:
            vector = draw.standard_normal(4) if draw.random() < 0.8 else None
            source.put(name, user=(None, "ann")[draw.integers(2)], vector=vector)
        if step % 7 == 0:
            index.catch_up(source)
            search(index, ANN)
    index.catch_up(source)
    fresh = index_of(source)
    assert index.find_differences(source) == []
    assert (index.sha256, index.applied_seq) == (fresh.sha256, fresh.applied_seq)
    assert search(index, ANN, count=50) == search(fresh, ANN, count=50)


def test_a_deleted_vector_is_nowhere_in_the_index_or_its_file(source, tmp_path, monkeypatch):
    monkeypatch.setattr("salience_memory.index.vector_index._EXACT_ROWS", 1)
    secret = np.array([0.5, 0.5, 0.5, -0.5], dtype=np.float32)
    for number in range(10):
        source.put(f"m{number}", vector=EAST)
    source.put("secret", vector=secret)
    index = index_of(source)
    assert search(index, NOBODY, secret, count=1) == ["secret"]
    source.delete("secret")
    index.catch_up(source)
    assert "secret" not in search(index, NOBODY, secret, count=99)
    assert not (index._vectors == secret).all(axis=1).any()
    index.save(tmp_path / "vectors")
    assert secret.tobytes() not in (tmp_path / "vectors").read_bytes()
    assert b"secret" not in (tmp_path / "vectors").read_bytes()


def test_only_vectors_of_the_indexs_own_embedding_are_read(source):
    source.put("mine", vector=EAST)
    source.put("other", vector=[1.0] * 6, fingerprint="other/6")
    assert search(index_of(source), NOBODY) == ["mine"]


def test_what_is_saved_is_loaded_and_caught_up(source, tmp_path):
    source.put("a", user="ann", vector=EAST, valid_until=77)
    source.put("b", vector=NORTH)
    index = index_of(source)
    index.save(tmp_path / "vectors")
    source.delete("b")
    source.put("c", vector=NORTH)
    loaded = VectorIndex.load(tmp_path / "vectors", "e/4")
    assert loaded.sha256 == index.sha256
    loaded.catch_up(source)
    assert search(loaded, ANN) == ["a", "c"]
    assert loaded.find_differences(source) == []
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


def test_a_file_with_any_byte_changed_or_missing_is_refused(source, tmp_path):
    source.put("a", user="ann", vector=EAST)
    path = tmp_path / "vectors"
    index_of(source).save(path)
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ProjectionInvalid, match="torn or altered"):
            VectorIndex.load(path, "e/4")
        path.write_bytes(data[:place])
        with pytest.raises(ProjectionInvalid, match="torn or altered"):
            VectorIndex.load(path, "e/4")


def test_a_file_of_another_embedding_is_refused_with_both_names(source, tmp_path):
    source.put("a", vector=EAST)
    index_of(source).save(tmp_path / "vectors")
    with pytest.raises(ProjectionInvalid, match=r"must hold vectors of e2/4, got e/4"):
        VectorIndex.load(tmp_path / "vectors", "e2/4")
    with pytest.raises(ProjectionInvalid, match="cannot be read"):
        VectorIndex.load(tmp_path / "absent", "e/4")


def test_a_store_that_is_behind_the_index_is_read_anew(source):
    for number in range(5):
        source.put(f"m{number}", vector=EAST)
    index = index_of(source)
    older = type(source)()
    older.put("x", vector=NORTH)
    index.catch_up(older)
    assert search(index, NOBODY) == ["x"]
    assert index.applied_seq == 1


def test_a_query_of_another_length_or_not_finite_is_refused(source):
    source.put("a", vector=EAST)
    index = index_of(source)
    with pytest.raises(ValueError, match=r"query_vector must have shape \[4\], got \[3\]"):
        search(index, NOBODY, [1, 0, 0])
    with pytest.raises(ValueError, match="query_vector must be finite"):
        search(index, NOBODY, [1, 0, 0, np.nan])


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'tpu'"):
        VectorIndex("e/4", device="tpu")
