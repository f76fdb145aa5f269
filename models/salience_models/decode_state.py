"""What goes into a batch, and a batch between two forward passes."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers.cache_utils import Cache

from salience_models.bias_plan import BiasPlan
from salience_models.cache import RowCache, split_rows
from salience_models.constraints.combined import TokenConstraint
from salience_models.request_steering import RequestSteering
from salience_models.steering import SteeringRun

__all__ = ["DecodeState", "Request"]


@dataclass(frozen=True)
class Request:
    """A prompt's tokens, the plan that steers it, and the rules that its answer keeps.

    `stream` and `generate` keep the constraint; `prefill` and `decode` return the model's own logits whatever
    it says.
    """

    token_ids: tuple[int, ...]
    plan: BiasPlan = BiasPlan()
    constraint: TokenConstraint | None = None


@dataclass
class DecodeState:
    """A batch between two forward passes. `logits` `[batch, vocab]` are those after the last column.

    They are empty after a `resume`, and after an `extend` by different lengths. `capacity` is how many
    columns a static cache holds; None where the cache grows.
    """

    requests: list[RequestSteering]
    token_ids: list[list[int]]
    pads: list[int]
    cache: Cache
    run: SteeringRun
    columns: int
    logits: Tensor
    capacity: int | None = None

    def rows(self, lengths: Sequence[int] | None = None) -> list[RowCache]:
        """Each request's cache, cut to its first `lengths[i]` tokens (default: all fed so far)."""
        counts = [len(ids) for ids in self.token_ids] if lengths is None else list(lengths)
        parts = split_rows(self.cache, self.pads, counts)
        return [
            RowCache(tuple(ids[:count]), request.prompt_length, request.plan, *part)
            for ids, count, request, part in zip(self.token_ids, counts, self.requests, parts, strict=True)
        ]
