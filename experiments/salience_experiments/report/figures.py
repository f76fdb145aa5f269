"""The report's figures, drawn with matplotlib's file-only backend; the same input gives the same bytes.

Above: which arms share a panel, each arm's colour, scales, legends; below: what each figure shows.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from salience_experiments.pairing import is_place
from salience_experiments.prompt_edits import PromptEdit
from salience_experiments.report.analysis import DOSES, POINTS, ArmFacts, MeasureSummary, SplitSummary, Unit
from salience_experiments.report.document import Figure
from salience_experiments.spec import format_setting
from salience_experiments.statistics import Interval
from salience_experiments.verdict import Contrast

MAX_ARMS_A_PANEL = 8
"""Beside the baseline."""
FEW_ARMS = 4
FIGURE_WIDTH_IN = 9.0
PANEL_HEIGHT_IN = 3.3
LEGEND_ROW_IN = 0.2
LEGEND_GAP_IN = 0.5
LABEL_CHARS_PER_IN = 12
BASELINE_COLOUR = "#444444"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#117733", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "svg.hashsalt": "salience",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class ArmStyle:
    """An arm's colour, marker and legend text, the same in every figure; a control is dashed and hollow."""

    colour: str
    marker: str
    label: str
    is_control: bool = False


@dataclass(frozen=True)
class Panel:
    """Arms drawn on common axes; `title` says what they share, empty if they are all there is."""

    title: str
    arms: tuple[ArmFacts, ...]


def group_arms(arms: Sequence[ArmFacts]) -> list[Panel]:
    """One panel while the arms are few; else one per family, small families joined, large ones in parts.

    The baseline stands in every panel. Prompt edits count as one family.
    """
    baseline = tuple(arm for arm in arms if arm.role == "baseline")
    others = [arm for arm in arms if arm.role != "baseline"]
    if len(others) <= FEW_ARMS:
        return [Panel("", tuple(arms))]
    families: dict[str, list[ArmFacts]] = {}
    for arm in others:
        families.setdefault("prompt edits" if arm.family in list(PromptEdit) else arm.family, []).append(arm)
    joined: list[tuple[str, list[ArmFacts]]] = []
    for family, members in families.items():
        if joined and len(joined[-1][1]) + len(members) <= FEW_ARMS:
            name, before = joined.pop()
            joined.append((f"{name}, {family}", before + members))
        else:
            joined.append((family, members))
    panels: list[Panel] = []
    for name, members in joined:
        # Parts that fit a panel; arms that differ by the dose alone stay together where they fit.
        lines: dict[tuple[object, ...], list[ArmFacts]] = {}
        for arm in members:
            rest = tuple(setting for setting in arm.settings if setting[0] not in DOSES)
            lines.setdefault((arm.weights, rest), []).append(arm)
        together = [members] if len(members) <= MAX_ARMS_A_PANEL else list(lines.values())
        parts: list[list[ArmFacts]] = [[]]
        for line in together:
            for start in range(0, len(line), MAX_ARMS_A_PANEL):
                chunk = line[start : start + MAX_ARMS_A_PANEL]
                if len(parts[-1]) + len(chunk) > MAX_ARMS_A_PANEL:
                    parts.append([])
                parts[-1] += chunk
        for number, part in enumerate(parts, start=1):
            title = f"{name} ({number} of {len(parts)})" if len(parts) > 1 else name
            panels.append(Panel(title, (*baseline, *part)))
    return panels


def arm_styles(panels: Iterable[Panel]) -> dict[str, ArmStyle]:
    """A style per arm label: grey for the baseline, the palette in order within each panel."""
    styles: dict[str, ArmStyle] = {}
    for panel in panels:
        others = [arm for arm in panel.arms if arm.role != "baseline"]
        for arm in panel.arms:
            if arm.role == "baseline":
                styles[arm.label] = ArmStyle(BASELINE_COLOUR, "o", arm.name)
        for index, arm in enumerate(others):
            name = f"{arm.name} (upper bound)" if arm.role == "upper bound" else arm.name
            is_control = arm.role == "negative control"
            styles[arm.label] = ArmStyle(COLOURS[index], MARKERS[index], name, is_control)
    return styles


