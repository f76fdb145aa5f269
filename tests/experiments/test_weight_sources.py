"""Weight sources: which blocks each chooses, whatever the process and the position."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from salience_experiments.errors import SpecError
from salience_experiments.tasks import KvTask, kv_generated
from salience_experiments.tasks.base import Block, Item
from salience_experiments.weight_sources import WeightSource, block_weights
from salience_memory import TextRecall

ROOMS = [
    str(Path(__file__).resolve().parents[2] / room)
    for room in ("harness", "models", "memory", "kernels", "experiments")
]


@pytest.fixture(scope="module")
def task() -> KvTask:
    return kv_generated(n_items=30, n_keys=8)


def choose(
    source: WeightSource, item: Item, *, top_k: int = 1, seed: int = 0, recall: TextRecall | None = None
):
    return block_weights(source, item, weight=0.9, top_k=top_k, seed=seed, recall=recall or TextRecall())


def test_oracle_weighs_the_gold_block_alone(task: KvTask):
    assert all(choose(WeightSource.ORACLE, item) == {"gold": 0.9} for item in task.items("middle"))


def test_wrong_weighs_one_block_that_is_never_gold(task: KvTask):
    chosen = [
        choose(WeightSource.WRONG, item, seed=seed) for seed in range(20) for item in task.items("last")
    ]
    assert all(len(weights) == 1 and "gold" not in weights for weights in chosen)
    assert len({name for weights in chosen for name in weights}) == 7


def test_all_weighs_every_block(task: KvTask):
    item = task.items("first")[0]
    assert choose(WeightSource.ALL, item) == dict.fromkeys((block.name for block in item.blocks), 0.9)


def test_random_weighs_one_block_and_reaches_each(task: KvTask):
    chosen = [
        choose(WeightSource.RANDOM, item, seed=seed) for seed in range(5) for item in task.items("first")
    ]
    assert all(len(weights) == 1 for weights in chosen)
    assert {name for weights in chosen for name in weights} == {
        block.name for block in task.items("first")[0].blocks
    }


@pytest.mark.parametrize("source", [WeightSource.WRONG, WeightSource.RANDOM])
def test_chance_is_the_same_at_every_position(task: KvTask, source: WeightSource):
    for first, last in zip(task.items("first"), task.items("last"), strict=True):
        assert choose(source, first) == choose(source, last)


def test_chance_is_the_same_in_every_process():
    code = (
        "from salience_experiments.tasks import kv_generated\n"
        "from salience_experiments.weight_sources import WeightSource, block_weights\n"
        "chosen = [\n"
        "    block_weights(source, item, weight=0.9, top_k=1, seed=3, recall=None)\n"
        "    for source in (WeightSource.WRONG, WeightSource.RANDOM)\n"
        "    for item in kv_generated(n_items=9, n_keys=9).items('first')\n"
        "]\n"
    )
    here: dict[str, list[dict[str, float]]] = {}
    exec(code, here)
    elsewhere = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {ROOMS!r}\n{code}print(chosen)"],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == str(here["chosen"])
    assert len(here["chosen"]) == 18


def test_recall_weighs_what_the_question_is_about():
    def embed(texts: Sequence[str]) -> np.ndarray:
        vectors = np.array(
            [[1.0, 0.0] if "boat" in text or "ferry" in text else [0.0, 1.0] for text in texts]
        )
        return vectors.astype(np.float32)

    blocks = (Block("a", "the tower is tall"), Block("b", "a boat at seven"), Block("c", "boat and ferry"))
    item = Item("i", 0, "when is the ferry", blocks, ("x",), " x", "first")
    assert choose(WeightSource.RECALL, item, recall=TextRecall(embed)) == {"c": 0.9}
    assert choose(WeightSource.RECALL, item, recall=TextRecall(embed), top_k=2) == {"c": 0.9, "b": 0.9}


def test_recall_finds_the_key_of_key_value_retrieval_by_its_words(task: KvTask):
    assert all(choose(WeightSource.RECALL, item) == {"gold": 0.9} for item in task.items("middle"))


@pytest.mark.parametrize("source", list(WeightSource))
def test_an_item_without_blocks_has_no_weights(source: WeightSource):
    assert choose(source, Item("i", 0, "q", (), ("x",), " x", "closed_book")) == {}


def test_wrong_needs_a_block_that_is_not_gold():
    item = Item("i", 0, "q", (Block("gold", "G", is_gold=True),), ("x",), " x", "oracle")
    with pytest.raises(
        SpecError, match=r"weights 'wrong' need a block that is not gold, got only \['gold'\] in i"
    ):
        choose(WeightSource.WRONG, item)
