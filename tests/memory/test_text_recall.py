import re
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience_memory import TextRecall, tokenize

FACTS = [
    "I am allergic to peanuts.",
    "I live in Bergen.",
    "My sister is called Clara.",
    "I work as a gardener.",
    "My train to Bern leaves at 9:15 on Monday.",
]
TOPICS = ("river", "invoice", "violin")


def embed_topics(texts):
    """Unit vectors along the topics named by a text's letters in brackets, `[r]`, `[i]`, `[v]`; else even."""
    rows = [[float(f"[{topic[0]}]" in text) for topic in TOPICS] for text in texts]
    rows = [row if any(row) else [1.0] * len(TOPICS) for row in rows]
    vectors = np.array(rows, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rank_texts(query, texts, embed=None, top_k=5):
    return TextRecall(embed).rank(query, texts, top_k)


def places(results):
    return [ranked.item for ranked in results]


def test_words_alone_recall_what_shares_them():
    results = rank_texts("violin lessons", ["the violin", "an invoice", "violin lessons on Monday"])
    assert places(results) == [2, 0]
    assert results[0].score == pytest.approx(1.0)
    assert results[0].breakdown.similarity is None
    assert results[0].breakdown.vector_rank is None
    assert (results[0].breakdown.lexical_rank, results[1].breakdown.lexical_rank) == (1, 2)


def test_a_paraphrase_is_recalled_by_similarity():
    results = rank_texts("stream [r]", ["fiddle [v]", "brook [r]", "bill [i]"], embed_topics)
    assert places(results) == [1]
    assert results[0].breakdown.similarity == pytest.approx(1.0)
    assert results[0].breakdown.vector_rank == 1


def test_an_exact_identifier_beats_similar_texts():
    keys = [f"{index:08x}-aaaa-4bbb-8ccc-dddddddddddd" for index in range(75)]
    texts = [f'"{key}": "{index}"' for index, key in enumerate(keys)]
    results = rank_texts(f'Key: "{keys[40]}"', texts, embed_topics, top_k=3)
    assert results[0].item == 40
    assert results[0].score > results[1].score


def test_an_unrelated_query_covers_little():
    texts = ["the river is wide", "the invoice is late"]
    assert all(recalled.score < 0.2 for recalled in rank_texts("who is the mayor of Ghent", texts))


@pytest.mark.parametrize("query", ["", "  ", "\n"])
def test_a_blank_query_recalls_nothing(query):
    assert rank_texts(query, ["a", "b"], embed_topics) == []


def test_no_texts_and_blank_texts_recall_nothing():
    assert rank_texts("violin", []) == []
    assert places(rank_texts("violin [v]", ["", "violin [v]", " "], embed_topics)) == [1]


def test_equal_texts_keep_the_order_given():
    texts = ["violin [v]"] * 20
    assert places(rank_texts("violin [v]", texts, embed_topics, top_k=7)) == list(range(7))


def test_the_best_by_words_is_a_candidate_however_far_down_by_similarity():
    texts = [f"common words {index} [r] [i]" for index in range(200)] + ["common zyzzyva 7 [r]"]
    best = rank_texts("common words zyzzyva [r] [i]", texts, embed_topics, top_k=1)[0]
    assert (best.item, best.breakdown.vector_rank, best.breakdown.lexical_rank) == (200, 201, 1)


def test_at_most_top_k_are_returned_best_first():
    texts = [f"violin {'extra ' * count}[v]" for count in range(9)]
    results = rank_texts("violin extra [v]", texts, embed_topics, top_k=4)
    assert len(results) == 4
    assert [recalled.score for recalled in results] == sorted((r.score for r in results), reverse=True)


def test_the_fused_score_adds_up_from_the_ranks():
    best = rank_texts("violin [v]", ["invoice [i]", "violin [v]"], embed_topics)[0]
    parts = best.breakdown
    assert parts.fused == pytest.approx(1 / (60 + parts.vector_rank) + 1 / (60 + parts.lexical_rank))
    assert best.score == pytest.approx((parts.similarity + parts.coverage) / 2)


def test_top_k_below_one_is_refused():
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        rank_texts("a", ["a"], top_k=0)


def test_texts_are_embedded_once_over_many_queries():
    asked = []

    def embed(texts):
        asked.extend(texts)
        return embed_topics(texts)

    recall = TextRecall(embed)
    texts = ["violin [v]", "invoice [i]"]
    first = recall.rank("bill [i]", texts)
    assert recall.rank("bill [i]", texts) == first
    recall.rank("fiddle [v]", texts)
    assert asked == ["bill [i]", *texts, "fiddle [v]"]


def test_a_rare_word_counts_for_more_than_a_common_one():
    texts = ["the red box", "the blue box", "the green box", "the old crate"]
    assert places(rank_texts("box crate", texts))[0] == 3


def test_a_uuid_finds_its_own_pair_among_many_by_words():
    keys = [str(UUID(int=(index * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)) for index in range(140)]
    texts = [f'"{key}": "{key[::-1]}"' for key in keys]
    for wanted in (0, 70, 139):
        assert places(rank_texts(f'Key: "{keys[wanted]}"\nCorresponding value:', texts))[0] == wanted


def test_a_cjk_query_finds_the_sentence_that_holds_its_words():
    found = places(rank_texts("工程师在哪里", ["她是工程师", "天气很好", "程序很慢"]))
    assert found[0] == 0
    assert 1 not in found


@given(query=st.text(), texts=st.lists(st.text(), max_size=4))
def test_by_words_alone_the_texts_that_share_one_are_recalled(query, texts):
    shared = {place for place, text in enumerate(texts) if set(tokenize(text)) & set(tokenize(query))}
    assert set(places(rank_texts(query, texts))) == shared


@given(query=st.text(max_size=20), texts=st.lists(st.text(max_size=20), max_size=6), top_k=st.integers(1, 4))
def test_results_are_distinct_nonblank_texts_in_order(query, texts, top_k):
    results = rank_texts(query, texts, embed_topics, top_k)
    assert len(results) <= top_k
    assert len(set(places(results))) == len(results)
    assert all(re.search(r"\S", texts[recalled.item]) and 0 < recalled.score <= 1 for recalled in results)
    assert results == sorted(results, key=lambda recalled: (-recalled.score, recalled.item))


@pytest.mark.model
@pytest.mark.parametrize("message", ["asdfgh", "Good morning!", "What is the capital of France?", "Thanks!"])
def test_what_is_about_none_of_the_facts_bears_on_none(minilm, message):
    assert all(found.probability < 0.2 for found in TextRecall(minilm).rank(message, FACTS))


@pytest.mark.model
@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("What am I allergic to?", 0),
        ("Where do I live?", 1),
        ("What is my sister's name?", 2),
        ("Who is Clara?", 2),
        ("Can I eat nuts?", 0),
        ("When is my train to Bern?", 4),
    ],
)
def test_the_fact_a_question_is_about_bears_on_it_and_others_hardly(minilm, message, place):
    best, *others = TextRecall(minilm).rank(message, FACTS)
    assert best.item == place
    assert best.probability > 0.7
    assert all(found.probability < 0.5 for found in others)


def test_by_words_alone_a_shared_content_word_bears_and_function_words_do_not():
    best, *_ = rank_texts("Am I allergic to anything?", FACTS)
    assert (best.item, best.probability > 0.5) == (0, True)
    assert all(found.probability < 0.2 for found in rank_texts("Who am I and what is it to you?", FACTS))
