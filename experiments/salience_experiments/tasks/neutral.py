"""Neutral text: what steering costs where no memory bears on what is written.

A passage is begun after documents that have nothing to do with it, and its continuation's log-probability is
the measure: minus its mean, in nats per token, is the log of the perplexity. No document is gold, so recall
steers to the best of irrelevant ones, as it would in use.

Source: passages of github nelson-liu/lost-in-the-middle (MIT), the oracle file; the prompt is our own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from salience_experiments.errors import DataFormatError
from salience_experiments.tasks.base import Block, Item, Layout, PromptBuilder, RenderedPrompt, add_documents
from salience_experiments.tasks.qa import QaRecord, passage_text, qa_from_oracle

UNRELATED = "unrelated"
"""The only position: there is no gold block that could stand elsewhere."""

_FIRST_SENTENCE = re.compile(r".{40,}?[.!?](?=\s)", re.DOTALL)
_MIN_REST_CHARACTERS = 80


@dataclass(frozen=True)
class NeutralTask:
    """Passages to continue after unrelated documents; build with `neutral_from_oracle`."""

    records: tuple[QaRecord, ...]
    positions: tuple[str, ...] = (UNRELATED,)
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        if self.positions != (UNRELATED,):
            raise ValueError(
                f"positions must be [{UNRELATED!r}], as no document is gold, got {self.positions}"
            )

    @property
    def name(self) -> str:
        return "neutral"

    def items(self, position: str) -> Sequence[Item]:
        """Return every passage with its documents."""
        items: list[Item] = []
        for index, record in enumerate(self.records):
            beginning, rest = split_passage(record.gold.text)
            items.append(
                Item(
                    item_id=f"neutral/{len(record.distractors)}/{record.row}",
                    index=index,
                    question=beginning,
                    blocks=tuple(Block(f"d{i}", passage_text(p)) for i, p in enumerate(record.distractors)),
                    answers=(rest,),
                    gold_text=rest,
                    position=position,
                    metadata={"n_documents": len(record.distractors)},
                )
            )
        return tuple(items)

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """Return the raw prompt: documents, then the passage's beginning, which is the question span."""
        builder = PromptBuilder()
        add_documents(builder, item, layout, label=lambda number: f"Document [{number}]")
        return RenderedPrompt((builder.finish(f"\n\n{item.question}", role="raw"),), chat=False)

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 if the answer goes on as the passage does, to the character."""
        return float(answer.startswith(item.gold_text))

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether the answer is as long as the passage."""
        return len(answer) >= len(item.gold_text)


def split_passage(text: str) -> tuple[str, str]:
    """The beginning, sentences of at least 40 characters, and the rest with its leading space, "" if none."""
    match = _FIRST_SENTENCE.match(text)
    return (text[: match.end()], text[match.end() :]) if match else (text, "")


def neutral_from_oracle(
    path: Path,
    *,
    n_documents: int = 6,
    n_items: int | None = None,
    seed: int = 0,
    positions: tuple[str, ...] = (UNRELATED,),
) -> NeutralTask:
    """Return the task over the oracle file's gold passages that begin with a sentence and go on after it.

    The documents beside a passage are other questions' passages, as `qa_from_oracle` draws them.

    Raises:
        DataFormatError: No passage has two sentences, or too few are free of a question's answers.
    """
    seen: dict[str, QaRecord] = {}
    for record in qa_from_oracle(path, n_documents=n_documents + 1, seed=seed).records:
        if len(split_passage(record.gold.text)[1]) >= _MIN_REST_CHARACTERS:
            seen.setdefault(record.gold.text, record)
    if not seen:
        raise DataFormatError(f"{path} must hold passages of at least two sentences, got none")
    if n_items is not None and not 1 <= n_items <= len(seen):
        raise ValueError(f"n_items must be in 1..{len(seen)}, got {n_items}")
    return NeutralTask(tuple(seen.values())[:n_items], positions)
