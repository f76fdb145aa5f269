"""The report's figures, drawn with matplotlib's file-only backend; the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas

from salience_experiments.report.analysis import ALL, ArmFacts, Cell, SplitSummary
from salience_experiments.report.document import Figure
from salience_experiments.report.panels import (
    BASELINE_COLOUR,
    COLOURS,
    DOSES,
    MARKERS,
    STYLE,
    ArmStyle,
    Panel,
    arm_styles,
    brief,
    draw_points,
    finish_panel,
    group_arms,
    name_positions,
    name_with_role,
    new_grid,
    save_figure,
    spread_out,
)


@dataclass(frozen=True)
class Sweep:
    """Arms of one family and weight source over a dose (strength or share), one line per other setting."""

    title: str
    dose: str
    lines: dict[str, list[tuple[float, ArmFacts]]]


def draw_figures(summary: SplitSummary, prefix: str, note: str) -> list[Figure]:
    """Every figure the summary has data for; `note` (such as INCOMPLETE) is printed on each of them."""
    is_scored = any(cell.mean is not None for cell in summary.cells.values())
    drawn: list[tuple[str, str, Callable[[SplitSummary], Canvas], bool]] = [
        (
            "accuracy_by_position",
            "Metric by gold position, one line an arm, with 95 % intervals",
            _draw_accuracy,
            is_scored,
        ),
        (
            "logprob_difference",
            "Paired change of the gold answer's log-probability by position, with 95 % intervals",
            _draw_logprob,
            bool(summary.logprob_by_position),
        ),
        (
            "strength_sweep",
            "Metric against strength or share, one line per other setting, with 95 % intervals",
            _draw_sweeps,
            bool(find_sweeps(summary)),
        ),
        ("cost", "Median wall time a trial, with the 5th to 95th percentile", _draw_cost, True),
    ]
    with rc_context(STYLE):
        return [
            save_figure(f"{prefix}{name}", alt, draw(summary), note)
            for name, alt, draw, is_wanted in drawn
            if is_wanted
        ]


def find_sweeps(summary: SplitSummary) -> list[Sweep]:
    """Every family and weight source with at least two doses that were scored."""
    groups: dict[tuple[str, str], list[ArmFacts]] = {}
    for arm in summary.arms:
        if arm.role != "baseline" and summary.cells[arm.label, ALL].mean is not None:
            groups.setdefault((arm.family, arm.weights_label), []).append(arm)
    sweeps: list[Sweep] = []
    for (family, weights), arms in groups.items():
        doses = {name: {dict(arm.settings).get(name) for arm in arms} - {None} for name in DOSES}
        dose = max(DOSES, key=lambda name: len(doses[name]))
        if len(doses[dose]) < 2:
            continue
        lines: dict[str, list[tuple[float, ArmFacts]]] = {}
        for arm in arms:
            settings = dict(arm.settings)
            if isinstance(amount := settings.pop(dose, None), float):
                name = ", ".join(f"{key} {brief(value)}" for key, value in settings.items()) or family
                lines.setdefault(name, []).append((amount, arm))
        for line in lines.values():
            line.sort(key=lambda point: (point[0], point[1].label))
        sweeps.append(Sweep(f"{family}, weights {weights}", dose, lines))
    return sweeps


def _draw_accuracy(summary: SplitSummary) -> Canvas:
    panels = group_arms(summary.arms)
    styles = arm_styles(panels)
    canvas, axes = new_grid(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for arm, shift in zip(panel.arms, spread_out(len(panel.arms)), strict=True):
            cells = [summary.cells[arm.label, position] for position in summary.positions]
            draw_points(
                axis, [_point(place + shift, cell) for place, cell in enumerate(cells)], styles[arm.label]
            )
        axis.set_ylabel(_metric_label(summary))
        name_positions(axis, summary.positions)
        finish_panel(axis, panel.title, is_unit_scale=summary.is_unit_scale)
    return canvas


def _draw_logprob(summary: SplitSummary) -> Canvas:
    everything = group_arms(summary.arms)
    styles = arm_styles(everything)
    compared = {contrast.arm for contrast in summary.logprob_by_position}
    kept = [
        Panel(panel.title, tuple(arm for arm in panel.arms if arm.label in compared)) for panel in everything
    ]
    panels = [panel for panel in kept if panel.arms]
    canvas, axes = new_grid(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        axis.axhline(0, color=BASELINE_COLOUR, linewidth=1)
        for arm, shift in zip(panel.arms, spread_out(len(panel.arms)), strict=True):
            mine = {c.scope: c.difference for c in summary.logprob_by_position if c.arm == arm.label}
            points = [
                (place + shift, mine[label].estimate, mine[label].interval.low, mine[label].interval.high)
                for place, label in enumerate(summary.positions)
                if label in mine
            ]
            draw_points(axis, points, styles[arm.label])
        axis.set_ylabel("Δ log-probability of gold (nats)")
        name_positions(axis, summary.positions)
        finish_panel(axis, panel.title, is_unit_scale=False)
    return canvas


def _draw_sweeps(summary: SplitSummary) -> Canvas:
    sweeps = find_sweeps(summary)
    names = list(dict.fromkeys(name for sweep in sweeps for name in sweep.lines))
    canvas, axes = new_grid(len(sweeps))
    base = summary.cells.get((summary.baseline, ALL))
    for axis, sweep in zip(axes, sweeps, strict=True):
        if base is not None and base.mean is not None and base.interval is not None:
            axis.axhspan(
                base.interval.low, base.interval.high, color=BASELINE_COLOUR, alpha=0.12, linewidth=0
            )
            axis.axhline(base.mean, color=BASELINE_COLOUR, linewidth=1.2, label=summary.baseline)
        for name, arms in sweep.lines.items():
            index = names.index(name)
            style = ArmStyle(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], name)
            draw_points(axis, [_point(amount, summary.cells[arm.label, ALL]) for amount, arm in arms], style)
        axis.set_xlabel(sweep.dose)
        axis.set_ylabel(f"{_metric_label(summary)}, all positions")
        finish_panel(axis, sweep.title, is_unit_scale=summary.is_unit_scale)
    return canvas


def _draw_cost(summary: SplitSummary) -> Canvas:
    styles = arm_styles(group_arms(summary.arms))
    names = [name_with_role(arm) for arm in summary.arms]
    size = (5.4 + 0.085 * max(len(name) for name in names), 1.0 + 0.34 * len(names))
    canvas = Canvas(figsize=size, layout="constrained")
    axis = canvas.add_subplot()
    base = float(np.median(summary.wall_s[summary.baseline])) if summary.wall_s.get(summary.baseline) else 0.0
    for row, arm in enumerate(summary.arms):
        low, middle, high = (float(value) for value in np.percentile(summary.wall_s[arm.label], [5, 50, 95]))
        axis.barh(row, middle, color=styles[arm.label].colour, height=0.62, alpha=0.85)
        axis.plot([low, high], [row, row], color="#222222", linewidth=1.2)
        ratio = f"  {middle / base:.2f}×" if base and arm.label != summary.baseline else ""
        text = f"{_format_seconds(middle)}{ratio}"
        axis.text(1.02, row, text, transform=axis.get_yaxis_transform(), va="center", fontsize=9)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
    axis.set_xlabel("seconds a trial")
    return canvas


def _point(x: float, cell: Cell) -> tuple[float, float, float, float] | None:
    if cell.mean is None or cell.interval is None:
        return None
    return x, cell.mean, cell.interval.low, cell.interval.high


def _metric_label(summary: SplitSummary) -> str:
    return "accuracy" if summary.is_unit_scale else "metric"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.2g} ms"
