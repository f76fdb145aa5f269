"""Intervals and tests for paired, question-clustered trials; plain numpy arrays in, small frozen results out.

A *cluster* is a question: items that share one (the same question at several gold positions, or with other
distractors) are resampled and sign-flipped together, because their outcomes are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

N_RESAMPLES = 10_000
MAX_EXACT_CLUSTERS = 14
_CHUNK_ENTRIES = 4_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A confidence interval; `level` is its coverage, such as 0.95."""

    low: float
    high: float
    level: float

    def lies_within(self, margin: float) -> bool:
        """Whether all of it lies in [-margin, margin]."""
        return -margin <= self.low and self.high <= margin

    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def has_width(self) -> bool:
        """False where a bootstrap saw no spread, which is not certainty."""
        return self.low < self.high


@dataclass(frozen=True)
class MeanDifference:
    """A paired mean with its intervals; `sd` is that of the cluster means, `n` counts pairs."""

    estimate: float
    interval: Interval
    interval_90: Interval
    sd: float
    n: int
    n_clusters: int


@dataclass(frozen=True)
class McNemar:
    """`gained`: baseline wrong and arm right; `lost`: the reverse."""

    gained: int
    lost: int
    p: float


@dataclass(frozen=True)
class SignFlip:
    """`is_exact` when every sign pattern was enumerated rather than sampled."""

    p: float
    is_exact: bool
    n_clusters: int


def wilson_interval(hits: int, n: int, level: float = 0.95) -> Interval:
    """The score interval of a proportion, without continuity correction.

    Source: Wilson 1927; Newcombe 1998, method 3.
    """
    if n < 1 or not 0 <= hits <= n:
        raise ValueError(f"hits must be in 0..n with n >= 1, got hits {hits} and n {n}")
    z = stats.norm.ppf(0.5 + _checked_level(level) / 2)
    share = hits / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = 0.0 if hits == 0 else float(centre - half)
    high = 1.0 if hits == n else float(centre + half)
    return Interval(low, high, level)


def unanimous_interval(difference: float, n: int, level: float = 0.95) -> Interval:
    """The score interval of a paired difference of 0/1 outcomes where all `n` pairs differ by the same.

    `difference` is 0 (no pair is discordant), 1 or -1 (all are, one way). A bootstrap has no width there.

    Source: Tango 1998, which has a closed form in these cases.
    """
    if difference not in (-1, 0, 1) or n < 1:
        raise ValueError(f"difference must be -1, 0 or 1 with n >= 1, got {difference} and n {n}")
    z_squared = float(stats.norm.ppf(0.5 + _checked_level(level) / 2)) ** 2
    if difference == 0:
        return Interval(-z_squared / (n + z_squared), z_squared / (n + z_squared), level)
    far = (n - z_squared) / (n + z_squared)
    return Interval(far, 1.0, level) if difference > 0 else Interval(-1.0, -far, level)


def clustered_mean(
    values: ArrayLike,
    clusters: Sequence[str],
    *,
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> MeanDifference:
    """The mean of `values` [item] with percentile intervals from a bootstrap over clusters.

    Whole clusters are drawn with replacement, so a cluster keeps all its items. One cluster, or values that
    never differ, give an interval of no width: see `verdict.compare` for how that is kept from passing as
    certainty.
    """
    data = _checked_values(values, clusters)
    sums, counts = _cluster_sums(data, clusters)
    # The weights of one size are kept: a report asks for the same ones for every cell.
    is_small = len(sums) * n_resamples <= _CHUNK_ENTRIES
    draws = (_kept_weights if is_small else _draw_weights)(len(sums), n_resamples, seed)
    means = np.concatenate([weights @ sums / (weights @ counts) for weights in draws])
    tail = (1 - _checked_level(level)) / 2
    low, high, low_90, high_90 = np.quantile(means, [tail, 1 - tail, 0.05, 0.95])
    cluster_means = sums / counts
    sd = float(np.std(cluster_means, ddof=1)) if len(sums) > 1 else float("nan")
    return MeanDifference(
        estimate=float(data.mean()),
        interval=Interval(float(low), float(high), level),
        interval_90=Interval(float(low_90), float(high_90), 0.90),
        sd=sd,
        n=len(data),
        n_clusters=len(sums),
    )


def paired_difference(
    arm: ArrayLike,
    baseline: ArrayLike,
    clusters: Sequence[str],
    *,
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> MeanDifference:
    """Mean of `arm - baseline`, both [item] in the same item order, with clustered bootstrap intervals."""
    differences = _checked_values(arm, clusters) - _checked_values(baseline, clusters)
    return clustered_mean(differences, clusters, level=level, n_resamples=n_resamples, seed=seed)


def mcnemar_exact(arm_hits: ArrayLike, baseline_hits: ArrayLike) -> McNemar:
    """The two-sided exact test that gains and losses are equally likely; both arrays [item] of 0 and 1.

    Source: McNemar 1947, binomial form.
    """
    arm, baseline = np.asarray(arm_hits, dtype=float), np.asarray(baseline_hits, dtype=float)
    if arm.shape != baseline.shape or arm.ndim != 1:
        raise ValueError(f"arm_hits must have shape {list(baseline.shape)}, got {list(arm.shape)}")
    if not (is_binary(arm) and is_binary(baseline)):
        raise ValueError("arm_hits and baseline_hits must be 0 or 1, got other values")
    gained, lost = int(np.sum(arm > baseline)), int(np.sum(arm < baseline))
    return McNemar(gained, lost, float(mcnemar_p(gained, lost)))


def mcnemar_p(gained: ArrayLike, lost: ArrayLike) -> Floats:
    """Two-sided exact p for counts of discordant pairs, elementwise; 1 where there are none."""
    gained, lost = np.asarray(gained), np.asarray(lost)
    return np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(gained, lost), gained + lost, 0.5))


