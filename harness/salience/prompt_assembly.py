"""Memories and a question to one prompt, with the place of each memory in it."""

from collections.abc import Sequence

from salience_memory import Memory
from salience_models import EncodedPrompt, LanguageModel, Message, TextSpan, encode_chat, encode_text

__all__ = ["QUESTION_NAME", "assemble_prompt"]

QUESTION_NAME = "question"
DEFAULT_SYSTEM = "Answer the question using the memories. Answer briefly."


def assemble_prompt(
    lm: LanguageModel, question: str, memories: Sequence[Memory], system: str | None = None
) -> EncodedPrompt:
    """Render memories as lines before the question and encode them for the model.

    A chat model gets a system and a user message, a base model one text that ends with "Answer:".
    Spans are named by memory id, then `question`: everything after the last memory.

    Raises:
        ValueError: The question is blank, or two memories share an id.
    """
    if not question.strip():
        raise ValueError("question must hold text, got a blank one")
    ids = [memory.memory_id for memory in memories]
    for memory in memories:
        if ids.count(memory.memory_id) > 1:
            raise ValueError(
                f"memories must have different ids, got {memory.memory_id!r} twice, for {memory.content!r}"
            )
    if QUESTION_NAME in ids:
        raise ValueError(f"memory_id must not be {QUESTION_NAME!r}, which names the question's span")
    instruction = DEFAULT_SYSTEM if system is None else system
    assert lm.tokenizer is not None
    if lm.info.has_chat_template:
        body, spans = _render(memories, question, "")
        messages = [Message("user", body, spans)]
        if instruction:
            messages.insert(0, Message("system", instruction))
        return encode_chat(lm.tokenizer, messages)
    head = f"{instruction}\n\n" if instruction else ""
    body, spans = _render(memories, f"Question: {question}\nAnswer:", head)
    return encode_text(lm.tokenizer, body, spans)


def _render(memories: Sequence[Memory], tail: str, head: str) -> tuple[str, tuple[TextSpan, ...]]:
    text, spans = head, []
    if memories:
        text += "Memories:\n"
    for memory in memories:
        text += "- "
        spans.append(TextSpan(memory.memory_id, len(text), len(text) + len(memory.content)))
        text += memory.content + "\n"
    start = len(text)
    text += ("\n" if memories else "") + tail
    spans.append(TextSpan(QUESTION_NAME, start, len(text)))
    return text, tuple(spans)
