"""Memories and a question to one prompt, with the place of each memory in it."""

from collections.abc import Sequence

from salience.context.page import MemorySpan
from salience_memory import Memory
from salience_memory.registrar.utterances import Role, Utterance
from salience_models import EncodedPrompt, LanguageModel, Message, TextSpan, encode_chat, encode_text

__all__ = ["QUESTION_NAME", "assemble_chat", "assemble_prompt"]

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
    _check_names(ids)
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


def assemble_chat(
    lm: LanguageModel,
    context: str,
    blocks: Sequence[MemorySpan],
    turns: Sequence[Utterance],
    message: str,
) -> EncodedPrompt:
    """Encode a context, the dialogue so far and what is said now; blocks are characters of the context.

    The context is the system's message; a chat template without that role gets it at the head of the first
    user's message. A base model reads one text, turn by turn, that ends with "Assistant:". Spans are named by
    memory id, then `question`: what is said now.

    Raises:
        ValueError: A memory's id is the question's name, or the template refuses the roles.
    """
    assert lm.tokenizer is not None
    _check_names([block.memory_id for block in blocks])
    spans = tuple(TextSpan(block.memory_id, block.start, block.end) for block in blocks)
    asked = Message("user", message, (TextSpan(QUESTION_NAME, 0, len(message)),))
    said = [Message(turn.role.value, turn.text) for turn in turns]
    if not lm.info.has_chat_template:
        return encode_text(lm.tokenizer, *_write_out(Message("system", context, spans), said, message))
    system = Message("system", context, spans)
    try:
        return encode_chat(lm.tokenizer, [system, *said, asked])
    except ValueError as refusal:
        first, *rest = [*said, asked]
        if first.role != Role.USER.value:
            raise
        try:
            return encode_chat(lm.tokenizer, [_prepend(system, first), *rest])
        except ValueError:
            raise refusal from None


def _prepend(system: Message, first: Message) -> Message:
    """The user's first message with the system's at its head."""
    moved = len(system.content) + 2
    spans = (TextSpan(span.name, span.start + moved, span.end + moved) for span in first.spans)
    return Message("user", f"{system.content}\n\n{first.content}", (*system.spans, *spans))


def _write_out(system: Message, said: Sequence[Message], message: str) -> tuple[str, tuple[TextSpan, ...]]:
    """A chat as one text, for a model that has no chat template."""
    lines = [f"{turn.role.capitalize()}: {turn.content}\n" for turn in said]
    head = f"{system.content}\n\n{''.join(lines)}User: "
    asked = TextSpan(QUESTION_NAME, len(head), len(head) + len(message))
    return f"{head}{message}\nAssistant:", (*system.spans, asked)


def _check_names(memory_ids: Sequence[str]) -> None:
    if QUESTION_NAME in memory_ids:
        raise ValueError(f"memory_id must not be {QUESTION_NAME!r}, which names the question's span")


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
