"""What a report says of one split of a run, as numbers: arms, cells, contrasts, and what was refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from salience_experiments.spec import format_setting
from salience_experiments.statistics import Interval, clustered_mean, is_binary, wilson_interval
from salience_experiments.trials import Trial
from salience_experiments.verdict import ACCURACY_MARGIN, Contrast, Verdict, compare

NOTHING = "–"


@dataclass(frozen=True)
class Unit:
    """A measure's unit: its values are printed times `factor` with `digits` decimals."""

    name: str
    factor: float
    digits: int

    def format(self, value: float | None, sign: str = "") -> str:
        return NOTHING if value is None else f"{value * self.factor:{sign}.{self.digits}f}"

    def format_interval(self, interval: Interval | None, sign: str = "") -> str:
        """`[low, high]`; a dash where the data showed no spread, which is not certainty."""
        if interval is None or not interval.has_width:
            return NOTHING
        return f"[{self.format(interval.low, sign)}, {self.format(interval.high, sign)}]"

    def format_verdict(self, contrast: Contrast) -> str:
        """The verdict's word; an inconclusive one says what effect would have shown."""
        if contrast.verdict is not Verdict.INCONCLUSIVE:
            return str(contrast.verdict)
        if not math.isfinite(contrast.detectable) or (self == POINTS and contrast.detectable > 1):
            return "inconclusive (too few questions)"
        return f"inconclusive (detectable: {contrast.detectable * self.factor:.2g} {self.name})"


POINTS = Unit("points", 100, 1)
NATS = Unit("nats", 1, 3)
SCORES = Unit("units", 1, 3)


def format_p(p: float) -> str:
    """Three decimals, and never a bare zero."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"

NEGATIVE_CONTROLS = ("wrong", "all", "random")
DOSES = ("strength", "share")
_BOOKKEEPING = frozenset(
    ("split", "item_index", "question", "weights", "weighted_blocks", "hit_gold", "answer_tokens")
)


@dataclass(frozen=True)
class ArmFacts:
    """What distinguishes an arm's cell; `role` is empty, "baseline", "upper bound" or "negative control".

    `label` is the spec's, in full; `name` leaves out what most arms of the run share. `settings` are the
    arm's own parameters (strength, depth, ...), without those that vary by trial.
    """

    label: str
    name: str
    family: str
    weights: str
    role: str
    settings: tuple[tuple[str, float | str], ...]

    @property
    def weights_label(self) -> str:
        """The weights' source, with its role where the number alone would mislead."""
        source = self.weights or "–"
        return f"{source} ({self.role})" if self.role not in ("", "baseline") else source


