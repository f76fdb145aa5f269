"""The bytes that each token id adds to a text, read from a tokenizer and checked against its own decoding.

Masks are exact only if an answer's text is the concatenation of its tokens' bytes. That holds for byte-level
BPE and for SentencePiece with byte fallback; it does not for WordPiece (`##`) or BPE with `</w>`, which put
spaces in or take them out by what stands around a token. Those are refused.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from salience_models.errors import ModelsError

__all__ = ["Vocabulary", "read_vocabulary"]

_CHUNK_TOKENS = 256


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What a sampled id does to the text; equal where the fingerprint is.

    Attributes:
        token_bytes: Bytes by id, as many as the logits are wide; None for ids that yield no text: special
            tokens and the padded end of the logits.
        eos_token_ids: Ids that end an answer, ascending.
        strips_leading_space: Decoding drops a space (all of them, by some tokenizers) at the very start of an
            answer; the bytes here keep it.
        fingerprint: sha256 of all of the above.
    """

    token_bytes: tuple[bytes | None, ...]
    eos_token_ids: tuple[int, ...]
    strips_leading_space: bool
    fingerprint: str

    @property
    def n_vocab(self) -> int:
        """Width of the logits."""
        return len(self.token_bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Vocabulary(n_vocab={self.n_vocab}, eos_token_ids={self.eos_token_ids})"

    @classmethod
    def from_bytes(
        cls,
        token_bytes: Sequence[bytes | None],
        *,
        eos_token_ids: Sequence[int],
        strips_leading_space: bool = False,
    ) -> "Vocabulary":
        """A vocabulary of given bytes, None where an id yields no text."""
        outside = [i for i in eos_token_ids if not 0 <= i < len(token_bytes)]
        if outside:
            raise ValueError(f"eos_token_ids must lie in [0, {len(token_bytes)}), got {outside}")
        tokens, ends = tuple(token_bytes), tuple(sorted(set(eos_token_ids)))
        digest = hashlib.sha256(repr((len(tokens), ends, strips_leading_space)).encode())
        # Each length goes before its bytes: ("ab", "c") and ("a", "bc") must differ.
        digest.update(b"".join(b"-" if t is None else len(t).to_bytes(4, "big") + t for t in tokens))
        return cls(tokens, ends, strips_leading_space, digest.hexdigest())


@dataclass(frozen=True)
class _Decoding:
    """How the tokenizer's decoder turns a token's text into bytes."""

    is_byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    has_byte_fallback: bool = False
    strips_leading_space: bool = False
    is_metaspace: bool = False


_cache: WeakKeyDictionary[PreTrainedTokenizerBase, dict[tuple[Any, ...], Vocabulary]] = WeakKeyDictionary()


def read_vocabulary(
    tokenizer: PreTrainedTokenizerBase, *, n_vocab: int, eos_token_ids: Sequence[int]
) -> Vocabulary:
    """The bytes of every id of `tokenizer`, read once per tokenizer and compared with what it decodes.

    Args:
        tokenizer: A fast tokenizer: byte-level BPE, or SentencePiece with or without byte fallback.
        n_vocab: Width of the model's logits; ids without a token are None, tokens beyond it left out.
        eos_token_ids: Ids that end an answer.

    Raises:
        ModelsError: The tokenizer's decoding does not concatenate bytes.
        ValueError: Not a fast tokenizer, no width, or an end token outside the logits.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer must be a fast one, got {type(tokenizer).__name__}")
    if n_vocab < 1:
        raise ValueError(f"n_vocab must be at least 1, got {n_vocab}")
    known = _cache.setdefault(tokenizer, {})
    key = (n_vocab, tuple(eos_token_ids), len(tokenizer), tuple(tokenizer.all_special_ids))
    if key not in known:
        known[key] = _read(tokenizer, n_vocab, eos_token_ids)
    return known[key]


def _read(tokenizer: PreTrainedTokenizerBase, n_vocab: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    name = type(tokenizer).__name__
    backend: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    decoding = _read_decoder(name, backend.decoder)
    silent = set(tokenizer.all_special_ids) | {
        i for i, added in tokenizer.added_tokens_decoder.items() if added.special
    }
    token_bytes: list[bytes | None] = [None] * n_vocab
    for text, token_id in backend.get_vocab(with_added_tokens=True).items():
        if token_id < n_vocab and token_id not in silent:
            token_bytes[token_id] = _to_bytes(text, decoding)
            if decoding.is_metaspace and "▁" in text.lstrip("▁"):
                raise ModelsError(
                    f"{name} must decode a token alike at every place, got {text!r}, which loses its inner"
                    " space at the start of a text"
                )
    _check_decoding(name, backend, token_bytes, decoding)
    return Vocabulary.from_bytes(
        token_bytes, eos_token_ids=eos_token_ids, strips_leading_space=decoding.strips_leading_space
    )


def _read_decoder(name: str, decoder: Any) -> _Decoding:
    spec: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
    parts: list[dict[str, Any]] = spec["decoders"] if spec.get("type") == "Sequence" else [spec]
    kinds = [part.get("type", "none") for part in parts]
    if kinds == ["ByteLevel"]:
        return _Decoding(is_byte_level=True)
    if kinds == ["Metaspace"]:
        strips = parts[0].get("prepend_scheme", "always") != "never"
        pair = (parts[0]["replacement"], " ")
        return _Decoding(replacements=(pair,), strips_leading_space=strips, is_metaspace=strips)
    replaced = [p for p in parts if p.get("type") == "Replace" and "String" in p.get("pattern", {})]
    stripped = [p for p in parts if p.get("type") == "Strip" and p["content"] == " " and p["stop"] == 0]
    rest = [kind for kind in kinds if kind in ("ByteFallback", "Fuse")]
    # After Fuse the text is one piece, so Strip there takes away the start of the answer only.
    if len(replaced) + len(stripped) + len(rest) == len(parts) and (
        not stripped or kinds[-2:] == ["Fuse", "Strip"]
    ):
        return _Decoding(
            replacements=tuple((p["pattern"]["String"], p["content"]) for p in replaced),
            has_byte_fallback="ByteFallback" in kinds,
            strips_leading_space=bool(stripped),
        )
    raise ModelsError(
        f"{name} must decode by concatenating bytes (byte-level BPE, or SentencePiece), got the decoder"
        f" {' + '.join(kinds)}"
    )


def _to_bytes(text: str, decoding: _Decoding) -> bytes:
    if decoding.is_byte_level:
        values = [_BYTE_OF.get(character) for character in text]
        # The decoder takes an added word with a character outside the alphabet as it stands.
        return text.encode() if None in values else bytes(v for v in values if v is not None)
    for old, new in decoding.replacements:
        text = text.replace(old, new)
    value = _fallback_byte(text) if decoding.has_byte_fallback else None
    return text.encode() if value is None else bytes([value])


def _fallback_byte(text: str) -> int | None:
    if len(text) != 6 or not (text.startswith("<0x") and text.endswith(">")):
        return None
    try:
        return int(text[3:5], 16)
    except ValueError:
        return None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: a printable byte of Latin-1 is itself, the others are the code points from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [value for value in range(256) if value not in printable]
    return {chr(v): v for v in printable} | {chr(256 + i): v for i, v in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


def _check_decoding(
    name: str, backend: Tokenizer, token_bytes: Sequence[bytes | None], decoding: _Decoding
) -> None:
    """Compare the bytes of every id with what the tokenizer itself makes of it."""
    known = {i: data for i, data in enumerate(token_bytes) if data is not None}
    anchor = next((i for i, data in known.items() if len(data) == 1 and data.isalpha()), None)
    if anchor is None:
        raise ModelsError(f"{name} must have a token of one ASCII letter, got none")
    for ids in _chunks(known, anchor, decoding):
        expected = b"".join(known[i] for i in ids).decode("utf-8", "replace")
        decoded = backend.decode(ids, skip_special_tokens=True)
        if decoded != expected:
            at = next((n for n, (a, b) in enumerate(zip(decoded, expected, strict=False)) if a != b), 0)
            raise ModelsError(
                f"{name} must decode tokens by concatenating their bytes, got {decoded[at : at + 20]!r} for"
                f" {expected[at : at + 20]!r} among ids {ids[1]} to {ids[-1]}"
            )


def _chunks(known: dict[int, bytes], anchor: int, decoding: _Decoding) -> Iterator[list[int]]:
    """Runs of ids, each behind a letter that keeps the start of the text from being stripped.

    Bytes that are no character alone decode by fallback as one `�` each, otherwise as one a broken sequence;
    masks let neither through, so such ids are compared within a character only.
    """
    ids = list(known)
    if decoding.has_byte_fallback:
        ids = [i for i, data in known.items() if len(data) > 1 or data < b"\x80"]
        by_byte = {data[0]: i for i, data in known.items() if len(data) == 1}
        if 0xC3 in by_byte and 0xA9 in by_byte:
            yield [anchor, by_byte[0xC3], by_byte[0xA9], anchor]
    for start in range(0, len(ids), _CHUNK_TOKENS):
        yield [anchor, *ids[start : start + _CHUNK_TOKENS]]
