"""Questions on documents: one document holds the answer, and it stands first, in the middle or last.

`facts_generated` makes up people and what is known of each, so that nothing can be known from training.

`documents_from_file` reads a user's own CSV or JSONL, where each row is a question:

| field | what |
|---|---|
| `question` | what is asked |
| `answer` | the answer, or a JSON list of which any counts; the first one is the gold answer that is scored |
| `documents` | a JSON list of at least two texts; or one text each in `document_1`, `document_2`, … |
| `gold` | optional: which document holds the answer, counted from 1 |

Without `gold` it is the one document in which an answer stands, case, punctuation and articles aside. Other
fields are left alone. A refusal names the file, the row (from 1, a CSV's header aside) and the field.
"""

import csv
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from salience_experiments.data import read_json_lines
from salience_experiments.errors import DataFormatError
from salience_experiments.metrics import best_subspan_em, first_line
from salience_experiments.tasks.base import (
    GOLD_BLOCK,
    POSITIONS,
    Block,
    Item,
    Layout,
    Message,
    PromptBuilder,
    RenderedPrompt,
    add_documents,
    place_gold,
    position_index,
)

SYSTEM_PROMPT = "Answer the question using only the documents. Answer with a short phrase."

_LONGEST_FIELD = 10**9
"""Characters of one field of a CSV; Python's own limit of 131,072 is less than a long document."""


@dataclass(frozen=True)
class DocumentsRecord:
    """One question, the document that answers it, and the other documents shown beside it, in their order."""

    row: int
    question: str
    answers: tuple[str, ...]
    context: str
    distractors: tuple[str, ...]


