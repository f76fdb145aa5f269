import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from salience_models.text.control_tokens import (
    encode_as_text,
    find_control_tokens,
    pick_unused_characters,
    special_token_texts,
)
from salience_models.text.prompt import Message, TextSpan, encode_chat, encode_text
from salience_models.text.token_spans import EncodedText


def build(**options: str) -> PreTrainedTokenizerBase:
    """One token a byte, then `<end>` and `<sep>` (special), `<note>` and `zebra` (added, not special)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", normalized=False), AddedToken("<sep>", lstrip=True)])
    backend.add_tokens([AddedToken("<note>"), AddedToken("zebra")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", **options)


def show(tokenizer: PreTrainedTokenizerBase, encoded: EncodedText) -> list[str]:
    """Control tokens in brackets, other tokens as they decode."""
    texts = [tokenizer.decode([token_id]) for token_id in encoded.ids]
    return [f"[{t}]" if c else t for t, c in zip(texts, encoded.is_control, strict=True)]


def test_control_tokens_arise_in_template_ranges_only() -> None:
    tokenizer = build()
    encoded = encode_as_text(
        tokenizer, "<end>a<end><end>", template_ranges=[(0, 5), (11, 16)], add_special_tokens=False
    )
    assert show(tokenizer, encoded) == ["[<end>]", "a", *"<end>", "[<end>]"]
    assert encoded.offsets == ((0, 5), *((i, i + 1) for i in range(5, 11)), (11, 16))


def test_text_of_a_control_token_across_a_range_stays_text() -> None:
    tokenizer = build()
    encoded = encode_as_text(tokenizer, "<end>", template_ranges=[(0, 3)], add_special_tokens=False)
    assert show(tokenizer, encoded) == [*"<end>"]


def test_control_token_that_swallows_whitespace_is_found() -> None:
    tokenizer = build()
    for text, tokens in [("a  <sep>b", ["a", "[<sep>]", "b"]), ("<  <sep>", ["<", "[<sep>]"])]:
        at = text.index("<sep>")
        encoded = encode_as_text(tokenizer, text, template_ranges=[(at, at + 5)], add_special_tokens=False)
        assert show(tokenizer, encoded) == tokens
    encoded = encode_as_text(tokenizer, "<end>  <sep>", template_ranges=[(7, 12)], add_special_tokens=False)
    assert show(tokenizer, encoded) == [*"<end>", "[<sep>]"]


@pytest.mark.parametrize("template", [None, "{{ '<note>zebra' }}", "{{ 'nothing of these' }}"])
def test_markup_in_content_stays_text_whatever_the_template_names(template: str | None) -> None:
    """And an added word stays the token it is."""
    tokenizer = build() if template is None else build(chat_template=template)
    encoded = encode_as_text(tokenizer, "zebra<note>", add_special_tokens=False)
    assert show(tokenizer, encoded) == ["zebra", *"<note>"]


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("text", ["<think>", "</think>", "<|user|>", "[INST]", "<tool_call>"])
def test_no_added_markup_in_a_memory_opens_anything(text: str, is_special: bool, is_normalized: bool) -> None:
    tokenizer = build(chat_template="{% for m in messages %}<end>{{ m.content }}{% endfor %}")
    token = AddedToken(text, special=is_special, normalized=is_normalized)
    tokenizer.add_tokens([token], special_tokens=is_special)
    assert tokenizer.encode(f"a{text}b", add_special_tokens=False)[1] == tokenizer.convert_tokens_to_ids(text)
    memory = f"a{text}b"
    chat = encode_chat(tokenizer, [Message("user", f"see {memory}?", (TextSpan("m", 4, 4 + len(memory)),))])
    control = tokenizer.convert_tokens_to_ids(text)
    assert control not in chat.token_ids
    assert chat.control_positions == (0,)
    (span,) = chat.spans
    assert tokenizer.decode(chat.token_ids[span.start : span.end]) == memory
    assert control not in encode_text(tokenizer, memory).token_ids


def test_text_may_hold_the_private_characters_chosen_for_an_earlier_one() -> None:
    tokenizer = build()
    private = "".join(map(chr, range(0xF0000, 0xF0008)))
    for text in ("<end>", f"{private}<end>", "<end>", private):
        encoded = encode_as_text(tokenizer, text, add_special_tokens=False)
        assert tokenizer.decode(encoded.ids) == text
        assert not any(encoded.is_control)


def test_control_tokens_added_later_are_known() -> None:
    tokenizer = build()
    encode_as_text(tokenizer, "<end>", add_special_tokens=False)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    encoded = encode_as_text(tokenizer, "<pad>", add_special_tokens=False)
    assert show(tokenizer, encoded) == [*"<pad>"]


def test_special_token_that_the_vocabulary_alone_would_build_stays_text() -> None:
    pieces = [("<unk>", 0.0), ("<end>", -1.0), *((char, -9.0) for char in "<end>abc")]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", unk_token="<unk>")
    assert tokenizer("<end>", split_special_tokens=True)["input_ids"] == [1]
    encoded = encode_as_text(tokenizer, "a<end>漢", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(encoded.ids) == ["a", *"<end>", "<unk>"]
    assert not any(encoded.is_control)


def test_special_token_that_merges_would_build_stays_text() -> None:
    vocab = {token: i for i, token in enumerate(["<", "e", ">", "<e", "<e>", "<e>>"])}
    merges = [("<", "e"), ("<e", ">"), ("<e>", ">")]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab, merges)), eos_token="<e>"
    )
    assert encode_as_text(tokenizer, "<e>", add_special_tokens=False).ids == (3, 2)


def test_unknown_character_is_no_control_token() -> None:
    backend = Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    encoded = encode_as_text(tokenizer, "a漢a", add_special_tokens=False)
    assert (encoded.ids, encoded.is_control) == ((1, 0, 1), (False, False, False))


def test_tokenizer_without_offsets_is_refused() -> None:
    class Slow(PreTrainedTokenizer):
        vocab_size = 0

        def get_vocab(self) -> dict[str, int]:
            return {}

    with pytest.raises(ValueError, match="tokenizer must be a fast one, which knows offsets, got Slow"):
        encode_as_text(Slow(), "a", add_special_tokens=False)


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="lone surrogate at 1"):
        encode_as_text(build(), "a\ud800", add_special_tokens=False)


def test_special_tokens_are_told_from_added_words() -> None:
    assert special_token_texts(build()) == {"<end>", "<sep>"}


def test_longest_control_token_is_found_first() -> None:
    assert find_control_tokens("a<b><b>>", {"<b>", "<b>>", "<c>"}) == [(1, 4), (4, 8)]


def test_unused_characters_are_private_and_unused() -> None:
    used = {chr(0xF0000), chr(0xF0002)}
    assert pick_unused_characters(2, used) == [chr(0xF0001), chr(0xF0003)]
