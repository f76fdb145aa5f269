"""Turns text or chat messages into token ids and finds the tokens of each block in them.

A block is a character range of a text or of one message's content. The prompt is tokenised as one string, so
that a block's tokens are the ones the model reads anyway, and the tokenizer's offsets say which they are.
Control-token text in content, such as `<|im_end|>` in a memory, stays text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from salience_models.text.chat_rendering import render_chat
from salience_models.text.control_tokens import encode_as_text
from salience_models.text.messages import Message, TextSpan, check_names, sort_spans
from salience_models.text.token_spans import EncodedText, TokenSpan, locate_spans

__all__ = ["EncodedPrompt", "Message", "TextSpan", "TokenSpan", "encode_chat", "encode_text"]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model reads it.

    Attributes:
        token_ids: The whole prompt, control tokens included.
        spans: One per block, in prompt order, disjoint.
        text: What was tokenised: the text itself, or the rendered chat.
        control_positions: Ascending positions of the control tokens: those that the chat template wrote and
            those that the tokenizer put around the text (BOS, EOS).
    """

    token_ids: tuple[int, ...]
    spans: tuple[TokenSpan, ...]
    text: str
    control_positions: tuple[int, ...] = ()


def encode_text(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    spans: Sequence[TextSpan] = (),
    *,
    add_special_tokens: bool = True,
) -> EncodedPrompt:
    """Tokenise `text` and give each span the tokens that hold mostly its characters.

    A token across a boundary goes to the span with most of its characters: on a tie to the earlier span, and
    to a span rather than to the text around it. Tokens that share one character all go with that character.

    Args:
        tokenizer: A fast tokenizer.
        text: Taken literally: a control token's text in it does not become that token.
        spans: Disjoint character ranges of `text`, in any order.
        add_special_tokens: Whether the tokenizer adds its own BOS and EOS around the text.

    Raises:
        BlockDropped: No token holds mostly characters of a span.
    """
    ordered = sort_spans(spans, len(text))
    encoded = encode_as_text(tokenizer, text, add_special_tokens=add_special_tokens)
    return _assemble(text, ordered, encoded)


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
) -> EncodedPrompt:
    """Render messages with the tokenizer's chat template, tokenise them and find their blocks.

    The ids equal `apply_chat_template(tokenize=True)` unless a content holds control-token text, which stays
    text here. Tokens across a boundary go where `encode_text` says.

    Args:
        tokenizer: A fast tokenizer with a chat template.
        messages: At least one; a span's name may occur once in all of them.
        add_generation_prompt: Whether the prompt ends with the header of the assistant's turn.

    Raises:
        BlockDropped: The template drops, repeats, moves or changes a block, or no token is mostly its own.
        ValueError: No chat template, or the template refuses the messages (such as a role it lacks).
    """
    if not messages:
        raise ValueError("messages must hold at least one message, got none")
    check_names([span for message in messages for span in message.spans])
    chat = render_chat(tokenizer, messages, add_generation_prompt=add_generation_prompt)
    encoded = encode_as_text(
        tokenizer, chat.text, template_ranges=chat.template_ranges, add_special_tokens=False
    )
    return _assemble(chat.text, chat.spans, encoded)


def _assemble(text: str, spans: Sequence[TextSpan], encoded: EncodedText) -> EncodedPrompt:
    controls = tuple(position for position, is_control in enumerate(encoded.is_control) if is_control)
    return EncodedPrompt(encoded.ids, locate_spans(text, spans, encoded), text, controls)