def sign_flip_test(
    differences: ArrayLike,
    clusters: Sequence[str],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> SignFlip:
    """Two-sided permutation test of a mean paired difference, flipping the sign of whole clusters.

    Clusters whose differences sum to zero cannot change the statistic and are left out. Up to 14 others,
    all sign patterns are enumerated; beyond, `n_resamples` are drawn and p is (1 + as extreme) / (1 +
    drawn).
    """
    data = _checked_values(differences, clusters)
    sums, _ = _cluster_sums(data, clusters)
    scale = np.abs(sums).sum()
    moving = sums[np.abs(sums) > 1e-12 * scale]
    if not len(moving):
        return SignFlip(1.0, True, len(sums))
    threshold = abs(moving.sum()) - 1e-9 * scale
    if len(moving) <= MAX_EXACT_CLUSTERS:
        patterns = np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving)) & 1
        extreme = np.abs((1 - 2 * patterns) @ moving) >= threshold
        return SignFlip(float(extreme.mean()), True, len(sums))
    rng = np.random.default_rng(seed)
    n_extreme = 0
    for rows in _chunk_rows(n_resamples, len(moving)):
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=(rows, len(moving)), dtype=np.int8)
        n_extreme += int(np.sum(np.abs(signs @ moving) >= threshold))
    return SignFlip((1 + n_extreme) / (1 + n_resamples), False, len(sums))


def family_size(n_contrasts: int, scopes: Sequence[str]) -> int:
    """How many results Holm's correction covers: every contrast of a table, at each of the table's scopes."""
    return n_contrasts * len(scopes)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given; compare the results with alpha directly.

    Source: Holm 1979.
    """
    p = np.asarray(p_values, dtype=float)
    if p.size and not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"p_values must be in [0, 1], got {list(p_values)}")
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(stepped)
    return [float(value) for value in adjusted]


def is_binary(values: ArrayLike) -> bool:
    """Whether every value is 0 or 1, that is, a hit or a miss."""
    return bool(np.isin(np.asarray(values, dtype=float), (0.0, 1.0)).all())


def _cluster_sums(values: Floats, clusters: Sequence[str]) -> tuple[Floats, Floats]:
    """Sum and count per cluster, in the order of first appearance, so that names do not matter."""
    index: dict[str, int] = {}
    codes = np.array([index.setdefault(cluster, len(index)) for cluster in clusters])
    return np.bincount(codes, weights=values).astype(np.float64), np.bincount(codes).astype(np.float64)


@lru_cache(maxsize=2)
def _kept_weights(n_clusters: int, n_resamples: int, seed: int) -> tuple[Floats, ...]:
    return tuple(_draw_weights(n_clusters, n_resamples, seed))


def _draw_weights(n_clusters: int, n_resamples: int, seed: int) -> Iterator[Floats]:
    """How often each cluster is drawn, in chunks [resample, cluster]."""
    rng = np.random.default_rng(seed)
    for rows in _chunk_rows(n_resamples, n_clusters):
        drawn = rng.integers(0, n_clusters, size=(rows, n_clusters))
        flat = (drawn + np.arange(rows)[:, None] * n_clusters).ravel()
        yield np.bincount(flat, minlength=rows * n_clusters).reshape(rows, n_clusters).astype(np.float64)


def _chunk_rows(n_rows: int, n_columns: int) -> Iterator[int]:
    size = max(1, _CHUNK_ENTRIES // max(1, n_columns))
    for start in range(0, n_rows, size):
        yield min(size, n_rows - start)


def _checked_values(values: ArrayLike, clusters: Sequence[str]) -> Floats:
    data = np.asarray(values, dtype=float)
    if data.ndim != 1 or len(data) != len(clusters) or not len(data):
        raise ValueError(f"values must have shape [{len(clusters)}] and not be empty, got {list(data.shape)}")
    if not np.isfinite(data).all():
        raise ValueError(f"values must be finite, got {int(np.sum(~np.isfinite(data)))} that are not")
    return data


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    return level
