"""How many pairs a paired effect needs, and how small an effect a given number of them can show."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from salience_experiments.statistics import mcnemar_p

N_SIMULATIONS = 4_000


@dataclass(frozen=True)
class SampleSize:
    """`n` after the simulation check; `n_formula` before it; `power` as simulated at `n`."""

    n: int
    n_formula: int
    power: float


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
    the simulated power is reached: the exact test is conservative, so the formula alone falls short. It is
    never below `sign_flip_floor`.

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
    n = max(n_formula, sign_flip_floor(alpha))
    tolerance = math.sqrt(power * (1 - power) / N_SIMULATIONS)
    while (reached := simulated_power(n, size, discordance=discordance, sd=sd, alpha=alpha, seed=seed)) < (
        power - tolerance
    ):
        n += max(1, n // 50)
    return SampleSize(n, n_formula, reached)


def sign_flip_floor(alpha: float) -> int:
    """Questions that must all move the same way for an exact sign-flip or McNemar test to reach alpha."""
    return math.ceil(math.log2(2 / alpha))


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


def _check_inputs(discordance: float | None, sd: float | None, alpha: float, power: float) -> None:
    if (discordance is None) == (sd is None):
        raise ValueError(f"exactly one of discordance and sd must be given, got {discordance} and {sd}")
    if discordance is not None and not 0 <= discordance <= 1:
        raise ValueError(f"discordance must be in [0, 1], got {discordance}")
    if sd is not None and not (sd >= 0 and math.isfinite(sd)):
        raise ValueError(f"sd must be finite and not negative, got {sd}")
    if not (0 < alpha < 1 and 0 < power < 1):
        raise ValueError(f"alpha and power must be in (0, 1), got {alpha} and {power}")
