"""Which arms are compared, and the strict pairing of their trials: the same items, whole, or an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from salience_experiments.errors import TrialsError, UnequalSets
from salience_experiments.statistics import Floats
from salience_experiments.trials import Trial

Measure = Literal["metric", "gold_logprob"]
DEFAULT_BASELINE = "none"
U_POSITIONS = ("first", "middle", "last")
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
    def is_unit_scale(self) -> bool:
        """Whether every value lies in [0, 1], as accuracies and F1 do."""
        values = np.concatenate([self.arm_values, self.baseline_values])
        return bool(np.all((values >= 0) & (values <= 1)))

    def u_values(self) -> tuple[Floats, Floats]:
        """U = mean(first, last) - middle of each item, for the arm and for the baseline, both [item].

        Raises:
            UnequalSets: A position of the three is not there.
        """
        if missing := [label for label in U_POSITIONS if label not in self.positions]:
            raise UnequalSets(f"U of {self.arm!r} needs positions {list(U_POSITIONS)}, missing {missing}")
        first, middle, last = (self.positions.index(label) for label in U_POSITIONS)
        ours, theirs = self.arm_values, self.baseline_values
        return (
            (ours[:, first] + ours[:, last]) / 2 - ours[:, middle],
            (theirs[:, first] + theirs[:, last]) / 2 - theirs[:, middle],
        )


def pair_trials(trials: Iterable[Trial], arm: str, baseline: str, measure: Measure = "metric") -> PairedSet:
    """Pair two arms item by item and position by position.

    Raises:
        UnequalSets: An arm is empty, a trial failed or lacks the measure, the arms (or the positions within
            them) hold different items, or an item's question differs between trials.
    """
    wanted = [trial for trial in trials if trial.arm in (arm, baseline)]
    cells: dict[str, dict[tuple[str, str], Trial]] = {arm: {}, baseline: {}}
    for trial in wanted:
        cells[trial.arm][trial.item, trial.position] = trial
    for name, cell in cells.items():
        _check_whole(name, cell.values(), measure)
    _check_same(f"arm {arm!r}", set(cells[arm]), f"arm {baseline!r}", set(cells[baseline]))
    items = tuple(dict.fromkeys(trial.item for trial in sorted(wanted, key=_item_order)))
    positions = position_order(trial.position for trial in wanted)
    everywhere = {(item, position) for item in items for position in positions}
    _check_same(f"arm {arm!r}", set(cells[arm]), "the grid of its items and positions", everywhere)
    questions = _questions(wanted)

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
        has_same_prompts=all(
            cells[arm][key].prompt_sha256 == cells[baseline][key].prompt_sha256 for key in cells[arm]
        ),
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
    known = {label: rank for rank, label in enumerate(U_POSITIONS)}

    def rank(label: str) -> tuple[int, float, str]:
        if label in known:
            return 0, known[label], label
        try:
            return 1, float(label.rstrip("%")), label
        except ValueError:
            return 2, 0.0, label

    return tuple(sorted(set(positions), key=rank))


def family_name(label: str) -> str:
    """The arm's name without the settings of its cell: `logit_bias` of `logit_bias[strength=1.0]`."""
    match = re.match(r"[\w.:]+", label)
    return match[0] if match else label


def baseline_name(spec: Mapping[str, Any]) -> str:
    """The spec's baseline arm; `none` if it names none."""
    return str(spec.get("baseline") or DEFAULT_BASELINE)


def contrast_pairs(spec: Mapping[str, Any], arms: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """The (arm, baseline) pairs a spec names under `contrasts`; without any, every arm against the baseline.

    With `arms`, the labels of a run's cells, a name stands for the label itself, or else for every cell of
    that arm (`logit_bias` for all its strengths). Without, the spec's own arm names are used.

    Raises:
        TrialsError: A name matches no cell, or a baseline matches several.
    """
    labels = list(arms) if arms is not None else arm_names(spec)
    baseline = baseline_name(spec)
    named = [(str(pair[0]), str(pair[1])) for pair in spec.get("contrasts") or ()]
    if not named:
        named = [(label, baseline) for label in labels if label != baseline]
    if arms is None:
        return named
    pairs: list[tuple[str, str]] = []
    for arm, other in named:
        others = _resolve(other, labels)
        if len(others) != 1:
            raise TrialsError(f"contrast [{arm}, {other}] must name one baseline cell, got {others}")
        pairs += [(label, others[0]) for label in _resolve(arm, labels) if label != others[0]]
    return list(dict.fromkeys(pairs))


def arm_names(spec: Mapping[str, Any]) -> list[str]:
    """The label, or else the name, of each arm that the spec lists."""
    arms = [arm if isinstance(arm, Mapping) else {"arm": arm} for arm in spec.get("arms") or ()]
    return [str(arm.get("label") or arm.get("arm")) for arm in arms]


def _resolve(name: str, labels: Sequence[str]) -> list[str]:
    if name in labels:
        return [name]
    cells = [label for label in labels if family_name(label) == name]
    if not cells:
        raise TrialsError(f"contrast names arm {name!r}, got arms {list(labels)}")
    return cells


def _check_whole(arm: str, trials: Iterable[Trial], measure: Measure) -> None:
    trials = list(trials)
    if not trials:
        raise UnequalSets(f"arm {arm!r} has no trials")
    if failed := [trial.item for trial in trials if trial.error is not None]:
        raise UnequalSets(f"arm {arm!r} has failed trials for items {_name_some(failed)}")
    if empty := [trial.item for trial in trials if getattr(trial, measure) is None]:
        raise UnequalSets(f"arm {arm!r} has no {measure} for items {_name_some(empty)}")


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


def _questions(trials: Iterable[Trial]) -> dict[str, str]:
    questions: dict[str, str] = {}
    for trial in trials:
        question = trial.params.get("question")
        if question is None:
            raise UnequalSets(f"arm {trial.arm!r} has no params.question for item {trial.item}")
        if questions.setdefault(trial.item, str(question)) != str(question):
            raise UnequalSets(f"arm {trial.arm!r} asks another question for item {trial.item}: {question!r}")
    return questions


def _item_order(trial: Trial) -> tuple[int, str]:
    index = trial.params.get("item_index")
    return (index if isinstance(index, int) else -1, trial.item)


def _name_some(items: Iterable[str]) -> str:
    unique = sorted(set(items))
    rest = f" and {len(unique) - _MAX_NAMED} more" if len(unique) > _MAX_NAMED else ""
    return ", ".join(unique[:_MAX_NAMED]) + rest
