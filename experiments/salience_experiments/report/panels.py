"""How figures look: which arms share a panel, each arm's colour, scales, legends, and reproducible files."""

from __future__ import annotations

import io
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

from salience_experiments.report.analysis import ArmFacts
from salience_experiments.report.document import Figure

MAX_ARMS_A_PANEL = 8
DOSES = ("strength", "share")
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
    "legend.fontsize": 9,
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
    """One panel while the arms fit; else one per family, weight source and settings other than the dose.

    The baseline stands in every panel.
    """
    if len(arms) <= MAX_ARMS_A_PANEL:
        return [Panel("", tuple(arms))]
    baseline = tuple(arm for arm in arms if arm.role == "baseline")
    groups: dict[str, list[ArmFacts]] = {}
    for arm in arms:
        if arm.role != "baseline":
            rest = [f"{name} {brief(value)}" for name, value in arm.settings if name not in DOSES]
            groups.setdefault(", ".join([arm.family, arm.weights_label, *rest]), []).append(arm)
    single = [group[0] for group in groups.values() if len(group) == 1]
    titled = [("single arms", single)] if single else []
    titled += [(title, group) for title, group in groups.items() if len(group) > 1]
    size = MAX_ARMS_A_PANEL - len(baseline)
    return [
        Panel(title, baseline + tuple(group[start : start + size]))
        for title, group in titled
        for start in range(0, len(group), size)
    ]


def arm_styles(panels: Iterable[Panel]) -> dict[str, ArmStyle]:
    """A style per arm label: grey for the baseline, the palette in order within each panel."""
    styles: dict[str, ArmStyle] = {}
    for panel in panels:
        others = [arm for arm in panel.arms if arm.role != "baseline"]
        for arm in panel.arms:
            if arm.role == "baseline":
                styles[arm.label] = ArmStyle(BASELINE_COLOUR, "o", arm.label)
        for index, arm in enumerate(others):
            is_control = arm.role == "negative control"
            doses = [f"{name} {brief(value)}" for name, value in arm.settings if name in DOSES]
            is_told = panel.title.startswith(f"{arm.family},") and doses
            label = ", ".join(doses) if is_told else name_with_role(arm)
            styles[arm.label] = ArmStyle(COLOURS[index], MARKERS[index], label, is_control)
    return styles


def new_grid(n_panels: int) -> tuple[Canvas, list[Axes]]:
    """Panels in one column, or two where they are many; each has room for its legend on the right."""
    n_columns = 1 if n_panels <= 3 else 2
    n_rows = -(-n_panels // n_columns)
    canvas = Canvas(
        figsize=(7.6 * n_columns, 3.6 * n_rows), layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1)
    )
    axes = [axis for row in canvas.subplots(n_rows, n_columns, squeeze=False) for axis in row]
    for axis in axes[n_panels:]:
        axis.remove()
    return canvas, axes[:n_panels]


def draw_points(
    axis: Axes, points: Iterable[tuple[float, float, float, float] | None], style: ArmStyle
) -> None:
    """A line through (x, mean) with whiskers from low to high; points are (x, mean, low, high)."""
    present = [point for point in points if point is not None]
    x, mean, low, high = np.array(present, dtype=float).reshape(-1, 4).T
    axis.vlines(x, low, high, color=style.colour, linewidth=1.4, alpha=0.75)
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
    )


def finish_panel(axis: Axes, title: str, *, is_unit_scale: bool) -> None:
    """Title, scale and legend, alike in every panel."""
    axis.set_title(title)
    if is_unit_scale:
        axis.set_ylim(0, 1)
    else:
        axis.yaxis.set_major_locator(MaxNLocator(6))
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, handlelength=2.8)


def name_positions(axis: Axes, positions: Sequence[str]) -> None:
    """Put the gold positions on the horizontal axis."""
    axis.set_xticks(range(len(positions)), positions)
    axis.set_xlim(-0.4, len(positions) - 0.6)
    axis.set_xlabel("gold position")


def spread_out(n: int) -> list[float]:
    """Small sideways shifts, so that whiskers at one position do not cover each other."""
    width = min(0.5, 0.07 * (n - 1))
    return [float(shift) for shift in np.linspace(-width / 2, width / 2, n)] if n > 1 else [0.0] * n


def name_with_role(arm: ArmFacts) -> str:
    """The arm's label, with what must not be overlooked: an upper bound or a control."""
    return f"{arm.label} ({arm.role})" if arm.role in ("upper bound", "negative control") else arm.label


def brief(value: object) -> str:
    """A number without trailing zeros, other settings as they are."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def save_figure(name: str, alt: str, canvas: Canvas, note: str) -> Figure:
    """Render to PNG and SVG without dates, versions or random ids; `note` is printed above in red."""
    if note:
        canvas.suptitle(note, color="#b00020", fontsize=11, fontweight="bold")
    FigureCanvasAgg(canvas)
    png, svg = io.BytesIO(), io.BytesIO()
    with rc_context(STYLE):
        canvas.savefig(png, format="png", dpi=160, metadata={"Software": None})
        canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Figure(name, alt, png.getvalue(), svg.getvalue())