def read_arms(trials: Iterable[Trial], spec: Mapping[str, Any]) -> tuple[tuple[ArmFacts, ...], str]:
    """The arms, baseline first, then as the spec lists them, a family's controls last; and what they share.

    The second is a sentence that completes the arms' names, empty if those are complete.
    """
    params: dict[str, dict[str, Any]] = {}
    for trial in trials:
        params.setdefault(trial.arm, trial.params)
    names = arm_names(spec)
    places = {label: place for place, label in enumerate(names)}
    families = {family: place for place, family in reversed(list(enumerate(names.values())))}
    facts: list[ArmFacts] = []
    for label, given in params.items():
        is_baseline = label == baseline_name(spec)
        weights = "" if is_baseline else str(given.get("weights") or "")
        settings: dict[str, float | str] = {}
        for name, value in given.items():
            if name not in _BOOKKEEPING:
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                settings[name] = float(value) if is_number else format_setting(value)
        role = ""
        if is_baseline:
            role = "baseline"
        elif weights in NEGATIVE_CONTROLS or "random" in str(settings.get("heads")):
            role = "negative control"
        elif weights == "oracle":
            role = "upper bound"
        weights = weights if weights != "none" else ""
        family = names.get(label, label)
        facts.append(ArmFacts(label, label, family, weights, role, tuple(settings.items())))

    def rank(arm: ArmFacts) -> tuple[Any, ...]:
        place, family = places.get(arm.label, len(places)), families.get(arm.family, len(places))
        return arm.role != "baseline", family, arm.role == "negative control", place, arm.label

    facts.sort(key=rank)
    seen: dict[str, list[float | str]] = {}
    for arm in facts:
        for name, value in arm.settings:
            seen.setdefault(name, []).append(value)
    # Settings other than the dose that have one value in most of the arms that take them.
    shared: dict[str, float | str] = {}
    for name, values in seen.items():
        value, count = Counter(values).most_common(1)[0]
        if name not in DOSES and len(values) > 1 and count * 2 > len(values):
            shared[name] = value
    told = [f"{name} {format_setting(value)}" for name, value in shared.items()]
    told += ["weights by recall"] if any(arm.weights == "recall" for arm in facts) else []
    sentence = f"Unless said otherwise: {', '.join(told)}." if told else ""
    named: list[ArmFacts] = []
    for arm in facts:
        parts = [arm.family.rpartition(":")[2]]
        parts += [f"{name} {format_setting(v)}" for name, v in arm.settings if shared.get(name) != v]
        parts += [f"{arm.weights} weights"] if arm.weights not in ("", "recall") else []
        named.append(replace(arm, name=", ".join(parts) if "[" in arm.label else arm.label))
    return tuple(named), sentence


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
    names = arm_names(spec)
    measures: list[MeasureSummary] = []
    for measure in present:
        pairs: list[PairedSet] = []
        for arm, baseline in named:
            # A pair that does not hold is told in `refusals`, never trimmed to fit.
            may_edit = any(edits_prompt(names.get(label, label)) for label in (arm, baseline))
            try:
                pair = pair_trials(by_arm[arm] + by_arm[baseline], arm, baseline, measure, may_edit=may_edit)
                if missing := sorted(set(positions) - set(pair.positions)):
                    raise UnequalSets(f"no trials at {', '.join(missing)}")
                pairs.append(pair)
            except UnequalSets as error:
                refusals.append(f"{arm} vs {baseline}: {error}")
        measures.append(_summarise_measure(measure, by_arm, pairs, positions, spec, seed))
    held: dict[str, float] = {}
    loops: dict[str, float] = {}
    lengths: dict[str, float] = {}
    for label, mine in by_arm.items():
        whole = [trial for trial in mine if trial.error is None]
        if hits := [bool(trial.params["hit_gold"]) for trial in whole if "hit_gold" in trial.params]:
            held[label] = float(np.mean(hits))
        if answers := [trial.answer for trial in whole if trial.answer is not None]:
            loops[label] = float(np.mean([ends_in_loop(answer) for answer in answers]))
        if counts := [t.params["answer_tokens"] for t in mine if "answer_tokens" in t.params]:
            lengths[label] = float(np.mean(counts))
    return SplitSummary(
        split=split,
        baseline=baseline_name(spec),
        arms=arms,
        shared=shared,
        positions=positions,
        measures=tuple(measures),
        gold_weighted=held,
        looping=loops if any(loops.values()) else {},
        answer_tokens=lengths,
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
    u_scores: dict[str, UScore] = {}
    for pair in pairs if "u" in tables else ():
        for label, values in zip((pair.arm, pair.baseline), pair.u_values(), strict=True):
            if label not in u_scores:
                mean = clustered_mean(values, pair.clusters, seed=seed)
                u_scores[label] = UScore(mean.estimate, mean.interval)
    return MeasureSummary(
        measure=measure,
        name=name,
        unit=unit,
        margin=margin,
        cells={
            (label, place): _cell([t for t in mine if place in (ALL, t.position)], measure, seed)
            for label, mine in by_arm.items()
            for place in (*positions, ALL)
        },
        contrasts={
            table: tuple(compare(pairs, scopes, margin=margin, seed=seed)) for table, scopes in tables.items()
        },
        u_scores=u_scores,
    )


def _cell(trials: Sequence[Trial], measure: Measure, seed: int) -> Cell:
    whole = [trial for trial in trials if trial.error is None and getattr(trial, measure) is not None]
    n_failed = sum(trial.error is not None for trial in trials)
    if not whole:
        return Cell(0, n_failed, None, None)
    values = np.array([getattr(trial, measure) for trial in whole], dtype=float)
    questions = [_question(trial) for trial in whole]
    n_questions = len(set(questions))
    if is_binary(values) and n_questions == len(values):
        interval = wilson_interval(int(values.sum()), len(values))
    elif is_binary(values) and values.mean() in (0.0, 1.0):
        # The bootstrap cannot widen an all-or-nothing cell; Wilson's interval over the questions does.
        interval = wilson_interval(n_questions if values[0] else 0, n_questions)
    else:
        interval = clustered_mean(values, questions, seed=seed).interval
    return Cell(len(whole), n_failed, float(values.mean()), interval)


def _question(trial: Trial) -> str:
    return str(trial.params.get("question", trial.item))