class Grid:
    """A figure of panels, each with its legend below; as wide as a page, as high as the legends need.

    Args:
        labels: The legend's entries of each panel.
        title: Stands above all panels.
        caption: Stands below them, in small type.
    """

    def __init__(self, labels: Sequence[Sequence[str]], title: str, caption: str) -> None:
        n_columns = 1 if len(labels) == 1 else 2
        n_rows = -(-len(labels) // n_columns)
        self._label_chars = int((FIGURE_WIDTH_IN / n_columns - 1.1) * LABEL_CHARS_PER_IN)
        self._legend_columns = 1
        if n_columns == 1 and all(len(label) <= self._label_chars // 2 - 6 for label in labels[0]):
            self._legend_columns = 2
        n_lines = [sum(self.wrap(label).count("\n") + 1 for label in mine) for mine in labels]
        rows = [max(n_lines[row * n_columns : (row + 1) * n_columns]) for row in range(n_rows)]
        legend_in = sum(-(-n // self._legend_columns) for n in rows) * LEGEND_ROW_IN
        caption = textwrap.fill(caption, 135)
        height_in = PANEL_HEIGHT_IN * n_rows + legend_in + 0.4 + 0.17 * (caption.count("\n") + 1)
        self.canvas = Canvas(
            figsize=(FIGURE_WIDTH_IN, height_in), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
        )
        every = [axis for row in self.canvas.subplots(n_rows, n_columns, squeeze=False) for axis in row]
        for axis in every[len(labels) :]:
            axis.remove()
        self.axes = every[: len(labels)]
        self.canvas.suptitle(title, x=0.012, ha="left", fontsize=12, fontweight="bold")
        self.canvas.supxlabel(caption, x=0.012, ha="left", fontsize=8.5, color="#555555")

    def wrap(self, label: str) -> str:
        """A legend entry in lines that fit below a panel."""
        return textwrap.fill(label, self._label_chars)

    def finish_panel(self, axis: Axes, title: str) -> None:
        """Title and legend, alike in every panel."""
        axis.set_title(title, pad=10)
        handles, labels = axis.get_legend_handles_labels()
        shift = ScaledTranslation(0, -LEGEND_GAP_IN, self.canvas.dpi_scale_trans)
        axis.legend(
            handles,
            [self.wrap(label) for label in labels],
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=axis.transAxes + shift,
            ncols=self._legend_columns,
            borderaxespad=0,
            handlelength=2.8,
            columnspacing=1.5,
        )


Point = tuple[float, float, float, float]
"""(x, mean, low, high)"""


def draw_points(axis: Axes, points: Sequence[Point], style: ArmStyle) -> None:
    """A line through the means with whiskers from low to high."""
    x, mean, low, high = np.array(points, dtype=float).reshape(-1, 4).T
    axis.vlines(x, low, high, color=style.colour, linewidth=1.4, alpha=0.6, clip_on=False)
    axis.plot(
        x,
        mean,
        color=style.colour,
        marker=style.marker,
        markersize=5.5,
        markerfacecolor="white" if style.is_control else style.colour,
        linestyle="--" if style.is_control else "-",
        linewidth=1.6,
        label=style.label,
        clip_on=False,
    )


def set_scale(axis: Axes, *, is_percent: bool) -> None:
    """From 0 to 100 %, so that panels compare; else as the data lie."""
    if is_percent:
        axis.set_ylim(0, 100)
    else:
        axis.yaxis.set_major_locator(MaxNLocator(6))


def name_positions(axis: Axes, positions: Sequence[str]) -> None:
    """Put the positions on the horizontal axis."""
    axis.set_xticks(range(len(positions)), positions)
    axis.set_xlim(-0.4, len(positions) - 0.6)
    axis.set_xlabel("gold position" if any(map(is_place, positions)) else "")


def spread_out(n: int) -> list[float]:
    """Small sideways shifts, so that whiskers at one position do not cover each other."""
    width = min(0.5, 0.07 * (n - 1))
    return [float(shift) for shift in np.linspace(-width / 2, width / 2, n)] if n > 1 else [0.0] * n


def save_figure(name: str, alt: str, canvas: Canvas) -> Figure:
    """Render to PNG and SVG without dates, versions or random ids."""
    FigureCanvasAgg(canvas)
    png, svg = io.BytesIO(), io.BytesIO()
    with rc_context(STYLE):
        canvas.savefig(png, format="png", dpi=160, metadata={"Software": None})
        canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Figure(name, alt, png.getvalue(), svg.getvalue())


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
        if len(values[dose]) < 2:
            continue
        # Settings that all its arms share go into the title, the others tell its lines apart.
        rest = [{name: value for name, value in arm.settings if name != dose} for arm, _ in arms]
        shared = {name: value for name, value in rest[0].items() if all(r.get(name) == value for r in rest)}
        lines: dict[str, list[tuple[float, Contrast]]] = {}
        for (arm, contrast), settings in zip(arms, rest, strict=True):
            told = [f"{name} {format_setting(v)}" for name, v in settings.items() if name not in shared]
            amount = dict(arm.settings).get(dose)
            if isinstance(amount, float):
                lines.setdefault(", ".join(told) or arm.family, []).append((amount, contrast))
        for line in lines.values():
            line.sort(key=lambda point: (point[0], point[1].arm))
        told = [f"{name} {format_setting(value)}" for name, value in shared.items()]
        title = "\n".join([f"{family}, weights {weights}", ", ".join(told)]).strip()
        sweeps.append(Sweep(title, dose, lines))
    return sweeps


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
