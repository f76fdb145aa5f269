"""Key-value retrieval: the published prompt, gold positions, generated records, files."""

import gzip
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import salience_experiments
from salience_experiments.data import data_file
from salience_experiments.errors import DataFormatError
from salience_experiments.tasks import QUESTION_SPAN, KvTask, Layout, kv_from_file, kv_generated, plain_layout
from salience_experiments.tasks.kv import KvRecord

# The three pairs and the two prompts of lost-in-the-middle's own tests.
RECORD = KvRecord("test key2", "test value2", (("test key1", "test value1"), ("test key3", "test value3")))
PUBLISHED = "\n".join(
    [
        "Extract the value corresponding to the specified key in the JSON object below.",
        "",
        "JSON data:",
        '{"test key1": "test value1",',
        ' "test key2": "test value2",',
        ' "test key3": "test value3"}',
        "",
        'Key: "test key2"',
        "Corresponding value:",
    ]
)
PUBLISHED_QUERY_AWARE = PUBLISHED.replace("\n\nJSON", '\n\nKey: "test key2"\n\nJSON')


def render_plain(task: KvTask, position: str) -> str:
    item = task.items(position)[0]
    return task.render(item, plain_layout(item)).text


def test_prompt_is_the_published_one():
    assert render_plain(KvTask("x", (RECORD,)), "middle") == PUBLISHED


def test_query_aware_prompt_is_the_published_one():
    assert render_plain(KvTask("x", (RECORD,), query_aware=True), "middle") == PUBLISHED_QUERY_AWARE


def test_query_first_layout_equals_the_published_query_aware_variant():
    task = KvTask("x", (RECORD,))
    item = task.items("middle")[0]
    prompt = task.render(item, Layout(plain_layout(item).blocks, query_first=True))
    assert prompt.text == PUBLISHED_QUERY_AWARE


def test_prompt_is_raw_and_its_spans_cover_pairs_and_question():
    task = KvTask("x", (RECORD,))
    item = task.items("middle")[0]
    prompt = task.render(item, plain_layout(item))
    assert not prompt.chat
    assert len(prompt.messages) == 1
    sliced = {span.name: prompt.text[span.start : span.end] for span in prompt.spans}
    assert sliced == {
        "d0": '"test key1": "test value1"',
        "gold": '"test key2": "test value2"',
        "d1": '"test key3": "test value3"',
        QUESTION_SPAN: '}\n\nKey: "test key2"\nCorresponding value:',
    }


def test_only_the_gold_pair_moves_between_positions():
    task = kv_generated(n_items=3, n_keys=5, positions=("first", "middle", "last", "3"))
    for items in zip(*(task.items(position) for position in task.positions), strict=True):
        assert len({item.item_id for item in items}) == 1
        assert len({item.index for item in items}) == 1
        others = [[block for block in item.blocks if not block.is_gold] for item in items]
        assert all(blocks == others[0] for blocks in others)
        assert [[b.is_gold for b in item.blocks].index(True) for item in items] == [0, 2, 4, 3]


def test_gold_text_follows_the_prompt_in_the_asked_style():
    quoted = kv_generated(n_items=1, n_keys=3).items("first")[0]
    bare = kv_generated(n_items=1, n_keys=3, answer_style="bare").items("first")[0]
    value = quoted.answers[0]
    assert quoted.gold_text == f' "{value}"'
    assert bare.gold_text == f" {value}"


def test_score_finds_the_value_anywhere():
    task = kv_generated(n_items=1, n_keys=3)
    item = task.items("last")[0]
    assert task.score(item, f'\n{{"{item.question}": "{item.answers[0].upper()}"}}') == 1.0
    assert task.score(item, item.answers[0][:-1]) == 0.0


def test_generated_keys_and_values_are_uuid4():
    record = kv_generated(n_items=1, n_keys=4).records[0]
    texts = [record.key, record.value, *(text for pair in record.distractors for text in pair)]
    assert all(uuid.UUID(text).version == 4 and str(uuid.UUID(text)) == text for text in texts)
    assert len(set(texts)) == 8


