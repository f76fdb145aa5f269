"""What tests of context rendering share: memories, a small template, a count by words."""

from collections.abc import Callable
from typing import Any

import pytest

from salience.context import ContextTemplate
from salience_memory import Memory

NOW_NS = 1_700_000_000_000_000_000

FIELDS: dict[str, Any] = {
    "name": "small",
    "instruction": "Be brief.",
    "sections": [
        {
            "name": "rules",
            "layer": "rules",
            "accepts": {"types": ["constraint"]},
            "priority": 1,
            "max_tokens": 60,
            "render": "- {content}",
        },
        {
            "name": "facts",
            "accepts": {"types": ["semantic"]},
            "priority": 2,
            "max_tokens": 60,
            "render": "- {label}[ (weight: {weight})]",
        },
        {
            "name": "notes",
            "title": "Notes",
            "accepts": {"types": ["external", "context"]},
            "priority": 3,
            "max_tokens": 60,
            "render": "- {content}",
        },
    ],
}


def count_words(text: str) -> int:
    """A token a word."""
    return len(text.split())


@pytest.fixture
def template() -> ContextTemplate:
    return ContextTemplate.model_validate(FIELDS)


@pytest.fixture
def remember() -> Callable[..., Memory]:
    """`remember(content, type="semantic", **fields)`: a memory named by its content's first word."""

    def build(content: str, kind: str = "semantic", **fields: Any) -> Memory:
        return Memory.model_validate(
            {"memory_id": content.split()[0], "content": content, "type": kind, **fields}
        )

    return build
