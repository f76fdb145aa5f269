"""How many questions a contrast needs, and how small an effect a given number of them can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from salience_experiments.pairing import U_POSITIONS, contrast_pairs, has_measure, pair_trials
from salience_experiments.statistics import is_binary, mcnemar_p, paired_difference
from salience_experiments.trials import Trial

N_SIMULATIONS = 4_000
ASSUMED = {"effect": 0.05, "discordance": 0.20, "sd": 0.45, "effect_nats": 0.10, "sd_nats": 1.0}


@dataclass(frozen=True)
class SampleSize:
    """`n` after the simulation check; `n_formula` before it; `power` as simulated at `n`."""

    n: int
    n_formula: int
    power: float


@dataclass(frozen=True)
class PowerNeed:
    """What one contrast needs. `effect` in accuracy (0..1) or nats; `spread`: a discordance rate or sd."""

    arm: str
    baseline: str
    measure: str
    effect: float
    spread_kind: str
    spread: float
    source: str
    alpha: float
    size: SampleSize


def required_n(
    effect: float,
    *,
    discordance: float | None = None,
    sd: float | None = None,
    alpha: float = 0.05,
    power: float = 0.80,
    seed: int = 0,
) -> SampleSize:
    """Pairs needed to show a paired `effect`, from the normal formula and then checked by simulation.

    Give either `discordance` (share of pairs where exactly one side is right; the exact McNemar test on 0/1
    outcomes) or `sd` (of the paired differences, one per question; a test of their mean). The n grows until
    the simulated power is reached: the exact test is conservative, so the formula alone falls short.

    Source: Connor 1987 for McNemar, without continuity correction.
    """
    size = abs(effect)
    _check_inputs(discordance, sd, alpha, power)
    if size == 0:
        raise ValueError("effect must not be zero, got 0")
    if discordance is not None and size > discordance:
        raise ValueError(f"effect must be at most the discordance {discordance}, got {size}")
    z_alpha, z_power = stats.norm.ppf(1 - alpha / 2), stats.norm.ppf(power)
    if discordance is not None:
        root = z_alpha * math.sqrt(discordance) + z_power * math.sqrt(max(0.0, discordance - size * size))
    else:
        root = (z_alpha + z_power) * float(sd or 0.0)
    n_formula = max(2, math.ceil((root / size) ** 2 - 1e-9))
    n = n_formula
    tolerance = math.sqrt(power * (1 - power) / N_SIMULATIONS)
    while (reached := simulated_power(n, size, discordance=discordance, sd=sd, alpha=alpha, seed=seed)) < (
        power - tolerance
    ):
        n += max(1, n // 50)
    return SampleSize(n, n_formula, reached)


def least_detectable_effect(
    n: int,
    *,
    discordance: float | None = None,
    sd: float | None = None,
    alpha: float = 0.05,
    power: float = 0.80,
) -> float:
    """The smallest paired effect that `n` pairs show with the given power, by the formula of `required_n`.

    Infinite where nothing could be shown: with `discordance`, when even all discordant pairs going one way
    would not do.
    """
    _check_inputs(discordance, sd, alpha, power)
    if n < 2:
        return math.inf
    z_alpha, z_power = float(stats.norm.ppf(1 - alpha / 2)), float(stats.norm.ppf(power))
    if discordance is None:
        return (z_alpha + z_power) * float(sd or 0.0) / math.sqrt(n)

    def shortfall(effect: float) -> float:
        spread = z_alpha * math.sqrt(discordance) + z_power * math.sqrt(max(0.0, discordance - effect**2))
        return effect * math.sqrt(n) - spread

    if discordance == 0 or shortfall(discordance) < 0:
        return math.inf
    return float(optimize.root_scalar(shortfall, bracket=(0.0, discordance)).root)


def simulated_power(
    n: int,
    effect: float,
    *,
    discordance: float | None = None,
    sd: float | None = None,
    alpha: float = 0.05,
    n_simulations: int = N_SIMULATIONS,
    seed: int = 0,
) -> float:
    """Share of simulated experiments with `n` pairs that reach p <= alpha.

    With `discordance`, pairs gain, lose or tie and meet the exact McNemar test; with `sd`, differences are
    normal and meet a t test, to which the sign-flip test comes close.
    """
    rng = np.random.default_rng(seed)
    if discordance is not None:
        gain, loss = (discordance + effect) / 2, (discordance - effect) / 2
        counts = rng.multinomial(n, [gain, max(0.0, loss), 1 - discordance], size=n_simulations)
        return float(np.mean(mcnemar_p(counts[:, 0], counts[:, 1]) <= alpha))
    spread = float(sd or 0.0)
    means = effect + rng.normal(size=n_simulations) * spread / math.sqrt(n)
    sds = spread * np.sqrt(rng.chisquare(n - 1, size=n_simulations) / (n - 1))
    return float(np.mean(np.abs(means) * math.sqrt(n) >= stats.t.ppf(1 - alpha / 2, n - 1) * sds))


def power_for_spec(
    spec: Mapping[str, Any], pilot: Sequence[Trial] | None = None, *, labels: Sequence[str] | None = None
) -> list[PowerNeed]:
    """The n that every contrast of the spec needs, at Holm's strictest step (alpha / number of contrasts).

    `labels` are the spec's cells where there is no pilot to read them from. The spec's optional `power`
    mapping sets `effect` (accuracy, 0..1), `effect_nats`, `power`, `alpha`, and the assumed `discordance`,
    `sd`, `sd_nats` that stand in where a pilot is missing. From a pilot the discordance (0/1 outcomes at
    each position) and the sds (question means; log-probability) are measured.
    """
    settings = {**ASSUMED, "alpha": 0.05, "power": 0.80, **dict(spec.get("power") or {})}
    arms = list(dict.fromkeys(trial.arm for trial in pilot)) if pilot else labels
    pairs = contrast_pairs(spec, arms)
    alpha = float(settings["alpha"]) / max(1, len(pairs))
    needs: list[PowerNeed] = []
    for arm, baseline in pairs:
        for measure, kind, spread, source in _spreads(arm, baseline, pilot, settings):
            effect = float(settings["effect_nats" if measure.startswith("log-prob") else "effect"])
            if kind == "discordance":
                size = required_n(
                    effect, discordance=max(spread, effect), alpha=alpha, power=settings["power"]
                )
            else:
                size = required_n(effect, sd=spread, alpha=alpha, power=settings["power"])
            needs.append(PowerNeed(arm, baseline, measure, effect, kind, spread, source, alpha, size))
    return needs


def format_power(needs: Sequence[PowerNeed]) -> str:
    """The needs as an aligned text table, one contrast and measure a line."""
    head = ("contrast", "measure", "effect", "spread", "from", "alpha", "n needed", "power")
    rows = [
        (
            f"{need.arm} vs {need.baseline}",
            need.measure,
            f"{need.effect:.3g}"
            + (" nats" if need.measure.startswith("log-prob") else f" ({need.effect:.1%})"),
            f"{need.spread_kind} {need.spread:.3g}",
            need.source,
            f"{need.alpha:.3g}",
            f"{need.size.n}",
            f"{need.size.power:.2f}",
        )
        for need in needs
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _spreads(
    arm: str, baseline: str, pilot: Sequence[Trial] | None, settings: Mapping[str, Any]
) -> list[tuple[str, str, float, str]]:
    """(measure, kind of spread, spread, where it comes from) for all that a contrast is judged by."""
    if not pilot:
        return [
            ("accuracy at one position", "discordance", float(settings["discordance"]), "assumed"),
            ("accuracy, all positions", "sd", float(settings["sd"]), "assumed"),
            ("log-probability", "sd", float(settings["sd_nats"]), "assumed"),
        ]
    spreads: list[tuple[str, str, float, str]] = []
    if has_measure(pilot, "metric"):
        pair = pair_trials(pilot, arm, baseline, "metric")
        source = f"pilot n={len(pair.items)}"
        for position in pair.positions:
            ours, theirs, clusters = pair.flatten(position)
            if is_binary(ours) and is_binary(theirs):
                spreads.append(
                    (f"accuracy at {position}", "discordance", float(np.mean(ours != theirs)), source)
                )
            else:
                difference = paired_difference(ours, theirs, clusters, n_resamples=1)
                spreads.append((f"score at {position}", "sd", difference.sd, source))
        spreads.append(
            ("score, all positions", "sd", paired_difference(*pair.flatten(), n_resamples=1).sd, source)
        )
        if set(U_POSITIONS) <= set(pair.positions):
            difference = paired_difference(*pair.u_values(), pair.clusters, n_resamples=1)
            spreads.append(("U", "sd", difference.sd, source))
    if has_measure(pilot, "gold_logprob"):
        pair = pair_trials(pilot, arm, baseline, "gold_logprob")
        difference = paired_difference(*pair.flatten(), n_resamples=1)
        spreads.append(("log-probability", "sd", difference.sd, f"pilot n={len(pair.items)}"))
    return spreads


def _check_inputs(discordance: float | None, sd: float | None, alpha: float, power: float) -> None:
    if (discordance is None) == (sd is None):
        raise ValueError(f"exactly one of discordance and sd must be given, got {discordance} and {sd}")
    if discordance is not None and not 0 <= discordance <= 1:
        raise ValueError(f"discordance must be in [0, 1], got {discordance}")
    if sd is not None and not (sd >= 0 and math.isfinite(sd)):
        raise ValueError(f"sd must be finite and not negative, got {sd}")
    if not (0 < alpha < 1 and 0 < power < 1):
        raise ValueError(f"alpha and power must be in (0, 1), got {alpha} and {power}")
