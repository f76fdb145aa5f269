"""The report's tables, each a `Table` of ready text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from salience_experiments.manifests import Run
from salience_experiments.report.analysis import ALL, ArmFacts, Cell, SplitSummary
from salience_experiments.report.document import Table
from salience_experiments.statistics import Interval
from salience_experiments.verdict import Contrast, Verdict

METHODS = (
    "Differences are paired over the same items. Intervals: question-clustered bootstrap, 10,000 draws. "
    "p: exact McNemar where outcomes are 0/1 at one position, else question-clustered sign flips; p Holm: "
    "adjusted over all rows of its table. Improved or worse: p Holm ≤ 0.05 and a 95 % interval on that "
    "side of zero; equivalent: the 90 % interval within the margin; else inconclusive, with the least "
    "effect that these questions would show with 80 % power."
)


def header_table(run: Run, seed: int) -> Table:
    """What was run, with what: everything a reader needs to run it again."""
    manifest, model = run.manifest, run.manifest.model
    items = {trial.item for trial in run.trials}
    rows = [
        ("status", "complete" if run.is_complete else f"INCOMPLETE ({manifest.status})"),
        ("spec", f"{manifest.spec_name}, sha256 {manifest.spec_sha256}"),
        ("commit", f"{manifest.commit}{' (dirty)' if manifest.dirty else ''}"),
        ("model", " ".join(str(model[key]) for key in ("source", "revision") if model.get(key)) or "–"),
        ("dtype", " ".join(str(model[key]) for key in ("dtype", "quantization") if model.get(key)) or "–"),
        ("device", f"{manifest.device}, {manifest.threads} threads"),
        ("implementation", ", ".join(manifest.impls) or "–"),
        ("n", f"{len(run.trials)} trials, {len(items)} items, {len({t.arm for t in run.trials})} arms"),
        ("seed", str(seed)),
        ("prompts", f"{manifest.prompt_count} different, sha256 {manifest.prompts_sha256 or '–'}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))),
        ("run", f"{manifest.started} to {manifest.finished or '–'}"),
    ]
    return Table(("run", run.path.name), tuple(rows), "Run", n_text=2)


def cell_table(summary: SplitSummary) -> Table:
    """Arm × position: the metric's mean with its 95 % interval, n, and the mean gold log-probability."""
    logprobs = [f"log-prob {position}" for position in summary.positions]
    has_hits = any(cell.gold_weighted is not None for cell in summary.cells.values())
    columns = (
        "arm",
        "weights",
        "n",
        *summary.positions,
        ALL,
        *logprobs,
        *(["gold weighted"] if has_hits else []),
    )
    rows = [
        (
            arm.label,
            arm.weights_label,
            _format_n([summary.cells[arm.label, position] for position in summary.positions]),
            *(format_cell(summary.cells[arm.label, label], summary) for label in (*summary.positions, ALL)),
            *(_format_nats(summary.cells[arm.label, label].mean_logprob) for label in summary.positions),
            *([_format_share(arm, summary.cells[arm.label, ALL])] if has_hits else []),
        )
        for arm in summary.arms
    ]
    unit = "in %" if summary.is_unit_scale else "as scored"
    caption = (
        f"Metric by arm and gold position, {unit}, with 95 % interval (Wilson; question-clustered bootstrap "
        "for graded scores and for all positions pooled); n items at each position; mean log-probability of "
        "the gold answer in nats"
        + ("; how often the weighted blocks held the gold one." if has_hits else ".")
    )
    return Table(columns, tuple(rows), caption, n_text=2)


def contrast_table(summary: SplitSummary, contrasts: Sequence[Contrast], title: str, margin: str) -> Table:
    """Paired differences with interval, p, Holm-adjusted p and verdict; `METHODS` explains them."""
    is_points = summary.is_unit_scale and bool(contrasts) and contrasts[0].measure == "metric"
    unit = (
        "points"
        if is_points
        else ("nats" if contrasts and contrasts[0].measure == "gold_logprob" else "units")
    )
    columns = (
        *("arm", "weights", "vs", "position", "prompt", "verdict"),
        *("n", "questions", "arm", "baseline", f"Δ ({unit})", "95 % interval", "p", "p Holm", "test"),
    )
    factor, digits = (100, 1) if is_points else (1, 3)
    rows = [
        (
            contrast.arm,
            summary.facts(contrast.arm).weights_label,
            contrast.baseline,
            contrast.scope,
            "same" if contrast.has_same_prompts else "edited",
            format_verdict(contrast, factor, unit),
            str(contrast.difference.n),
            str(contrast.difference.n_clusters),
            f"{contrast.arm_mean * factor:.{digits}f}",
            f"{contrast.baseline_mean * factor:.{digits}f}",
            f"{contrast.difference.estimate * factor:+.{digits}f}",
            _format_interval(contrast.difference.interval, factor, digits, sign="+"),
            format_p(contrast.p),
            format_p(contrast.p_holm),
            contrast.test,
        )
        for contrast in contrasts
    ]
    caption = f"{title}; Holm over {len(rows)} results; equivalence margin {margin}."
    return Table(columns, tuple(rows), caption, n_text=6)


