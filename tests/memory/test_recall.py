import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience_memory import TextRecall, rank_texts

TOPICS = ("river", "invoice", "violin")


def embed_topics(texts):
    """Unit vectors along the topics named by a text's letters in brackets, `[r]`, `[i]`, `[v]`; else even."""
    rows = [[float(f"[{topic[0]}]" in text) for topic in TOPICS] for text in texts]
    rows = [row if any(row) else [1.0] * len(TOPICS) for row in rows]
    vectors = np.array(rows, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def places(results):
    return [recalled.index for recalled in results]


def test_words_alone_recall_what_shares_them():
    results = rank_texts("violin lessons", ["the violin", "an invoice", "violin lessons on Monday"])
    assert places(results) == [2, 0]
    assert results[0].score == pytest.approx(1.0)
    assert results[0].similarity is None
    assert results[0].vector_rank is None
    assert (results[0].lexical_rank, results[1].lexical_rank) == (1, 2)


def test_a_paraphrase_is_recalled_by_similarity():
    results = rank_texts("stream [r]", ["fiddle [v]", "brook [r]", "bill [i]"], embed_topics)
    assert places(results) == [1]
    assert results[0].similarity == pytest.approx(1.0)
    assert results[0].vector_rank == 1


def test_an_exact_identifier_beats_similar_texts():
    keys = [f"{index:08x}-aaaa-4bbb-8ccc-dddddddddddd" for index in range(75)]
    texts = [f'"{key}": "{index}"' for index, key in enumerate(keys)]
    results = rank_texts(f'Key: "{keys[40]}"', texts, embed_topics, top_k=3)
    assert results[0].index == 40
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
    assert (best.index, best.vector_rank, best.lexical_rank) == (200, 201, 1)


def test_at_most_top_k_are_returned_best_first():
    texts = [f"violin {'extra ' * count}[v]" for count in range(9)]
    results = rank_texts("violin extra [v]", texts, embed_topics, top_k=4)
    assert len(results) == 4
    assert [recalled.score for recalled in results] == sorted((r.score for r in results), reverse=True)


def test_the_fused_score_adds_up_from_the_ranks():
    best = rank_texts("violin [v]", ["invoice [i]", "violin [v]"], embed_topics)[0]
    assert best.fused == pytest.approx(1 / (60 + best.vector_rank) + 1 / (60 + best.lexical_rank))
    assert best.score == pytest.approx((best.similarity + best.coverage) / 2)


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


@given(query=st.text(max_size=20), texts=st.lists(st.text(max_size=20), max_size=6), top_k=st.integers(1, 4))
def test_results_are_distinct_nonblank_texts_in_order(query, texts, top_k):
    results = rank_texts(query, texts, embed_topics, top_k)
    assert len(results) <= top_k
    assert len(set(places(results))) == len(results)
    assert all(re.search(r"\S", texts[recalled.index]) and 0 < recalled.score <= 1 for recalled in results)
    assert results == sorted(results, key=lambda recalled: (-recalled.score, recalled.index))
