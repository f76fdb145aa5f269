"""From paired trials to verdicts: improved, worse, equivalent, or inconclusive and what would have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import stats

from salience_experiments.pairing import PairedSet
from salience_experiments.power import least_detectable_effect
from salience_experiments.statistics import (
    N_RESAMPLES,
    MeanDifference,
    holm,
    is_binary,
    mcnemar_exact,
    paired_difference,
    sign_flip_test,
)

ACCURACY_MARGIN = 0.02
MIN_CLUSTERS = 10


class Verdict(StrEnum):
    IMPROVED = "improved"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Contrast:
    """Two arms compared. `scope` is a position, "all" (positions pooled) or "U"; p_holm is adjusted."""

    arm: str
    baseline: str
    measure: str
    scope: str
    arm_mean: float
    baseline_mean: float
    difference: MeanDifference
    test: str
    p: float
    p_holm: float
    verdict: Verdict
    detectable: float
    has_same_prompts: bool


def judge(
    difference: MeanDifference,
    p_adjusted: float,
    *,
    margin: float | None,
    is_bounded: bool = True,
    alpha: float = 0.05,
) -> Verdict:
    """Decide one contrast; a higher measure is better.

    Improved or worse needs p_adjusted <= alpha and an interval on that side of zero. Equivalent needs the
    90 % interval within ±margin, and data that could have shown otherwise: with few questions that all
    agree the bootstrap has no width, so a bounded measure's interval counts as at least z²/(k + z²) wide
    either way (the score interval of k questions without a discordant one), and any measure needs ten
    questions.

    Args:
        margin: Half-width of equivalence, in the measure's unit; None if none was set, so nothing is
            equivalent.
        is_bounded: Whether the measure lies in [0, 1], as accuracy does and log-probability does not.
    """
    if p_adjusted <= alpha and difference.interval.excludes_zero():
        return Verdict.IMPROVED if difference.estimate > 0 else Verdict.WORSE
    if margin is None or difference.n_clusters < MIN_CLUSTERS:
        return Verdict.INCONCLUSIVE
    z_squared = stats.norm.ppf(0.95) ** 2
    least_width = z_squared / (difference.n_clusters + z_squared) if is_bounded else 0.0
    if difference.interval_90.lies_within(margin) and least_width <= margin:
        return Verdict.EQUIVALENT
    return Verdict.INCONCLUSIVE


def detectable_effect(difference: MeanDifference, *, is_bounded: bool = True, alpha: float = 0.05) -> float:
    """The least mean difference these questions show with 80 % power, in the measure's unit; infinite if
    none.

    From the spread seen, but never below what an exact test allows: p <= alpha takes log2(2/alpha)
    questions that all move the same way.
    """
    needed = math.ceil(math.log2(2 / alpha))
    if difference.n_clusters < needed:
        return math.inf
    effect = least_detectable_effect(difference.n_clusters, sd=difference.sd, alpha=alpha)
    return max(effect, needed / difference.n_clusters) if is_bounded else effect


def compare(
    pairs: Sequence[PairedSet],
    scopes: Sequence[str],
    *,
    margin: float | None = ACCURACY_MARGIN,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
    alpha: float = 0.05,
) -> list[Contrast]:
    """Compare every pair at every scope, as one family: Holm runs over all len(pairs) · len(scopes) results.

    Tests: exact McNemar for 0/1 outcomes at one position, one item a question; else the question-clustered
    sign-flip permutation. `scopes` are positions, "all" or "U".
    """
    measured = [_measure(pair, scope, n_resamples, seed) for pair in pairs for scope in scopes]
    adjusted = holm([p for *_, p in measured])
    strictest = alpha / max(1, len(measured))
    contrasts: list[Contrast] = []
    for (pair, scope, means, difference, test, p), p_holm in zip(measured, adjusted, strict=True):
        is_bounded = pair.measure == "metric" and pair.is_unit_scale
        contrasts.append(
            Contrast(
                arm=pair.arm,
                baseline=pair.baseline,
                measure=pair.measure,
                scope=scope,
                arm_mean=means[0],
                baseline_mean=means[1],
                difference=difference,
                test=test,
                p=p,
                p_holm=p_holm,
                verdict=judge(difference, p_holm, margin=margin, is_bounded=is_bounded, alpha=alpha),
                detectable=detectable_effect(difference, is_bounded=is_bounded, alpha=strictest),
                has_same_prompts=pair.has_same_prompts,
            )
        )
    return contrasts


def _measure(
    pair: PairedSet, scope: str, n_resamples: int, seed: int
) -> tuple[PairedSet, str, tuple[float, float], MeanDifference, str, float]:
    clusters: Sequence[str] = pair.clusters
    if scope == "U":
        arm, baseline = pair.u_values()
    else:
        arm, baseline, clusters = pair.flatten(None if scope == "all" else scope)
    difference = paired_difference(arm, baseline, clusters, n_resamples=n_resamples, seed=seed)
    means = float(arm.mean()), float(baseline.mean())
    one_each = len(set(clusters)) == len(clusters)
    if scope not in ("U", "all") and one_each and is_binary(arm) and is_binary(baseline):
        return pair, scope, means, difference, "McNemar", mcnemar_exact(arm, baseline).p
    flip = sign_flip_test(arm - baseline, clusters, n_resamples=n_resamples, seed=seed)
    return pair, scope, means, difference, "sign-flip (exact)" if flip.is_exact else "sign-flip", flip.p