def test_generated_items_depend_on_seed_and_index_alone():
    few = kv_generated(n_items=2, n_keys=3, seed=7)
    many = kv_generated(n_items=4, n_keys=6, seed=7)
    for record, longer in zip(few.records, many.records, strict=False):
        assert (record.key, record.value) == (longer.key, longer.value)
        assert record.distractors == longer.distractors[:2]
    assert kv_generated(n_items=2, n_keys=3, seed=8).records != few.records


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_generated_prompt_is_the_same_in_any_process(hash_seed: str):
    code = (
        "from salience_experiments.tasks import *; t = kv_generated(n_items=2, n_keys=4, seed=3);"
        "i = t.items('middle')[1]; print(t.render(i, plain_layout(i)).text)"
    )
    room = str(Path(salience_experiments.__path__[0]).parent)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": room}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    task = kv_generated(n_items=2, n_keys=4, seed=3)
    item = task.items("middle")[1]
    assert out.stdout == task.render(item, plain_layout(item)).text + "\n"


def test_bad_sizes_and_positions_are_refused():
    with pytest.raises(ValueError, match="n_keys must be at least 2, got 1"):
        kv_generated(n_items=1, n_keys=1)
    with pytest.raises(ValueError, match="n_items must be at least 1, got 0"):
        kv_generated(n_items=0, n_keys=3)
    with pytest.raises(ValueError, match=r"position must be .* a number below 3, got '3'"):
        kv_generated(n_items=1, n_keys=3, positions=("3",))
    with pytest.raises(ValueError, match="got 'end'"):
        kv_generated(n_items=1, n_keys=3).items("end")


def test_file_rows_can_be_shortened_and_keep_their_gold(tmp_path: Path):
    path = write_rows(tmp_path / "kv.jsonl.gz", [row(0, n_keys=5, gold=4), row(1, n_keys=5, gold=0)])
    task = kv_from_file(path, n_keys=3)
    assert [item.question for item in task.items("first")] == ["k0-4", "k1-0"]
    assert [block.text for block in task.items("last")[0].blocks] == [
        '"k0-0": "v0-0"',
        '"k0-1": "v0-1"',
        '"k0-4": "v0-4"',
    ]


def test_file_without_its_gold_pair_is_refused(tmp_path: Path):
    broken = {**row(0, n_keys=3, gold=0), "value": "elsewhere"}
    with pytest.raises(DataFormatError, match="ordered_kv_records that contain them"):
        kv_from_file(write_rows(tmp_path / "kv.jsonl", [broken]))


def test_file_with_too_few_rows_or_keys_is_refused(tmp_path: Path):
    path = write_rows(tmp_path / "kv.jsonl", [row(0, n_keys=3, gold=0)])
    with pytest.raises(DataFormatError, match="at least 2 rows, got 1"):
        kv_from_file(path, n_items=2)
    with pytest.raises(DataFormatError, match="fewer than n_keys=4"):
        kv_from_file(path, n_keys=4)


def test_file_of_unequal_rows_is_refused(tmp_path: Path):
    path = write_rows(tmp_path / "kv.jsonl", [row(0, n_keys=3, gold=0), row(1, n_keys=4, gold=0)])
    with pytest.raises(DataFormatError, match="equally many keys"):
        kv_from_file(path)


@pytest.mark.parametrize("n_keys", [75, 140])
def test_published_file_holds_500_items(data_dir: Path, n_keys: int):
    task = kv_from_file(data_file(f"litm/kv-retrieval-{n_keys}_keys.jsonl.gz", data_dir))
    assert len(task.records) == 500
    assert task.n_keys == n_keys
    item = task.items("middle")[0]
    assert item.item_id == f"kv-retrieval-{n_keys}_keys/{n_keys}/0"
    assert item.blocks[n_keys // 2].is_gold


def row(number: int, *, n_keys: int, gold: int) -> dict:
    pairs = [[f"k{number}-{i}", f"v{number}-{i}"] for i in range(n_keys)]
    return {"ordered_kv_records": pairs, "key": pairs[gold][0], "value": pairs[gold][1]}


def write_rows(path: Path, rows: list[dict]) -> Path:
    text = "".join(json.dumps(entry) + "\n" for entry in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
