"""The way of one message to its receipt: six steps over one record, in the order of their files' names."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from salience.turn.record import (
    QUESTION,
    GatheredMemory,
    Gathering,
    Origin,
    Parts,
    Rendering,
    Turn,
    TurnOptions,
)
from salience.turn.step_1_gather import gather
from salience.turn.step_2_render import render
from salience.turn.step_3_place import place
from salience.turn.step_4_plan import plan
from salience.turn.step_5_decode import decode
from salience.turn.step_6_settle import Answer, settle

__all__ = [
    "QUESTION",
    "Answer",
    "GatheredMemory",
    "Gathering",
    "Origin",
    "Parts",
    "Rendering",
    "Step",
    "Steps",
    "Turn",
    "TurnOptions",
]

Step = Callable[[Turn, Parts], None]
"""Reads the turn's earlier fields and sets its own."""


class Decode(Protocol):
    """Sets `generation`, `text` and `references` once it has been read to its end."""

    def __call__(self, turn: Turn, parts: Parts, *, hold_back_tokens: int = 0) -> Iterator[str]: ...


@dataclass(frozen=True)
class Steps:
    """The steps, in their order. A caller replaces one: `replace(Steps(), render=my_render)`."""

    gather: Step = gather
    render: Step = render
    place: Step = place
    plan: Step = plan
    decode: Decode = decode
    settle: Callable[[Turn, Parts], Answer] = settle

    def prepare(self, turn: Turn, parts: Parts) -> Turn:
        """Everything before the model answers."""
        for step in (self.gather, self.render, self.place, self.plan):
            step(turn, parts)
        return turn
