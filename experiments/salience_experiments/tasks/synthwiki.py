"""SynthWiki: questions on fictional people, so that nothing can be known from training.

One gold document among distractors, as a task of `documents`.

Source: github adamlerer/synthwiki (MIT), `madlibs1.csv`. The prompt is this project's own.
"""

import csv
import random
from pathlib import Path

from salience_experiments.errors import DataFormatError
from salience_experiments.tasks.base import POSITIONS
from salience_experiments.tasks.documents import DocumentsRecord, DocumentsTask


def synthwiki_from_file(
    path: Path,
    *,
    n_items: int | None = None,
    n_documents: int = 6,
    seed: int = 1,
    positions: tuple[str, ...] = POSITIONS,
) -> DocumentsTask:
    """Return the task over `madlibs1.csv`.

    The seed orders the questions, of which the first `n_items` are taken (none takes all). An item's
    distractors depend on its question alone, so that they stay the same whatever the seed.

    Raises:
        DataFormatError: A column is missing, or there are fewer items or documents than asked for.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        rows = list(reader)
    columns = set(reader.fieldnames or ())
    if {"context", "question", "answer"} - columns or not rows:
        raise DataFormatError(
            f"{path} must have rows of context, question and answer, got columns {sorted(columns)}"
        )
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    if not 2 <= n_documents <= len(contexts):
        raise ValueError(f"n_documents must be in 2..{len(contexts)}, got {n_documents}")
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    if n_items is not None and not 1 <= n_items <= len(rows):
        raise ValueError(f"n_items must be in 1..{len(rows)}, got {n_items}")
    records: list[DocumentsRecord] = []
    for number in order[:n_items]:
        question, answer, gold = (rows[number][name] for name in ("question", "answer", "context"))
        others = [context for context in contexts if context != gold]
        drawn = random.Random(question).sample(others, n_documents - 1)
        distractors = tuple(context.strip() for context in drawn)
        records.append(
            DocumentsRecord(number, question.strip(), (answer.strip(),), gold.strip(), distractors)
        )
    return DocumentsTask(tuple(records), positions, name="synthwiki")
