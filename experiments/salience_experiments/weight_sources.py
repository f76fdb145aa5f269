"""Where a block's semantic weight comes from: recall is the honest headline, the others are controls."""

import random
from enum import StrEnum

from salience_experiments.errors import SpecError
from salience_experiments.tasks.base import Item
from salience_memory import TextRecall

__all__ = ["WeightSource", "block_probabilities", "block_weights"]


class WeightSource(StrEnum):
    """Which blocks get weight."""

    RECALL = "recall"
    """The blocks that recall ranks first for the question: embedding and lexical scores."""
    ORACLE = "oracle"
    """The gold block: an upper bound, to be labelled so."""
    WRONG = "wrong"
    """One block that is not gold: what a recall error costs."""
    ALL = "all"
    """Every block: what steering costs that says nothing."""
    RANDOM = "random"
    """One block by chance."""


def block_weights(
    source: WeightSource, item: Item, *, weight: float, top_k: int, seed: int, recall: TextRecall
) -> dict[str, float]:
    """Semantic weights by block name; blocks left out are neutral, and an item without blocks has none.

    Chance depends on the seed and the item's id alone, so that an item has the same wrong block at
    every position and in every arm.

    Raises:
        SpecError: The source is `wrong` and all of the item's blocks are gold.
    """
    if not item.blocks:
        return {}
    return dict.fromkeys(_chosen(source, item, top_k, seed, recall), weight)


def _chosen(source: WeightSource, item: Item, top_k: int, seed: int, recall: TextRecall) -> list[str]:
    names = sorted(block.name for block in item.blocks)
    rng = random.Random(f"{source}:{seed}:{item.item_id}")
    if source is WeightSource.RECALL:
        found = recall.rank(item.question, [block.text for block in item.blocks], top_k)
        return [item.blocks[recalled.item].name for recalled in found]
    if source is WeightSource.ORACLE:
        return [block.name for block in item.blocks if block.is_gold]
    if source is WeightSource.ALL:
        return names
    if source is WeightSource.RANDOM:
        return [rng.choice(names)]
    gold = {block.name for block in item.blocks if block.is_gold}
    others = [name for name in names if name not in gold]
    if not others:
        raise SpecError(f"weights 'wrong' need a block that is not gold, got only {names} in {item.item_id}")
    return [rng.choice(others)]


def block_probabilities(
    source: WeightSource, item: Item, *, seed: int, recall: TextRecall
) -> dict[str, float]:
    """What recall is made to say of each block: the ranker's own probability, or what a control puts there.

    Under `wrong` the ranker errs with its own confidence: the gold blocks and as many others change places.
    """
    if not item.blocks:
        return {}
    found = recall.rank(item.question, [block.text for block in item.blocks], len(item.blocks))
    ranked = {item.blocks[hit.item].name: hit.probability for hit in found}
    if source is WeightSource.RECALL:
        return ranked
    if source is not WeightSource.WRONG:
        return dict.fromkeys(_chosen(source, item, 1, seed, recall), 1.0)
    rng = random.Random(f"{source}:{seed}:{item.item_id}")
    gold = sorted(block.name for block in item.blocks if block.is_gold)
    others = sorted(block.name for block in item.blocks if not block.is_gold)
    if len(others) < len(gold):
        raise SpecError(f"weights 'wrong' need a block that is not gold for each gold one in {item.item_id}")
    swapped = dict(ranked)
    for name, other in zip(gold, rng.sample(others, len(gold)), strict=True):
        swapped[name], swapped[other] = ranked.get(other, 0.0), ranked.get(name, 0.0)
    return swapped
