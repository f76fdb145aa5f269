import sqlite3

import numpy as np
import pytest

from salience_memory import NOBODY, MemoryState, MemoryType, Viewer
from salience_memory.errors import ProjectionInvalid
from salience_memory.index import LEXICAL_FINGERPRINT, LexicalIndex, RowFilter

ANN, BEN = Viewer(user_id="ann"), Viewer(user_id="ben")


def index_of(source, path=None):
    index = LexicalIndex(path)
    index.catch_up(source)
    return index


def search(index, query, viewer=NOBODY, count=99, now_ns=0, **filters):
    wanted = RowFilter(viewer, now_ns, **filters)
    words = index.weigh(query, viewer, wanted.include_archived)
    return index.search(words, wanted, count)


def test_chinese_and_japanese_words_are_found_inside_a_sentence(source):
    source.put("refund", "本店的退款政策：七天内可以退款")
    source.put("tea", "日本茶を毎日飲みます")
    index = index_of(source)
    assert search(index, "退款") == ["refund"]
    assert search(index, "日本茶") == ["tea", "refund"]  # 本店 shares a sign


@pytest.mark.parametrize(
    "query", ['"', "*", "NEAR(", 'a"b', "AND OR NOT", "(", "tokens:", "^x", "-", "\0", "#", "\ud800"]
)
def test_no_character_of_a_query_is_syntax(source, query):
    source.put("a", "plain words")
    index = index_of(source)
    assert search(index, query) == []
    assert search(index, f"{query} plain") == ["a"]


def test_a_blank_query_finds_nothing(source):
    source.put("a", "plain words")
    assert search(index_of(source), " \n") == []


def test_rows_that_share_more_information_come_first_and_newer_ones_on_a_tie(source):
    source.put("one", "common rare")
    source.put("two", "common")
    source.put("three", "common")
    assert search(index_of(source), "common rare") == ["one", "three", "two"]


def test_each_viewer_finds_their_own_and_global_rows(source):
    for number in range(50):
        source.put(f"b{number}", "violin", user="ben")
    source.put("a", "violin", user="ann")
    source.put("g", "violin")
    index = index_of(source)
    assert search(index, "violin") == ["g"]
    assert search(index, "violin", ANN) == ["g", "a"]
    assert len(search(index, "violin", BEN)) == 51


def test_statistics_cover_what_the_viewer_sees_and_nothing_else(source):
    source.put("g", "violin river")
    for number in range(9):
        source.put(f"b{number}", "violin", user="ben")
    index = index_of(source)
    alone, with_ben = (index.weigh("violin river", viewer, False) for viewer in (NOBODY, BEN))
    assert (alone.n_texts, with_ben.n_texts) == (1, 10)
    assert alone.weights["violin"] == alone.weights["river"]
    assert with_ben.weights["violin"] < with_ben.weights["river"]
    assert alone.mean_tokens == 2


def test_filters_come_before_the_limit_on_what_is_read(source, monkeypatch):
    monkeypatch.setattr("salience_memory.index.lexical_index._READ_ROWS", 3)
    monkeypatch.setattr("salience_memory.index.lexical_index._READ_ROWS_PER_RESULT", 0)
    source.put("rule", "word", type=MemoryType.CONSTRAINT)
    source.put("tagged", "word", tags=("lang:en", "x"))
    source.put("valid", "word", tags=("t",), valid_until=100)
    for number in range(20):
        source.put(f"late{number}", "word", tags=("t",), valid_until=5)
    for number in range(20):
        source.put(f"m{number}", "word")
    index = index_of(source)
    assert search(index, "word", types=(MemoryType.CONSTRAINT,)) == ["rule"]
    assert search(index, "word", tags=("x", "lang:en")) == ["tagged"]
    assert search(index, "word", tags=("x", "lang:de")) == []
    assert search(index, "word", tags=("t",), now_ns=50) == ["valid"]
    assert search(index, "word") == ["m19", "m18", "m17"]


def test_rare_words_are_read_before_common_ones(source, monkeypatch):
    monkeypatch.setattr("salience_memory.index.lexical_index._READ_ROWS", 5)
    monkeypatch.setattr("salience_memory.index.lexical_index._READ_ROWS_PER_RESULT", 0)
    source.put("both", "common rare")
    for number in range(20):
        source.put(f"m{number}", "common")
    assert search(index_of(source), "common rare")[:2] == ["both", "m19"]


def test_archived_rows_come_on_request(source):
    source.put("old", "word", state=MemoryState.ARCHIVED)
    index = index_of(source)
    assert search(index, "word") == []
    assert search(index, "word", include_archived=True) == ["old"]


