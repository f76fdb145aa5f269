from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from salience_memory import score_lexically, tokenize


def test_words_are_case_folded_and_compatibility_normalised():
    assert tokenize("The ﬁne CAFÉ, Straße") == ["the", "fine", "café", "strasse"]
    assert tokenize("cafe\u0301") == tokenize("café")


def test_joined_identifiers_stay_whole_and_come_in_parts():
    assert tokenize("4f0c-99-ab") == ["4f0c-99-ab", "4f0c", "99", "ab"]
    assert tokenize("retry_count v1.2.") == ["retry_count", "retry", "count", "v1.2", "v1", "2"]


def test_cjk_text_gives_single_signs_and_pairs():
    assert tokenize("工程师") == ["工", "程", "师", "工程", "程师"]
    assert tokenize("Python工程") == ["python", "工", "程", "工程"]


def test_vowel_signs_do_not_cut_a_word():
    assert tokenize("हिन्दी भाषा") == ["हिन्दी", "भाषा"]


def test_text_without_letters_or_digits_gives_nothing():
    assert tokenize(" \n—…!? ") == []


def test_only_texts_that_share_a_token_are_scored():
    scores = score_lexically("harbour fees", ["the harbour", "a mountain", "harbour fees rise", ""])
    assert set(scores) == {0, 2}
    assert scores[2] > scores[0] > 0


def test_a_rare_word_counts_for_more_than_a_common_one():
    texts = ["the red box", "the blue box", "the green box", "the old crate"]
    scores = score_lexically("box crate", texts)
    assert max(scores, key=lambda index: scores[index]) == 3


def test_a_uuid_finds_its_own_pair_among_many():
    keys = [str(UUID(int=(index * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)) for index in range(140)]
    texts = [f'"{key}": "{key[::-1]}"' for key in keys]
    for wanted in (0, 70, 139):
        scores = score_lexically(f'Key: "{keys[wanted]}"\nCorresponding value:', texts)
        assert max(scores, key=lambda index: scores[index]) == wanted


def test_cjk_query_finds_the_sentence_that_holds_its_words():
    scores = score_lexically("工程师在哪里", ["她是工程师", "天气很好", "程序很慢"])
    assert max(scores, key=lambda index: scores[index]) == 0
    assert 1 not in scores


def test_a_query_longer_than_one_search_adds_up():
    words = [f"w{index}" for index in range(1200)]
    assert set(score_lexically(" ".join(words), ["w3 w700 w1100", "none of them", "w1199"])) == {0, 2}


def test_nothing_to_ask_or_to_search_scores_nothing():
    assert score_lexically("?!", ["text"]) == {}
    assert score_lexically("text", []) == {}


@given(query=st.text(), texts=st.lists(st.text(), max_size=4))
def test_no_input_is_read_as_query_syntax(query, texts):
    shared = {place for place, text in enumerate(texts) if set(tokenize(text)) & set(tokenize(query))}
    assert set(score_lexically(query, texts)) == shared


def test_search_operators_are_plain_words():
    texts = ["near and far", "bananas"]
    assert set(score_lexically('"near" NOT * OR ^ col:(', texts)) == {0}
