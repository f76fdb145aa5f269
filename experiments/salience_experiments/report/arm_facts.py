"""The arms of a run as a report tells them: in the spec's order, under names that say how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from salience_experiments.pairing import arm_names, baseline_name
from salience_experiments.spec import format_setting
from salience_experiments.trials import Trial

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
    facts = [
        _read_facts(label, names.get(label, label), params[label], label == baseline_name(spec))
        for label in params
    ]

    def rank(arm: ArmFacts) -> tuple[Any, ...]:
        place, family = places.get(arm.label, len(places)), families.get(arm.family, len(places))
        return arm.role != "baseline", family, arm.role == "negative control", place, arm.label

    facts.sort(key=rank)
    shared = _shared_settings(facts)
    told = [f"{name} {format_setting(value)}" for name, value in shared.items()]
    told += ["weights by recall"] if any(arm.weights == "recall" for arm in facts) else []
    sentence = f"Unless said otherwise: {', '.join(told)}." if told else ""
    return tuple(replace(arm, name=_short_name(arm, shared)) for arm in facts), sentence


def _read_facts(label: str, family: str, params: Mapping[str, Any], is_baseline: bool) -> ArmFacts:
    weights = "" if is_baseline else str(params.get("weights") or "")
    settings = {name: _plain(value) for name, value in params.items() if name not in _BOOKKEEPING}
    role = ""
    if is_baseline:
        role = "baseline"
    elif weights in NEGATIVE_CONTROLS or "random" in str(settings.get("heads")):
        role = "negative control"
    elif weights == "oracle":
        role = "upper bound"
    weights = weights if weights != "none" else ""
    return ArmFacts(label, label, family, weights, role, tuple(settings.items()))


def _plain(value: Any) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else format_setting(value)


def _shared_settings(arms: Sequence[ArmFacts]) -> dict[str, float | str]:
    """Settings other than the dose that have one value in most of the arms that take them."""
    seen: dict[str, list[float | str]] = {}
    for arm in arms:
        for name, value in arm.settings:
            seen.setdefault(name, []).append(value)
    shared: dict[str, float | str] = {}
    for name, values in seen.items():
        value, count = Counter(values).most_common(1)[0]
        if name not in DOSES and len(values) > 1 and count * 2 > len(values):
            shared[name] = value
    return shared


def _short_name(arm: ArmFacts, shared: Mapping[str, float | str]) -> str:
    if "[" not in arm.label:
        return arm.label
    parts = [arm.family.rpartition(":")[2]]
    parts += [f"{name} {format_setting(value)}" for name, value in arm.settings if shared.get(name) != value]
    parts += [f"{arm.weights} weights"] if arm.weights not in ("", "recall") else []
    return ", ".join(parts)
