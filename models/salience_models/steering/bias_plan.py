"""What a request asks of attention: which token spans gain mass, by what rule, where and when.

A `BiasPlan` is plain data: immutable, hashable, serialisable. It knows tokens, not text, and
nothing of any model; `batch_steering.py` compiles it for a batch.
"""

import hashlib
import math
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, model_validator

from salience_models.text.token_spans import TokenSpan

__all__ = ["BiasPlan", "Phase", "QueryScope", "SteeringMethod", "layers_of_depth"]


class SteeringMethod(StrEnum):
    """How a block gains attention; the maths is in the README of the kernels room."""

    NONE = "none"
    """Nothing is steered; blocks are measured all the same."""
    LOGIT_BIAS = "logit_bias"
    """Add `bias_nats` to every score of the block's keys."""
    TARGET_SHARE = "target_share"
    """Give the block at least `share` of each steered row and head's mass; without `only_raise`, exactly."""
    TARGET_SHARE_PAPER = "target_share_paper"
    """The published `ln(t / p)` rule, which undershoots; for comparison."""
    SHARE_CONTROL = "share_control"
    """One bias per block and layer, at least zero, so that the head-mean mass reaches `share`."""


class QueryScope(StrEnum):
    """Which prompt rows are steered; answer rows follow `Phase` alone."""

    ALL = "all"
    AFTER_BLOCK = "after_block"
    """Rows after the block's own end."""
    QUESTION = "question"
    """Rows from `question_start` on: what follows the last block."""
    LAST = "last"
    """The prompt's last row, which predicts the first answer token."""


