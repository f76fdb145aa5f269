"""Key-value retrieval from lost-in-the-middle: find one uuid's value in a JSON object of uuids.

The prompt is the published one, byte for byte, for a raw completion: the question follows the JSON object,
and in the query-aware variant stands before it too. A block is one pair, quotes included, without the brace,
comma and newline around it.

Source: github nelson-liu/lost-in-the-middle (MIT), `get_kv_retrieval_prompt` and `evaluate_kv_responses.py`.
Differs in the prompt edits only: a pair may be marked, shown twice (a duplicate key at the end of the object)
or shown alone, which the reference refuses.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from salience_experiments.data import read_json_lines
from salience_experiments.errors import DataFormatError
from salience_experiments.metrics import value_hit
from salience_experiments.tasks.base import (
    GOLD_BLOCK,
    MARKER_CLOSE,
    MARKER_OPEN,
    POSITIONS,
    Block,
    Item,
    Layout,
    PromptBuilder,
    RenderedPrompt,
    check_layout,
    place_gold,
    position_index,
)

_INSTRUCTION = "Extract the value corresponding to the specified key in the JSON object below.\n\n"


class AnswerStyle(StrEnum):
    """How the gold answer is written after `Corresponding value:` when it is teacher-forced.

    A draft only: `score` looks for the value anywhere in the answer, whatever the style.
    """

    QUOTED = "quoted"  # ' "value"'
    BARE = "bare"  # ' value'


@dataclass(frozen=True)
class KvRecord:
    """One published example: the pair to find, and the others in their order."""

    key: str
    value: str
    distractors: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class KvTask:
    """Key-value retrieval over given records; build with `kv_from_file` or `kv_generated`.

    Attributes:
        source: Leads the item ids; names where the records come from.
        query_aware: Whether every layout asks the question before the data too, as in the published variant.
        positions: Labels or decimal indices that `items` takes.
    """

    source: str
    records: tuple[KvRecord, ...]
    query_aware: bool = False
    answer_style: AnswerStyle = AnswerStyle.QUOTED
    positions: tuple[str, ...] = POSITIONS
    max_new_tokens: int = 100  # the reference's default

    def __post_init__(self) -> None:
        if not self.records:
            raise ValueError("records must hold at least one record, got none")
        for position in self.positions:
            position_index(position, self.n_keys)

    @property
    def name(self) -> str:
        return "kv"

    @property
    def n_keys(self) -> int:
        return len(self.records[0].distractors) + 1

    def items(self, position: str) -> Sequence[Item]:
        """Return every item with its pair at `position`; the other pairs keep their order."""
        quote = '"' * (self.answer_style is AnswerStyle.QUOTED)
        items: list[Item] = []
        for index, record in enumerate(self.records):
            gold = Block(GOLD_BLOCK, _pair(record.key, record.value), is_gold=True)
            others = [Block(f"d{i}", _pair(*pair)) for i, pair in enumerate(record.distractors)]
            items.append(
                Item(
                    item_id=f"{self.source}/{self.n_keys}/{index}",
                    index=index,
                    question=record.key,
                    blocks=place_gold(gold, others, position),
                    answers=(record.value,),
                    gold_text=f" {quote}{record.value}{quote}",
                    position=position,
                    metadata={"source": self.source, "n_keys": self.n_keys},
                )
            )
        return tuple(items)

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """Return the raw prompt that ends with `Corresponding value:`."""
        check_layout(item, layout)
        question = f'Key: "{item.question}"\n'
        builder = PromptBuilder()
        builder.add(_INSTRUCTION)
        builder.add(f"{question}\n" if self.query_aware or layout.query_first else "")
        builder.add("JSON data:\n{")
        shown = (*layout.blocks, *layout.repeated)
        for place, name in enumerate(shown, start=1):
            is_marked = name in layout.markers
            builder.add(f"{MARKER_OPEN}\n " if is_marked else "")
            builder.add_block(item.block(name))
            builder.add("," if place < len(shown) else "")
            builder.add(f"\n {MARKER_CLOSE}" if is_marked else "")
            builder.add("\n " if place < len(shown) else "")
        message = builder.finish("}\n\n" + question + "Corresponding value:", role="raw")
        return RenderedPrompt(messages=(message,), chat=False)

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 if the value stands anywhere in the answer, case ignored."""
        return value_hit(answer, item.answers[0])

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether the value is found: it stays so, while a miss may still become a hit."""
        return self.score(item, answer) == 1.0


def kv_from_file(
    path: Path,
    *,
    n_items: int | None = None,
    n_keys: int | None = None,
    query_aware: bool = False,
    answer_style: AnswerStyle | str = AnswerStyle.QUOTED,
    positions: tuple[str, ...] = POSITIONS,
) -> KvTask:
    """Return the task over a published file (`.jsonl` or `.jsonl.gz`).

    Args:
        n_items: Take the file's first items; none takes all.
        n_keys: Shorten each object: its gold pair stays, with the file's first other pairs. No longer the
            published set, though its pairs are; none keeps every pair.

    Raises:
        DataFormatError: The file has too few items or keys, or a row lacks its fields.
    """
    rows = read_json_lines(path, n_items)
    records = tuple(_record(row, n_keys, path) for row in rows)
    if len({len(record.distractors) for record in records}) != 1:
        raise DataFormatError(f"{path} must hold rows of equally many keys")
    source = path.name.removesuffix(".gz").removesuffix(".jsonl")
    return KvTask(source, records, query_aware, AnswerStyle(answer_style), positions)


def kv_generated(
    *,
    n_items: int,
    n_keys: int,
    seed: int = 0,
    query_aware: bool = False,
    answer_style: AnswerStyle | str = AnswerStyle.QUOTED,
    positions: tuple[str, ...] = POSITIONS,
) -> KvTask:
    """Return the task over random uuid4 pairs.

    An item depends on the seed and its index alone: more items, or more keys, add to the fewer, so that
    lengths pair up as well.
    """
    if n_items < 1:
        raise ValueError(f"n_items must be at least 1, got {n_items}")
    _check_n_keys(n_keys)
    records: list[KvRecord] = []
    for index in range(n_items):
        rng = random.Random(f"kv:{seed}:{index}")
        words = [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(2 * n_keys)]
        pairs = list(zip(words[::2], words[1::2], strict=True))
        records.append(KvRecord(*pairs[0], tuple(pairs[1:])))
    return KvTask(f"kv-generated-{seed}", tuple(records), query_aware, AnswerStyle(answer_style), positions)


def _pair(key: str, value: str) -> str:
    return f'"{key}": "{value}"'


def _check_n_keys(n_keys: int) -> None:
    if n_keys < 2:
        raise ValueError(f"n_keys must be at least 2, got {n_keys}")


def _record(row: dict, n_keys: int | None, path: Path) -> KvRecord:
    try:
        key, value = row["key"], row["value"]
        pairs = [(other_key, other_value) for other_key, other_value in row["ordered_kv_records"]]
        pairs.remove((key, value))
    except (KeyError, TypeError, ValueError) as error:
        raise DataFormatError(
            f"{path} must hold rows with key, value and ordered_kv_records that contain them: {error}"
        ) from error
    if n_keys is not None:
        _check_n_keys(n_keys)
        if n_keys > len(pairs) + 1:
            raise DataFormatError(f"{path} has {len(pairs) + 1} keys a row, fewer than n_keys={n_keys}")
        pairs = pairs[: n_keys - 1]
    return KvRecord(key, value, tuple(pairs))
