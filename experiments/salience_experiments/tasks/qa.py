"""Multi-document question answering from lost-in-the-middle: one gold passage among distractors.

The prompts are the published ones, byte for byte, for a raw completion. A block is a passage with its title,
`(Title: T) text`, without the `Document [i]` label, which belongs to the place.

Source: github nelson-liu/lost-in-the-middle (MIT), `get_qa_prompt`, `get_closedbook_qa_prompt` and
`evaluate_qa_responses.py`.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from salience_experiments.data import read_json_lines
from salience_experiments.errors import DataFormatError
from salience_experiments.metrics import best_subspan_em, first_line, normalize_answer
from salience_experiments.tasks.base import (
    GOLD_BLOCK,
    POSITIONS,
    Block,
    Item,
    Layout,
    PromptBuilder,
    RenderedPrompt,
    add_documents,
    check_layout,
    place_gold,
    position_index,
)

_INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).\n\n"
)


class QaSetting(StrEnum):
    """What an item shows beside its question; each value is also a label of `QaTask.positions`."""

    ORACLE = "oracle"  # the gold passage alone
    CLOSED_BOOK = "closed_book"  # nothing


class Passage(NamedTuple):
    title: str
    text: str


@dataclass(frozen=True)
class QaRecord:
    """One question, its accepted answers, its gold passage, and the others in their order."""

    row: int
    question: str
    answers: tuple[str, ...]
    gold: Passage
    distractors: tuple[Passage, ...] = ()


@dataclass(frozen=True)
class QaTask:
    """Multi-document QA over given records; build with one of this file's `qa_` functions.

    Attributes:
        source: Leads the item ids; names where the records come from.
        query_aware: Whether every layout asks the question before the documents too, as in the published
            variant.
        positions: Labels or decimal indices that `items` takes; `QaSetting` values show the oracle or the
            closed-book prompt, whatever distractors the records hold.
        strip_first: Mend the reference's fault that an answer which begins with a newline scores 0.
        ignore_empty_golds: Mend the reference's fault that a gold which normalizes to "" scores 1.
    """

    source: str
    records: tuple[QaRecord, ...]
    query_aware: bool = False
    positions: tuple[str, ...] = POSITIONS
    strip_first: bool = False
    ignore_empty_golds: bool = False
    max_new_tokens: int = 100  # the reference's default

    def __post_init__(self) -> None:
        if not self.records:
            raise ValueError("records must hold at least one record, got none")
        for position in self.positions:
            if position in tuple(QaSetting):
                continue
            if self.n_documents == 1:
                raise ValueError(
                    f"positions must be oracle or closed_book for one document, got {position!r}"
                )
            position_index(position, self.n_documents)

    @property
    def name(self) -> str:
        return "qa"

    @property
    def n_documents(self) -> int:
        return len(self.records[0].distractors) + 1

    def items(self, position: str) -> Sequence[Item]:
        """Return every item with its gold passage at `position`; the other passages keep their order."""
        items: list[Item] = []
        for index, record in enumerate(self.records):
            gold = Block(GOLD_BLOCK, passage_text(record.gold), is_gold=True)
            others = [Block(f"d{i}", passage_text(passage)) for i, passage in enumerate(record.distractors)]
            if position == QaSetting.CLOSED_BOOK:
                blocks: tuple[Block, ...] = ()
            elif position == QaSetting.ORACLE:
                blocks = (gold,)
            else:
                blocks = place_gold(gold, others, position)
            items.append(
                Item(
                    item_id=f"{self.source}/{self.n_documents}/{record.row}",
                    index=index,
                    question=record.question,
                    blocks=blocks,
                    answers=record.answers,
                    gold_text=f" {record.answers[0]}",
                    position=position,
                    metadata={"source": self.source, "n_documents": len(blocks)},
                )
            )
        return tuple(items)

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """Return the raw prompt that ends with `Answer:`; an item without blocks is asked closed-book."""
        question = f"Question: {item.question}"
        builder = PromptBuilder()
        if not item.blocks:
            check_layout(item, layout)
            return RenderedPrompt((builder.finish(f"{question}\nAnswer:", role="raw"),), chat=False)
        builder.add(_INSTRUCTION)
        builder.add(f"{question}\n\n" if self.query_aware or layout.query_first else "")
        add_documents(builder, item, layout, label=lambda number: f"Document [{number}]")
        return RenderedPrompt((builder.finish(f"\n\n{question}\nAnswer:", role="raw"),), chat=False)

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 if a normalized gold stands in the answer's first line (`best_subspan_em`)."""
        line = first_line(answer, strip_first=self.strip_first)
        return best_subspan_em(line, item.answers, ignore_empty_golds=self.ignore_empty_golds)

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether the line that counts is over."""
        return "\n" in (answer.lstrip() if self.strip_first else answer)


def qa_from_file(
    path: Path,
    *,
    n_items: int | None = None,
    query_aware: bool = False,
    positions: tuple[str, ...] = POSITIONS,
    strip_first: bool = False,
    ignore_empty_golds: bool = False,
) -> QaTask:
    """Return the task over a published file of 1 (oracle), 10, 20 or 30 documents (`.jsonl` or `.jsonl.gz`).

    With the oracle file, positions must be "oracle", "closed_book" or both. With the others the gold passage
    is moved from where the file has it; the published files of one size differ in that place alone, so any of
    them serves. Their places are 0, 4, 9, …: "middle" is one further on, so to compare with published
    figures give positions such as ("0", "4", "9").

    Raises:
        DataFormatError: Too few rows, a row lacks its fields, or has not exactly one gold passage.
    """
    records = tuple(_record(number, row, path) for number, row in enumerate(read_json_lines(path, n_items)))
    if len({len(record.distractors) for record in records}) != 1:
        raise DataFormatError(f"{path} must hold rows of equally many documents")
    source = path.name.removesuffix(".gz").removesuffix(".jsonl")
    return QaTask(source, records, query_aware, positions, strip_first, ignore_empty_golds)


def qa_from_oracle(
    path: Path,
    *,
    n_documents: int,
    n_items: int | None = None,
    seed: int = 0,
    query_aware: bool = False,
    positions: tuple[str, ...] = POSITIONS,
    strip_first: bool = False,
    ignore_empty_golds: bool = False,
) -> QaTask:
    """Return the task with the oracle file's gold passages, each among other questions' golds.

    Not the published set, whose distractors a retriever found for the question; the source says "generated".
    No distractor contains any answer to the question, both normalized (an answer of one letter must be a
    word of its own to count). An item's distractors depend on the seed and its question alone, and more
    documents add to the fewer.

    Raises:
        DataFormatError: Too few rows, or too few passages free of a question's answers.
    """
    if n_documents < 2:
        raise ValueError(f"n_documents must be at least 2, got {n_documents}")
    records = [_record(number, row, path) for number, row in enumerate(read_json_lines(path))]
    if n_items is not None and not 1 <= n_items <= len(records):
        raise ValueError(f"n_items must be in 1..{len(records)}, got {n_items}")
    golds = list(dict.fromkeys(record.gold for record in records))
    texts = {passage: normalize_answer(passage_text(passage)) for passage in golds}
    chosen = []
    for record in records[:n_items]:
        free = _free_passages(record, golds, texts, seed)
        distractors = tuple(islice(free, n_documents - 1))
        if len(distractors) < n_documents - 1:
            raise DataFormatError(f"{path} has too few passages free of the answers to {record.question!r}")
        chosen.append(QaRecord(record.row, record.question, record.answers, record.gold, distractors))
    source = f"nq-generated-{seed}"
    return QaTask(source, tuple(chosen), query_aware, positions, strip_first, ignore_empty_golds)


def passage_text(passage: Passage) -> str:
    return f"(Title: {passage.title}) {passage.text}"


def _record(number: int, row: dict[str, Any], path: Path) -> QaRecord:
    try:
        passages = [(Passage(ctx["title"], ctx["text"]), ctx["isgold"]) for ctx in row["ctxs"]]
        golds = [passage for passage, is_gold in passages if is_gold]
        others = tuple(passage for passage, is_gold in passages if not is_gold)
        question, answers = row["question"], tuple(row["answers"])
    except (KeyError, TypeError) as error:
        raise DataFormatError(
            f"{path} row {number} must have question, answers and ctxs with title, text and isgold: {error!r}"
        ) from error
    if len(golds) != 1 or not answers or not question:
        raise DataFormatError(
            f"{path} row {number} must have a question, answers and one gold passage, "
            f"got {len(answers)} answers and {len(golds)} gold passages"
        )
    return QaRecord(number, question, answers, golds[0], others)


def _free_passages(
    record: QaRecord, golds: list[Passage], texts: dict[Passage, str], seed: int
) -> Iterator[Passage]:
    """Yield other questions' gold passages in the item's own order, those that hold an answer left out."""
    answers = [normalize_answer(answer) for answer in record.answers]
    rng = random.Random(f"qa:{seed}:{record.question}")
    for place in rng.sample(range(len(golds)), len(golds)):
        passage = golds[place]
        if passage.text == record.gold.text:
            continue
        # An answer of one letter must be a word of its own to count.
        text = texts[passage]
        places = [text.split() if len(answer) == 1 and answer.isalpha() else text for answer in answers]
        if not any(answer in place for answer, place in zip(answers, places, strict=True) if answer):
            yield passage
