"""What a report says of one split of a run, as numbers: cells, contrasts, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from salience_experiments.errors import TrialsError, UnequalSets
from salience_experiments.metrics import ends_in_loop
from salience_experiments.pairing import (
    ALL,
    MEASURES,
    Measure,
    PairedSet,
    arm_names,
    baseline_name,
    contrast_pairs,
    edits_prompt,
    has_measure,
    metric_name,
    pair_trials,
    position_order,
    primary_measure,
    scopes_by_table,
)
from salience_experiments.report.arm_facts import ArmFacts, read_arms
from salience_experiments.report.unit import NATS, POINTS, SCORES, Unit
from salience_experiments.statistics import Interval, clustered_mean, is_binary, wilson_interval
from salience_experiments.trials import Trial
from salience_experiments.verdict import ACCURACY_MARGIN, Contrast, compare

_LOGPROB_NAMES: dict[Measure, str] = {
    "gold_logprob": "gold-answer log-probability",
    "value": "answer's log-probability without the rule",
}


@dataclass(frozen=True)
class Cell:
    """One arm at one position (or at "all"); `mean` and `interval` are None where nothing was scored."""

    n: int
    n_failed: int
    mean: float | None
    interval: Interval | None


@dataclass(frozen=True)
class UScore:
    """U of one arm with its interval."""

    estimate: float
    interval: Interval


@dataclass(frozen=True)
class MeasureSummary:
    """All numbers of one measure; `contrasts` and `u` only where arms could be paired.

    Attributes:
        name: What it is called in running text.
        margin: Half-width of equivalence in the measure's own unit; None if none was set.
        cells: By (arm label, position or "all").
        contrasts: By table: "pooled", "by_position" and, for the primary measure, "u".
    """

    measure: Measure
    name: str
    unit: Unit
    margin: float | None
    cells: Mapping[tuple[str, str], Cell]
    contrasts: Mapping[str, tuple[Contrast, ...]]
    u_scores: Mapping[str, UScore]


@dataclass(frozen=True)
class SplitSummary:
    """All numbers of one split; `refusals` are contrasts that could not be paired, in words.

    Attributes:
        shared: A sentence that completes the arms' short names.
        measures: The one that the spec judges by comes first; one that no trial has is left out.
        gold_weighted: Per arm, the share of trials whose weighted blocks held the gold one; empty if untold.
        looping: Per arm, the share of answers that end by repeating themselves; empty if none does.
        answer_tokens: Per arm, the mean length of answers; empty if untold.
    """

    split: str
    baseline: str
    arms: tuple[ArmFacts, ...]
    shared: str
    positions: tuple[str, ...]
    measures: tuple[MeasureSummary, ...]
    gold_weighted: Mapping[str, float]
    looping: Mapping[str, float]
    answer_tokens: Mapping[str, float]
    refusals: tuple[str, ...]
    n_items: int
    n_questions: int

    @property
    def primary(self) -> MeasureSummary:
        return self.measures[0]

    def facts(self, label: str) -> ArmFacts:
        return next(arm for arm in self.arms if arm.label == label)


def summarise(spec: Mapping[str, Any], trials: Sequence[Trial], split: str, *, seed: int) -> SplitSummary:
    """Compute one split's summary from its trials (already filtered to the split, and not empty)."""
    arms, shared = read_arms(trials, spec)
    positions = position_order(trial.position for trial in trials)
    by_arm = {arm.label: [trial for trial in trials if trial.arm == arm.label] for arm in arms}
    refusals: list[str] = []
    try:
        named = contrast_pairs(spec, list(by_arm))
    except TrialsError as error:
        named = []
        refusals.append(str(error))
    rank = {label: index for index, label in enumerate(by_arm)}
    named.sort(key=lambda pair: (rank[pair[1]], rank[pair[0]]))
    primary = primary_measure(spec)
    present: list[Measure] = [measure for measure in MEASURES if has_measure(trials, measure)]
    if not present:
        present.append(primary)
    present.sort(key=lambda measure: measure != primary)
    measures: list[MeasureSummary] = []
    for measure in present:
        pairs = _pair_all(by_arm, named, measure, spec, positions, refusals)
        measures.append(_summarise_measure(measure, by_arm, pairs, positions, spec, seed))
    return SplitSummary(
        split=split,
        baseline=baseline_name(spec),
        arms=arms,
        shared=shared,
        positions=positions,
        measures=tuple(measures),
        gold_weighted=_gold_weighted(by_arm),
        looping=_looping(by_arm),
        answer_tokens=_answer_tokens(by_arm),
        refusals=tuple(dict.fromkeys(refusals)),
        n_items=len({trial.item for trial in trials}),
        n_questions=len({_question(trial) for trial in trials}),
    )


