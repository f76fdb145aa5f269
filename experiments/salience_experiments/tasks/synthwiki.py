"""SynthWiki: questions on fictional people, so that nothing can be known from training.

One gold document among distractors, as a chat prompt. The primary measure is the gold answer's
log-probability, which the runner takes; `score` is the substring match.

Source: github adamlerer/synthwiki (MIT), `madlibs1.csv`. The prompt is this project's own.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from salience_experiments.errors import DataFormatError
from salience_experiments.metrics import best_subspan_em, first_line
from salience_experiments.tasks.base import (
    GOLD_BLOCK,
    POSITIONS,
    Block,
    Item,
    Layout,
    PromptBuilder,
    PromptMessage,
    RenderedPrompt,
    add_documents,
    place_gold,
    position_index,
)

SYSTEM_PROMPT = "Answer the question using only the documents. Answer with a short phrase."


@dataclass(frozen=True)
class SynthwikiRecord:
    """One question with its document and the other documents shown beside it."""

    row: int
    question: str
    answer: str
    context: str
    distractors: tuple[str, ...]


@dataclass(frozen=True)
class SynthwikiTask:
    """SynthWiki over given records; build with `synthwiki_from_file`."""

    records: tuple[SynthwikiRecord, ...]
    positions: tuple[str, ...] = POSITIONS
    max_new_tokens: int = 32

    def __post_init__(self) -> None:
        if not self.records:
            raise ValueError("records must hold at least one record, got none")
        for position in self.positions:
            position_index(position, self.n_documents)

    @property
    def name(self) -> str:
        return "synthwiki"

    @property
    def n_documents(self) -> int:
        return len(self.records[0].distractors) + 1

    def items(self, position: str) -> Sequence[Item]:
        """Return every item with its document at `position`; the other documents keep their order."""
        return tuple(self._item(index, record, position) for index, record in enumerate(self.records))

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """Return the system and user messages; a block is a document without its `Document [i] ` label."""
        builder = PromptBuilder()
        builder.add(f"Question: {item.question}\n\n" if layout.query_first else "")
        add_documents(builder, item, layout, label=lambda number: f"Document [{number}] ")
        user = builder.finish(f"\n\nQuestion: {item.question}", role="user")
        return RenderedPrompt(messages=(PromptMessage("system", SYSTEM_PROMPT), user), chat=True)

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 if the normalized gold stands in the answer's first line."""
        return best_subspan_em(first_line(answer), item.answers, ignore_empty_golds=True)

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether the first line, which alone counts, is over."""
        return "\n" in answer

    def _item(self, index: int, record: SynthwikiRecord, position: str) -> Item:
        gold = Block(GOLD_BLOCK, record.context, is_gold=True)
        others = [Block(f"d{i}", text) for i, text in enumerate(record.distractors)]
        return Item(
            item_id=f"synthwiki/{self.n_documents}/{record.row}",
            index=index,
            question=record.question,
            blocks=place_gold(gold, others, position),
            answers=(record.answer,),
            gold_text=record.answer,
            position=position,
            metadata={"row": record.row, "n_documents": self.n_documents},
        )


def synthwiki_from_file(
    path: Path,
    *,
    n_items: int | None = None,
    n_documents: int = 6,
    seed: int = 1,
    positions: tuple[str, ...] = POSITIONS,
) -> SynthwikiTask:
    """Return the task over `madlibs1.csv`.

    The seed orders the questions, of which the first `n_items` are taken (none takes all). An item's
    distractors depend on its question alone, so that they stay the same whatever the seed.

    Raises:
        DataFormatError: A column is missing, or there are fewer items or documents than asked for.
    """
    rows = _read_rows(path)
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    if not 2 <= n_documents <= len(contexts):
        raise ValueError(f"n_documents must be in 2..{len(contexts)}, got {n_documents}")
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    if n_items is not None and not 1 <= n_items <= len(rows):
        raise ValueError(f"n_items must be in 1..{len(rows)}, got {n_items}")
    records = tuple(_record(rows[row], row, contexts, n_documents) for row in order[:n_items])
    return SynthwikiTask(records, positions)


def _read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        rows = list(reader)
    columns = set(reader.fieldnames or ())
    missing = {"context", "question", "answer"} - columns
    if missing or not rows:
        raise DataFormatError(
            f"{path} must have rows of context, question and answer, got columns {sorted(columns)}"
        )
    return rows


def _record(row: dict[str, str], number: int, contexts: list[str], n_documents: int) -> SynthwikiRecord:
    others = [context for context in contexts if context != row["context"]]
    drawn = random.Random(row["question"]).sample(others, n_documents - 1)
    return SynthwikiRecord(
        row=number,
        question=row["question"].strip(),
        answer=row["answer"].strip(),
        context=row["context"].strip(),
        distractors=tuple(context.strip() for context in drawn),
    )
