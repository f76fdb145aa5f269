"""From semantic weights to a plan: the log-odds rule, length normalisation, and shares of attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from salience_models.steering.bias_plan import (
    BiasPlan,
    Phase,
    QueryScope,
    SteeringMethod,
    layers_of_depth,
)
from salience_models.text.token_spans import TokenSpan

__all__ = ["Steering", "length_normalised", "plan_from_weights", "shares_from_weights", "weight_to_bias"]


class Steering(BaseModel):
    """How weights steer, in terms that carry over between models (depth, not layer numbers).

    `strength` multiplies the log-odds under `logit_bias`; under the share methods a block of weight w asks
    for `share · (2w − 1)` of the attention, all blocks together for `max_total_share` at most. Defaults are
    those that the development slices chose (`experiments/LOG.md`): they steer the prompt's rows alone, where
    a wrong memory costs least.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: SteeringMethod = SteeringMethod.SHARE_CONTROL
    strength: float = Field(default=1.0, ge=0.0, le=10.0)
    share: float = Field(default=0.2, gt=0.0, lt=1.0)
    max_total_share: float = Field(default=0.4, gt=0.0, lt=1.0)
    depth: tuple[float, float] = (0.5, 1.0)
    heads: tuple[tuple[int, int], ...] | None = None
    query_scope: QueryScope = QueryScope.QUESTION
    phase: Phase = Phase.PREFILL
    length_normalised: bool = False
    only_raise: bool = True

    @classmethod
    def of(cls, named: "Steering | str") -> "Steering":
        """A steering from itself, or the default one with the method of that name, such as "none".

        Raises:
            ValueError: No such method.
        """
        if isinstance(named, Steering):
            return named
        if named not in list(SteeringMethod):
            known = ", ".join(SteeringMethod)
            raise ValueError(f"steering must be a Steering or one of {known}, got {named!r}")
        return cls(method=SteeringMethod(named))


def weight_to_bias(effective_weight: float, strength: float = 1.0) -> float:
    """Nats for an effective weight: `strength · ln(w / (1 − w))`; 0.5 is neutral.

    The bias is a log-odds prior on the key being relevant. 1.0 would be infinite odds and is refused.
    """
    if not 0.0 < effective_weight < 1.0:
        raise ValueError(f"effective_weight must lie strictly between 0 and 1, got {effective_weight}")
    return strength * math.log(effective_weight / (1.0 - effective_weight))


def length_normalised(bias_nats: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """Subtract `ln(n / geometric mean)` from each non-zero bias: a long block gains no mass by its size."""
    biased = [n for bias, n in zip(bias_nats, lengths, strict=True) if bias != 0.0]
    if not biased:
        return list(bias_nats)
    log_mean = sum(math.log(n) for n in biased) / len(biased)
    return [
        bias - (math.log(n) - log_mean) if bias != 0.0 else 0.0
        for bias, n in zip(bias_nats, lengths, strict=True)
    ]


def shares_from_weights(weights: Sequence[float], share: float, max_total_share: float) -> list[float]:
    """What each block asks for: `share · (2w − 1)`, nothing at 0.5 and below, whatever its neighbours weigh.

    A weight is an absolute claim, so a lone memory of .51 asks for a fiftieth of what one of .99 asks for.
    Only where the sum would pass `max_total_share` do all shrink together.
    """
    shares = [share * max(0.0, 2.0 * w - 1.0) for w in weights]
    return [s * min(1.0, max_total_share / sum(shares)) if s else 0.0 for s in shares]


def plan_from_weights(
    spans: Sequence[TokenSpan],
    weights: Mapping[str, float],
    steering: Steering,
    n_layers: int,
    question_start: int | None = None,
) -> BiasPlan:
    """Compile effective weights by block name into a plan for a model with `n_layers`.

    A span without a weight is neutral: measured, never steered.

    Raises:
        ValueError: A weight outside (0, 1), or one for a block that is not among the spans.
    """
    unknown = sorted(set(weights) - {span.name for span in spans})
    if unknown:
        raise ValueError(f"weights must name blocks of the prompt, got {unknown}")
    values = [weights.get(span.name, 0.5) for span in spans]
    biases = [weight_to_bias(value, steering.strength) for value in values]  # checks them under any method
    shares = [0.0] * len(values)
    if steering.method is SteeringMethod.LOGIT_BIAS:
        if steering.length_normalised:
            biases = length_normalised(biases, [span.end - span.start for span in spans])
    else:
        biases = [0.0] * len(values)
        if steering.method is not SteeringMethod.NONE:
            shares = shares_from_weights(values, steering.share, steering.max_total_share)
    return BiasPlan(
        spans=tuple(
            replace(span, bias_nats=bias, share=asked)
            for span, bias, asked in zip(spans, biases, shares, strict=True)
        ),
        method=steering.method,
        layers=layers_of_depth(n_layers, *steering.depth),
        heads=steering.heads,
        query_scope=steering.query_scope,
        phase=steering.phase,
        question_start=question_start,
        only_raise=steering.only_raise,
    )
