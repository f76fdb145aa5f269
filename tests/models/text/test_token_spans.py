import pytest
from tokenizers import Tokenizer, models

from salience_models.errors import BlockDropped
from salience_models.text.messages import TextSpan
from salience_models.text.token_spans import EncodedText, TokenSpan, locate_spans


def straddle(text: str, *bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """Token spans of the given blocks for a tokenizer whose tokens are a, b, c, d, ab, cd and abcd."""
    vocab = {token: i for i, token in enumerate(["a", "b", "c", "d", "ab", "cd", "abcd"])}
    backend = Tokenizer(models.BPE(vocab, [("a", "b"), ("c", "d"), ("ab", "cd")]))
    spans = [TextSpan(f"b{i}", start, end) for i, (start, end) in enumerate(bounds)]
    encoding = backend.encode(text)
    encoded = EncodedText(tuple(encoding.ids), tuple(encoding.offsets), (False,) * len(encoding.ids))
    return [(span.start, span.end) for span in locate_spans(text, spans, encoded)]


def test_token_across_a_boundary_goes_to_the_block_with_most_of_its_characters() -> None:
    assert straddle("ababcdab", (0, 3), (3, 8)) == [(0, 1), (1, 3)]
    assert straddle("ababcdab", (0, 5), (5, 8)) == [(0, 2), (2, 3)]


def test_token_shared_equally_goes_to_the_earlier_block() -> None:
    assert straddle("ababcdab", (0, 4), (4, 8)) == [(0, 2), (2, 3)]


def test_token_shared_equally_with_the_text_around_goes_to_the_block() -> None:
    assert straddle("ababcdab", (4, 8)) == [(1, 3)]
    assert straddle("ababcdab", (0, 4)) == [(0, 2)]


def test_token_mostly_outside_stays_outside() -> None:
    assert straddle("ababcdab", (5, 8)) == [(2, 3)]


def test_block_with_the_lesser_part_of_its_only_token_is_refused_by_name() -> None:
    with pytest.raises(BlockDropped, match=r"'b0' must hold most characters .* got none for 'd'"):
        straddle("ababcdab", (5, 6))


def test_tokens_that_share_a_character_all_belong_to_its_block() -> None:
    encoded = EncodedText((1, 2, 3, 4, 5), ((0, 1), (0, 2), (1, 2), (1, 2), (2, 3)), (False,) * 5)
    assert locate_spans("漢字x", [TextSpan("b", 1, 2)], encoded) == (TokenSpan("b", 1, 4),)


def test_whitespace_tokens_whose_offsets_were_trimmed_away_keep_their_place() -> None:
    encoded = EncodedText((1, 2, 3, 4), ((0, 1), (2, 2), (3, 3), (4, 5)), (False,) * 4)
    assert locate_spans("a   b", [TextSpan("gap", 1, 3)], encoded) == (TokenSpan("gap", 1, 3),)


def test_control_token_belongs_to_no_block() -> None:
    encoded = EncodedText((1, 2, 3), ((0, 0), (0, 1), (1, 3)), (True, False, True))
    assert locate_spans("abc", [TextSpan("b", 0, 3)], encoded) == (TokenSpan("b", 1, 2),)
    with pytest.raises(BlockDropped, match="'c'"):
        locate_spans("abc", [TextSpan("c", 1, 3)], encoded)
