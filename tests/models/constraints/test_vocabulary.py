import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from salience_models import LanguageModel
from salience_models.constraints import Vocabulary, read_vocabulary
from salience_models.errors import ModelsError


def wrap(backend, **special):
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def sentencepiece(pieces, *, decoder=None, special=("<s>", "</s>")):
    vocabulary = {piece: i for i, piece in enumerate([*special, *pieces])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<s>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoder or decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    return wrap(backend, bos_token="<s>", eos_token="</s>")


BYTE_PIECES = [f"<0x{value:02X}>" for value in range(256)]


def test_byte_level_tokens_are_the_bytes_that_their_alphabet_stands_for(tiny_lm):
    tokenizer = tiny_lm.tokenizer
    vocabulary = read_vocabulary(tokenizer, n_vocab=len(tokenizer) + 3, eos_token_ids=[2])
    text = "Größe 🔥\n東京 ok"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(vocabulary.token_bytes[i] for i in ids) == text.encode()
    assert {data for data in vocabulary.token_bytes if data and len(data) == 1} == {
        bytes([value]) for value in range(256)
    }
    assert not vocabulary.strips_leading_space


def test_special_and_padded_ids_have_no_bytes(tiny_lm):
    tokenizer = tiny_lm.tokenizer
    n_vocab = len(tokenizer) + 3
    vocabulary = read_vocabulary(tokenizer, n_vocab=n_vocab, eos_token_ids=[2])
    silent = [i for i, data in enumerate(vocabulary.token_bytes) if data is None]
    assert silent == [0, 1, 2, n_vocab - 3, n_vocab - 2, n_vocab - 1]
    assert vocabulary.n_vocab == n_vocab


def test_tokens_beyond_the_logits_are_left_out(tiny_lm):
    assert read_vocabulary(tiny_lm.tokenizer, n_vocab=100, eos_token_ids=[2]).n_vocab == 100


def test_sentencepiece_spaces_and_fallback_bytes_become_bytes():
    tokenizer = sentencepiece([*BYTE_PIECES, "a", "▁b", "▁▁", "<0x1>", "é"])
    vocabulary = read_vocabulary(tokenizer, n_vocab=len(tokenizer), eos_token_ids=[1])
    assert vocabulary.token_bytes[:2] == (None, None)
    assert vocabulary.token_bytes[2 : 2 + 256] == tuple(bytes([value]) for value in range(256))
    assert vocabulary.token_bytes[258:] == (b"a", b" b", b"  ", b"<0x1>", "é".encode())
    assert vocabulary.strips_leading_space


def test_metaspace_drops_the_space_before_an_answer_unless_told_never_to():
    for scheme, strips in (("always", True), ("never", False)):
        tokenizer = sentencepiece(["a", "▁b"], decoder=decoders.Metaspace(prepend_scheme=scheme))
        vocabulary = read_vocabulary(tokenizer, n_vocab=4, eos_token_ids=[1])
        assert vocabulary.token_bytes == (None, None, b"a", b" b")
        assert vocabulary.strips_leading_space is strips


def test_a_token_that_loses_its_inner_space_is_refused():
    tokenizer = sentencepiece(["a", "b▁c"], decoder=decoders.Metaspace(prepend_scheme="always"))
    with pytest.raises(ModelsError, match="got 'b▁c', which loses its inner space"):
        read_vocabulary(tokenizer, n_vocab=4, eos_token_ids=[1])


@pytest.mark.parametrize(
    ("decoder", "found"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), "Strip \\+ Fuse"),
    ],
)
def test_a_decoder_that_does_not_concatenate_bytes_is_refused_by_name(decoder, found):
    tokenizer = sentencepiece(["a", "b"], decoder=decoder)
    with pytest.raises(ModelsError, match=f"must decode by concatenating bytes.*got the decoder {found}"):
        read_vocabulary(tokenizer, n_vocab=4, eos_token_ids=[1])


def test_a_tokenizer_without_a_decoder_is_refused():
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(ModelsError, match="got the decoder none"):
        read_vocabulary(wrap(backend), n_vocab=2, eos_token_ids=[])


def test_a_vocabulary_that_decodes_otherwise_than_read_is_refused(monkeypatch, tiny_lm):
    monkeypatch.setattr("salience_models.constraints.vocabulary._to_bytes", lambda text, _: text.encode())
    with pytest.raises(ModelsError, match="must decode tokens by concatenating their bytes, got"):
        read_vocabulary(tiny_lm.tokenizer, n_vocab=399, eos_token_ids=[1])


def test_added_words_keep_the_bytes_that_decoding_gives_them():
    backend = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["<tool_call>", "東京"])
    backend.add_special_tokens(["<|end|>"])
    tokenizer = wrap(backend, eos_token="<|end|>")
    vocabulary = read_vocabulary(tokenizer, n_vocab=259, eos_token_ids=[258])
    assert vocabulary.token_bytes[256:] == (b"<tool_call>", "東京".encode(), None)


def test_a_vocabulary_is_read_once_for_a_tokenizer_and_again_when_tokens_are_added():
    tokenizer = sentencepiece(["a", "b"])
    first = read_vocabulary(tokenizer, n_vocab=5, eos_token_ids=[1])
    assert read_vocabulary(tokenizer, n_vocab=5, eos_token_ids=[1]) is first
    tokenizer.add_tokens(["word"])
    assert read_vocabulary(tokenizer, n_vocab=5, eos_token_ids=[1]).token_bytes[4] == b"word"
    assert first.token_bytes[4] is None


def test_vocabularies_are_equal_where_every_part_is():
    def build(tokens=(b"ab", b"c"), ends=(1,), strips=False):
        return Vocabulary.from_bytes(tokens, eos_token_ids=ends, strips_leading_space=strips)

    assert build() == build()
    assert hash(build()) == hash(build())
    others = [
        build((b"a", b"bc")),
        build((b"ab", None)),
        build(ends=(0,)),
        build(strips=True),
        build((b"ab", b"c", b"")),
    ]
    assert all(build() != other for other in others)
    assert len({vocabulary.fingerprint for vocabulary in [build(), *others]}) == 6


def test_end_tokens_are_sorted_and_must_lie_within_the_logits():
    assert Vocabulary.from_bytes((b"a", None, None), eos_token_ids=(2, 1, 2)).eos_token_ids == (1, 2)
    with pytest.raises(ValueError, match=r"eos_token_ids must lie in \[0, 1\), got \[1\]"):
        Vocabulary.from_bytes((b"a",), eos_token_ids=(1,))


def test_logits_without_width_are_refused(tiny_lm):
    with pytest.raises(ValueError, match="n_vocab must be at least 1, got 0"):
        read_vocabulary(tiny_lm.tokenizer, n_vocab=0, eos_token_ids=[])


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_bundled_tokenizers_spell_a_text_of_every_kind_in_bytes(name):
    lm = LanguageModel.load(f"bundled:{name}", device="cpu")
    n_vocab = lm.model.get_output_embeddings().weight.shape[0]
    vocabulary = read_vocabulary(lm.tokenizer, n_vocab=n_vocab, eos_token_ids=lm.info.eos_token_ids)
    text = "Ein  Test:\n\té ばか 🔥🔥 <tag> 0x1F"
    ids = lm.tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(vocabulary.token_bytes[i] for i in ids) == text.encode()
