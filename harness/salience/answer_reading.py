"""What a streamed answer came to, and which memories it repeats."""

from collections.abc import Sequence

from salience_memory import Memory
from salience_memory.lexical import tokenize
from salience_memory.references import Reference
from salience_models import Generation, StreamEvent

__all__ = ["find_repeated", "join_events"]


def join_events(events: Sequence[StreamEvent]) -> Generation:
    """One request's events, read to the end, as its answer."""
    last = events[-1]
    assert last.finish_reason is not None
    assert last.receipt is not None
    return Generation(
        text="".join(event.text for event in events),
        token_ids=tuple(event.token_id for event in events if event.token_id is not None),
        logprobs=tuple(event.logprob for event in events if event.logprob is not None),
        finish_reason=last.finish_reason,
        receipt=last.receipt,
        raw_logprobs=tuple(event.raw_logprob for event in events if event.raw_logprob is not None),
        rule_ids=last.rule_ids,
        constraint_events=last.constraint_events,
        violations=last.violations,
    )


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
