"""Score parity with InfiniteBench and BABILong, and the data catalogue behind it."""

import json
from pathlib import Path

import pytest

from salience_experiments.data import KNOWN_FILES, data_file, file_sha256, find_data_file, read_json_lines
from salience_experiments.errors import DataFileChanged, DataFileMissing, DataFormatError, ParityError
from salience_experiments.tasks import ParityCell, mismatches, parity_scores
from salience_experiments.tasks.parity import (
    is_number_hit,
    is_place_hit,
    is_value_hit,
    score_babilong,
    score_infinitebench,
)

SYNTHWIKI = "synthwiki/madlibs1.csv"


@pytest.fixture(scope="module")
def cells(data_dir: Path) -> list[ParityCell]:
    return parity_scores(data_dir)


def test_every_published_infinitebench_cell_is_matched(cells: list[ParityCell]):
    ours = [cell for cell in cells if cell.benchmark == "InfiniteBench"]
    assert len(ours) == 21
    assert all(cell.is_match for cell in ours)
    assert {cell.n_rows for cell in ours} == {500, 590}


def test_babilong_qa1_of_mistral_is_matched(cells: list[ParityCell]):
    ours = [cell for cell in cells if (cell.model, cell.task) == ("Mistral-7B-Instruct-v0.2", "qa1")]
    assert [f"{cell.percent:.0f}" for cell in ours] == ["92", "86", "75", "64", "63"]
    assert [cell.length for cell in ours] == ["0k", "1k", "2k", "4k", "8k"]
    assert all(cell.is_match for cell in ours)


def test_no_published_cell_is_missed_and_the_rest_says_so(cells: list[ParityCell]):
    assert len(cells) == 66
    assert mismatches(cells) == []
    unknown = [cell for cell in cells if cell.is_match is None]
    assert len(unknown) == 40
    assert all(cell.published is None and cell.source is None for cell in unknown)


def test_babilong_files_are_shorter_than_their_table_says(cells: list[ParityCell]):
    rows = {(cell.task, cell.length): cell.n_rows for cell in cells if cell.benchmark == "BABILong"}
    assert rows[("qa1", "1k")] == 1000
    assert rows[("qa2", "1k")] == 999
    assert rows[("qa3", "1k")] == 862


@pytest.mark.parametrize(
    ("hits", "published", "is_match"),
    [
        (865, "86", True),  # 86.5 is printed 86, halves to even
        (865, "87", False),
        (865, "86.5", True),
        (49, "< 5", True),
        (50, "< 5", False),
        (10, None, None),
    ],
)
def test_match_is_judged_as_the_table_prints(hits: int, published: str | None, is_match: bool | None):
    assert ParityCell("b", "m", "t", None, 1000, hits, published, None).is_match is is_match


def test_number_hit_takes_the_first_run_of_digits():
    assert is_number_hit("The pass key is 71432. Not 5.", "71432")
    assert not is_number_hit("5: 71432", "71432")
    assert not is_number_hit("none", "71432")


def test_value_hit_takes_whole_words():
    assert is_value_hit('{"k":"ab-1"}', "ab-1")
    assert not is_value_hit("ab-12", "ab-1")


def test_place_hit_wants_the_target_alone_in_the_first_sentence():
    assert is_place_hit("In the Kitchen. Or the office.", "kitchen", "Where is Ann?")
    assert not is_place_hit("Kitchen or office.", "kitchen", "Where is Ann?")
    assert not is_place_hit("I think. Kitchen", "kitchen", "Where is Ann?")
    assert is_place_hit("kitchen\n<example>office", "kitchen", "Where is Ann?")


def test_place_hit_ignores_places_of_the_question():
    question = "Where was the milk before the office?"
    assert is_place_hit("before the office, the kitchen", "kitchen", question)


def test_label_in_a_list_counts_as_its_string(tmp_path: Path):
    path = tmp_path / "preds.jsonl"
    path.write_text(json.dumps({"prediction": " 42.", "ground_truth": ["42"]}) + "\n")
    assert score_infinitebench(path, "passkey") == [True]


def test_unscorable_predictions_are_refused(tmp_path: Path):
    path = tmp_path / "preds.jsonl"
    path.write_text(json.dumps({"prediction": None, "ground_truth": "42"}) + "\n")
    with pytest.raises(ParityError, match="row 0 must have a string prediction"):
        score_infinitebench(path, "passkey")
    with pytest.raises(ValueError, match=r"task must be one of kv_retrieval, .*, got 'math_find'"):
        score_infinitebench(path, "math_find")
    path.write_text("target,output\nx,y\n")
    with pytest.raises(ParityError, match=r"lacks \['question'\]"):
        score_babilong(path)


def test_missing_file_says_where_to_obtain_it(tmp_path: Path):
    with pytest.raises(DataFileMissing, match=r"obtain it from https://github.com/adamlerer/synthwiki.*MIT"):
        data_file(SYNTHWIKI, tmp_path)
    with pytest.raises(DataFileMissing, match=r"no-such\.jsonl is missing"):
        find_data_file("no-such.jsonl", tmp_path)
    with pytest.raises(DataFileMissing, match="SALIENCE_DATA"):
        find_data_file(SYNTHWIKI, None)


def test_changed_file_is_refused_unless_allowed(tmp_path: Path):
    path = tmp_path / SYNTHWIKI
    path.parent.mkdir()
    path.write_text("changed")
    with pytest.raises(DataFileChanged, match=f"must have sha256 {KNOWN_FILES[SYNTHWIKI].sha256}, got"):
        find_data_file(SYNTHWIKI, tmp_path)
    assert data_file(SYNTHWIKI, tmp_path, allow_changed=True) == path


def test_unknown_file_is_refused_by_name_and_found_by_path(tmp_path: Path):
    (tmp_path / "own.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"got 'own\.jsonl'"):
        data_file("own.jsonl", tmp_path)
    assert find_data_file("own.jsonl", tmp_path) == tmp_path / "own.jsonl"
    assert find_data_file(str(tmp_path / "own.jsonl"), None) == tmp_path / "own.jsonl"


def test_every_known_file_has_its_published_sha256(data_dir: Path):
    assert len(KNOWN_FILES) == 73
    for name, known in KNOWN_FILES.items():
        assert file_sha256(data_dir / name) == known.sha256
        assert known.licence
        assert known.url.startswith("https://")


def test_damaged_json_lines_are_refused(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2\n')
    assert read_json_lines(path, 1) == [{"a": 1}]
    with pytest.raises(DataFormatError, match="line 3 must be JSON"):
        read_json_lines(path)
    path.write_text("[1]\n")
    with pytest.raises(DataFormatError, match="must be a JSON object, got list"):
        read_json_lines(path)
    with pytest.raises(ValueError, match="n_rows must be at least 1, got 0"):
        read_json_lines(path, 0)
    with pytest.raises(DataFileMissing):
        read_json_lines(tmp_path / "none.jsonl")