def _summarise_measure(
    measure: Measure,
    by_arm: Mapping[str, list[Trial]],
    pairs: Sequence[PairedSet],
    positions: Sequence[str],
    spec: Mapping[str, Any],
    seed: int,
) -> MeasureSummary:
    name, unit, margin = _LOGPROB_NAMES.get(measure, ""), NATS, spec.get("logprob_margin_nats")
    if measure == "metric":
        metrics = [trial.metric for trials in by_arm.values() for trial in trials]
        is_unit_scale = all(metric is None or 0 <= metric <= 1 for metric in metrics)
        unit, margin = (POINTS, ACCURACY_MARGIN) if is_unit_scale else (SCORES, None)
        name = metric_name(spec) if is_unit_scale else "metric"
    tables = scopes_by_table(positions, with_u=measure == primary_measure(spec))
    return MeasureSummary(
        measure=measure,
        name=name,
        unit=unit,
        margin=margin,
        cells=_cells(by_arm, positions, measure, seed),
        contrasts={
            table: tuple(compare(pairs, scopes, margin=margin, seed=seed)) for table, scopes in tables.items()
        },
        u_scores=_u_scores(pairs, seed) if "u" in tables else {},
    )


def _pair_all(
    by_arm: Mapping[str, list[Trial]],
    named: Sequence[tuple[str, str]],
    measure: Measure,
    spec: Mapping[str, Any],
    positions: Sequence[str],
    refusals: list[str],
) -> list[PairedSet]:
    """Every named pair that holds; the others are told in `refusals`, never trimmed to fit."""
    names = arm_names(spec)
    pairs: list[PairedSet] = []
    for arm, baseline in named:
        may_edit = any(edits_prompt(names.get(label, label)) for label in (arm, baseline))
        try:
            pair = pair_trials(by_arm[arm] + by_arm[baseline], arm, baseline, measure, may_edit=may_edit)
            if missing := sorted(set(positions) - set(pair.positions)):
                raise UnequalSets(f"no trials at {', '.join(missing)}")
            pairs.append(pair)
        except UnequalSets as error:
            refusals.append(f"{arm} vs {baseline}: {error}")
    return pairs


def _cells(
    by_arm: Mapping[str, list[Trial]], positions: Sequence[str], measure: Measure, seed: int
) -> dict[tuple[str, str], Cell]:
    cells: dict[tuple[str, str], Cell] = {}
    for label, mine in by_arm.items():
        for position in positions:
            cells[label, position] = _cell([t for t in mine if t.position == position], measure, seed)
        cells[label, ALL] = _cell(mine, measure, seed)
    return cells


def _cell(trials: Sequence[Trial], measure: Measure, seed: int) -> Cell:
    whole = [trial for trial in trials if trial.error is None and getattr(trial, measure) is not None]
    n_failed = sum(trial.error is not None for trial in trials)
    if not whole:
        return Cell(0, n_failed, None, None)
    values = np.array([getattr(trial, measure) for trial in whole], dtype=float)
    interval = _mean_interval(values, [_question(trial) for trial in whole], seed)
    return Cell(len(whole), n_failed, float(values.mean()), interval)


def _mean_interval(values: np.ndarray, questions: Sequence[str], seed: int) -> Interval:
    """Wilson's for independent 0/1 outcomes, else the clustered bootstrap's.

    The bootstrap cannot widen an all-or-nothing cell: that one gets Wilson's interval at the number of
    questions.
    """
    n_questions = len(set(questions))
    if is_binary(values) and n_questions == len(values):
        return wilson_interval(int(values.sum()), len(values))
    if is_binary(values) and values.mean() in (0.0, 1.0):
        return wilson_interval(n_questions if values[0] else 0, n_questions)
    return clustered_mean(values, questions, seed=seed).interval


def _u_scores(pairs: Sequence[PairedSet], seed: int) -> dict[str, UScore]:
    scores: dict[str, UScore] = {}
    for pair in pairs:
        for label, values in zip((pair.arm, pair.baseline), pair.u_values(), strict=True):
            if label not in scores:
                mean = clustered_mean(values, pair.clusters, seed=seed)
                scores[label] = UScore(mean.estimate, mean.interval)
    return scores


def _gold_weighted(by_arm: Mapping[str, list[Trial]]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for label, mine in by_arm.items():
        held = [bool(t.params["hit_gold"]) for t in mine if t.error is None and "hit_gold" in t.params]
        if held:
            shares[label] = float(np.mean(held))
    return shares


def _looping(by_arm: Mapping[str, list[Trial]]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for label, mine in by_arm.items():
        if answers := [trial.answer for trial in mine if trial.error is None and trial.answer is not None]:
            shares[label] = float(np.mean([ends_in_loop(answer) for answer in answers]))
    return shares if any(shares.values()) else {}


def _answer_tokens(by_arm: Mapping[str, list[Trial]]) -> dict[str, float]:
    means: dict[str, float] = {}
    for label, mine in by_arm.items():
        if lengths := [t.params["answer_tokens"] for t in mine if "answer_tokens" in t.params]:
            means[label] = float(np.mean(lengths))
    return means


def _question(trial: Trial) -> str:
    return str(trial.params.get("question", trial.item))
