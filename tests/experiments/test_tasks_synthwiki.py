"""SynthWiki: the chat prompt, seeded distractors, the data file."""

import csv
from pathlib import Path

import pytest

from salience_experiments.data import data_file
from salience_experiments.errors import DataFormatError
from salience_experiments.tasks import QUESTION_SPAN, plain_layout, synthwiki_from_file

SYSTEM = "Answer the question using only the documents. Answer with a short phrase."


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """Four documents, two of them with two questions."""
    names = ["Ann", "Bob", "Cy", "Di"]
    rows = [(f" {name} lives in {name}ville. ", f"Where does {name} live?", f"{name}ville") for name in names]
    rows += [(f" {name} lives in {name}ville. ", f"Who lives in {name}ville?", name) for name in names[:2]]
    return write_rows(tmp_path / "facts.csv", [("context", "question", "answer"), *rows])


def test_prompt_is_a_system_and_a_user_message(facts: Path):
    task = synthwiki_from_file(facts, n_documents=2)
    item = next(item for item in task.items("first") if item.question == "Where does Ann live?")
    prompt = task.render(item, plain_layout(item))
    other = item.blocks[1].text
    assert prompt.chat
    assert [(message.role, message.content) for message in prompt.messages] == [
        ("system", SYSTEM),
        (
            "user",
            f"Document [1] Ann lives in Annville.\nDocument [2] {other}\n\nQuestion: Where does Ann live?",
        ),
    ]


def test_spans_lie_in_the_user_message(facts: Path):
    task = synthwiki_from_file(facts, n_documents=3)
    for item in task.items("middle"):
        prompt = task.render(item, plain_layout(item))
        assert prompt.messages[0].spans == ()
        sliced = {span.name: prompt.text[span.start : span.end] for span in prompt.messages[1].spans}
        question = sliced.pop(QUESTION_SPAN)
        assert sliced == {block.name: block.text for block in item.blocks}
        assert question == f"\n\nQuestion: {item.question}"


def test_distractors_depend_on_the_question_alone(facts: Path):
    by_question = [
        {
            record.question: record.distractors
            for record in synthwiki_from_file(facts, seed=seed, n_documents=3).records
        }
        for seed in (1, 2)
    ]
    assert by_question[0] == by_question[1]
    assert list(by_question[0]) != list(by_question[1])


def test_fewer_items_are_the_first_of_more(facts: Path):
    few, more = (synthwiki_from_file(facts, n_items=n, n_documents=2).records for n in (2, 5))
    assert few == more[:2]


def test_gold_document_is_never_a_distractor(facts: Path):
    for record in synthwiki_from_file(facts, n_documents=4).records:
        assert record.context not in record.distractors
        assert len(set(record.distractors)) == 3


def test_answers_are_scored_on_their_first_line(facts: Path):
    task = synthwiki_from_file(facts, n_items=1, n_documents=2)
    item = task.items("last")[0]
    assert item.gold_text == item.answers[0]
    assert task.score(item, f"It is {item.answers[0].upper()}!") == 1.0
    assert task.score(item, f"Nowhere\n{item.answers[0]}") == 0.0


def test_too_many_documents_or_items_are_refused(facts: Path):
    with pytest.raises(ValueError, match=r"n_documents must be in 2\.\.4, got 5"):
        synthwiki_from_file(facts, n_documents=5)
    with pytest.raises(ValueError, match=r"n_items must be in 1\.\.6, got 7"):
        synthwiki_from_file(facts, n_items=7, n_documents=2)


def test_file_without_its_columns_is_refused(tmp_path: Path):
    path = write_rows(tmp_path / "facts.csv", [("context", "question"), ("c", "q")])
    with pytest.raises(DataFormatError, match="rows of context, question and answer"):
        synthwiki_from_file(path)


def test_published_file_holds_990_questions_on_495_documents(data_dir: Path):
    task = synthwiki_from_file(data_file("synthwiki/madlibs1.csv", data_dir))
    assert len(task.records) == 990
    assert len({record.context for record in task.records}) == 495
    assert {len(record.distractors) for record in task.records} == {5}


def test_published_items_pair_up_across_positions(data_dir: Path):
    task = synthwiki_from_file(data_file("synthwiki/madlibs1.csv", data_dir), n_items=20)
    for items in zip(*(task.items(position) for position in task.positions), strict=True):
        assert len({item.item_id for item in items}) == 1
        others = [[block for block in item.blocks if not block.is_gold] for item in items]
        assert all(blocks == others[0] for blocks in others)
        assert [[b.is_gold for b in item.blocks].index(True) for item in items] == [0, 3, 5]


def write_rows(path: Path, rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows(rows)
    return path
