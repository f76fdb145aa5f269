"""Neutral text: what is shown, what is continued, and that nothing shown bears on it."""

import json
from pathlib import Path

import pytest

from salience_experiments.data import data_file
from salience_experiments.errors import DataFormatError
from salience_experiments.tasks import QUESTION_SPAN, neutral_from_oracle, plain_layout
from salience_experiments.tasks.neutral import split_passage

TEXT = (
    "The {0} was built of brick and stone by people of the {0}. It fell into disuse in the century after the "
    "war, and nobody has used the {0} since."
)


@pytest.fixture
def oracle(tmp_path: Path) -> Path:
    path = tmp_path / "oracle.jsonl"
    rows = [
        {
            "question": f"what is {name}",
            "answers": [f"answer {name}"],
            "ctxs": [{"title": name, "text": TEXT.format(name), "isgold": True}],
        }
        for name in ("mill", "dam", "pier", "ford")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    return path


def test_prompt_and_continuation_are_the_passage_after_unrelated_documents(oracle: Path):
    task = neutral_from_oracle(oracle, n_documents=2)
    item = task.items("unrelated")[0]
    prompt = task.render(item, plain_layout(item))
    assert not prompt.chat
    assert (prompt.text + item.gold_text).endswith(f"\n\n{TEXT.format('mill')}")
    assert prompt.text.startswith("Document [1](Title: ")
    assert item.gold_text.startswith(" It fell")
    question = prompt.spans[-1]
    assert question.name == QUESTION_SPAN
    assert prompt.text[question.start : question.end] == f"\n\n{item.question}"
    assert not any(block.is_gold or "mill" in block.text for block in item.blocks)


def test_a_passage_that_stands_twice_in_the_file_is_one_item(oracle: Path):
    task = neutral_from_oracle(oracle, n_documents=2)
    assert len(task.items("unrelated")) == 4


def test_sentences_too_short_to_start_with_are_joined():
    text = "He won. He won the second of the three races as well. Then he retired."
    assert split_passage(text) == (
        "He won. He won the second of the three races as well.",
        " Then he retired.",
    )
    assert split_passage("No end in sight for this one") == ("No end in sight for this one", "")


def test_positions_counts_and_files_without_passages_are_refused(oracle: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="positions must be"):
        neutral_from_oracle(oracle, n_documents=2, positions=("first",))
    with pytest.raises(ValueError, match=r"n_items must be in 1\.\.4, got 9"):
        neutral_from_oracle(oracle, n_documents=2, n_items=9)
    short = tmp_path / "short.jsonl"
    short.write_text(oracle.read_text().replace(". It fell into", ", falling into"))
    with pytest.raises(DataFormatError, match="at least two sentences"):
        neutral_from_oracle(short, n_documents=2)


def test_published_file_gives_enough_passages(data_dir: Path):
    task = neutral_from_oracle(data_file("litm/nq-open-oracle.jsonl.gz", data_dir), n_items=63)
    items = task.items("unrelated")
    assert len({item.item_id for item in items}) == 63
    assert all(len(item.blocks) == 6 and len(item.gold_text) >= 80 for item in items)
