"""How figures look: which arms share a panel, each arm's colour, scales, legends, and reproducible files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
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
from salience_experiments.report.arm_facts import DOSES, ArmFacts
from salience_experiments.report.document import Figure

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
        parts = _split(members)
        for number, part in enumerate(parts, start=1):
            title = f"{name} ({number} of {len(parts)})" if len(parts) > 1 else name
            panels.append(Panel(title, (*baseline, *part)))
    return panels


def _split(arms: Sequence[ArmFacts]) -> list[list[ArmFacts]]:
    """Parts that fit a panel; arms that differ by the dose alone stay together where they fit."""
    if len(arms) <= MAX_ARMS_A_PANEL:
        return [list(arms)]
    lines: dict[tuple[object, ...], list[ArmFacts]] = {}
    for arm in arms:
        rest = tuple(setting for setting in arm.settings if setting[0] not in DOSES)
        lines.setdefault((arm.weights, rest), []).append(arm)
    parts: list[list[ArmFacts]] = [[]]
    for line in lines.values():
        for start in range(0, len(line), MAX_ARMS_A_PANEL):
            chunk = line[start : start + MAX_ARMS_A_PANEL]
            if len(parts[-1]) + len(chunk) > MAX_ARMS_A_PANEL:
                parts.append([])
            parts[-1] += chunk
    return parts


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
