"""Which memories an answer repeats."""

from collections.abc import Sequence

from salience_memory import Memory
from salience_memory.lexical import tokenize
from salience_memory.references import Reference

__all__ = ["find_repeated"]


def find_repeated(
    answer: str, message: str, memories: Sequence[Memory], references: Sequence[Reference]
) -> list[str]:
    """Memories that an answer refers to or shares a telling word with that the message doesn't have.

    Forgetting one of them forgets the answer too, or the next prompt's history would tell of it again.
    """
    words = {word for word in tokenize(answer) if len(word) > 3 or not word.isascii() or word.isdecimal()}
    words -= set(tokenize(message))
    referred = {reference.memory_id for reference in references}
    return [
        memory.memory_id
        for memory in memories
        if memory.memory_id in referred or not words.isdisjoint(tokenize(_all_text(memory)))
    ]


def _all_text(memory: Memory) -> str:
    return " ".join(str(part) for part in (memory.content, memory.key, memory.value) if part is not None)
