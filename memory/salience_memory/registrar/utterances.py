"""What was said: a turn of a conversation as the registrar reads it."""

import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from salience_memory.normalisation import is_same_text, normalise

__all__ = ["MAX_SENTENCE_CHARS", "Role", "Utterance", "split_sentences", "strip_known"]

MAX_SENTENCE_CHARS = 300
"""Rules read sentences up to this length; longer ones are pasted text, not something said about oneself."""

_SENTENCE_END = re.compile(
    r"(?<=[!?])\s+|(?<=[!?])(?=[^\W\d_a-zA-Z])|(?<=[\w)”\"]{3}\.)\s+|(?<=[。;])\s*|\n+"
)
_LABELLED_LINE = re.compile(r"^\s*- .{1,100}\(weight: [\d.]+\)\s*$", re.MULTILINE)
_BLOCK = re.compile(r"\[(MEMORY_CONTEXT|MODEL_CONTEXT_PROTOCOL)[^\]]*\].*?(\[/\1\]|\Z)", re.DOTALL)
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'"})
_SHORTEST_COPY = 8
"""A sentence of fewer characters is not taken for a copy of a prompt only because it occurs there."""


class Role(StrEnum):
    """Who said it."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Utterance(BaseModel):
    """One message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role
    text: str
    ns: int | None = Field(default=None, description="When it was said, UTC; None: when it is observed.")
    number: int | None = Field(default=None, ge=1, description="Counts the user's turns of a session.")
    memory_ids: tuple[str, ...] = Field(default=(), description="The memories an answer was given or cites.")


def split_sentences(text: str) -> list[str]:
    """Sentences with their end marks; width, apostrophes and spacing made uniform, case kept."""
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
    return [part for part in parts if part and len(part) <= MAX_SENTENCE_CHARS]


def strip_known(text: str, known: Iterable[str]) -> str:
    """The text without what the prompt already held: rendered memory blocks, and sentences of `known` texts.

    Without it a registrar would declare its own memories over and over as if the user had just said them.

    Args:
        text: What was said.
        known: Contents of recalled memories, and system prompts.
    """
    text = _LABELLED_LINE.sub("", _BLOCK.sub("", text))
    sources = [normalise(source) for source in known]
    copies = [sentence for source in known for sentence in split_sentences(source)]
    kept = [
        sentence
        for sentence in split_sentences(text)
        if not any(is_same_text(sentence, copy) for copy in copies)
        and not (len(sentence) >= _SHORTEST_COPY and any(normalise(sentence) in source for source in sources))
    ]
    return "\n".join(kept)
