"""One request under steering: its plan, and what the passes over it have found so far."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from salience_models.steering.bias_plan import BiasPlan, SteeringMethod
from salience_models.steering.receipts import MassLedger

__all__ = ["RequestSteering"]


@dataclass
class RequestSteering:
    """One request's plan and what its passes have found: it outlives the batch the request sits in."""

    plan: BiasPlan
    prompt_length: int
    solved: dict[int, Tensor] = field(default_factory=dict)
    """Per layer the biases `[block]` in nats that share control found on the question rows."""
    unsolved: set[tuple[int, str]] = field(default_factory=set)
    """(layer, block) pairs whose share no bias that share control may use could reach."""
    steered: set[tuple[int, str]] = field(default_factory=set)
    """(layer, block) pairs for which a row was steered."""
    seen: set[tuple[int, str]] = field(default_factory=set)
    """Those of them whose block a steered row saw."""
    ran_layers: set[int] = field(default_factory=set)
    """Layers whose kernel was given what the plan asks, of blocks that its rows may not see."""
    impls: set[str] = field(default_factory=set)
    """Kernel implementations that ran for this request."""
    ledger: MassLedger = field(default_factory=MassLedger)

    @property
    def applied_layers(self) -> set[int]:
        """Layers in which a steered row saw a block it was steered to."""
        return {layer for layer, _ in self.seen}

    @property
    def unreached(self) -> set[tuple[int, str]]:
        """(layer, block) pairs steered in vain: outside the window of every steered row, or unsolved."""
        return self.unsolved | (self.steered - self.seen)

    def branch(self) -> "RequestSteering":
        """A copy whose later passes leave this one as it is."""
        return replace(
            self,
            solved=dict(self.solved),
            unsolved=set(self.unsolved),
            steered=set(self.steered),
            seen=set(self.seen),
            ran_layers=set(self.ran_layers),
            impls=set(self.impls),
            ledger=MassLedger(dict(self.ledger.sums)),
        )

    def layer_asks(self, layer: int) -> Tensor:
        """What each block asks for in `layer`, `[block]`: nats, or a share under target share."""
        if self.plan.method is SteeringMethod.SHARE_CONTROL:
            return self.solved[layer]
        return torch.tensor(self.plan.asks)

    def heads_of(self, layer: int, n_heads: int) -> list[int] | None:
        """Steered heads of `layer`; None = all."""
        if self.plan.heads is None:
            return None
        return [head for at, head in self.plan.heads if at == layer and head < n_heads]

    def note_seen(
        self, layer: int, window: int | None, rows: tuple[int, int], active: tuple[bool, ...]
    ) -> None:
        """Note that `rows` `[start, end)` steer the blocks `active`, and which of those a row sees."""
        for span, is_active in zip(self.plan.spans, active, strict=True):
            if not is_active or rows[0] >= rows[1]:
                continue
            self.steered.add((layer, span.name))
            # The last key of the block is visible up to one window later.
            end = rows[1] if window is None else min(rows[1], span.end - 1 + window)
            if max(rows[0], span.start) < end:
                self.seen.add((layer, span.name))
