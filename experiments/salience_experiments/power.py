"""How many questions each contrast of a spec needs, from its own assumptions or from a pilot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from salience_experiments.pairing import (
    ALL,
    Measure,
    PairedSet,
    arm_names,
    contrast_pairs,
    edits_prompt,
    has_measure,
    pair_trials,
    primary_measure,
    scopes_by_table,
)
from salience_experiments.runner import DEV_EVERY
from salience_experiments.sample_size import SampleSize, required_n
from salience_experiments.spec import PowerSpec
from salience_experiments.statistics import family_size, is_binary, paired_difference
from salience_experiments.tasks import POSITIONS
from salience_experiments.trials import Trial

_LEAST_SPREAD = 1e-9
"""Less is the rounding of equal differences."""
_MEASURES: dict[Measure, str] = {
    "metric": "accuracy",
    "gold_logprob": "log-probability",
    "value": "answer's log-probability",
}


@dataclass(frozen=True)
class Spread:
    """What n depends on beside the effect: the share of discordant pairs, or an sd over questions.

    `kind` is "discordance" or "sd"; `source` says where `amount` comes from.
    """

    kind: str
    amount: float
    source: str


@dataclass(frozen=True)
class PowerNeed:
    """What one contrast needs at one scope of a report's table.

    `scope` is a position, "all", "U" or, without a pilot, "each position"; `effect` is in accuracy (0..1) or
    nats. `size` is None where the pilot shows no spread to plan with; `n_items` is how many the spec reports
    on, None where its data file decides.
    """

    arm: str
    baseline: str
    measure: Measure
    scope: str
    effect: float
    spread: Spread
    alpha: float
    size: SampleSize | None
    n_items: int | None


def power_for_spec(spec: Mapping[str, Any], pilot: Sequence[Trial] | None = None) -> list[PowerNeed]:
    """The n that every contrast of the spec needs, at the strictest step of Holm over its report's tables.

    The spec's `power` (`PowerSpec`) says which effect to plan for, and the spreads to assume without a pilot.
    Of arms that a pilot holds they are measured. Accuracy is planned for only where the spec is judged by it
    and has answers generated, log-probability wherever there is a gold answer.

    Raises:
        TrialsError: The spec's contrasts name what is not among its arms.
        UnequalSets: Two arms cannot be paired in the pilot.
    """
    settings = PowerSpec.model_validate(spec.get("power") or {})
    names = arm_names(spec)
    pairs = contrast_pairs(spec, list(names))
    pilot = pilot or ()
    pilot_arms = {trial.arm for trial in pilot}
    n_items = count_items(spec)
    measures: list[Measure] = ["gold_logprob"]
    if spec.get("metric") == "rule_kept":
        measures = ["metric"]
    elif primary_measure(spec) == "metric" and spec.get("max_new_tokens") != 0:
        measures = ["metric", "gold_logprob"]
    needs: list[PowerNeed] = []
    for arm, baseline in pairs:
        may_edit = any(edits_prompt(names[label]) for label in (arm, baseline))
        for measure in measures:
            pair = None
            if {arm, baseline} <= pilot_arms and has_measure(pilot, measure):
                pair = pair_trials(pilot, arm, baseline, measure, may_edit=may_edit)
            positions = pair.positions if pair else spec.get("positions") or POSITIONS
            tables = scopes_by_table(positions, with_u=bool(pair) and measure == primary_measure(spec))
            for scopes in tables.values():
                alpha = settings.alpha / family_size(len(pairs), scopes)
                untried = ALL if scopes == (ALL,) else "each position"
                for scope in scopes if pair else [untried]:
                    if pair:
                        spread = _measured(pair, scope)
                    elif measure == "gold_logprob":
                        spread = Spread("sd", settings.sd_nats, "assumed")
                    elif scope == ALL:
                        spread = Spread("sd", settings.sd, "assumed")
                    else:
                        spread = Spread("discordance", settings.discordance, "assumed")
                    effect = settings.effect_nats if measure == "gold_logprob" else settings.effect
                    size = _size(effect, spread, alpha, settings.power)
                    needs.append(
                        PowerNeed(arm, baseline, measure, scope, effect, spread, alpha, size, n_items)
                    )
    return needs


def count_items(spec: Mapping[str, Any]) -> int | None:
    """How many items the spec reports on: test items, or those of the development slice that it asks for.

    None if `task.params.n_items` is not set, so that the data file decides.
    """
    n_items = spec.get("task", {}).get("params", {}).get("n_items")
    if n_items is None:
        return None
    n_dev = -(-n_items // DEV_EVERY)
    return n_dev if spec.get("split") == "dev" else n_items - n_dev


def format_power(needs: Sequence[PowerNeed]) -> str:
    """The needs as an aligned text table, a contrast at a scope a line."""
    head = ("contrast", "measure", "effect", "spread", "from", "alpha", "n needed", "n in spec", "power")
    rows = [
        (
            f"{need.arm} vs {need.baseline}",
            f"{_MEASURES[need.measure]}, {'all positions' if need.scope == ALL else need.scope}",
            f"{need.effect:.3g} nats" if need.measure == "gold_logprob" else f"{need.effect:.1%}",
            f"{need.spread.kind} {need.spread.amount:.3g}",
            need.spread.source,
            f"{need.alpha:.2g}",
            str(need.size.n) if need.size else "cannot tell (no spread)",
            "–" if need.n_items is None else str(need.n_items),
            f"{need.size.power:.2f}" if need.size else "–",
        )
        for need in needs
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _measured(pair: PairedSet, scope: str) -> Spread:
    source = f"pilot n={len(pair.items)}"
    if scope == "U":
        return Spread("sd", paired_difference(*pair.u_values(), pair.clusters, n_resamples=1).sd, source)
    ours, theirs, clusters = pair.flatten(None if scope == ALL else scope)
    if scope != ALL and is_binary(ours) and is_binary(theirs):
        return Spread("discordance", float(np.mean(ours != theirs)), source)
    return Spread("sd", paired_difference(ours, theirs, clusters, n_resamples=1).sd, source)


def _size(effect: float, spread: Spread, alpha: float, power: float) -> SampleSize | None:
    """The n, or None without a spread; an effect needs at least as many discordant pairs as it is large."""
    if not spread.amount > _LEAST_SPREAD:
        return None
    if spread.kind == "discordance":
        return required_n(effect, discordance=max(spread.amount, effect), alpha=alpha, power=power)
    return required_n(effect, sd=spread.amount, alpha=alpha, power=power)
