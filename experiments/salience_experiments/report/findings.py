"""A report's first lines: every difference in words."""

from __future__ import annotations

from collections import Counter

from salience_experiments.pairing import is_place
from salience_experiments.report.analysis import SplitSummary
from salience_experiments.report.document import Block, Listing, Paragraph
from salience_experiments.report.unit import NOTHING
from salience_experiments.verdict import Contrast, Verdict


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
    return [Paragraph(opening), Listing(tuple(_describe(summary, contrast) for contrast in contrasts))]


def _describe(summary: SplitSummary, contrast: Contrast) -> str:
    unit = summary.primary.unit
    change = unit.format(contrast.difference.estimate, "+")
    interval = unit.format_interval(contrast.difference.interval, "+")
    width = "" if interval == NOTHING else f" {interval}"
    place = f", gold {contrast.scope}" if is_place(contrast.scope) else ""
    return (
        f"{summary.facts(contrast.arm).name} against {summary.facts(contrast.baseline).name}{place}: "
        f"{change}{width}, {unit.format_verdict(contrast)}"
    )
