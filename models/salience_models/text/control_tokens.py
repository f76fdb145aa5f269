"""Tokenises a text in which only chosen places may become control tokens.

A template's `<|im_end|>` is a control token, a memory's `<|im_end|>` is text. transformers'
`split_special_tokens=True` knows only whole texts and tokens flagged special, and to encode a prompt piece by
piece costs SentencePiece tokenizers a space at each cut. So the prompt is encoded as ever; only if that turns
content into a control token, it is encoded again by a twin that knows the control tokens by private names.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from salience_models.errors import ModelsError
from salience_models.text.token_spans import EncodedText

__all__ = [
    "encode_as_text",
    "find_control_tokens",
    "pick_unused_characters",
    "special_token_texts",
]

_MARKUP = re.compile(r"[^\w\s].*\w.*[^\w\s]", re.DOTALL)


@dataclass(frozen=True)
class _Twin:
    """A tokenizer that answers to `names[token]` where the original answers to `token`, with equal ids."""

    backend: Tokenizer
    names: Mapping[str, str]


_twins: WeakKeyDictionary[PreTrainedTokenizerBase, _Twin] = WeakKeyDictionary()


def encode_as_text(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    template_ranges: Sequence[tuple[int, int]] = (),
    add_special_tokens: bool,
) -> EncodedText:
    """Tokenise `text`; control tokens arise inside `template_ranges` and nowhere else.

    Wherever the text holds no control-token text outside those ranges, this is the tokenizer's own encoding.
    The first text that does builds the twin, which takes about as long as loading the tokenizer did.

    Args:
        tokenizer: A fast tokenizer.
        text: The whole prompt.
        template_ranges: Ascending character ranges that the chat template wrote.
        add_special_tokens: Whether the tokenizer adds its own BOS and EOS around the text.

    Raises:
        ModelsError: The tokenizer makes a control token out of plain text in a way that cannot be prevented.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer must be a fast one, which knows offsets, got {type(tokenizer).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text must be valid Unicode, got a lone surrogate at {error.start}") from error
    controls = _control_ids(tokenizer)
    written = "\0".join(text[start:end] for start, end in template_ranges)
    present = {token for token in controls if token in written}
    allowed = [
        (start + a, start + b)
        for start, end in template_ranges
        for a, b in find_control_tokens(text[start:end], present)
    ]
    encoding = tokenizer(
        text,
        add_special_tokens=add_special_tokens,
        split_special_tokens=False,
        padding=False,
        truncation=False,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,  # a prompt that is too long is the caller's business
    )
    offsets = [(start, end) for start, end in encoding["offset_mapping"]]
    added = [flag == 1 for flag in encoding["special_tokens_mask"]]
    judged = _judge(tokenizer, text, encoding["input_ids"], offsets, added, controls, allowed)
    if judged is None:
        ids, offsets, added = _encode_by_twin(tokenizer, text, controls, allowed, add_special_tokens)
        judged = _judge(tokenizer, text, ids, offsets, added, controls, allowed)
    if judged is None:
        raise ModelsError(
            f"{type(tokenizer).__name__} must encode control-token text as text, got control tokens"
        )
    return judged


def find_control_tokens(text: str, controls: AbstractSet[str]) -> list[tuple[int, int]]:
    """Character ranges of control tokens in `text`, found as tokenizers do: leftmost first, longest first."""
    present = sorted((token for token in controls if token in text), key=len, reverse=True)
    if not present:
        return []
    return [match.span() for match in re.finditer("|".join(map(re.escape, present)), text)]


def pick_unused_characters(count: int, used: AbstractSet[str]) -> list[str]:
    """The first `count` characters of the supplementary private-use planes that are not in `used`."""
    unused: list[str] = []
    for code in (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)):
        if len(unused) == count:
            return unused
        if chr(code) not in used:
            unused.append(chr(code))
    raise ValueError(f"text must leave {count} private-use characters unused, got {len(unused)}")