class Phase(StrEnum):
    """Whether prompt rows, answer rows or both are steered."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class BiasPlan(BaseModel):
    """The steering of one request.

    Spans are in prompt order and never overlap. `layers` and `heads` None mean all; `heads` are
    `(layer, head)` pairs and restrict the steered layers further. `question_start` is the first
    token after the blocks (default: the end of the last span): the rows that `question` steers,
    that `share_control` solves on and that receipts average. `only_raise` concerns target share: a row
    and head that already gives the block its share is left as it is; False lowers it to the share.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spans: tuple[TokenSpan, ...] = ()
    method: SteeringMethod = SteeringMethod.LOGIT_BIAS
    layers: tuple[int, ...] | None = None
    heads: tuple[tuple[int, int], ...] | None = None
    query_scope: QueryScope = QueryScope.ALL
    phase: Phase = Phase.BOTH
    question_start: int | None = Field(default=None, ge=0)
    only_raise: bool = True

    @model_validator(mode="after")
    def _is_consistent(self) -> "BiasPlan":
        for before, after in zip(self.spans, self.spans[1:], strict=False):
            if after.start < before.end:
                raise ValueError(
                    f"spans must be in order and not overlap, got {before.name!r} "
                    f"[{before.start}, {before.end}) and {after.name!r} [{after.start}, {after.end})"
                )
        names = [span.name for span in self.spans]
        if len(set(names)) != len(names):
            raise ValueError(f"spans must have unique names, got {names}")
        if self.spans and self.question_start is not None and self.question_start < self.spans[-1].end:
            raise ValueError(
                f"question_start must be at or after the last block's end {self.spans[-1].end}, "
                f"got {self.question_start}"
            )
        if self.method is not SteeringMethod.LOGIT_BIAS and sum(s.share for s in self.spans) >= 1.0:
            raise ValueError(f"shares must sum to less than 1, got {sum(s.share for s in self.spans):g}")
        for label, numbers in (("layers", self.layers), ("heads", self.heads)):
            if numbers is not None and (not numbers or len(set(numbers)) != len(numbers)):
                raise ValueError(f"{label} must be None or a non-empty set without repeats, got {numbers}")
        return self

    @property
    def asks(self) -> tuple[float, ...]:
        """What each span asks for: nats under `logit_bias`, a share otherwise; 0.0 = nothing."""
        if self.method is SteeringMethod.NONE:
            return (0.0,) * len(self.spans)
        if self.method is SteeringMethod.LOGIT_BIAS:
            return tuple(span.bias_nats for span in self.spans)
        return tuple(span.share for span in self.spans)

    @property
    def is_steering(self) -> bool:
        """Whether any span asks for something."""
        return any(self.asks)

    @property
    def first_question_row(self) -> int:
        """First row after the blocks; 0 where there are none."""
        if self.question_start is not None:
            return self.question_start
        return self.spans[-1].end if self.spans else 0

    def steers_layer(self, layer: int) -> bool:
        """Whether layer `layer` is asked to apply this plan."""
        if not self.is_steering or (self.layers is not None and layer not in self.layers):
            return False
        return self.heads is None or any(at == layer for at, _ in self.heads)

    def active_spans(self, row: int, prompt_length: int) -> tuple[bool, ...]:
        """Which spans are steered for query row `row`; rows from `prompt_length` on are the answer's."""
        if row >= prompt_length:
            on = self.phase is not Phase.PREFILL
            return tuple(on and ask != 0.0 for ask in self.asks)
        if self.phase is Phase.DECODE:
            return (False,) * len(self.spans)
        return tuple(
            ask != 0.0 and row >= self._first_row(span, prompt_length)
            for span, ask in zip(self.spans, self.asks, strict=True)
        )

    def _first_row(self, span: TokenSpan, prompt_length: int) -> int:
        return {
            QueryScope.ALL: 0,
            QueryScope.AFTER_BLOCK: span.end,
            QueryScope.QUESTION: self.first_question_row,
            QueryScope.LAST: prompt_length - 1,
        }[self.query_scope]

    def row_cuts(self, prompt_length: int) -> tuple[int, ...]:
        """Rows after the first at which the set of steered spans may change, ascending."""
        steered = (s for s, ask in zip(self.spans, self.asks, strict=True) if ask)
        firsts = {self._first_row(span, prompt_length) for span in steered}
        return tuple(sorted(firsts - {0} | {prompt_length}))

    def first_affected_row(self, prompt_length: int) -> int:
        """First row whose attention differs from the unsteered model's (a span ahead is invisible)."""
        if not self.is_steering or self.phase is Phase.DECODE:
            return prompt_length
        steered = (s for s, ask in zip(self.spans, self.asks, strict=True) if ask)
        return min(max(span.start, self._first_row(span, prompt_length)) for span in steered)

    def one_pass_start(self, prompt_length: int) -> int:
        """First row of the prompt's end that one pass must compute: share control solves before it steers."""
        if self.method is not SteeringMethod.SHARE_CONTROL or not self.is_steering:
            return prompt_length
        return min(self.first_affected_row(prompt_length), self.first_question_row)

    def agreement(self, other: "BiasPlan", prompt_length: int, other_length: int) -> int:
        """Number of leading prompt rows whose steering is the same under `other`, whatever the plans' text.

        A key-value cache of one plan can serve the other up to that row, where the tokens agree too.
        """
        shortest = min(prompt_length, other_length)
        is_moved = self.query_scope is QueryScope.LAST and prompt_length != other_length
        is_solved = self.method is SteeringMethod.SHARE_CONTROL  # on rows that may differ
        if self._effect() == other._effect() and not is_moved and not is_solved:
            return shortest
        return min(shortest, self.first_affected_row(prompt_length), other.first_affected_row(other_length))

    def _effect(self) -> tuple[object, ...]:
        steered = tuple((s.start, s.end, ask) for s, ask in zip(self.spans, self.asks, strict=True) if ask)
        if not steered:
            return ()
        question = self.first_question_row if self.query_scope is QueryScope.QUESTION else None
        layers = None if self.layers is None else frozenset(self.layers)
        heads = None if self.heads is None else frozenset(self.heads)
        return (steered, self.method, layers, heads, self.query_scope, self.phase, question, self.only_raise)

    def fingerprint(self) -> str:
        """Sixteen hex digits that identify the plan across runs and machines."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def layers_of_depth(n_layers: int, start: float, end: float = 1.0) -> tuple[int, ...]:
    """Layers whose depth lies in `[start, end)`: fractions, so that a rule carries over between models.

    `layers_of_depth(30, 0.5)` is 15 to 29.
    """
    if not (0.0 <= start < end <= 1.0):
        raise ValueError(f"depth must satisfy 0 <= start < end <= 1, got [{start}, {end})")
    # Rounded, because 0.28 * 25 is 7.000000000000001 in floats and must begin at 7.
    first, stop = (math.ceil(round(depth * n_layers, 9)) for depth in (start, end))
    layers = tuple(range(first, stop))
    if not layers:
        raise ValueError(f"depth [{start}, {end}) holds no layer of a model with {n_layers}")
    return layers
