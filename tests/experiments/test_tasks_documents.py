"""A user's own questions and documents: what each way to write them means, and refusals that name the row."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from salience_experiments.errors import DataFormatError
from salience_experiments.runner import RunOptions, run_spec
from salience_experiments.spec import ExperimentSpec
from salience_experiments.tasks import documents_from_file, plain_layout
from salience_experiments.trials import read_trials
from salience_memory import TextRecall
from salience_models import LanguageModel

BELLS = ["The tower has seven bells.", "The ferry leaves at six.", "The baker sells rye."]
ROW = {"question": "When does the ferry leave?", "answer": "at six", "documents": BELLS}


def write_csv(path: Path, *rows: dict[str, Any]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_every_way_to_write_a_row_means_the_same(tmp_path: Path):
    columns = {f"document_{number}": text for number, text in enumerate(BELLS, start=1)}
    asked = {"question": ROW["question"], "answer": "at six"}
    files = [
        write_jsonl(tmp_path / "list.jsonl", ROW),
        write_jsonl(tmp_path / "gold.jsonl.gz", {**ROW, "gold": 2, "source": "ignored"}),
        write_jsonl(tmp_path / "columns.jsonl", {**asked, **columns}),
        write_jsonl(tmp_path / "answers.jsonl", {**ROW, "answer": ["at six", "6:00"]}),
        write_csv(tmp_path / "list.csv", {**asked, "documents": json.dumps(BELLS), "gold": ""}),
        write_csv(tmp_path / "columns.csv", {**asked, **columns, "document_4": ""}),
    ]
    records = [documents_from_file(path).records[0] for path in files]
    assert {record.context for record in records} == {BELLS[1]}
    assert {record.distractors for record in records} == {(BELLS[0], BELLS[2])}
    assert {record.answers[0] for record in records} == {"at six"}
    assert records[3].answers == ("at six", "6:00")


def test_the_gold_document_alone_moves(tmp_path: Path):
    task = documents_from_file(write_jsonl(tmp_path / "own.jsonl", ROW))
    first, middle, last = (task.items(position)[0] for position in ("first", "middle", "last"))
    assert [item.blocks.index(item.block("gold")) for item in (first, middle, last)] == [0, 1, 2]
    prompt = task.render(last, plain_layout(last))
    assert prompt.text == (
        f"Document [1] {BELLS[0]}\nDocument [2] {BELLS[2]}\nDocument [3] {BELLS[1]}"
        "\n\nQuestion: When does the ferry leave?"
    )
    assert (task.score(last, "At six."), task.score(last, "At ten.\nat six")) == (1.0, 0.0)


def test_any_answer_of_a_list_counts_and_the_first_is_the_gold_one(tmp_path: Path):
    row = {**ROW, "answer": '["at six", "18:00"]', "documents": json.dumps(BELLS)}
    task = documents_from_file(write_csv(tmp_path / "own.csv", row))
    item = task.items("first")[0]
    assert (task.score(item, "It is 18:00"), item.gold_text) == (1.0, "at six")


def test_a_document_longer_than_pythons_own_limit_is_read(tmp_path: Path):
    documents = json.dumps([BELLS[1] + " x" * 100_000, BELLS[0]])
    task = documents_from_file(write_csv(tmp_path / "own.csv", {**ROW, "documents": documents}))
    assert len(task.records[0].context) > 200_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "question must be text, got ' '"),
        ({"answer": 6}, "answer must be a list of texts, got '6'"),
        ({"answer": []}, "answer must be a list of texts, got '[]'"),
        ({"answer": ["at six", ""]}, "answer must hold texts that are not empty, got ''"),
        ({"documents": BELLS[1]}, "documents must be a list of texts, got 'The ferry leaves at six.'"),
        ({"documents": [BELLS[1], 7]}, "documents must hold texts that are not empty, got 7"),
        ({"documents": BELLS[1:2]}, "documents must be at least two, got 1"),
        ({"gold": 0}, "gold must be the number of a document, 1 to 3, got '0'"),
        ({"gold": 4}, "gold must be the number of a document, 1 to 3, got '4'"),
        ({"answer": "noon"}, "one document must hold an answer of ['noon'], or gold name it; none does"),
        ({"answer": "s"}, "one document must hold an answer of ['s'], or gold name it; documents 1, 2, 3 do"),
    ],
)
def test_a_refusal_names_file_row_and_field(tmp_path: Path, changes: dict[str, Any], message: str):
    path = write_jsonl(tmp_path / "own.jsonl", ROW, {**ROW, **changes})
    with pytest.raises(DataFormatError) as refused:
        documents_from_file(path)
    assert str(refused.value) == f"{path} row 2: {message}"
    assert documents_from_file(path, n_items=1).records


def test_missing_fields_and_torn_rows_are_named(tmp_path: Path):
    path = write_csv(tmp_path / "own.csv", {"query": "q", "answer": "a"})
    with pytest.raises(DataFormatError, match=r"own.csv row 1: question is missing, got query, answer"):
        documents_from_file(path)
    path.write_text("question,answer\nq,a,b\n")
    with pytest.raises(DataFormatError, match=r"own.csv row 1 must have 2 fields, as its header"):
        documents_from_file(path)
    path.write_text('question,answer\nq,a\nq,"a\n')
    with pytest.raises(DataFormatError, match=r"own.csv row 2 is not CSV"):
        documents_from_file(path)
    path.write_text("question,answer\n")
    with pytest.raises(DataFormatError, match="must hold a header and at least one row"):
        documents_from_file(path)
    with pytest.raises(ValueError, match=r"file must end in .csv, .jsonl or .jsonl.gz, got 'own.xlsx'"):
        documents_from_file(tmp_path / "own.xlsx")
    with pytest.raises(ValueError, match=r"n_items must be in 1\.\.1, got 2"):
        documents_from_file(write_jsonl(tmp_path / "own.jsonl", ROW), n_items=2)


def test_a_position_that_the_shortest_row_lacks_is_refused(tmp_path: Path):
    path = write_jsonl(tmp_path / "own.jsonl", ROW, {**ROW, "documents": BELLS[:2]})
    with pytest.raises(ValueError, match="position must be first, middle, last or a number below 2"):
        documents_from_file(path, positions=("first", "2"))


def test_a_csv_in_the_working_directory_runs_as_an_experiment(
    make_spec: Callable[..., ExperimentSpec],
    options: RunOptions,
    tiny_lm: LanguageModel,
    recall: TextRecall,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv", {**ROW, "documents": json.dumps(BELLS)})
    spec = make_spec(task={"name": "documents", "params": {"file": "mine.csv"}})
    trials = read_trials(run_spec(spec, options, lambda: tiny_lm, recall))
    assert {(trial.position, trial.arm) for trial in trials} == {
        (place, arm) for place in ("first", "middle", "last") for arm in ("none", "logit_bias[oracle]")
    }
    assert all(trial.metric in (0.0, 1.0) and (trial.gold_logprob or 0.0) < 0.0 for trial in trials)
