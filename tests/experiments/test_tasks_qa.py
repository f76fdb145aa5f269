"""Multi-document QA: published prompts, generated distractors, files, the metric's options."""

import json
from pathlib import Path

import pytest

from salience_experiments.data import data_file
from salience_experiments.errors import DataFormatError
from salience_experiments.metrics import normalize_answer
from salience_experiments.tasks import (
    QUESTION_SPAN,
    Layout,
    QaTask,
    plain_layout,
    qa_from_file,
    qa_from_oracle,
)
from salience_experiments.tasks.qa import Passage, QaRecord

ORACLE = "litm/nq-open-oracle.jsonl.gz"
INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant)."
)
# The two documents and the prompts of lost-in-the-middle's own tests; the second holds the answer.
RECORD = QaRecord(
    0,
    "test question",
    ("second",),
    Passage("second doc", "second doc text"),
    (Passage("first doc", "first doc text"),),
)
DOCUMENTS = "Document [1](Title: first doc) first doc text\nDocument [2](Title: second doc) second doc text"


def render_plain(task: QaTask, position: str) -> str:
    item = task.items(position)[0]
    return task.render(item, plain_layout(item)).text


def test_prompt_is_the_published_one():
    text = render_plain(QaTask("x", (RECORD,)), "last")
    assert text == f"{INSTRUCTION}\n\n{DOCUMENTS}\n\nQuestion: test question\nAnswer:"


def test_query_aware_prompt_is_the_published_one():
    expected = f"{INSTRUCTION}\n\nQuestion: test question\n\n{DOCUMENTS}\n\nQuestion: test question\nAnswer:"
    assert render_plain(QaTask("x", (RECORD,), query_aware=True), "last") == expected
    task = QaTask("x", (RECORD,))
    item = task.items("last")[0]
    assert task.render(item, Layout(plain_layout(item).blocks, query_first=True)).text == expected


def test_oracle_prompt_shows_the_gold_passage_alone():
    text = render_plain(QaTask("x", (RECORD,)), "oracle")
    document = "Document [1](Title: second doc) second doc text"
    assert text == f"{INSTRUCTION}\n\n{document}\n\nQuestion: test question\nAnswer:"


def test_closed_book_prompt_is_the_published_one():
    task = QaTask("x", (RECORD,), positions=("closed_book",))
    item = task.items("closed_book")[0]
    prompt = task.render(item, plain_layout(item))
    assert prompt.text == "Question: test question\nAnswer:"
    assert [(span.name, span.start, span.end) for span in prompt.spans] == [
        (QUESTION_SPAN, 0, len(prompt.text))
    ]


def test_spans_cover_passages_without_their_labels():
    task = QaTask("x", (RECORD,))
    item = task.items("first")[0]
    prompt = task.render(item, plain_layout(item))
    assert not prompt.chat
    sliced = {span.name: prompt.text[span.start : span.end] for span in prompt.spans}
    assert sliced == {
        "gold": "(Title: second doc) second doc text",
        "d0": "(Title: first doc) first doc text",
        QUESTION_SPAN: "\n\nQuestion: test question\nAnswer:",
    }


def test_gold_text_is_the_first_answer_after_a_space():
    assert QaTask("x", (RECORD,)).items("first")[0].gold_text == " second"


def test_score_follows_the_reference_faults_unless_mended():
    record = QaRecord(0, "q", ("*",), RECORD.gold, RECORD.distractors)
    faulty, item = QaTask("x", (record,)), QaTask("x", (record,)).items("first")[0]
    assert faulty.score(item, "anything") == 1.0
    assert QaTask("x", (record,), ignore_empty_golds=True).score(item, "anything") == 0.0
    task, item = QaTask("x", (RECORD,)), QaTask("x", (RECORD,)).items("first")[0]
    assert task.score(item, " The Second.\nfirst") == 1.0
    assert task.score(item, "first\nsecond") == 0.0
    assert task.score(item, "\nsecond") == 0.0
    assert QaTask("x", (RECORD,), strip_first=True).score(item, "\nsecond") == 1.0


