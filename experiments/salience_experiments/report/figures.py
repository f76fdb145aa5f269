"""The report's figures, drawn with matplotlib's file-only backend; the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas

from salience_experiments.pairing import is_place
from salience_experiments.report.analysis import MeasureSummary, SplitSummary
from salience_experiments.report.arm_facts import DOSES, ArmFacts
from salience_experiments.report.document import Figure
from salience_experiments.report.panels import (
    BASELINE_COLOUR,
    COLOURS,
    MARKERS,
    STYLE,
    ArmStyle,
    Grid,
    Panel,
    Point,
    arm_styles,
    draw_points,
    group_arms,
    name_positions,
    save_figure,
    set_scale,
    spread_out,
)
from salience_experiments.report.unit import POINTS, Unit
from salience_experiments.spec import format_setting
from salience_experiments.statistics import Interval
from salience_experiments.verdict import Contrast

_INTERVALS = "Whiskers: 95\u00a0% intervals. Dashed, hollow: negative controls."


@dataclass(frozen=True)
class Sweep:
    """Changes of one family and weight source over a dose (strength or share), a line per other setting."""

    title: str
    dose: str
    lines: dict[str, list[tuple[float, Contrast]]]


@dataclass(frozen=True)
class Origin:
    """Whose numbers a figure shows: the spec leads its title, the model its caption.

    `note`, such as INCOMPLETE, stands beside the title in red.
    """

    spec: str
    model: str
    note: str


Draw = Callable[[SplitSummary, MeasureSummary, Origin], Canvas]


def draw_figures(summary: SplitSummary, prefix: str, origin: Origin) -> list[Figure]:
    """Every figure the summary has data for; `prefix` starts their names."""
    drawn: list[tuple[str, str, Draw, MeasureSummary]] = []
    by_place = _by_place(summary)
    for measure in summary.measures:
        if measure.measure == "metric":
            alt = f"{measure.name.capitalize()}{by_place}, a line an arm, with 95 % intervals"
            drawn.append(("accuracy_by_position", alt, _draw_levels, measure))
        elif _against_baseline(summary, measure, "by_position"):
            alt = f"Paired change of the {measure.name}{by_place}, with 95 % intervals"
            name = "answer_logprob_difference" if measure.measure == "value" else "logprob_difference"
            drawn.append((name, alt, _draw_changes, measure))
    if find_sweeps(summary):
        alt = (
            f"Paired change of the {summary.primary.name} against strength or share, a line per other "
            "setting, with 95 % intervals"
        )
        drawn.append(("strength_sweep", alt, _draw_sweeps, summary.primary))
    figures: list[Figure] = []
    with rc_context(STYLE):
        for name, alt, draw, measure in drawn:
            canvas = draw(summary, measure, origin)
            if origin.note:
                canvas.text(
                    0.988, 0.988, origin.note, ha="right", va="top", color="#b00020", fontweight="bold"
                )
            figures.append(save_figure(f"{prefix}{name}", alt, canvas))
    return figures


def find_sweeps(summary: SplitSummary) -> list[Sweep]:
    """Every family and weight source with at least two doses, by its changes over all positions pooled."""
    groups: dict[tuple[str, str], list[tuple[ArmFacts, Contrast]]] = {}
    for contrast in _against_baseline(summary, summary.primary, "pooled"):
        arm = summary.facts(contrast.arm)
        groups.setdefault((arm.family, arm.weights_label), []).append((arm, contrast))
    sweeps: list[Sweep] = []
    for (family, weights), arms in groups.items():
        values = {name: {dict(arm.settings).get(name) for arm, _ in arms} - {None} for name in DOSES}
        dose = max(DOSES, key=lambda name: len(values[name]))
        if len(values[dose]) >= 2:
            sweeps.append(_sweep(f"{family}, weights {weights}", dose, arms))
    return sweeps


def _sweep(title: str, dose: str, arms: list[tuple[ArmFacts, Contrast]]) -> Sweep:
    """Settings that all its arms share go into the title, the others tell its lines apart."""
    rest = [{name: value for name, value in arm.settings if name != dose} for arm, _ in arms]
    shared = {name: value for name, value in rest[0].items() if all(r.get(name) == value for r in rest)}
    lines: dict[str, list[tuple[float, Contrast]]] = {}
    for (arm, contrast), settings in zip(arms, rest, strict=True):
        told = [f"{name} {format_setting(value)}" for name, value in settings.items() if name not in shared]
        amount = dict(arm.settings).get(dose)
        if isinstance(amount, float):
            lines.setdefault(", ".join(told) or arm.family, []).append((amount, contrast))
    for line in lines.values():
        line.sort(key=lambda point: (point[0], point[1].arm))
    told = [f"{name} {format_setting(value)}" for name, value in shared.items()]
    return Sweep("\n".join([title, ", ".join(told)]).strip(), dose, lines)


def _draw_levels(summary: SplitSummary, measure: MeasureSummary, origin: Origin) -> Canvas:
    panels = group_arms(summary.arms)
    styles = arm_styles(panels)
    unit = measure.unit
    grid = _new_grid(panels, styles, f"{origin.spec}: {measure.name}{_by_place(summary)}", summary, origin)
    for axis, panel in zip(grid.axes, panels, strict=True):
        for arm, shift in zip(panel.arms, spread_out(len(panel.arms)), strict=True):
            cells = [measure.cells[arm.label, position] for position in summary.positions]
            points = [
                _point(place + shift, cell.mean, cell.interval, unit)
                for place, cell in enumerate(cells)
                if cell.mean is not None and cell.interval is not None
            ]
            draw_points(axis, points, styles[arm.label])
        axis.set_ylabel(f"{measure.name} ({'%' if unit == POINTS else unit.name})")
        name_positions(axis, summary.positions)
        set_scale(axis, is_percent=unit == POINTS)
        grid.finish_panel(axis, panel.title)
    return grid.canvas


def _draw_changes(summary: SplitSummary, measure: MeasureSummary, origin: Origin) -> Canvas:
    contrasts = _against_baseline(summary, measure, "by_position")
    compared = {contrast.arm for contrast in contrasts}
    everything = group_arms(summary.arms)
    styles = arm_styles(everything)
    kept = [
        Panel(panel.title, tuple(arm for arm in panel.arms if arm.label in compared)) for panel in everything
    ]
    panels = [panel for panel in kept if panel.arms]
    grid = _new_grid(panels, styles, f"{origin.spec}: change of the {measure.name}", summary, origin)
    for axis, panel in zip(grid.axes, panels, strict=True):
        axis.axhline(0, color=BASELINE_COLOUR, linewidth=1)
        for arm, shift in zip(panel.arms, spread_out(len(panel.arms)), strict=True):
            mine = {contrast.scope: contrast for contrast in contrasts if contrast.arm == arm.label}
            points = [
                _change(place + shift, mine[label], measure.unit)
                for place, label in enumerate(summary.positions)
                if label in mine
            ]
            draw_points(axis, points, styles[arm.label])
        axis.set_ylabel(f"Δ against {summary.baseline} ({measure.unit.name})")
        name_positions(axis, summary.positions)
        set_scale(axis, is_percent=False)
        grid.finish_panel(axis, panel.title)
    return grid.canvas


def _draw_sweeps(summary: SplitSummary, measure: MeasureSummary, origin: Origin) -> Canvas:
    sweeps = find_sweeps(summary)
    names = list(dict.fromkeys(name for sweep in sweeps for name in sweep.lines))
    title = f"{origin.spec}: change of the {measure.name}, all positions"
    caption = f"{_describe(summary, origin)} {_INTERVALS}"
    grid = Grid([list(sweep.lines) for sweep in sweeps], title, caption)
    for axis, sweep in zip(grid.axes, sweeps, strict=True):
        axis.axhline(0, color=BASELINE_COLOUR, linewidth=1)
        doses = sorted({amount for points in sweep.lines.values() for amount, _ in points})
        shifts = [0.2 * (doses[-1] - doses[0]) * shift for shift in spread_out(len(sweep.lines))]
        for (name, points), shift in zip(sweep.lines.items(), shifts, strict=True):
            index = names.index(name)
            is_control = summary.facts(points[0][1].arm).role == "negative control"
            style = ArmStyle(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], name, is_control)
            draw_points(
                axis, [_change(amount + shift, contrast, measure.unit) for amount, contrast in points], style
            )
        axis.set_xticks(doses)
        axis.set_xlabel(sweep.dose)
        axis.set_ylabel(f"Δ against {summary.baseline} ({measure.unit.name})")
        set_scale(axis, is_percent=False)
        grid.finish_panel(axis, sweep.title)
    return grid.canvas


def _new_grid(
    panels: list[Panel], styles: dict[str, ArmStyle], title: str, summary: SplitSummary, origin: Origin
) -> Grid:
    labels = [[styles[arm.label].label for arm in panel.arms] for panel in panels]
    return Grid(labels, title, f"{_describe(summary, origin)} {summary.shared} {_INTERVALS}")


def _by_place(summary: SplitSummary) -> str:
    return " by gold position" * any(map(is_place, summary.positions))


def _describe(summary: SplitSummary, origin: Origin) -> str:
    return f"{origin.model}, {summary.n_items} {'test' if summary.split == 'test' else 'development'} items."


def _against_baseline(summary: SplitSummary, measure: MeasureSummary, table: str) -> list[Contrast]:
    return [contrast for contrast in measure.contrasts[table] if contrast.baseline == summary.baseline]


def _change(x: float, contrast: Contrast, unit: Unit) -> Point:
    return _point(x, contrast.difference.estimate, contrast.difference.interval, unit)


def _point(x: float, mean: float, interval: Interval, unit: Unit) -> Point:
    return x, mean * unit.factor, interval.low * unit.factor, interval.high * unit.factor
