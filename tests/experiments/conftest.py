"""What tests of whole runs share: a spec over a small data file, and recall without a model."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from salience_experiments.runner import RunOptions
from salience_experiments.spec import ExperimentSpec
from salience_memory import TextRecall

MakeSpec = Callable[..., ExperimentSpec]

_FACTS = (
    "ferry leaves at six",
    "museum opens at ten",
    "bridge is blue",
    "baker sells rye",
    "tower has 7 bells",
)


@pytest.fixture(scope="session")
def qa_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six questions in the published format, each with a gold passage and three others."""
    path = tmp_path_factory.mktemp("data") / "small.jsonl"
    rows = []
    for number in range(6):
        facts = [_FACTS[(number + shift) % len(_FACTS)] for shift in range(4)]
        ctxs = [
            {"title": f"T{place}", "text": f"The {fact} in town {number}.", "isgold": place == 0}
            for place, fact in enumerate(facts)
        ]
        subject, *_, answer = facts[0].split()
        rows.append({"question": f"what of the {subject} {number}", "answers": [answer], "ctxs": ctxs})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def make_spec(tiny_checkpoint: Path, qa_file: Path) -> MakeSpec:
    """`make_spec(**fields)`: two items of `qa_file`, baseline and one steered arm, five answer tokens."""

    def make(**fields: Any) -> ExperimentSpec:
        default = {
            "name": "small",
            "model": {"source": str(tiny_checkpoint), "device": "cpu", "dtype": "float32"},
            "task": {"name": "qa", "params": {"file": str(qa_file), "n_items": 2}},
            "arms": [{"arm": "none"}, {"arm": "logit_bias", "weights": "oracle"}],
            "max_new_tokens": 5,
        }
        return ExperimentSpec.model_validate(default | fields)

    return make


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    """Results below the test's own folder."""
    return RunOptions(tmp_path / "results")


@pytest.fixture
def recall() -> TextRecall:
    """Recall by words and by a stand-in for embeddings that counts letters."""
    return TextRecall(embed_letters)


def embed_letters(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors of letter counts, float32 [record, 27]."""
    counts = np.array([[*(text.lower().count(chr(97 + i)) for i in range(26)), 1] for text in texts])
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)