def test_one_document_takes_only_oracle_and_closed_book():
    alone = QaRecord(0, "q", ("a",), RECORD.gold)
    assert QaTask("x", (alone,), positions=("oracle", "closed_book")).n_documents == 1
    with pytest.raises(ValueError, match="oracle or closed_book for one document, got 'first'"):
        QaTask("x", (alone,))


def test_file_gold_is_moved_and_the_rest_keeps_its_order(tmp_path: Path):
    task = qa_from_file(write_rows(tmp_path / "qa.jsonl", [row("q", ["b", "GOLD", "c"])]))
    shown = [[block.text for block in task.items(position)[0].blocks] for position in task.positions]
    gold, b, c = "(Title: t) GOLD", "(Title: t) b", "(Title: t) c"
    assert shown == [[gold, b, c], [b, gold, c], [b, c, gold]]


@pytest.mark.parametrize("texts", [["a", "b"], ["GOLD", "GOLD"]])
def test_file_without_exactly_one_gold_is_refused(tmp_path: Path, texts: list[str]):
    with pytest.raises(DataFormatError, match="one gold passage"):
        qa_from_file(write_rows(tmp_path / "qa.jsonl", [row("q", texts)]))


def test_file_row_without_documents_is_refused(tmp_path: Path):
    with pytest.raises(DataFormatError, match="must have question, answers and ctxs"):
        qa_from_file(write_rows(tmp_path / "qa.jsonl", [{"question": "q", "answers": ["a"]}]))


def test_generated_distractors_never_hold_an_answer(data_dir: Path):
    task = qa_from_oracle(data_file(ORACLE, data_dir), n_documents=10)
    assert len(task.records) == 2655
    assert {len(record.distractors) for record in task.records} == {9}
    for record in task.records:
        answers = [normalize_answer(answer) for answer in record.answers]
        texts = [normalize_answer(f"{p.title} {p.text}") for p in record.distractors]
        held = [a for a in answers if len(a) > 1 or a.isdigit() for text in texts if a in text]
        assert held == []
        assert record.gold not in record.distractors
        assert len(set(record.distractors)) == 9


def test_generated_set_is_labelled_and_grows_by_adding(data_dir: Path):
    path = data_file(ORACLE, data_dir)
    few, more = (qa_from_oracle(path, n_items=5, n_documents=n) for n in (3, 6))
    assert few.items("last")[2].item_id == "nq-generated-0/3/2"
    for short, long in zip(few.records, more.records, strict=True):
        assert short.distractors == long.distractors[:2]
    other = qa_from_oracle(path, n_items=5, n_documents=3, seed=1)
    assert [r.distractors for r in other.records] != [r.distractors for r in few.records]


def test_only_the_gold_passage_moves_between_positions(data_dir: Path):
    task = qa_from_oracle(data_file(ORACLE, data_dir), n_items=4, n_documents=4)
    for items in zip(*(task.items(position) for position in task.positions), strict=True):
        assert len({item.item_id for item in items}) == 1
        others = [[block for block in item.blocks if not block.is_gold] for item in items]
        assert all(blocks == others[0] for blocks in others)
        assert [[b.is_gold for b in item.blocks].index(True) for item in items] == [0, 2, 3]


def test_oracle_file_holds_one_question_that_anything_answers(data_dir: Path):
    task = qa_from_file(data_file(ORACLE, data_dir), positions=("oracle",))
    empty = [r.answers for r in task.records if any(not normalize_answer(a) for a in r.answers)]
    assert empty == [("a rotationally symmetric saltire", "the symbol ×", "*")]


def row(question: str, texts: list[str]) -> dict:
    documents = [{"title": "t", "text": text, "isgold": text == "GOLD"} for text in texts]
    return {"question": question, "answers": ["a"], "ctxs": documents}


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows), encoding="utf-8")
    return path
