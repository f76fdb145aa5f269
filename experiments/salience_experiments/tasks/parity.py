"""Score parity: rescoring published predictions must give the published cells, to the last printed digit.

Checks that metrics here mean what they mean elsewhere. No model runs: the answers are those that
InfiniteBench and BABILong published beside their tables. A cell whose published figure is not known here is
scored all the same, with nothing to compare it to.

Source: github OpenBMB/InfiniteBench, `src/compute_scores.py` (MIT); github booydar/babilong,
`babilong/metrics.py` and `collect_results.py` (Apache-2.0).
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from salience_experiments.data import (
    BABILONG_LENGTHS,
    BABILONG_MODELS,
    BABILONG_TASKS,
    INFINITEBENCH_MODELS,
    INFINITEBENCH_TASKS,
    babilong_name,
    data_file,
    infinitebench_name,
    read_json_lines,
)
from salience_experiments.errors import ParityError

INFINITEBENCH_SOURCE = "InfiniteBench README, Evaluation Result"
BABILONG_SOURCE = "BABILong heat map of Mistral-7B-Instruct-v0.2"

# Per cent as printed, by task, in the order of INFINITEBENCH_MODELS. The table prints small figures as "< 5".
_INFINITEBENCH_PUBLISHED = {
    "passkey": ("100.00", "92.71", "98.14", "97.80", "100.00", "100.00", "92.20"),
    "number_string": ("100.00", "56.61", "95.42", "98.14", "94.92", "100.00", "80.68"),
    "kv_retrieval": ("89.00", "< 5", "53.60", "65.40", "< 5", "< 5", "< 5"),
}
# Per cent as printed, by model and task, in the order of BABILONG_LENGTHS; halves are rounded to even.
_BABILONG_PUBLISHED = {("Mistral-7B-Instruct-v0.2", "qa1"): ("92", "86", "75", "64", "63")}

_PLACES = frozenset({"bathroom", "bedroom", "garden", "hallway", "kitchen", "office"})
_KV_SEPARATORS = str.maketrans(dict.fromkeys("\n:\"'.,?!{}", " "))


@dataclass(frozen=True)
class ParityCell:
    """One rescored cell of a published table.

    Attributes:
        length: Context length of the cell; none where the benchmark has one length.
        n_rows: Predictions scored.
        n_hits: Predictions counted as right.
        published: The figure in per cent as printed, such as "92.71" or "< 5"; none if not known here.
        source: Where it is printed.
    """

    benchmark: str
    model: str
    task: str
    length: str | None
    n_rows: int
    n_hits: int
    published: str | None
    source: str | None

    @property
    def percent(self) -> float:
        return 100 * self.n_hits / self.n_rows

    @property
    def is_match(self) -> bool | None:
        """Whether the score, printed as the table prints it, is the published figure; none without one."""
        if self.published is None:
            return None
        if self.published.startswith("< "):
            return self.percent < float(self.published.removeprefix("< "))
        decimals = len(self.published.partition(".")[2])
        return f"{self.percent:.{decimals}f}" == self.published


def parity_scores(data_dir: Path, *, allow_changed: bool = False) -> list[ParityCell]:
    """Rescore every published prediction in the data folder: 21 cells of InfiniteBench, 45 of BABILong.

    Raises:
        DataError: A file is missing, or changed and `allow_changed` is false.
        ParityError: A file holds no predictions that can be scored.
    """
    cells = []
    for task in INFINITEBENCH_TASKS:
        for model, published in zip(INFINITEBENCH_MODELS, _INFINITEBENCH_PUBLISHED[task], strict=True):
            path = data_file(infinitebench_name(model, task), data_dir, allow_changed=allow_changed)
            hits = score_infinitebench(path, task)
            counts = (len(hits), sum(hits))
            cells.append(
                ParityCell("InfiniteBench", model, task, None, *counts, published, INFINITEBENCH_SOURCE)
            )
    for model in BABILONG_MODELS:
        for task in BABILONG_TASKS:
            row = _BABILONG_PUBLISHED.get((model, task), (None,) * len(BABILONG_LENGTHS))
            for length, published in zip(BABILONG_LENGTHS, row, strict=True):
                path = data_file(babilong_name(model, task, length), data_dir, allow_changed=allow_changed)
                hits = score_babilong(path)
                source = BABILONG_SOURCE if published else None
                cells.append(
                    ParityCell("BABILong", model, task, length, len(hits), sum(hits), published, source)
                )
    return cells


def score_infinitebench(path: Path, task: str) -> list[bool]:
    """Return a hit or miss for each prediction of one InfiniteBench file.

    A label that is a list of one string counts as that string, as in the reference since those files came.
    """
    if task not in _INFINITEBENCH_HITS:
        raise ValueError(f"task must be one of {', '.join(_INFINITEBENCH_HITS)}, got {task!r}")
    is_hit = _INFINITEBENCH_HITS[task]
    hits = []
    for number, row in enumerate(read_json_lines(path)):
        label, answer = row.get("ground_truth"), row.get("prediction")
        if isinstance(label, list) and len(label) == 1:
            (label,) = label
        if not isinstance(label, str) or not isinstance(answer, str):
            raise ParityError(f"{path} row {number} must have a string prediction and ground_truth")
        hits.append(is_hit(answer, label))
    return hits


def score_babilong(path: Path) -> list[bool]:
    """Return a hit or miss for each prediction of one BABILong file of qa1, qa2 or qa3."""
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        rows = list(reader)
    missing = {"target", "output", "question"} - set(reader.fieldnames or ())
    if missing or not rows:
        raise ParityError(f"{path} must have rows of target, output and question, lacks {sorted(missing)}")
    return [is_place_hit(row["output"], row["target"], row["question"]) for row in rows]


def is_place_hit(answer: str, target: str, question: str) -> bool:
    """Return whether the target is the one place that the answer names, places in the question aside.

    Only the answer's first sentence counts, up to a tag that begins the next example. (The reference also
    cuts at "Question", to no effect: it looks for a capital in lower-cased text.)
    """
    sentence = answer.lower().split(".")[0]
    for tag in ("<context>", "<example>"):
        sentence = sentence.split(tag)[0]
    asked = question.lower()
    return {place for place in _PLACES if place in sentence and place not in asked} == {target.lower()}


def is_value_hit(answer: str, label: str) -> bool:
    """Return whether the label is one of the answer's words, cut at white space and punctuation."""
    return label in answer.translate(_KV_SEPARATORS).split()


def is_number_hit(answer: str, label: str) -> bool:
    """Return whether the label is the answer's first run of digits."""
    digits = re.search("[0-9]+", answer)
    return digits is not None and digits.group() == label


_INFINITEBENCH_HITS: dict[str, Callable[[str, str], bool]] = {
    "kv_retrieval": is_value_hit,
    "number_string": is_number_hit,
    "passkey": is_number_hit,
}


def mismatches(cells: Sequence[ParityCell]) -> list[ParityCell]:
    """Return the cells whose score is not the published figure."""
    return [cell for cell in cells if cell.is_match is False]
