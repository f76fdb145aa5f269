"""From paired trials to verdicts: improved, worse, equivalent, or inconclusive and what would have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from scipy import stats

from salience_experiments.pairing import ALL, PairedSet
from salience_experiments.sample_size import least_detectable_effect, sign_flip_floor
from salience_experiments.statistics import (
    N_RESAMPLES,
    MeanDifference,
    family_size,
    holm,
    is_binary,
    mcnemar_exact,
    paired_difference,
    sign_flip_test,
    unanimous_interval,
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
    90 % interval within ±margin, and enough questions to have shown otherwise: MIN_CLUSTERS, and for a
    bounded measure `equivalence_questions`.

    Args:
        margin: Half-width of equivalence, in the measure's unit; None if none was set, so nothing is
            equivalent.
        is_bounded: Whether the measure lies in [0, 1], as accuracy does and log-probability does not.
    """
    if p_adjusted <= alpha and difference.interval.excludes_zero():
        return Verdict.IMPROVED if difference.estimate > 0 else Verdict.WORSE
    if margin is None or not difference.interval_90.lies_within(margin):
        return Verdict.INCONCLUSIVE
    needed = equivalence_questions(margin) if is_bounded else MIN_CLUSTERS
    return Verdict.EQUIVALENT if difference.n_clusters >= needed else Verdict.INCONCLUSIVE


def equivalence_questions(margin: float) -> int:
    """Questions that equivalence within ±margin takes where outcomes are 0/1, even if all of them agree.

    That many bring the 90 % `unanimous_interval`, ±z²/(n + z²), within the margin.
    """
    z_squared = float(stats.norm.ppf(0.95)) ** 2
    return max(MIN_CLUSTERS, math.ceil(z_squared * (1 - margin) / margin))


def detectable_effect(difference: MeanDifference, *, is_bounded: bool = True, alpha: float = 0.05) -> float:
    """The least mean difference these questions show with 80 % power, in the measure's unit; infinite if
    none.

    From the spread seen, but never below what an exact test allows (`sign_flip_floor`).
    """
    needed = sign_flip_floor(alpha)
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
    """Compare every pair at every scope, as one family (`family_size`) for Holm's correction.

    Tests: exact McNemar for 0/1 outcomes at one position, one item a question; else the question-clustered
    sign-flip permutation. `scopes` are positions, "all" or "U". Where a bounded measure differs by the same
    -1, 0 or 1 in every pair, the intervals are `unanimous_interval`s of as many pairs as there are questions.
    """
    measured = [_measure(pair, scope, n_resamples, seed) for pair in pairs for scope in scopes]
    adjusted = holm([p for *_, p in measured])
    strictest = alpha / max(1, family_size(len(pairs), scopes))
    contrasts: list[Contrast] = []
    for (pair, scope, means, difference, test, p), p_holm in zip(measured, adjusted, strict=True):
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
                verdict=judge(difference, p_holm, margin=margin, is_bounded=pair.is_bounded, alpha=alpha),
                detectable=detectable_effect(difference, is_bounded=pair.is_bounded, alpha=strictest),
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
        arm, baseline, clusters = pair.flatten(None if scope == ALL else scope)
    difference = paired_difference(arm, baseline, clusters, n_resamples=n_resamples, seed=seed)
    estimate = difference.estimate
    if pair.is_bounded and not difference.interval.has_width and estimate in (-1, 0, 1):
        widened = [
            unanimous_interval(estimate, difference.n_clusters, seen.level)
            for seen in (difference.interval, difference.interval_90)
        ]
        difference = replace(difference, interval=widened[0], interval_90=widened[1])
    means = float(arm.mean()), float(baseline.mean())
    one_each = len(set(clusters)) == len(clusters)
    if scope not in ("U", ALL) and one_each and is_binary(arm) and is_binary(baseline):
        return pair, scope, means, difference, "McNemar", mcnemar_exact(arm, baseline).p
    flip = sign_flip_test(arm - baseline, clusters, n_resamples=n_resamples, seed=seed)
    return pair, scope, means, difference, "sign-flip (exact)" if flip.is_exact else "sign-flip", flip.p
