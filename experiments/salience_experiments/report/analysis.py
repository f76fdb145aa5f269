"""What a report says of one split of a run, as numbers: cells, contrasts, costs, and what was refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from salience_experiments.errors import TrialsError, UnequalSets
from salience_experiments.manifests import Manifest
from salience_experiments.pairing import (
    U_POSITIONS,
    Measure,
    PairedSet,
    arm_names,
    baseline_name,
    contrast_pairs,
    family_name,
    has_measure,
    pair_trials,
    position_order,
)
from salience_experiments.statistics import Interval, clustered_mean, is_binary, wilson_interval
from salience_experiments.trials import Trial
from salience_experiments.verdict import ACCURACY_MARGIN, Contrast, compare

NEGATIVE_CONTROLS = ("wrong", "all", "random")
_BOOKKEEPING = frozenset(("split", "item_index", "question", "weights", "weighted_blocks", "hit_gold"))
_WEIGHTS_ORDER = ("recall", "oracle", *NEGATIVE_CONTROLS)
ALL = "all"


@dataclass(frozen=True)
class ArmFacts:
    """What distinguishes an arm's cell; `role` is empty, "baseline", "upper bound" or "negative control".

    `settings` are the arm's own parameters (strength, depth, ...), by name, without those that vary by trial.
    """

    label: str
    family: str
    weights: str
    role: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def weights_label(self) -> str:
        """The weights' source, with its role where the number alone would mislead."""
        source = self.weights or "–"
        return f"{source} ({self.role})" if self.role not in ("", "baseline") else source


@dataclass(frozen=True)
class Cell:
    """One arm at one position (or at "all"); `mean` and `interval` are None where nothing was scored."""

    n: int
    n_failed: int
    mean: float | None
    interval: Interval | None
    mean_logprob: float | None
    gold_weighted: float | None
    """Share of trials in which the weighted blocks held the gold one; None where trials do not say."""


@dataclass(frozen=True)
class UScore:
    """U of one arm with its interval."""

    estimate: float
    interval: Interval


@dataclass(frozen=True)
class SplitSummary:
    """All numbers of one split; `refusals` are contrasts that could not be paired, in words."""

    split: str
    baseline: str
    arms: tuple[ArmFacts, ...]
    positions: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]
    pooled: tuple[Contrast, ...]
    by_position: tuple[Contrast, ...]
    u_contrasts: tuple[Contrast, ...]
    u_scores: dict[str, UScore]
    logprob_pooled: tuple[Contrast, ...]
    logprob_by_position: tuple[Contrast, ...]
    wall_s: dict[str, tuple[float, ...]]
    refusals: tuple[str, ...]
    is_unit_scale: bool
    n_items: int
    n_questions: int

    def facts(self, label: str) -> ArmFacts:
        return next(arm for arm in self.arms if arm.label == label)


def summarise(
    manifest: Manifest, trials: Sequence[Trial], split: str, *, logprob_margin_nats: float | None, seed: int
) -> SplitSummary:
    """Compute one split's summary from its trials (already filtered to the split, and not empty)."""
    spec = manifest.spec
    baseline = baseline_name(spec)
    arms = order_arms(trials, spec)
    positions = position_order(trial.position for trial in trials)
    refusals: list[str] = []
    try:
        named = contrast_pairs(spec, [arm.label for arm in arms])
    except TrialsError as error:
        named = []
        refusals.append(str(error))
    by_arm = {arm.label: [trial for trial in trials if trial.arm == arm.label] for arm in arms}
    rank = {arm.label: index for index, arm in enumerate(arms)}
    named.sort(key=lambda pair: (rank[pair[1]], rank[pair[0]]))
    scored = _pair_all(by_arm, named, "metric", refusals)
    likely = _pair_all(by_arm, named, "gold_logprob", refusals)
    is_unit_scale = all(trial.metric is None or 0 <= trial.metric <= 1 for trial in trials)
    margin = ACCURACY_MARGIN if is_unit_scale else None
    with_u = [pair for pair in scored if set(U_POSITIONS) <= set(pair.positions)]
    return SplitSummary(
        split=split,
        baseline=baseline,
        arms=arms,
        positions=positions,
        cells=_cells(by_arm, positions, seed),
        pooled=tuple(compare(scored, [ALL], margin=margin, seed=seed)),
        by_position=tuple(compare(scored, positions, margin=margin, seed=seed)),
        u_contrasts=tuple(compare(with_u, ["U"], margin=margin, seed=seed)),
        u_scores=_u_scores(with_u, seed),
        logprob_pooled=tuple(compare(likely, [ALL], margin=logprob_margin_nats, seed=seed)),
        logprob_by_position=tuple(compare(likely, positions, margin=logprob_margin_nats, seed=seed)),
        wall_s={label: tuple(trial.wall_s for trial in mine) for label, mine in by_arm.items()},
        refusals=tuple(dict.fromkeys(refusals)),
        is_unit_scale=is_unit_scale,
        n_items=len({trial.item for trial in trials}),
        n_questions=len({str(trial.params.get("question", trial.item)) for trial in trials}),
    )


