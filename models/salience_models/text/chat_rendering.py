"""Renders a chat template and says which characters of the result came from which message.

Contents and blocks are wrapped in private-use characters that occur nowhere else. The render that carries
them counts only if it is exactly the plain render once they are taken out; where they stood is then where the
contents and blocks are.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from salience_models.errors import BlockDropped
from salience_models.text.control_tokens import (
    find_control_tokens,
    pick_unused_characters,
    special_token_texts,
)
from salience_models.text.messages import Message, TextSpan

__all__ = ["RenderedChat", "render_chat"]

_Render = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class RenderedChat:
    """A rendered chat, its blocks and, ascending, the ranges that the template itself wrote."""

    text: str
    spans: tuple[TextSpan, ...]
    template_ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Part:
    """Characters `[start, end)` of a content between two marks; a block, or the whole content (no name)."""

    name: str | None
    start: int
    end: int
    opening: str
    closing: str


@dataclass(frozen=True)
class _Wrapped:
    """Message `index` with marks in its content; its first part is the whole content, the others blocks."""

    index: int
    text: str
    parts: tuple[_Part, ...]

    @property
    def marks(self) -> list[str]:
        whole, *blocks = self.parts
        return [
            whole.opening,
            *(mark for block in blocks for mark in (block.opening, block.closing)),
            whole.closing,
        ]


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, add_generation_prompt: bool
) -> RenderedChat:
    """Render `messages` and find their contents and blocks in the result.

    Templates may strip whitespace around a content, and may rewrite a message that holds neither a block nor
    special-token text (as Qwen's does with earlier reasoning); such a message counts as the template's text.

    Raises:
        BlockDropped: The template drops, repeats, moves or changes a block or special-token text.
        ValueError: No chat template, or the template refuses the messages.
    """
    render = _make_renderer(tokenizer, messages, add_generation_prompt)
    contents = [message.content for message in messages]
    plain = render(contents)
    marks = iter(
        pick_unused_characters(
            sum(2 + 2 * len(message.spans) for message in messages), set(plain).union(*contents)
        )
    )
    wrapped = [
        wrap for i, message in enumerate(messages) if (wrap := _wrap(i, message, message.spans, marks))
    ]
    places = _place(render, contents, plain, wrapped)
    if isinstance(places, str):
        wrapped = _leave_rewritten(render, messages, plain, wrapped, special_token_texts(tokenizer))
        places = _place(render, contents, plain, wrapped)
    if isinstance(places, str):
        raise BlockDropped(
            f"messages must come out of the chat template as they are, got one that {places} them"
        )
    spans = [
        TextSpan(part.name, places[part.opening], places[part.closing])
        for wrap in wrapped
        for part in wrap.parts
        if part.name is not None
    ]
    edges = [0]
    for wrap in wrapped:
        edges += [places[wrap.parts[0].opening], places[wrap.parts[0].closing]]
    edges.append(len(plain))
    return RenderedChat(plain, tuple(spans), tuple(zip(edges[::2], edges[1::2], strict=True)))


def _make_renderer(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], add_generation_prompt: bool
) -> _Render:
    if not tokenizer.chat_template:
        raise ValueError("tokenizer must have a chat template, got none: use encode_text")

    def render(contents: Sequence[str]) -> str:
        chat = [
            {"role": message.role, "content": content}
            for message, content in zip(messages, contents, strict=True)
        ]
        try:
            text = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except TemplateError as error:
            roles = [message.role for message in messages]
            raise ValueError(
                f"messages must suit the model's chat template, got roles {roles} and its refusal: {error}"
            ) from error
        assert isinstance(text, str)
        return text

    return render


def _wrap(index: int, message: Message, spans: Sequence[TextSpan], marks: Iterator[str]) -> _Wrapped | None:
    """Put marks around `spans` and around the content less its outer whitespace; None if that is nothing."""
    content = message.content
    start, end = len(content) - len(content.lstrip()), len(content.rstrip())
    if spans:
        start, end = min(start, spans[0].start), max(end, spans[-1].end)
    if start >= end:
        return None
    parts = [_Part(None, start, end, next(marks), next(marks))]
    pieces = [content[:start], parts[0].opening]
    done = start
    for span in spans:
        block = _Part(span.name, span.start, span.end, next(marks), next(marks))
        parts.append(block)
        pieces += [content[done : span.start], block.opening, content[span.start : span.end], block.closing]
        done = span.end
    pieces += [content[done:end], parts[0].closing, content[end:]]
    return _Wrapped(index, "".join(pieces), tuple(parts))


def _place(
    render: _Render, contents: Sequence[str], plain: str, wrapped: Sequence[_Wrapped]
) -> dict[str, int] | str:
    """Position in `plain` of each mark, or the verb for what the template does to the wrapped contents."""
    marks = [mark for wrap in wrapped for mark in wrap.marks]
    if not marks:
        return {}
    known = set(marks)
    marked = list(contents)
    for wrap in wrapped:
        marked[wrap.index] = wrap.text
    found: list[tuple[str, int]] = []
    pieces: list[str] = []
    length = 0
    for piece in re.split(f"([{''.join(marks)}])", render(marked)):
        if piece in known:
            found.append((piece, length))
        else:
            pieces.append(piece)
            length += len(piece)
    counts = Counter(mark for mark, _ in found)
    if any(counts[mark] == 0 for mark in marks):
        return "drops"
    if any(counts[mark] > 1 for mark in marks):
        return "repeats"
    if [mark for mark, _ in found] != marks:
        return "moves"
    places = dict(found)
    is_kept = "".join(pieces) == plain and all(
        plain[places[part.opening] : places[part.closing]] == contents[wrap.index][part.start : part.end]
        for wrap in wrapped
        for part in wrap.parts
        if part.name is not None
    )
    return places if is_kept else "changes"


def _leave_rewritten(
    render: _Render,
    messages: Sequence[Message],
    plain: str,
    wrapped: Sequence[_Wrapped],
    specials: frozenset[str],
) -> list[_Wrapped]:
    """The messages that the template keeps; refuse if another one holds a block or special-token text."""
    contents = [message.content for message in messages]
    kept: list[_Wrapped] = []
    for wrap in wrapped:
        fault = _place(render, contents, plain, [wrap])
        if not isinstance(fault, str):
            kept.append(wrap)
            continue
        message = messages[wrap.index]
        where = f"message {wrap.index} ({message.role})"
        _refuse_lost_block(render, contents, plain, message, wrap, where)
        hidden = find_control_tokens(message.content, specials)
        if hidden:
            raise BlockDropped(
                f"{where} must come out of the chat template as it is, for it holds"
                f" {message.content[slice(*hidden[0])]!r}, got a template that {fault} it"
            )
    return kept


def _refuse_lost_block(
    render: _Render, contents: Sequence[str], plain: str, message: Message, wrap: _Wrapped, where: str
) -> None:
    """Name the first block that the template does not keep on its own, or else all of the message's."""
    for spans in (*((span,) for span in message.spans), message.spans):
        alone = _wrap(wrap.index, message, spans, iter(wrap.marks))
        fault = _place(render, contents, plain, [alone]) if alone and spans else None
        if isinstance(fault, str):
            names = ", ".join(repr(span.name) for span in spans)
            raise BlockDropped(
                f"block {names} of {where} must come out of the chat template as it is,"
                f" got a template that {fault} it{_hint_at_whitespace(message, spans)}"
            )


def _hint_at_whitespace(message: Message, spans: Sequence[TextSpan]) -> str:
    blocks = [message.content[span.start : span.end] for span in spans]
    is_padded = any(block != block.strip() for block in blocks)
    return ": the block begins or ends with whitespace, which templates may strip" if is_padded else ""
