"""How numbers are printed: points, nats or bare scores, intervals, p values and verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from salience_experiments.statistics import Interval
from salience_experiments.verdict import Contrast, Verdict

NOTHING = "–"


@dataclass(frozen=True)
class Unit:
    """A measure's unit: its values are printed times `factor` with `digits` decimals."""

    name: str
    factor: float
    digits: int

    def format(self, value: float | None, sign: str = "") -> str:
        return NOTHING if value is None else f"{value * self.factor:{sign}.{self.digits}f}"

    def format_interval(self, interval: Interval | None, sign: str = "") -> str:
        """`[low, high]`; a dash where the data showed no spread, which is not certainty."""
        if interval is None or not interval.has_width:
            return NOTHING
        return f"[{self.format(interval.low, sign)}, {self.format(interval.high, sign)}]"

    def format_verdict(self, contrast: Contrast) -> str:
        """The verdict's word; an inconclusive one says what effect would have shown."""
        if contrast.verdict is not Verdict.INCONCLUSIVE:
            return str(contrast.verdict)
        if not math.isfinite(contrast.detectable) or (self == POINTS and contrast.detectable > 1):
            return "inconclusive (too few questions)"
        return f"inconclusive (detectable: {contrast.detectable * self.factor:.2g} {self.name})"


POINTS = Unit("points", 100, 1)
NATS = Unit("nats", 1, 3)
SCORES = Unit("units", 1, 3)


def format_p(p: float) -> str:
    """Three decimals, and never a bare zero."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
