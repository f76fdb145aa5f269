"""What the public functions return."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Float32
from torch import Tensor


@dataclass(frozen=True)
class AttentionOutput:
    """Result of `key_bias_attention`.

    Attributes:
        out: Attended values in the query's dtype; zeros in rows that see no key.
        lse: Natural log-sum-exp of the biased scores over the keys (a sink is not in it); -inf in rows that
            see no key.
        mass: `[batch, head, rows, block + 1]`, probability per block, index 0 the rest (a sink's probability
            included). Rows are all query rows or the last ones, as asked. Zero in rows that see no key.
        impl: Name of the implementation that ran.
    """

    out: Float[Tensor, "batch head query _"]
    lse: Float32[Tensor, "batch head query"]
    mass: Float32[Tensor, "batch head _ _"] | None
    impl: str


@dataclass(frozen=True)
class TargetShareOutput:
    """Result of `target_share_attention`.

    Attributes:
        out: Attended values in the query's dtype; zeros in rows that see no key.
        lse: Natural log-sum-exp over the keys of the scores plus the bias each row was given.
        mass: `[batch, head, rows, block + 1]`, probability per block after the shift, index 0 the rest.
        mass_before: The same without the shift.
        impl: Name of the implementation that ran.
    """

    out: Float[Tensor, "batch head query _"]
    lse: Float32[Tensor, "batch head query"]
    mass: Float32[Tensor, "batch head _ _"] | None
    mass_before: Float32[Tensor, "batch head _ _"] | None
    impl: str


@dataclass(frozen=True)
class SolvedShareBias:
    """Result of `solve_share_bias`.

    Attributes:
        bias: Nats to add to every key of a block; never negative, 0.0 where no share was asked.
        achieved: Mean mass of the block over the counted heads and rows under `bias`.
        reached: Whether `achieved` is at least the share asked for, within the tolerance.
    """

    bias: Float32[Tensor, "batch block"]
    achieved: Float32[Tensor, "batch block"]
    reached: Bool[Tensor, "batch block"]