def special_token_texts(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Texts of the tokens that the tokenizer itself flags as special."""
    return frozenset(added.content for added in tokenizer.added_tokens_decoder.values() if added.special)


def _control_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Ids of the tokens that only a template may write: special ones, and added ones that are markup.

    Markup counts whether it is flagged special or not and whether the template names it or not: `<think>`
    and `<tool_response>` are added tokens like any other, yet no memory should open the model's reasoning
    with one. Added words and Gemma's runs of newlines stay ordinary: they are how the text is written.
    """
    named = set(getattr(tokenizer, "chat_control_tokens", None) or ())  # transformers >= 5.24
    return {
        added.content: token_id
        for token_id, added in tokenizer.added_tokens_decoder.items()
        if added.special or added.content in named or _MARKUP.fullmatch(added.content) is not None
    }


def _judge(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    ids: Sequence[int],
    offsets: list[tuple[int, int]],
    added: list[bool],
    controls: Mapping[str, int],
    allowed: list[tuple[int, int]],
) -> EncodedText | None:
    """Mark the control tokens, or None if content became one; `added` marks the tokenizer's BOS and EOS."""
    control_ids = set(controls.values())
    starts = [start for start, _ in allowed]
    is_control: list[bool] = []
    for token_id, (start, end), is_added in zip(ids, offsets, added, strict=True):
        if is_added or token_id not in control_ids:
            is_control.append(is_added)
            continue
        # A control token may have swallowed whitespace around it, so its range may exceed the allowed one.
        index = bisect_left(starts, start)
        is_allowed = index < len(allowed) and allowed[index][1] <= end
        is_unknown = token_id == tokenizer.unk_token_id and text[start:end].strip() != tokenizer.unk_token
        if not is_allowed and not is_unknown:
            return None
        is_control.append(is_allowed)
    return EncodedText(tuple(ids), tuple(offsets), tuple(is_control))


def _encode_by_twin(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    controls: Mapping[str, int],
    allowed: list[tuple[int, int]],
    add_special_tokens: bool,
) -> tuple[list[int], list[tuple[int, int]], list[bool]]:
    """Ids, offsets in `text` and the BOS/EOS mask, with control tokens in the `allowed` ranges only."""
    twin = _twins.get(tokenizer)
    if twin is None or twin.names.keys() != controls.keys() or not set(text).isdisjoint(twin.names.values()):
        twin = _twins[tokenizer] = _build_twin(tokenizer, controls, set(text))
    pieces: list[str] = []
    origin: list[int] = []  # position in `text` of each character of the renamed text
    done = 0
    for start, end in allowed:
        pieces += [text[done:start], twin.names[text[start:end]]]
        origin += [*range(done, start), start]
        done = end
    pieces.append(text[done:])
    origin += range(done, len(text) + 1)
    encoding = twin.backend.encode("".join(pieces), add_special_tokens=add_special_tokens)
    offsets = [(origin[start], origin[end]) for start, end in encoding.offsets]
    return encoding.ids, offsets, [flag == 1 for flag in encoding.special_tokens_mask]


def _build_twin(
    tokenizer: PreTrainedTokenizerBase, controls: Mapping[str, int], used: AbstractSet[str]
) -> _Twin:
    names = dict(
        zip(controls, pick_unused_characters(len(controls), used | tokenizer.get_vocab().keys()), strict=True)
    )
    spec: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
    spec["truncation"] = spec["padding"] = None
    for token in spec["added_tokens"]:
        if token["content"] in names:
            # Found before normalisation, which might drop the private character, and inside words.
            token.update(content=names[token["content"]], normalized=False, single_word=False)
    _rename_in_model(spec["model"], names)
    backend = Tokenizer.from_str(json.dumps(spec))
    wrong = [token for token, token_id in controls.items() if backend.token_to_id(names[token]) != token_id]
    if wrong:
        raise ModelsError(
            f"{type(tokenizer).__name__} must keep its ids under other names, got changes for {wrong}"
        )
    return _Twin(backend, names)


def _rename_in_model(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename control tokens in the vocabulary too: ids stay, and plain text can no longer build one."""
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in model["vocab"].items()}
    else:  # Unigram: pairs of token and score
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [
            (left, right)
            for left, right in model["merges"]
            if left + right not in names and left not in names and right not in names
        ]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
