import os

import pytest

from salience_memory import NOBODY
from salience_memory.index import Projections, RowFilter
from salience_memory.index.projection import replace_file

EAST = [1, 0, 0, 0]


def open_in(folder, source):
    return Projections(source, "e/4", folder, "cpu")


def found(projections):
    wanted = RowFilter(NOBODY, 0)
    words = projections.lexical.weigh("word", NOBODY, False)
    return sorted(projections.lexical.search(words, wanted, 99))


def test_the_folder_keeps_both_indexes(source, tmp_path):
    source.put("a", "word", vector=EAST)
    first = open_in(tmp_path, source)
    assert (first.is_owner, first.is_ready) == (True, False)
    first.catch_up()
    first.close()
    second = open_in(tmp_path, source)
    assert second.is_ready
    assert [projection.applied_seq for projection in second.all] == [1, 1]
    assert found(second) == ["a"]
    second.close()


def test_a_second_process_in_the_folder_works_on_copies_and_writes_nothing(source, tmp_path):
    source.put("a", "word", vector=EAST)
    first = open_in(tmp_path, source)
    first.catch_up()
    second = open_in(tmp_path, source)
    assert not second.is_owner
    source.put("b", "word", vector=EAST)
    second.catch_up()
    assert (found(first), found(second)) == (["a"], ["a", "b"])
    second.close()
    assert not (tmp_path / "vectors.bin").exists()
    first.close()
    third = open_in(tmp_path, source)
    assert third.is_owner
    third.close()


@pytest.mark.parametrize("name", ["vectors.bin", "lexical.db"])
def test_a_torn_file_is_built_anew_from_the_rows(source, tmp_path, name):
    for number in range(30):
        source.put(f"m{number}", "word", vector=EAST)
    first = open_in(tmp_path, source)
    first.catch_up()
    first.close()
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    second = open_in(tmp_path, source)
    second.catch_up()
    assert all(not projection.find_differences(source) for projection in second.all)
    second.close()


def test_indexes_of_a_store_that_was_restored_from_a_copy_are_built_anew(source, tmp_path):
    for number in range(10):
        source.put(f"m{number}", "word", vector=EAST)
    first = open_in(tmp_path, source)
    first.catch_up()
    first.close()
    # Back to five rows, then on beyond the tenth: the numbers alone look like more of the same.
    restored = type(source)()
    for number in range(5):
        restored.put(f"m{number}", "word", vector=EAST)
    for number in range(7):
        restored.put(f"n{number}", "word", vector=EAST)
    second = open_in(tmp_path, restored)
    second.catch_up()
    assert found(second) == sorted(restored.rows)
    assert all(not projection.find_differences(restored) for projection in second.all)
    second.close()


def test_vectors_are_written_only_once_much_has_changed(source, tmp_path, monkeypatch):
    monkeypatch.setattr("salience_memory.index.projections._SAVED_AFTER", 3)
    projections = open_in(tmp_path, source)
    for number in range(3):
        assert not (tmp_path / "vectors.bin").exists()
        source.put(f"m{number}", "word", vector=EAST)
        projections.catch_up()
        projections.save_if_worthwhile()
    assert (tmp_path / "vectors.bin").exists()
    projections.close()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with replace_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
    with replace_file(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]
