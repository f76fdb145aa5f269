"""What goes into a batch, which prompts of it are prefilled together, and a batch between two passes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from salience_models.constraints.combined import TokenConstraint
from salience_models.decoding.cache import RowCache, split_rows
from salience_models.steering.batch_steering import SteeringRun
from salience_models.steering.bias_plan import BiasPlan
from salience_models.steering.request_steering import RequestSteering

__all__ = ["DecodeState", "Request", "group_by_length"]


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

    They are empty after a `resume`, a `trim` and an `extend` by different lengths. `capacity` is how many
    columns a static cache holds; None where the cache grows. `hidden` `[batch, column]` says which of the
    columns so far hold nothing of a request any more, padding on its left apart; None where all do.
    `regimes` name each request's RoPE regime (`rope_regime`).
    """

    requests: list[RequestSteering]
    token_ids: list[list[int]]
    pads: list[int]
    cache: Cache
    run: SteeringRun
    columns: int
    logits: Tensor
    regimes: list[int]
    capacity: int | None = None
    hidden: Tensor | None = None

    @property
    def n_hidden(self) -> list[int]:
        """Columns per request that hold nothing of it any more."""
        return [0] * len(self.pads) if self.hidden is None else self.hidden.sum(-1).tolist()

    def columns_of(self, i: int) -> slice | Tensor:
        """Where request `i` lies, right padding of the last pass included."""
        if self.hidden is None or not self.hidden[i].any():
            return slice(self.pads[i], self.columns)
        return (~self.hidden[i, self.pads[i] :]).nonzero()[:, 0] + self.pads[i]

    def trim(self, lengths: Sequence[int]) -> None:
        """Keep the first `lengths[i]` tokens of each request and hide what was fed after them."""
        columns = [self.columns_of(i) for i in range(len(self.pads))]
        hidden = torch.zeros(len(self.pads), self.columns, dtype=torch.bool)
        for i, (where, length) in enumerate(zip(columns, lengths, strict=True)):
            kept = torch.arange(self.columns)[where][:length]
            hidden[i, self.pads[i] :] = True
            hidden[i, kept] = False
            del self.token_ids[i][length:]
        self.hidden = hidden if hidden.any() else None
        self.logits = torch.empty(0)

    def rows(
        self, lengths: Sequence[int] | None = None, *, only: Sequence[int] | None = None
    ) -> list[RowCache]:
        """Each request's cache, cut to its first `lengths[i]` tokens (default: all fed so far).

        `only` names the requests that are wanted.
        """
        counts = [len(ids) for ids in self.token_ids] if lengths is None else list(lengths)
        wanted = list(range(len(counts))) if only is None else list(only)
        columns: dict[int, slice | Tensor] = {}
        for i in wanted:
            where = self.columns_of(i)
            is_run = isinstance(where, slice)
            columns[i] = slice(where.start, where.start + counts[i]) if is_run else where[: counts[i]]
        parts = split_rows(self.cache, columns)
        return [
            RowCache(
                tuple(self.token_ids[i][: counts[i]]),
                self.requests[i].prompt_length,
                self.requests[i].plan,
                *part,
                self.regimes[i],
            )
            for i, part in zip(wanted, parts, strict=True)
        ]


def group_by_length(lengths: Sequence[int], pass_tokens: int) -> list[list[int]]:
    """Partition prompts so that the tokens computed, padding included, and the passes cost least.

    Every group is padded to its longest prompt, so an optimal group holds neighbours in length.

    Args:
        lengths: Tokens of each prompt.
        pass_tokens: How many tokens one more pass is worth.

    Returns:
        Places in `lengths`, group by group; within a group in the order given.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    best = [(0, 0)]  # for the shortest n prompts: what they cost, and where their last group starts
    for end in range(1, len(order) + 1):
        width = lengths[order[end - 1]]
        best.append(min((best[s][0] + (end - s) * width + pass_tokens, s) for s in range(end)))
    groups: list[list[int]] = []
    end = len(order)
    while end:
        start = best[end][1]
        groups.append(sorted(order[start:end]))
        end = start
    return groups[::-1]