def test_catching_up_equals_building_anew_whatever_happened(source, tmp_path):
    draw = np.random.default_rng(0)
    words = ("river", "violin", "退款", "invoice")
    index = LexicalIndex(tmp_path / "lexical.db")
    for step in range(300):
        name = f"m{draw.integers(20)}"
        if name in source.rows and draw.random() < 0.4:
            source.delete(name)
        else:
            text = " ".join(draw.choice(words, size=3))
            source.put(name, text, user=(None, "ann", "ben")[draw.integers(3)])
        if step % 11 == 0:
            index.catch_up(source)
    index.catch_up(source)
    fresh = index_of(source)
    assert index.find_differences(source) == []
    assert index.sha256 == fresh.sha256
    for viewer in (NOBODY, ANN, BEN):
        assert (
            index.weigh("river violin 退款", viewer, False).weights
            == fresh.weigh("river violin 退款", viewer, False).weights
        )
        assert search(index, "river 退款", viewer) == search(fresh, "river 退款", viewer)


def test_what_is_deleted_is_in_no_byte_of_the_files(source, tmp_path):
    path = tmp_path / "lexical.db"
    source.put("secretid", "hushhush word", user="secretuser")
    for number in range(50):
        source.put(f"m{number}", "word", user="ann")
    index = index_of(source, path)
    source.delete("secretid")
    index.catch_up(source)
    for file in tmp_path.iterdir():
        for gone in (b"hushhush", b"secretid", b"secretuser"):
            assert gone not in file.read_bytes()
    assert search(index, "hushhush", Viewer(user_id="secretuser")) == []
    index.close()


def test_eight_hundred_deletions_are_one_step(source, tmp_path):
    for number in range(1_000):
        source.put(f"m{number}", f"word w{number}")
    index = index_of(source, tmp_path / "lexical.db")
    for number in range(800):
        source.delete(f"m{number}")
    statements = []
    index._file._connection.set_trace_callback(statements.append)
    index.catch_up(source)
    assert sum(statement.startswith("COMMIT") for statement in statements) == 1
    assert len(search(index, "word", count=999)) == 200
    index.close()


def test_a_failed_step_changes_nothing(source, tmp_path):
    source.put("a", "violin")
    index = index_of(source, tmp_path / "lexical.db")
    before = index.sha256
    source.put("b", "violin")
    source.put("c", "violin", tags=("t",), type="no type")
    with pytest.raises(AttributeError):
        index.catch_up(source)
    assert (index.sha256, index.applied_seq) == (before, 1)
    assert search(index, "violin") == ["a"]
    index.close()


def test_what_is_on_disk_is_loaded_and_caught_up(source, tmp_path):
    path = tmp_path / "lexical.db"
    source.put("a", "violin", user="ann", valid_until=77)
    index = index_of(source, path)
    index.close()
    source.put("b", "violin")
    loaded = LexicalIndex.load(path)
    assert loaded.sha256 == index.sha256
    assert loaded.fingerprint == LEXICAL_FINGERPRINT
    loaded.catch_up(source)
    assert search(loaded, "violin", ANN) == ["b", "a"]
    shared = LexicalIndex.load(path, is_shared=True)
    source.put("c", "violin")
    shared.catch_up(source)
    assert search(shared, "violin", ANN) == ["c", "b", "a"]
    assert search(loaded, "violin", ANN) == ["b", "a"]
    loaded.rebuild(source)
    assert search(loaded, "violin", ANN) == ["c", "b", "a"]
    loaded.close()
    shared.close()
    assert [file.name for file in tmp_path.iterdir()] == ["lexical.db"]


def test_torn_altered_and_foreign_files_are_refused(source, tmp_path):
    path = tmp_path / "lexical.db"
    for number in range(50):
        source.put(f"m{number}", f"violin number{number}")
    index_of(source, path).close()
    data = path.read_bytes()

    def refused(written, match="must|cannot"):
        path.write_bytes(written)
        for is_shared in (False, True):
            with pytest.raises(ProjectionInvalid, match=match):
                LexicalIndex.load(path, is_shared=is_shared).close()

    refused(b"")
    refused(b"no database at all" * 100)
    refused(data[: len(data) // 2])
    refused(data.replace(b"number7", b"number8"), "torn or altered")
    path.write_bytes(data)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE state SET value = 'tokens-0' WHERE name = 'fingerprint'")
    database.close()
    refused(path.read_bytes(), "must be cut by tokens-1")
    path.unlink()
    with pytest.raises(ProjectionInvalid, match="must be a file"):
        LexicalIndex.load(path)


def test_postings_that_do_not_agree_with_their_texts_are_told(source):
    source.put("a", "violin")
    index = index_of(source)
    index._file._connection.execute("UPDATE posting_content SET c0 = '1.river'")
    with pytest.raises(ProjectionInvalid, match="postings must agree"):
        index.find_differences(source)
