"""Arms that change only the prompt: the controls that steering attention has to beat.

Each edit takes an item and its blocks' semantic weights (0.5, neutral, where none is given) and returns a
layout. Blocks that tie for the highest weight are all *top*: equal weights, a negative control, then treat
all blocks alike and favour no position.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from salience_experiments.tasks.base import Item, Layout, plain_layout

NEUTRAL_WEIGHT = 0.5
PROMPT_RULE = "prompt_rule"
"""The arm that writes the item's rule into the prompt: it needs a rule where the edits below need blocks."""


class PromptEdit(StrEnum):
    REORDER = "reorder"
    REPEAT = "repeat"
    MARKER = "marker"
    QUERY_AWARE = "query_aware"
    TOP_ONLY = "top_only"


def reorder(item: Item, weights: Mapping[str, float]) -> Layout:
    """Sort blocks by ascending weight, the heaviest next to the question; ties keep their order.

    Source: the order of attention sorting (Peysakhovich & Lerer 2023, arXiv 2310.01427), by given weights
    in place of attention. LangChain's `LongContextReorder` differs: it sends the heaviest to both ends.
    """
    weight_of = _weight_of(item, weights)
    return Layout(blocks=tuple(sorted(weight_of, key=lambda name: weight_of[name])))


def repeat(item: Item, weights: Mapping[str, float]) -> Layout:
    """Show the top block a second time, just before the question."""
    return Layout(blocks=plain_layout(item).blocks, repeated=_top_blocks(item, weights))


def marker(item: Item, weights: Mapping[str, float]) -> Layout:
    """Set the top block between two marker lines."""
    return Layout(blocks=plain_layout(item).blocks, markers=frozenset(_top_blocks(item, weights)))


def query_aware(item: Item, weights: Mapping[str, float]) -> Layout:
    """Ask the question before the blocks too, as published; the weights change nothing."""
    _weight_of(item, weights)
    return Layout(blocks=plain_layout(item).blocks, query_first=True)


def top_only(item: Item, weights: Mapping[str, float]) -> Layout:
    """Show only the top block."""
    return Layout(blocks=_top_blocks(item, weights))


_EDITS: dict[PromptEdit, Callable[[Item, Mapping[str, float]], Layout]] = {
    PromptEdit.REORDER: reorder,
    PromptEdit.REPEAT: repeat,
    PromptEdit.MARKER: marker,
    PromptEdit.QUERY_AWARE: query_aware,
    PromptEdit.TOP_ONLY: top_only,
}


def resolve_prompt_edit(name: str) -> Callable[[Item, Mapping[str, float]], Layout]:
    """Return the edit called `name`; ValueError lists the valid names."""
    if name not in _EDITS:
        raise ValueError(f"prompt edit must be one of {', '.join(PromptEdit)}, got {name!r}")
    return _EDITS[PromptEdit(name)]


def _weight_of(item: Item, weights: Mapping[str, float]) -> dict[str, float]:
    """Return every block's weight, in prompt order; ValueError if `weights` names a block the item lacks."""
    for name in weights:
        item.block(name)
    return {block.name: weights.get(block.name, NEUTRAL_WEIGHT) for block in item.blocks}


def _top_blocks(item: Item, weights: Mapping[str, float]) -> tuple[str, ...]:
    weight_of = _weight_of(item, weights)
    if not weight_of:
        raise ValueError(f"item must have blocks to edit its prompt, got none in {item.item_id}")
    top = max(weight_of.values())
    return tuple(name for name, weight in weight_of.items() if weight == top)