def u_table(summary: SplitSummary) -> Table:
    """U = mean(first, last) − middle for each arm, and its paired change."""
    rows: list[tuple[str, ...]] = []
    for arm in summary.arms:
        if arm.label in summary.u_scores:
            mine = [contrast for contrast in summary.u_contrasts if contrast.arm == arm.label]
            rows += [_u_row(summary, arm, contrast) for contrast in mine or [None]]
    columns = (
        *("arm", "weights", "vs", "verdict"),
        *("n", "questions", "U", "95 % interval", "ΔU (points)", "95 % interval of ΔU", "p", "p Holm"),
    )
    caption = (
        "U = mean(first, last) − middle, in points; 0 is a flat curve, positive is lost in the middle. A "
        f"fall is a gain only if first and last hold. Holm over {len(summary.u_contrasts)} results."
    )
    return Table(columns, tuple(rows), caption, n_text=4)


def cost_table(summary: SplitSummary) -> Table:
    """Median wall time a trial, per arm."""
    base = _median(summary.wall_s.get(summary.baseline, ()))
    rows: list[tuple[str, ...]] = []
    for arm in summary.arms:
        times = sorted(summary.wall_s[arm.label])
        ratio = f"{_median(times) / base:.2f}×" if base else "–"
        rows.append((arm.label, arm.weights_label, str(len(times)), f"{_median(times):.3f}", ratio))
    caption = "Wall time a trial: median; ratio to the baseline's. Arms may share cached prefixes."
    return Table(("arm", "weights", "n", "median s", "ratio"), tuple(rows), caption, n_text=2)


def format_cell(cell: Cell, summary: SplitSummary) -> str:
    """`62.5 [55.3, 69.2]`, with the failed trials if there are any."""
    if cell.mean is None or cell.interval is None:
        text = "–"
    else:
        factor, digits = (100, 1) if summary.is_unit_scale else (1, 3)
        text = f"{cell.mean * factor:.{digits}f} {_format_interval(cell.interval, factor, digits)}"
    return f"{text} ({cell.n_failed} FAILED)" if cell.n_failed else text


def format_verdict(contrast: Contrast, factor: float, unit: str) -> str:
    """The verdict's word; an inconclusive one says what effect would have shown."""
    if contrast.verdict is not Verdict.INCONCLUSIVE:
        return str(contrast.verdict)
    if math.isinf(contrast.detectable) or (unit == "points" and contrast.detectable > 1):
        return "inconclusive (too few questions)"
    return f"inconclusive (detectable: {contrast.detectable * factor:.2g} {unit})"


def format_p(p: float) -> str:
    """Three decimals, and never a bare zero."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _u_row(summary: SplitSummary, arm: ArmFacts, contrast: Contrast | None) -> tuple[str, ...]:
    score = summary.u_scores[arm.label]
    own = (f"{score.estimate * 100:+.1f}", _format_interval(score.interval, 100, 1, sign="+"))
    if contrast is None:
        return (arm.label, arm.weights_label, "–", arm.role or "–", "–", "–", *own, "–", "–", "–", "–")
    words = {Verdict.IMPROVED: "U rises", Verdict.WORSE: "U falls"}
    return (
        arm.label,
        arm.weights_label,
        contrast.baseline,
        words.get(contrast.verdict) or format_verdict(contrast, 100, "points"),
        str(contrast.difference.n),
        str(contrast.difference.n_clusters),
        *own,
        f"{contrast.difference.estimate * 100:+.1f}",
        _format_interval(contrast.difference.interval, 100, 1, sign="+"),
        format_p(contrast.p),
        format_p(contrast.p_holm),
    )


def _format_interval(interval: Interval, factor: float, digits: int, sign: str = "") -> str:
    return f"[{interval.low * factor:{sign}.{digits}f}, {interval.high * factor:{sign}.{digits}f}]"


def _format_n(cells: Sequence[Cell]) -> str:
    counts = [str(cell.n) for cell in cells]
    return counts[0] if len(set(counts)) == 1 else " / ".join(counts)


def _format_share(arm: ArmFacts, cell: Cell) -> str:
    return "–" if cell.gold_weighted is None or not arm.weights else f"{cell.gold_weighted * 100:.0f} %"


def _format_nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return 0.0
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
