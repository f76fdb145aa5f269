"""What tests of the harness share: a tiny model, a clock that stands still, a memory that words recall."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from salience import (
    Harness,
    LanguageModel,
    Memory,
    MemoryAccess,
    Sampling,
    Session,
    Steering,
    StoredMemory,
    TurnOptions,
)

STEERING = Steering.model_validate(
    {
        "method": "share_control",
        "share": 0.2,
        "max_total_share": 0.4,
        "depth": (0.5, 1.0),
        "query_scope": "question",
        "phase": "prefill",
    }
)
# The tiny model's window of 2048 counts nearly a token a character.
ROOMY = TurnOptions.model_validate({"shares": {"system": 8.0, "memories": 3.0, "tool_results": 0.0}})


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def roomy() -> TurnOptions:
    """Shares in which a few memories fit the tiny model's window."""
    return ROOMY


@pytest.fixture(scope="session")
def harness(tiny_lm: LanguageModel) -> Harness:
    """The tiny model under share control, without a memory: .2 of the attention at most, in layer 1 of 2."""
    return Harness(tiny_lm, STEERING, options=ROOMY)


@pytest.fixture
def memory(tmp_path: Path, clock: Clock) -> Iterator[MemoryAccess]:
    """A new store that is searched by words alone."""
    with MemoryAccess.open(tmp_path / "memory.db", embedder=None, clock=clock) as opened:
        yield opened


@pytest.fixture
def remembering(tiny_lm: LanguageModel, memory: MemoryAccess, clock: Clock) -> Harness:
    """The tiny model with that memory."""
    return Harness(tiny_lm, STEERING, memory=memory, options=ROOMY, clock=clock)


@pytest.fixture
def ann(remembering: Harness) -> Session:
    """Ann's dialogue `one`."""
    return remembering.session("ann", "one")


@pytest.fixture
def declare(memory: MemoryAccess) -> Callable[..., StoredMemory]:
    """`declare(content, type="semantic", **fields)`: a memory of Ann's."""

    def declare(content: str, kind: str = "semantic", **fields: Any) -> StoredMemory:
        owner = {"scope": "user", "user_id": "ann"}
        declared = Memory.model_validate({"content": content, "type": kind} | owner | fields)
        return memory.store.declare([declared])[0]

    return declare


@pytest.fixture
def with_tokenizer(tiny_lm: LanguageModel) -> Callable[..., LanguageModel]:
    """`with_tokenizer(template)`: the tiny model under another chat template, or under none."""

    def change(template: str | None) -> LanguageModel:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tiny_lm.info.path)
        tokenizer.chat_template = template
        info = dataclasses.replace(tiny_lm.info, has_chat_template=template is not None)
        return LanguageModel(tiny_lm.model, tokenizer, info)

    return change


@pytest.fixture(scope="session")
def short() -> Sampling:
    return Sampling(max_new_tokens=6)
