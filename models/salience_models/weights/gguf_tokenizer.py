"""Build a tokenizer from the metadata of a GGUF file.

A GGUF file carries vocabulary, merges and special ids, not the rules that cut text into pieces. transformers
guesses them, and differently by version: 5.17 gives Gemma neither `<bos>` nor its merges, and SmolLM2 the
wrong EOS; 5.24 is right on those, yet cuts digits for SmolLM2 as GPT-2 does, which makes two tokens of a
blank line before a number (a numbered list of three becomes 17 nats less likely). Hence these two families
are built here, alike under every version; others are transformers' own, with their special tokens corrected.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

DIGITS_FIRST = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
"""Values of `tokenizer.ggml.pre` under which every digit stands alone and the rest is cut as GPT-2 does."""

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"
_SPECIAL_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_TURN_ENDS = ("<|im_end|>", "<end_of_turn>", "<turn|>", "<|eot_id|>", "<|end|>", "<|END_OF_TURN_TOKEN|>")


def build_tokenizer(gguf_file: Path, metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer that `metadata` describes, with its chat template and special tokens.

    Raises whatever transformers raises for a tokenizer that it cannot convert.
    """
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    special = {
        name: tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for key, name in _SPECIAL_TOKENS.items()
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=_build_backend(gguf_file, metadata),
        chat_template=metadata.get("tokenizer.chat_template"),
        **special,
    )


def eos_token_ids(metadata: dict[str, Any]) -> list[int]:
    """Tokens that end an answer: the file's end of text and of turn, and the one its chat template writes.

    A file names one EOS; instruction-tuned Gemma files name `<eos>` and end their turns with `<end_of_turn>`.
    """
    named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    template = metadata.get("tokenizer.chat_template", "")
    ends = {token for token in _TURN_ENDS if token in template}
    written = [i for i, token in enumerate(metadata["tokenizer.ggml.tokens"]) if token in ends]
    return sorted({i for i in [*named, *written] if i is not None})


def _build_backend(gguf_file: Path, metadata: dict[str, Any]) -> Tokenizer:
    model, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model == "gpt2" and split in DIGITS_FIRST:
        backend = _build_digits_first(metadata)
    elif model == "llama" and metadata["general.architecture"] in ("gemma", "gemma2", "gemma3"):
        backend = _build_gemma(metadata)
    else:
        converted: Any = AutoTokenizer.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, local_files_only=True
        )
        return converted.backend_tokenizer
    _add_tokens(backend, metadata)
    return backend


def _build_digits_first(metadata: dict[str, Any]) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _build_gemma(metadata: dict[str, Any]) -> Tokenizer:
    """SentencePiece BPE without a leading space; a file spells runs of spaces with real ones."""
    tokens = metadata["tokenizer.ggml.tokens"]
    vocabulary = {_SPACE * len(t) if t and not t.strip(" ") else t: i for i, t in enumerate(tokens)}
    unknown = tokens[metadata["tokenizer.ggml.unknown_token_id"]]
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=derive_merges(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    if metadata.get("tokenizer.ggml.add_bos_token", True):
        bos = metadata["tokenizer.ggml.bos_token_id"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A",
            pair=f"{tokens[bos]} $A {tokens[bos]}:1 $B:1",
            special_tokens=[(tokens[bos], bos)],
        )
    return backend


def derive_merges(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies, best first.

    A token may be merged from any two tokens that spell it. Gemma learned its tokens in the order of their
    ids (the scores in the file do not follow it); for one token the longer left part goes first.
    """
    return [
        (token[:cut], token[cut:])
        for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]


def _add_tokens(backend: Tokenizer, metadata: dict[str, Any]) -> None:
    """Control tokens become special; user-defined ones are matched whole in any text, yet are text."""
    kinds = list(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True))
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in kinds if kind == _CONTROL]
    )
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token, kind in kinds
            if kind == _USER_DEFINED and backend.token_to_id(token) is not None
        ]
    )
