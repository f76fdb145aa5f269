import sys

import numpy as np
import pytest

from salience_memory import EmbeddingCache, EmbeddingMismatch, MissingExtra
from salience_memory.vectors import import_faiss


class CountingEmbed:
    """Embeds a text by its length and its first character; counts what it is asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return np.array([[len(text), ord(text[0])] for text in texts], dtype=np.float32)


def test_missing_faiss_names_the_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"salience\[cpu\].*salience\[gpu\]"):
        import_faiss()


def test_a_text_is_embedded_once():
    embed = CountingEmbed()
    cache = EmbeddingCache(embed)
    first = cache.embed(["aa", "b", "aa"])
    second = cache.embed(["b", "ccc", "aa"])
    assert embed.asked == ["aa", "b", "ccc"]
    np.testing.assert_array_equal(first, [[2, 97], [1, 98], [2, 97]])
    np.testing.assert_array_equal(second, [[1, 98], [3, 99], [2, 97]])


def test_the_text_used_longest_ago_is_forgotten_first():
    embed = CountingEmbed()
    cache = EmbeddingCache(embed, cache_bytes=500)
    for text in ("a", "b", "a", "c", "a", "b"):
        cache.embed([text])
    assert embed.asked == ["a", "b", "c", "b"]
    assert 0 < cache.used_bytes <= 500


def test_a_cache_of_no_bytes_keeps_nothing():
    embed = CountingEmbed()
    cache = EmbeddingCache(embed, cache_bytes=0)
    for _ in range(2):
        np.testing.assert_array_equal(cache.embed(["a", "b"]), [[1, 97], [1, 98]])
    assert embed.asked == ["a", "b", "a", "b"]
    assert cache.used_bytes == 0


def test_cached_vectors_do_not_change_with_what_was_returned():
    cache = EmbeddingCache(CountingEmbed())
    cache.embed(["a"])[:] = 0.0
    np.testing.assert_array_equal(cache.embed(["a"]), [[1, 97]])


@pytest.mark.parametrize(
    "vectors", [np.ones((1, 2)), np.ones(2), np.array([[1.0], [np.nan]]), np.ones((2, 1, 1))]
)
def test_an_embed_that_breaks_its_contract_is_named(vectors):
    with pytest.raises(EmbeddingMismatch, match="embed must return"):
        EmbeddingCache(lambda texts: vectors).embed(["a", "b"])


def test_vectors_of_another_length_than_before_are_refused():
    lengths = iter((2, 3))
    cache = EmbeddingCache(lambda texts: np.ones((len(texts), next(lengths)), np.float32))
    cache.embed(["a"])
    with pytest.raises(EmbeddingMismatch, match="one length"):
        cache.embed(["a", "b"])


def test_a_negative_cache_is_refused():
    with pytest.raises(ValueError, match="cache_bytes must be at least 0, got -1"):
        EmbeddingCache(CountingEmbed(), cache_bytes=-1)
