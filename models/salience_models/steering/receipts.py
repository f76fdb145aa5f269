"""Receipts: where attention went, per block, layer and head, and where it would have gone unbiased.

The unbiased mass is this layer's counterfactual given its already biased inputs, not the
unmodified model's mass. Mass is not influence: the harness measures that (`Harness.explain`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

__all__ = ["MassLedger", "MassTable", "Receipt"]


@dataclass
class MassLedger:
    """Running sums over rows of achieved and unbiased mass, per layer and phase."""

    sums: dict[tuple[bool, int], tuple[Tensor, Tensor, int]] = field(default_factory=dict)

    def add(self, layer: int, is_answer: bool, mass: Tensor, before: Tensor) -> None:
        """Add rows `[head, row, block + 1]`."""
        total = (mass.double().sum(1), before.double().sum(1), mass.shape[1])
        old = self.sums.get((is_answer, layer))
        if old is not None:
            total = (old[0] + total[0], old[1] + total[1], old[2] + total[2])
        self.sums[is_answer, layer] = total

    def table(self, is_answer: bool) -> "MassTable | None":
        """Means over rows; None where no such row was measured."""
        layers = sorted(layer for phase, layer in self.sums if phase == is_answer)
        if not layers:
            return None
        picked = [self.sums[is_answer, layer] for layer in layers]
        achieved = torch.stack([mass / n_rows for mass, _, n_rows in picked])
        unbiased = torch.stack([before / n_rows for _, before, n_rows in picked])
        return MassTable(achieved.numpy(), unbiased.numpy(), picked[0][2])


@dataclass(frozen=True)
class MassTable:
    """Mean attention mass `[layer, head, block + 1]`; block 0 is everything else, the sink included."""

    achieved: np.ndarray
    unbiased: np.ndarray
    n_rows: int


@dataclass(frozen=True)
class Receipt:
    """What steering did in one request.

    `question` covers the rows after the blocks (the last 64 of them at most), `answer` the
    generated or teacher-forced rows. `bias_nats` is what each layer added to each block
    `[layer, block]` (NaN for target share, whose bias differs by row and head). `layers` are those in
    which a steered row saw a block it was steered to. `impls` names the kernels that ran, `unreached` the
    (layer, block) pairs that the plan named in vain: the block lay outside the layer's window of every
    steered row, or share control would have needed more than its largest bias.
    """

    blocks: tuple[str, ...]
    method: str
    plan_fingerprint: str
    layers: tuple[int, ...]
    impls: tuple[str, ...]
    bias_nats: np.ndarray
    question: MassTable | None
    answer: MassTable | None
    unreached: tuple[tuple[int, str], ...] = ()

    def shares(self) -> dict[str, float]:
        """Achieved mass by block over the question rows, mean over steered layers (all if none) and heads."""
        return self._mean(lambda table: table.achieved)

    def unbiased_shares(self) -> dict[str, float]:
        """As `shares`, without each layer's own bias."""
        return self._mean(lambda table: table.unbiased)

    def _mean(self, pick: Callable[[MassTable], np.ndarray]) -> dict[str, float]:
        if self.question is None:
            return {}
        mass = pick(self.question)
        layers = list(self.layers) or list(range(mass.shape[0]))
        means = mass[layers].mean(axis=(0, 1))
        return {name: float(mean) for name, mean in zip(self.blocks, means[1:], strict=True)}

    def __str__(self) -> str:
        """A line per block: its share of attention, without the bias in brackets; then what ran where."""
        unbiased = self.unbiased_shares()
        lines = [f"{name}: {share:.1%} ({unbiased[name]:.1%})" for name, share in self.shares().items()]
        where = f"{len(self.layers)} layers" if self.layers else "no layer"
        return "\n".join([*lines, f"{self.method} in {where}, by {', '.join(self.impls)}"])

    def summary(self) -> dict[str, object]:
        """A small JSON-ready record for trial logs."""
        return {
            "method": self.method,
            "plan": self.plan_fingerprint,
            "layers": list(self.layers),
            "impls": list(self.impls),
            "shares": {name: round(share, 6) for name, share in self.shares().items()},
            "unbiased": {name: round(share, 6) for name, share in self.unbiased_shares().items()},
            "unreached": [list(pair) for pair in self.unreached],
        }
