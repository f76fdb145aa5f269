"""A new user's first conversation, on real models: three facts told once, asked for in three later sessions.

Slow (a minute or two a model): the answers of a real model are what is promised here.
"""

from pathlib import Path

import pytest

from salience import Harness, Sampling
from salience_experiments.tasks.conversation import MARKUP, QUESTIONS, TOLD, is_right

SHORT = Sampling(max_new_tokens=48)


def count_right(model: str, folder: Path) -> tuple[int, list[str]]:
    """Right answers out of twenty, and all answers; each question stands alone in its session."""
    with Harness.load(model, memory=folder / "ann.db") as harness:
        with harness.session(user="ann") as first:
            for told in TOLD:
                first.chat(told, sampling=Sampling(max_new_tokens=1))
        assert len(first_contents(harness)) == len(TOLD)
        n_right, answers = 0, []
        for number in (1, 2, 3):
            with harness.session(user="ann") as session:
                for asked in (q for q in QUESTIONS if q.session == number):
                    answer = session.ask(asked.question, sampling=SHORT)
                    n_right += is_right(asked, answer.text)
                    answers.append(answer.text)
    return n_right, answers


def first_contents(harness: Harness) -> list[str]:
    """What is remembered of Ann."""
    with harness.session(user="ann") as session:
        return [found.content for found in session.recall("name allergy city", top_k=9)]


@pytest.mark.model
@pytest.mark.parametrize(
    ("model", "least"),
    [("bundled:qwen2.5-coder-0.5b-instruct", 18), ("bundled:smollm2-135m-instruct", 16)],
)
def test_what_was_told_once_is_known_in_later_sessions(model: str, least: int, tmp_path: Path):
    n_right, answers = count_right(model, tmp_path)
    assert n_right >= least, answers
    assert not [text for text in answers if any(mark in text.casefold() for mark in MARKUP)]
