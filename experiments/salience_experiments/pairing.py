"""Which arms are compared, and the strict pairing of their trials: the same items, whole, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

from salience_experiments.errors import TrialsError, UnequalSets
from salience_experiments.prompt_edits import PROMPT_RULE, PromptEdit
from salience_experiments.spec import ArmSpec
from salience_experiments.statistics import Floats
from salience_experiments.tasks import POSITIONS
from salience_experiments.trials import Trial

Measure = Literal["metric", "gold_logprob", "value"]
MEASURES: tuple[Measure, ...] = ("metric", "gold_logprob", "value")
"""A trial's numbers; `value` is a drawn answer's own log-probability."""
METRIC_NAMES = {"accuracy": "accuracy", "rule_kept": "share of answers that keep the rule"}
DEFAULT_BASELINE = "none"
ALL = "all"
_MAX_NAMED = 5


@dataclass(frozen=True)
class PairedSet:
    """Two arms' values on the same items; arrays are [item, position], rows in the order of `items`."""

    arm: str
    baseline: str
    measure: Measure
    items: tuple[str, ...]
    clusters: tuple[str, ...]
    positions: tuple[str, ...]
    arm_values: Floats
    baseline_values: Floats
    has_same_prompts: bool

    def flatten(self, position: str | None = None) -> tuple[Floats, Floats, tuple[str, ...]]:
        """Arm values, baseline values and clusters, one entry a pair; at one position, or at all of them."""
        if position is not None:
            column = self.positions.index(position)
            return self.arm_values[:, column], self.baseline_values[:, column], self.clusters
        clusters = tuple(cluster for cluster in self.clusters for _ in self.positions)
        return self.arm_values.ravel(), self.baseline_values.ravel(), clusters

    @property
    def is_bounded(self) -> bool:
        """Whether the measure lies in [0, 1], as accuracies and F1 do and log-probabilities do not."""
        values = np.concatenate([self.arm_values, self.baseline_values])
        return self.measure == "metric" and bool(np.all((values >= 0) & (values <= 1)))

    def u_values(self) -> tuple[Floats, Floats]:
        """U = mean(first, last) - middle of each item, for the arm and for the baseline, both [item].

        Raises:
            UnequalSets: A position of the three is not there.
        """
        if missing := [label for label in POSITIONS if label not in self.positions]:
            raise UnequalSets(f"U of {self.arm!r} needs positions {list(POSITIONS)}, missing {missing}")
        first, middle, last = (self.positions.index(label) for label in POSITIONS)
        ours, theirs = self.arm_values, self.baseline_values
        return (
            (ours[:, first] + ours[:, last]) / 2 - ours[:, middle],
            (theirs[:, first] + theirs[:, last]) / 2 - theirs[:, middle],
        )


def pair_trials(
    trials: Iterable[Trial],
    arm: str,
    baseline: str,
    measure: Measure = "metric",
    *,
    may_edit: bool = False,
) -> PairedSet:
    """Pair two arms item by item and position by position.

    Args:
        may_edit: Whether one of the arms edits prompts by design; without, both must have seen the same.

    Raises:
        UnequalSets: An arm is empty, a trial failed or lacks the measure, the arms (or the positions within
            them) hold different items, or an item's question or prompt differs between trials.
    """
    wanted = [trial for trial in trials if trial.arm in (arm, baseline)]
    cells: dict[str, dict[tuple[str, str], Trial]] = {arm: {}, baseline: {}}
    for trial in wanted:
        cells[trial.arm][trial.item, trial.position] = trial
    for name, cell in cells.items():
        if not cell:
            raise UnequalSets(f"arm {name!r} has no trials")
        if failed := [trial.item for trial in cell.values() if trial.error is not None]:
            raise UnequalSets(f"arm {name!r} has failed trials for items {_name_some(failed)}")
        if empty := [trial.item for trial in cell.values() if getattr(trial, measure) is None]:
            raise UnequalSets(f"arm {name!r} has no {measure} for items {_name_some(empty)}")
    _check_same(f"arm {arm!r}", set(cells[arm]), f"arm {baseline!r}", set(cells[baseline]))
    indices = {trial.item: trial.params.get("item_index") for trial in reversed(wanted)}
    ranks = {item: (index if isinstance(index, int) else -1, item) for item, index in indices.items()}
    items = tuple(sorted(ranks, key=lambda item: ranks[item]))
    positions = position_order(trial.position for trial in wanted)
    everywhere = {(item, position) for item in items for position in positions}
    _check_same(f"arm {arm!r}", set(cells[arm]), "the grid of its items and positions", everywhere)
    questions: dict[str, str] = {}
    for trial in wanted:
        question = trial.params.get("question")
        if question is None:
            raise UnequalSets(f"arm {trial.arm!r} has no params.question for item {trial.item}")
        if questions.setdefault(trial.item, str(question)) != str(question):
            raise UnequalSets(f"arm {trial.arm!r} asks another question for item {trial.item}: {question!r}")
    changed = [
        key for key in cells[arm] if cells[arm][key].prompt_sha256 != cells[baseline][key].prompt_sha256
    ]
    if changed and not may_edit:
        some = _name_some(f"{item} at {position}" for item, position in changed)
        raise UnequalSets(f"arm {arm!r} saw other prompts than arm {baseline!r}, with other data?: {some}")

    def values(name: str) -> Floats:
        rows = [[getattr(cells[name][item, position], measure) for position in positions] for item in items]
        return np.array(rows, dtype=float)

    return PairedSet(
        arm=arm,
        baseline=baseline,
        measure=measure,
        items=items,
        clusters=tuple(questions[item] for item in items),
        positions=positions,
        arm_values=values(arm),
        baseline_values=values(baseline),
        has_same_prompts=not changed,
    )