@dataclass(frozen=True)
class DocumentsTask:
    """A chat prompt of numbered documents and the question; build with `documents_from_file`.

    The primary measure is the gold answer's log-probability, which the runner takes; `score` is the substring
    match. The prompt is this project's own.
    """

    records: tuple[DocumentsRecord, ...]
    positions: tuple[str, ...] = POSITIONS
    max_new_tokens: int = 32
    name: str = "documents"

    def __post_init__(self) -> None:
        if not self.records:
            raise ValueError("records must hold at least one record, got none")
        fewest = min(len(record.distractors) for record in self.records) + 1
        for position in self.positions:
            position_index(position, fewest)

    def items(self, position: str) -> Sequence[Item]:
        """Return every item with its gold document at `position`; the other documents keep their order."""
        items: list[Item] = []
        for index, record in enumerate(self.records):
            gold = Block(GOLD_BLOCK, record.context, is_gold=True)
            others = [Block(f"d{i}", text) for i, text in enumerate(record.distractors)]
            n_documents = len(others) + 1
            items.append(
                Item(
                    item_id=f"{self.name}/{n_documents}/{record.row}",
                    index=index,
                    question=record.question,
                    blocks=place_gold(gold, others, position),
                    answers=record.answers,
                    gold_text=record.answers[0],
                    position=position,
                    metadata={"row": record.row, "n_documents": n_documents},
                )
            )
        return tuple(items)

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """Return the system and user messages; a block is a document without its `Document [i] ` label."""
        builder = PromptBuilder()
        builder.add(f"Question: {item.question}\n\n" if layout.query_first else "")
        add_documents(builder, item, layout, label=lambda number: f"Document [{number}] ")
        user = builder.finish(f"\n\nQuestion: {item.question}", role="user")
        return RenderedPrompt(messages=(Message("system", SYSTEM_PROMPT), user), chat=True)

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 if any normalized gold answer stands in the answer's first line."""
        return best_subspan_em(first_line(answer), item.answers, ignore_empty_golds=True)

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether the first line, which alone counts, is over."""
        return "\n" in answer


def documents_from_file(
    path: Path, *, n_items: int | None = None, positions: tuple[str, ...] = POSITIONS
) -> DocumentsTask:
    """Return the task over a user's CSV or JSONL (`.csv`, `.jsonl`, `.jsonl.gz`), its first `n_items` rows.

    Raises:
        DataFormatError: A row does not hold what the table at the top of this module says.
        ValueError: There are fewer rows than `n_items`, or the suffix is another.
    """
    if path.suffix == ".csv":
        rows = _read_csv(path)
    elif path.suffixes[-1:] == [".jsonl"] or path.suffixes[-2:] == [".jsonl", ".gz"]:
        rows = read_json_lines(path)
    else:
        raise ValueError(f"file must end in .csv, .jsonl or .jsonl.gz, got {path.name!r}")
    if n_items is not None and not 1 <= n_items <= len(rows):
        raise ValueError(f"n_items must be in 1..{len(rows)}, got {n_items}")
    records = []
    for number, row in enumerate(rows[:n_items], start=1):
        try:
            records.append(_read_record(row, number))
        except ValueError as error:
            raise DataFormatError(f"{path} row {number}: {error}") from error
    return DocumentsTask(tuple(records), positions)


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """Rows by column; empty fields are left out, and lists are still JSON text."""
    csv.field_size_limit(_LONGEST_FIELD)
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8-sig", newline="") as lines:  # spreadsheets write a mark at the start
        reader = csv.DictReader(lines, strict=True)
        try:
            for number, row in enumerate(reader, start=1):
                if None in row or None in row.values():
                    n_columns = len(reader.fieldnames or ())
                    raise DataFormatError(f"{path} row {number} must have {n_columns} fields, as its header")
                rows.append({name: text for name, text in row.items() if text.strip()})
        except csv.Error as error:
            raise DataFormatError(f"{path} row {len(rows) + 1} is not CSV: {error}") from error
    if not rows:
        raise DataFormatError(f"{path} must hold a header and at least one row, got {len(rows)} rows")
    return rows


def _read_record(row: Mapping[str, Any], number: int) -> DocumentsRecord:
    """Raise ValueError that names the field."""
    for name in ("question", "answer"):
        if name not in row:
            raise ValueError(f"{name} is missing, got {', '.join(row) or 'nothing'}")
    question = row["question"]
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question must be text, got {question!r}")
    answers = _read_texts("answer", row["answer"], may_be_one=True)
    if "documents" in row:
        documents = _read_texts("documents", row["documents"])
    else:
        columns = []
        while (name := f"document_{len(columns) + 1}") in row:
            columns.append(row[name])
        documents = _read_texts("document_1, document_2, …", columns)
    if len(documents) < 2:
        raise ValueError(f"documents must be at least two, got {len(documents)}")
    holders = [
        place
        for place, text in enumerate(documents, start=1)
        if best_subspan_em(text, answers, ignore_empty_golds=True)
    ]
    if "gold" in row:
        given = str(row["gold"]).strip()
        if not given.isdecimal() or not 1 <= int(given) <= len(documents):
            raise ValueError(f"gold must be the number of a document, 1 to {len(documents)}, got {given!r}")
        gold = int(given) - 1
    elif len(holders) == 1:
        gold = holders[0] - 1
    else:
        found = f"documents {', '.join(map(str, holders))} do" if holders else "none does"
        raise ValueError(f"one document must hold an answer of {list(answers)}, or gold name it; {found}")
    others = (*documents[:gold], *documents[gold + 1 :])
    return DocumentsRecord(number, question.strip(), answers, documents[gold], others)


def _read_texts(name: str, value: Any, *, may_be_one: bool = False) -> tuple[str, ...]:
    """The texts of a list, which a CSV writes as JSON; `may_be_one` takes a bare text as a list of one."""
    if isinstance(value, str):
        try:
            read = json.loads(value)
        except ValueError:
            read = None
        value = read if isinstance(read, list) else [value] if may_be_one else value
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list of texts, got {str(value)[:80]!r}")
    for text in value:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name} must hold texts that are not empty, got {text!r}")
    return tuple(text.strip() for text in value)


_PEOPLE = tuple(
    f"{first} {last}"
    for first in ("Mira", "Tobias", "Yuki", "Ines", "Kofi", "Selma", "Rafael", "Nadia", "Oskar", "Leila")
    for last in ("Okafor", "Lindqvist", "Marchetti", "Duval", "Petrov", "Haddad")
)
_KNOWN = {
    "Which instrument does {person} play?": (
        "{person} plays the {value} in a small orchestra and practises every evening.",
        ("cello", "harp", "trumpet", "banjo", "oboe", "drums", "flute", "accordion"),
    ),
    "What is the name of {person}'s dog?": (
        "{person} has a dog called {value}, who sleeps under the kitchen table.",
        ("Biscuit", "Comet", "Pepper", "Rufus", "Waffle", "Bruno", "Juniper", "Moss"),
    ),
    "In which city was {person} born?": (
        "{person} was born in {value} and moved away at the age of nine.",
        ("Tampere", "Cork", "Porto", "Graz", "Oaxaca", "Sendai", "Gdansk", "Split"),
    ),
    "What does {person} collect?": (
        "{person} collects {value} and shows them to every visitor.",
        ("stamps", "fossils", "teapots", "postcards", "coins", "marbles", "maps", "feathers"),
    ),
}


def facts_generated(
    *, n_items: int = 15, n_documents: int = 6, seed: int = 0, positions: tuple[str, ...] = POSITIONS
) -> DocumentsTask:
    """Return a task of made-up people: each document tells one thing of one of them, all of the same kind.

    The distractors of an item tell the same of other people, with other values, so that only the name in the
    question says which document is meant.
    """
    longest = min(len(values) for _, values in _KNOWN.values())
    if not 2 <= n_documents <= longest:
        raise ValueError(f"n_documents must be in 2..{longest}, got {n_documents}")
    if n_items < 1:
        raise ValueError(f"n_items must be at least 1, got {n_items}")
    records: list[DocumentsRecord] = []
    for row in range(n_items):
        rng = random.Random(f"facts:{seed}:{row}")
        question, (told, values) = rng.choice(sorted(_KNOWN.items()))
        people, chosen = rng.sample(_PEOPLE, n_documents), rng.sample(values, n_documents)
        gold, *others = (
            told.format(person=person, value=value) for person, value in zip(people, chosen, strict=True)
        )
        asked = question.format(person=people[0])
        records.append(DocumentsRecord(row, asked, (chosen[0],), gold, tuple(others)))
    return DocumentsTask(tuple(records), positions, name="facts")
