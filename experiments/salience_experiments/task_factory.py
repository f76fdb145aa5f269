"""Tasks by the names that specs use."""

import inspect
import zlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError, validate_call

from salience_experiments.arms import describe_param, import_class
from salience_experiments.data import find_data_file
from salience_experiments.errors import DataFormatError, SpecError
from salience_experiments.tasks.base import Task
from salience_experiments.tasks.constraint import constraint_generated
from salience_experiments.tasks.conversation import conversation_of
from salience_experiments.tasks.documents import documents_from_file, facts_generated
from salience_experiments.tasks.kv import kv_from_file, kv_generated
from salience_experiments.tasks.neutral import neutral_from_oracle
from salience_experiments.tasks.qa import qa_from_file, qa_from_oracle
from salience_experiments.tasks.synthwiki import synthwiki_from_file

__all__ = ["TaskName", "build_task"]


class TaskName(StrEnum):
    """Tasks that a spec can name."""

    KV = "kv"
    """Key-value retrieval: from `file`, or generated without one."""
    QA = "qa"
    """Multi-document QA from a published file with its distractors."""
    QA_ORACLE = "qa_oracle"
    """Multi-document QA from the oracle file, distractors drawn from other questions' golds."""
    SYNTHWIKI = "synthwiki"
    FACTS = "facts"
    """Made-up people, one thing told of each."""
    DOCUMENTS = "documents"
    """A CSV or JSONL of one's own: question, answer, documents."""
    NEUTRAL = "neutral"
    """Perplexity of a passage after unrelated documents; `metric: gold_logprob`, `positions: [unrelated]`."""
    CONVERSATION = "conversation"
    """Facts told, then asked for in later sessions; `render: product`, `positions: [unplaced]`."""
    CONSTRAINT = "constraint"
    """Drawn answers that a hard rule binds; `metric: rule_kept`, `positions: [unplaced]`."""


_GENERATED: dict[TaskName, Callable[..., Task]] = {
    TaskName.KV: kv_generated,
    TaskName.CONSTRAINT: constraint_generated,
    TaskName.FACTS: facts_generated,
    TaskName.CONVERSATION: conversation_of,
}
_FROM_FILE: dict[TaskName, Callable[..., Task]] = {
    TaskName.KV: kv_from_file,
    TaskName.QA: qa_from_file,
    TaskName.QA_ORACLE: qa_from_oracle,
    TaskName.SYNTHWIKI: synthwiki_from_file,
    TaskName.DOCUMENTS: documents_from_file,
    TaskName.NEUTRAL: neutral_from_oracle,
}


def build_task(
    name: str, params: dict[str, Any], positions: tuple[str, ...], seed: int, data_dir: Path | None
) -> Task:
    """The task called `name`; `params.file` is a path, relative ones within `data_dir`.

    `seed` reaches the tasks that draw anything; a `seed` among the params wins. A task of one's own is named
    `package.module:Class` and gets `positions` and the params as keyword arguments.

    Raises:
        SpecError: No such task, or a parameter that it does not take.
        DataError: Its file is missing or not what it should be.
    """
    if ":" in name:
        own = import_class(name, None, "task")
        try:
            return own(positions=positions, **params)
        except (TypeError, ValueError) as error:
            raise SpecError(f"task {name!r}: {error}") from error
    if name not in list(TaskName):
        known = ", ".join(TaskName)
        raise SpecError(f"task.name must be one of {known} or package.module:Class, got {name!r}")
    given = dict(params)
    file = given.pop("file", None)
    tables = (_FROM_FILE, _GENERATED) if file is not None else (_GENERATED, _FROM_FILE)
    make = next(table[TaskName(name)] for table in tables if name in table)
    is_generated = make in _GENERATED.values()
    accepted = inspect.signature(make).parameters
    takes = ["file"] * (name in _FROM_FILE)
    takes += [key for key in accepted if key not in ("path", "positions")]
    for key in params:
        if key not in takes:
            raise SpecError(
                f"task.params.{key} is not a parameter of task {name!r}; it takes {', '.join(takes)}"
            )
    if "seed" in accepted:
        given.setdefault("seed", seed)
    arguments = []
    if not is_generated:
        if file is None:
            raise SpecError(f"task.params.file must name the data file of task {name!r}, got none")
        arguments.append(find_data_file(str(file), data_dir))
    try:
        return validate_call(make)(*arguments, positions=positions, **given)
    except ValidationError as error:
        problems = "; ".join(describe_param(e, "task.params") for e in error.errors())
        raise SpecError(f"task {name!r}: {problems}") from error
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise DataFormatError(f"{arguments[0]} cannot be read: {error}") from error
    except (TypeError, ValueError) as error:
        raise SpecError(f"task {name!r}: {error}") from error