def has_measure(trials: Iterable[Trial], measure: Measure) -> bool:
    """Whether any trial carries the measure, so that the run is about it at all."""
    return any(getattr(trial, measure) is not None for trial in trials)


def select_split(trials: Iterable[Trial], split: str) -> list[Trial]:
    """The trials whose `params.split` is the one named.

    Raises:
        TrialsError: A trial carries no split, so that it would belong nowhere.
    """
    chosen: list[Trial] = []
    for trial in trials:
        if "split" not in trial.params:
            raise TrialsError(
                f"item {trial.item!r}, arm {trial.arm!r}: params must carry split, got {trial.params}"
            )
        if trial.params["split"] == split:
            chosen.append(trial)
    return chosen


def position_order(positions: Iterable[str]) -> tuple[str, ...]:
    """Positions from the prompt's start to its end: first, middle, last; numbers by size; others by name."""
    known = {label: rank for rank, label in enumerate(POSITIONS)}

    def rank(label: str) -> tuple[int, float, str]:
        if label in known:
            return 0, known[label], label
        try:
            return 1, float(label.rstrip("%")), label
        except ValueError:
            return 2, 0.0, label

    return tuple(sorted(set(positions), key=rank))


def scopes_by_table(positions: Sequence[str], *, with_u: bool) -> dict[str, tuple[str, ...]]:
    """What each table of contrasts tells of: all positions pooled, each position, and U if it can be had.

    Holm's correction covers one table: `statistics.family_size`.
    """
    tables = {"pooled": (ALL,), "by_position": tuple(positions)}
    return tables | ({"u": ("U",)} if with_u and set(POSITIONS) <= set(positions) else {})


def arm_names(spec: Mapping[str, Any]) -> dict[str, str]:
    """The arm (`logit_bias`) behind the label of every cell that the spec's arms and grids make.

    Raises:
        TrialsError: The arms are not those of a spec.
    """
    try:
        arms = [ArmSpec.model_validate(arm) for arm in spec.get("arms") or ()]
        return {cell.label: cell.arm for arm in arms for cell in arm.cells()}
    except ValueError as error:
        raise TrialsError(f"arms must be those of a spec, got: {error}") from error


def edits_prompt(arm: str) -> bool:
    """Whether an arm of this name may change the prompt: a prompt edit, or one from a user's own module."""
    return arm in (*PromptEdit, PROMPT_RULE) or ":" in arm


def baseline_name(spec: Mapping[str, Any]) -> str:
    """The spec's baseline arm; `none` if it names none."""
    return str(spec.get("baseline") or DEFAULT_BASELINE)


def primary_measure(spec: Mapping[str, Any]) -> Measure:
    """What the spec's `metric` judges arms by."""
    return "gold_logprob" if spec.get("metric") == "gold_logprob" else "metric"


def metric_name(spec: Mapping[str, Any]) -> str:
    """What a metric in [0, 1] is called in running text."""
    return METRIC_NAMES.get(str(spec.get("metric")), METRIC_NAMES["accuracy"])


def is_place(position: str) -> bool:
    """Whether a position says where the gold block lies, rather than that there is none."""
    return position in POSITIONS or position.rstrip("%").isdecimal()


def contrast_pairs(spec: Mapping[str, Any], labels: Sequence[str]) -> list[tuple[str, str]]:
    """The (arm, baseline) pairs a spec names under `contrasts`; without any, all labels against the baseline.

    Raises:
        TrialsError: A pair names what is not among `labels`, the arms' cells.
    """
    baseline = baseline_name(spec)
    named = [(str(arm), str(other)) for arm, other in spec.get("contrasts") or ()]
    pairs = named or [(label, baseline) for label in labels if label != baseline]
    for label in chain(*pairs):
        if label not in labels:
            raise TrialsError(f"contrasts must name arms {list(labels)}, got {label!r}")
    return list(dict.fromkeys(pairs))


def _check_same(
    left_name: str, left: set[tuple[str, str]], right_name: str, right: set[tuple[str, str]]
) -> None:
    for name, lacking, other in (
        (left_name, right - left, right_name),
        (right_name, left - right, left_name),
    ):
        if lacking:
            some = _name_some(f"{item} at {position}" for item, position in lacking)
            raise UnequalSets(f"{name} lacks items that {other} holds: {some}")


def _name_some(items: Iterable[str]) -> str:
    unique = sorted(set(items))
    rest = f" and {len(unique) - _MAX_NAMED} more" if len(unique) > _MAX_NAMED else ""
    return ", ".join(unique[:_MAX_NAMED]) + rest
