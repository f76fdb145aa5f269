"""Build a tokenizer from the metadata of a GGUF file.

A GGUF file carries vocabulary, merges and special ids, not the rules that cut text into pieces. transformers
guesses them, and differently by version: 5.17 gives Gemma neither `<bos>` nor its merges, and SmolLM2 the
wrong EOS; 5.24 is right on those, yet cuts digits for SmolLM2 as GPT-2 does, which makes two tokens of a
blank line before a number (a numbered list of three becomes 17 nats less likely); and it reads a vocabulary
of 150,000 for half a minute. Hence these families and Qwen's are built here, alike under every version;
others are transformers' own, with their special tokens corrected.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_SPLITS = {
    **{pre: [_DIGITS, _GPT2_WORDS] for pre in ("smollm", "starcoder", "refact", "command-r", "codeshell")},
    "qwen2": [
        pre_tokenizers.Split(Regex(_QWEN2_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}
"""How text is cut before merging, by `tokenizer.ggml.pre` of byte-level tokenizers. In the first group every
digit stands alone and the rest is cut as GPT-2 does."""

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
    model, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", model == "llama")
    if model == "gpt2" and split in _SPLITS:
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        backend.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[split])
        backend.decoder = decoders.ByteLevel()
    elif model == "llama" and metadata["general.architecture"] in ("gemma", "gemma2", "gemma3"):
        # SentencePiece BPE without a leading space; a file spells runs of spaces with real ones.
        vocabulary = {_SPACE * len(t) if t and not t.strip(" ") else t: i for i, t in enumerate(tokens)}
        backend = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=derive_merges(vocabulary),
                unk_token=special["unk_token"],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        backend.normalizer = normalizers.Replace(" ", _SPACE)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        backend.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        converted: Any = AutoTokenizer.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, local_files_only=True
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=converted.backend_tokenizer,
            chat_template=metadata.get("tokenizer.chat_template"),
            **special,
        )
    if adds_bos:
        bos = special["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos}:1 $B:1",
            special_tokens=[(bos, metadata["tokenizer.ggml.bos_token_id"])],
        )
    # Control tokens become special; user-defined ones are matched whole in any text, yet are text.
    kinds = list(zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True))
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
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=metadata.get("tokenizer.chat_template"), **special
    )


def eos_token_ids(metadata: dict[str, Any]) -> list[int]:
    """Tokens that end an answer: the file's end of text and of turn, and the one its chat template writes.

    A file names one EOS; instruction-tuned Gemma files name `<eos>` and end their turns with `<end_of_turn>`.
    Where texts begin with `<|endoftext|>`, as Qwen's, it also ends one: what follows would be another text.
    """
    named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata["tokenizer.ggml.tokens"][bos] == "<|endoftext|>":
        named.append(bos)
    template = metadata.get("tokenizer.chat_template", "")
    ends = {token for token in _TURN_ENDS if token in template}
    written = [i for i, token in enumerate(metadata["tokenizer.ggml.tokens"]) if token in ends]
    return list(dict.fromkeys(i for i in [*named, *written] if i is not None))


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
