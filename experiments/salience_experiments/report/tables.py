"""What a report says in words: its first lines, and its tables, each a `Table` of ready text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from salience_experiments.manifests import Run
from salience_experiments.pairing import ALL, is_place
from salience_experiments.report.analysis import (
    NATS,
    NOTHING,
    SCORES,
    ArmFacts,
    Cell,
    MeasureSummary,
    SplitSummary,
    format_p,
)
from salience_experiments.report.document import Block, Listing, Paragraph, Table
from salience_experiments.statistics import N_RESAMPLES
from salience_experiments.verdict import (
    ACCURACY_MARGIN,
    MIN_CLUSTERS,
    Contrast,
    Verdict,
    equivalence_questions,
)

METHODS = (
    "Differences are paired over the same items; prompts are the same too, unless an arm edits them "
    f"(“edited”). Intervals: question-clustered bootstrap, {N_RESAMPLES:,} draws; it has no width where all "
    "questions agree: 0/1 outcomes then show the score interval of that many questions, others “–”. "
    "p: exact McNemar where outcomes are 0/1 at one position, else question-clustered sign flips; p Holm: "
    "adjusted over all rows of its table. Improved or worse: p Holm ≤ 0.05 and a 95 % interval on that "
    "side of zero; equivalent: the 90 % interval within the margin, from at least "
    f"{MIN_CLUSTERS} questions, and for accuracy within ±{ACCURACY_MARGIN * 100:g} points from at least "
    f"{equivalence_questions(ACCURACY_MARGIN)}; else inconclusive, with the least effect that these "
    "questions would show with 80 % power."
)


def describe_findings(summary: SplitSummary) -> list[Block]:
    """How many differences of the primary measure came out how, then one line each, by arm and position."""
    contrasts = summary.primary.contrasts["by_position"]
    if not contrasts:
        return []
    counts = Counter(contrast.verdict for contrast in contrasts)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)
    which = "test items" if summary.split == "test" else "items of the development slice, no headline"
    measure = summary.primary
    opening = (
        f"{summary.n_items} {which}. Change of the {measure.name} in {measure.unit.name}, with 95 % "
        f"intervals: of {len(contrasts)} differences {verdicts}. {summary.shared}"
    )
    entries: list[str] = []
    for contrast in contrasts:
        interval = measure.unit.format_interval(contrast.difference.interval, "+")
        width = "" if interval == NOTHING else f" {interval}"
        place = f", gold {contrast.scope}" if is_place(contrast.scope) else ""
        entries.append(
            f"{summary.facts(contrast.arm).name} against {summary.facts(contrast.baseline).name}{place}: "
            f"{measure.unit.format(contrast.difference.estimate, '+')}{width}, "
            f"{measure.unit.format_verdict(contrast)}"
        )
    return [Paragraph(opening), Listing(tuple(entries))]


def header_table(run: Run, seed: int, changed: Sequence[str]) -> Table:
    """What was run, with what: everything a reader needs to run it again.

    Args:
        changed: The fields of the spec that this report reads otherwise than the run's manifest has them.
    """
    manifest, model = run.manifest, run.manifest.model
    items = {trial.item for trial in run.trials}
    total_s, time = sum(trial.wall_s for trial in run.trials), NOTHING
    if total_s:
        # A batch's time is split evenly over its trials, which is why no arm has a time of its own.
        amount = f"{total_s / 60:.1f} min" if total_s >= 60 else f"{total_s:.1f} s"
        time = (
            f"{amount} in the model, {len(run.trials) / total_s:.3g} trials a second; a batch holds many "
            "arms: compare their speed with `salience bench`"
        )
    rows = [
        ("status", "complete" if run.is_complete else f"INCOMPLETE ({manifest.status})"),
        ("spec", f"{manifest.spec_name}, sha256 {manifest.spec_sha256}"),
        *([("analysis", f"{', '.join(changed)} as given now, not as in the run's manifest")] * bool(changed)),
        ("commit", f"{manifest.commit}{' (dirty)' if manifest.dirty else ''}"),
        ("model", " ".join(str(model[key]) for key in ("source", "revision") if model.get(key)) or NOTHING),
        (
            "dtype",
            " ".join(str(model[key]) for key in ("dtype", "quantization") if model.get(key))
            + (f" from a {model['file_quantization']} file" if model.get("file_quantization") else "")
            or NOTHING,
        ),
        ("device", f"{manifest.device}, {manifest.threads} threads"),
        ("implementation", ", ".join(manifest.impls) or NOTHING),
        ("n", f"{len(run.trials)} trials, {len(items)} items, {len({t.arm for t in run.trials})} arms"),
        ("time", time),
        ("seed", str(seed)),
        ("prompts", f"{manifest.prompt_count} different, sha256 {manifest.prompts_sha256 or NOTHING}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))),
        ("run", f"{manifest.started} to {manifest.finished or NOTHING}"),
    ]
    return Table(("run", run.path.name), tuple(rows), "Run", n_text=2)


def cell_table(summary: SplitSummary, measure: MeasureSummary) -> Table:
    """Arm × position: the measure's mean with its 95 % interval, n, and beside the metric what is known of
    weights and answers.
    """
    has_hits = bool(summary.gold_weighted) and measure is summary.primary
    has_loops = bool(summary.looping) and measure.measure == "metric"
    has_lengths = bool(summary.answer_tokens) and measure.measure == "metric"
    shares = ["gold weighted"] * has_hits + ["loops"] * has_loops + ["tokens"] * has_lengths
    columns = ("arm", "weights", "n", *summary.positions, ALL, *shares)
    rows = [
        (
            arm.label,
            arm.weights_label,
            # One number where every position has as many items.
            " / ".join(counts if len(set(counts)) > 1 else counts[:1]),
            *(_format_cell(measure.cells[arm.label, scope], measure) for scope in (*summary.positions, ALL)),
            *([_format_share(summary.gold_weighted, arm) if arm.weights else NOTHING] if has_hits else []),
            *([_format_share(summary.looping, arm)] if has_loops else []),
            *([f"{summary.answer_tokens.get(arm.label, 0.0):.1f}"] if has_lengths else []),
        )
        for arm in summary.arms
        for counts in [[str(measure.cells[arm.label, position].n) for position in summary.positions]]
    ]
    place = " and gold position" * any(map(is_place, summary.positions))
    unit = "%" if measure.unit.name == "points" else measure.unit.name
    how = "question-clustered bootstrap"
    if measure.unit not in (NATS, SCORES):
        how = f"Wilson; {how} for all positions pooled"
    caption = (
        f"{measure.name.capitalize()} by arm{place}, in {unit}, with 95 % "
        f"interval ({how}); n items at each position"
        + ("; how often the weighted blocks held the gold one" * has_hits)
        + ("; how many answers end by repeating themselves" * has_loops)
        + ("; their mean length" * has_lengths)
        + "." * bool(shares)
    )
    return Table(columns, tuple(rows), caption, n_text=2)


def contrast_table(
    summary: SplitSummary, measure: MeasureSummary, contrasts: Sequence[Contrast], title: str
) -> Table:
    """Paired differences with interval, p, Holm-adjusted p and verdict; `METHODS` explains them."""
    unit = measure.unit
    columns = (
        *("arm", "weights", "vs", "position", "prompt", "verdict"),
        *("n", "questions", "arm", "baseline", f"Δ ({unit.name})", "95 % interval", "p", "p Holm", "test"),
    )
    rows = [
        (
            contrast.arm,
            summary.facts(contrast.arm).weights_label,
            contrast.baseline,
            contrast.scope,
            "same" if contrast.has_same_prompts else "edited",
            unit.format_verdict(contrast),
            str(contrast.difference.n),
            str(contrast.difference.n_clusters),
            unit.format(contrast.arm_mean),
            unit.format(contrast.baseline_mean),
            unit.format(contrast.difference.estimate, "+"),
            unit.format_interval(contrast.difference.interval, "+"),
            format_p(contrast.p),
            format_p(contrast.p_holm),
            contrast.test,
        )
        for contrast in contrasts
    ]
    margin = "not set" if measure.margin is None else f"±{measure.margin * unit.factor:g} {unit.name}"
    caption = f"{title}; Holm over {len(rows)} results; equivalence margin {margin}."
    return Table(columns, tuple(rows), caption, n_text=6)


def u_table(summary: SplitSummary, measure: MeasureSummary) -> Table:
    """U = mean(first, last) − middle for each arm, and its paired change."""
    contrasts = measure.contrasts["u"]
    rows: list[tuple[str, ...]] = []
    for arm in summary.arms:
        if arm.label in measure.u_scores:
            mine = [contrast for contrast in contrasts if contrast.arm == arm.label]
            rows += [_u_row(measure, arm, contrast) for contrast in mine or [None]]
    unit = measure.unit.name
    columns = (
        *("arm", "weights", "vs", "verdict"),
        *("n", "questions", "U", "95 % interval", f"ΔU ({unit})", "95 % interval of ΔU", "p", "p Holm"),
    )
    caption = (
        f"U = mean(first, last) − middle, in {unit}; 0 is a flat curve, positive is lost in the middle. A "
        f"fall is a gain only if first and last hold. Holm over {len(contrasts)} results."
    )
    return Table(columns, tuple(rows), caption, n_text=4)


def _u_row(measure: MeasureSummary, arm: ArmFacts, contrast: Contrast | None) -> tuple[str, ...]:
    score, unit = measure.u_scores[arm.label], measure.unit
    own = (unit.format(score.estimate, "+"), unit.format_interval(score.interval, "+"))
    if contrast is None:
        empty = (NOTHING,) * 2
        return (arm.label, arm.weights_label, NOTHING, arm.role or NOTHING, *empty, *own, *empty, *empty)
    words = {Verdict.IMPROVED: "U rises", Verdict.WORSE: "U falls"}
    return (
        arm.label,
        arm.weights_label,
        contrast.baseline,
        words.get(contrast.verdict) or unit.format_verdict(contrast),
        str(contrast.difference.n),
        str(contrast.difference.n_clusters),
        *own,
        unit.format(contrast.difference.estimate, "+"),
        unit.format_interval(contrast.difference.interval, "+"),
        format_p(contrast.p),
        format_p(contrast.p_holm),
    )


def _format_cell(cell: Cell, measure: MeasureSummary) -> str:
    """`62.5 [55.3, 69.2]`, with the failed trials if there are any."""
    text = measure.unit.format(cell.mean)
    if cell.interval is not None and cell.interval.has_width:
        text += f" {measure.unit.format_interval(cell.interval)}"
    return f"{text} ({cell.n_failed} FAILED)" if cell.n_failed else text


def _format_share(shares: Mapping[str, float], arm: ArmFacts) -> str:
    share = shares.get(arm.label)
    return NOTHING if share is None else f"{share * 100:.0f} %"