def order_arms(trials: Iterable[Trial], spec: dict[str, Any]) -> tuple[ArmFacts, ...]:
    """The arms, baseline first, then as the spec lists them; a control stands after what it controls."""
    params: dict[str, dict[str, Any]] = {}
    for trial in trials:
        params.setdefault(trial.arm, trial.params)
    baseline = baseline_name(spec)
    facts = [_read_facts(label, params[label], label == baseline) for label in params]
    listed = [family_name(name) for name in arm_names(spec)]

    def rank(arm: ArmFacts) -> tuple[Any, ...]:
        weights = _WEIGHTS_ORDER.index(arm.weights) if arm.weights in _WEIGHTS_ORDER else -1
        place = listed.index(arm.family) if arm.family in listed else len(listed)
        settings = [(name, isinstance(value, str), value) for name, value in arm.settings]
        return (arm.role != "baseline", place, arm.family, settings, weights, arm.label)

    return tuple(sorted(facts, key=rank))


def _read_facts(label: str, params: dict[str, Any], is_baseline: bool) -> ArmFacts:
    weights = "" if is_baseline else str(params.get("weights") or "")
    settings = {name: _brief(value) for name, value in params.items() if name not in _BOOKKEEPING}
    role = ""
    if is_baseline:
        role = "baseline"
    elif weights in NEGATIVE_CONTROLS or "random" in str(settings.get("heads")):
        role = "negative control"
    elif weights == "oracle":
        role = "upper bound"
    return ArmFacts(
        label=label,
        family=family_name(label),
        weights=weights if weights != "none" else "",
        role=role,
        settings=tuple(sorted(settings.items())),
    )


def _brief(value: Any) -> float | str:
    """A number as it is, anything else in few characters: a list as `0.5-1`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, list | tuple):
        return "-".join(f"{entry:g}" if isinstance(entry, float) else str(entry) for entry in value)
    return str(value)


def _pair_all(
    by_arm: dict[str, list[Trial]], named: Sequence[tuple[str, str]], measure: Measure, refusals: list[str]
) -> list[PairedSet]:
    """Every named pair that holds; the others are told in `refusals`, never trimmed to fit."""
    if not any(has_measure(trials, measure) for trials in by_arm.values()):
        return []
    pairs: list[PairedSet] = []
    for arm, baseline in named:
        try:
            pairs.append(pair_trials(by_arm[arm] + by_arm[baseline], arm, baseline, measure))
        except UnequalSets as error:
            refusals.append(f"{arm} vs {baseline}: {error}")
    return pairs


def _cells(
    by_arm: dict[str, list[Trial]], positions: Sequence[str], seed: int
) -> dict[tuple[str, str], Cell]:
    cells: dict[tuple[str, str], Cell] = {}
    for label, mine in by_arm.items():
        for position in positions:
            cells[label, position] = _cell([t for t in mine if t.position == position], seed)
        cells[label, ALL] = _cell(mine, seed)
    return cells


def _cell(trials: Sequence[Trial], seed: int) -> Cell:
    whole = [trial for trial in trials if trial.error is None]
    logprobs = [trial.gold_logprob for trial in whole if trial.gold_logprob is not None]
    held = [bool(trial.params["hit_gold"]) for trial in whole if "hit_gold" in trial.params]
    scored = [(t.metric, str(t.params.get("question", t.item))) for t in whole if t.metric is not None]
    values = np.array([metric for metric, _ in scored], dtype=float)
    return Cell(
        n=len(whole),
        n_failed=len(trials) - len(whole),
        mean=float(values.mean()) if len(values) else None,
        interval=_mean_interval(values, [question for _, question in scored], seed) if len(values) else None,
        mean_logprob=float(np.mean(logprobs)) if logprobs else None,
        gold_weighted=float(np.mean(held)) if held else None,
    )


def _mean_interval(values: np.ndarray, questions: Sequence[str], seed: int) -> Interval:
    """Wilson for independent 0/1 outcomes; else the clustered bootstrap, which cannot widen an
    all-or-nothing cell:
    that one gets Wilson's interval at the number of questions."""
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
