"""What tests of single steps share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from salience import ContextTemplate, Harness, LanguageModel, Memory, Steps, Turn, TurnOptions

FERRY = Memory("The ferry leaves at seven.", memory_id="ferry")
MUSEUM = Memory("博物馆十点开门 🕙", weight=0.6, memory_id="museum")


@pytest.fixture
def ferry() -> Memory:
    return FERRY


@pytest.fixture
def museum() -> Memory:
    return MUSEUM


@pytest.fixture
def prepare(tiny_lm: LanguageModel, roomy: TurnOptions) -> Callable[..., Turn]:
    """`prepare(question, memories, lm=…, steps=…, …)`: a turn up to its plan, without a store."""

    def prepare(
        question: str = "When does it leave?",
        memories: Sequence[Memory] = (FERRY,),
        *,
        lm: LanguageModel = tiny_lm,
        template: str | Path | ContextTemplate = "personal_assistant",
        turn_options: TurnOptions = roomy,
        steps: Steps | None = None,
        **options: Any,
    ) -> Turn:
        harness = Harness(lm, template=template, options=turn_options, steps=steps or Steps())
        return harness.session().prepare(question, memories, **options)

    return prepare
