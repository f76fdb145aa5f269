"""Step 3, place: messages to tokens, and the tokens of each memory and of the question."""

from collections.abc import Sequence

from salience.turn.record import Parts, Turn
from salience_models import EncodedPrompt, LanguageModel, Message, TextSpan, encode_chat, encode_text

__all__ = ["place"]

ASKED, ANSWERED = "Question", "Answer"
"""How a model without a chat template reads who speaks."""


def place(turn: Turn, parts: Parts) -> None:
    """Encode the messages; whole exchanges go, oldest first, where markup made them longer than was counted.

    Raises:
        BlockDropped: The chat template drops, repeats or changes a memory.
        ValueError: The chat template refuses the roles.
    """
    messages = list(turn.rendered.messages)
    while True:
        prompt = _encode(parts.lm, messages, is_chat=turn.rendered.is_chat)
        over = len(prompt.token_ids) + turn.sampling.max_new_tokens - parts.lm.info.context_window
        is_history = len(messages) > 3 and messages[1].role == "user"
        if over <= 0 or not is_history:
            turn.prompt = prompt
            return
        del messages[1:3]


def _encode(lm: LanguageModel, messages: Sequence[Message], *, is_chat: bool) -> EncodedPrompt:
    if not is_chat:
        return encode_text(lm.tokenizer, messages[-1].content, messages[-1].spans)
    if not lm.info.has_chat_template:
        return encode_text(lm.tokenizer, *_write_out(messages))
    try:
        return encode_chat(lm.tokenizer, messages)
    except ValueError as refusal:
        # A template without a role for the system: what it says goes to the head of the first user's message.
        if len(messages) < 2 or (messages[0].role, messages[1].role) != ("system", "user"):
            raise
        system, first, *rest = messages
        moved = len(system.content) + 2
        spans = (TextSpan(span.name, span.start + moved, span.end + moved) for span in first.spans)
        joined = Message("user", f"{system.content}\n\n{first.content}", (*system.spans, *spans))
        try:
            return encode_chat(lm.tokenizer, [joined, *rest])
        except ValueError:
            raise refusal from None


def _write_out(messages: Sequence[Message]) -> tuple[str, tuple[TextSpan, ...]]:
    """A chat as one text, which ends where the answer begins."""
    text, spans = "", []
    for message in messages:
        text += {"system": "", "user": f"{ASKED}: ", "assistant": f"{ANSWERED}: "}[message.role]
        spans += [TextSpan(s.name, s.start + len(text), s.end + len(text)) for s in message.spans]
        text += message.content + ("\n\n" if message.role == "system" else "\n")
    return f"{text}{ANSWERED}:", tuple(spans)
