import hashlib
import threading

import numpy as np
import pytest

from salience_memory import (
    NOBODY,
    EmbeddingMismatch,
    Memory,
    MemoryRecall,
    MemoryStore,
    MemoryType,
    Scope,
    Viewer,
    tokenize,
)

ANN, BEN = Viewer(user_id="ann"), Viewer(user_id="ben")
NOW_NS = 1_800_000_000 * 10**9
DAY_NS = 86_400 * 10**9


class Moment:
    """A clock that tests set."""

    ns = NOW_NS

    def __call__(self):
        return self.ns


@pytest.fixture
def clock():
    return Moment()


@pytest.fixture
def store(tmp_path, clock):
    with MemoryStore(tmp_path / "memories.db", clock=clock) as store:
        yield store


@pytest.fixture
def recall(store, tmp_path, clock):
    with open_recall(store, tmp_path / "index", clock) as recall:
        yield recall


def embed_words(texts):
    """Unit vectors [record, 8] made of the texts' tokens."""
    vectors = np.zeros((len(texts), 8), dtype=np.float32)
    for row, text in enumerate(texts):
        for token in tokenize(text):
            digest = hashlib.sha256(token.encode()).digest()
            vectors[row, digest[0] % 8] += 1.0 if digest[1] % 2 else -1.0
        vectors[row, 0] += 0.25  # so that none is zero
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def open_recall(store, folder=None, clock=None, embed=embed_words, fingerprint="words/8"):
    return MemoryRecall(store, embed=embed, fingerprint=fingerprint, folder=folder, clock=clock or Moment())


def user(content, user_id="ann", **fields):
    return Memory(
        content=content, **{"type": MemoryType.CONTEXT, "scope": Scope.USER, "user_id": user_id} | fields
    )


def everybody(content, **fields):
    return Memory(content=content, **{"type": MemoryType.CONTEXT, "scope": Scope.GLOBAL} | fields)


def contents(results):
    return [result.memory.content for result in results]


def test_a_memory_is_recalled_by_its_words_at_once_and_by_meaning_after_sync(store, recall):
    store.declare([user("the river is wide")])
    assert contents(recall.recall("river", ANN)) == ["the river is wide"]
    assert recall.sync() == 1
    assert recall.sync() == 0
    assert recall.recall("river", ANN)[0].breakdown.vector_rank == 1


def test_the_score_adds_up_from_the_breakdown(store, recall):
    store.declare([user("the river is wide", trust=0.5), user("river banks"), user("an invoice")])
    recall.sync()
    results = recall.recall("wide river", ANN)
    best = results[0]
    assert best.memory.content == "the river is wide"
    breakdown = best.breakdown
    assert best.score == pytest.approx((max(0.0, breakdown.similarity) + breakdown.coverage) / 2, abs=1e-6)
    assert breakdown.coverage == 1.0
    assert breakdown.fused == pytest.approx(
        1 / (60 + breakdown.vector_rank) + 1 / (60 + breakdown.lexical_rank)
    )
    assert best.confidence == best.memory.trust * best.memory.freshness == 0.5
    assert [result.score for result in results] == sorted((r.score for r in results), reverse=True)


def test_equal_relevance_is_ordered_by_trust_then_freshness(tmp_path, clock):
    freshness = {"a river": 0.2, "b river": 0.9, "c river": 1.0}
    with MemoryStore(
        tmp_path / "decaying.db", clock=clock, decay=lambda memory, now_ns: freshness[memory.content]
    ) as store:
        store.declare([user("a river"), user("b river"), user("c river", trust=0.4)])
        with MemoryRecall(store, clock=clock) as recall:
            assert contents(recall.recall("river", ANN)) == ["b river", "a river", "c river"]


@pytest.mark.parametrize("query", ["", "  ", "\n\t"])
def test_a_blank_query_recalls_nothing(store, recall, query):
    store.declare([user("the river is wide", pinned=True)])
    assert recall.recall(query, ANN) == []


@pytest.mark.parametrize(
    "query", ['river" OR "invoice', "river*", "NEAR(river, 2)", "(river", "river -invoice"]
)
def test_text_with_the_signs_of_a_query_language_is_text(store, recall, query):
    store.declare([user("the river is wide")])
    recall.sync()
    assert contents(recall.recall(query, ANN)) == ["the river is wide"]


def test_a_search_for_退款_finds_it(store, recall):
    store.declare([everybody("本店的退款政策：七天内可以退款"), everybody("营业时间")])
    assert contents(recall.recall("退款", NOBODY))[0].startswith("本店的退款政策")


def test_one_users_only_memory_is_not_hidden_behind_anothers_near_duplicates(store, recall):
    store.declare([user(f"violin lesson {number}", "ben") for number in range(300)])
    store.declare([user("violin lesson")])
    recall.sync()
    assert contents(recall.recall("violin lesson", ANN, top_k=1)) == ["violin lesson"]
    assert len(recall.recall("violin lesson", BEN, top_k=400)) == 300
    assert recall.recall("violin lesson", NOBODY) == []


def test_a_forgotten_memory_stays_forgotten(store, recall, tmp_path, clock):
    [memory] = store.declare([user("the river is wide")])
    recall.sync()
    assert recall.recall("river", ANN)
    store.forget(memory.memory_id, ANN)
    assert recall.recall("river", ANN) == []
    recall.close()
    with open_recall(store, tmp_path / "index", clock) as again:
        assert again.recall("river", ANN) == []


def test_forgetting_one_users_memories_leaves_the_others(store, recall):
    store.declare([user("river one"), user("river two", "ben"), everybody("river three")])
    recall.sync()
    store.forget_all(ANN, scope=Scope.USER)
    assert contents(recall.recall("river", ANN)) == ["river three"]
    assert sorted(contents(recall.recall("river", BEN))) == ["river three", "river two"]


def test_what_an_index_proposes_wrongly_is_never_returned(store, recall, monkeypatch):
    """The rows decide: here the index claims that everything is everybody's, for ever."""
    [mine, theirs, late] = store.declare(
        [user("river one"), user("river two", "ben"), user("river three", valid_until=NOW_NS + 1)]
    )
    recall.sync()
    ids = [mine.memory_id, theirs.memory_id, late.memory_id, "m-unknown"]
    lexical, vectors = recall.projections
    monkeypatch.setattr(type(lexical), "search", lambda self, words, wanted, count: ids)
    monkeypatch.setattr(type(vectors), "search", lambda self, *rest, spare: dict.fromkeys(ids, 1.0))
    results = recall.recall("river", ANN, now_ns=NOW_NS + 1)
    assert contents(results) == ["river one"]
    assert results[0].breakdown.coverage == 1.0


def test_a_torn_index_file_is_built_anew(store, recall, tmp_path, clock):
    store.declare([user(f"river {number}") for number in range(50)])
    recall.sync()
    expected = contents(recall.recall("river 7", ANN))
    recall.close()
    for path in (tmp_path / "index").glob("*.*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with open_recall(store, tmp_path / "index", clock) as again:
        assert contents(again.recall("river 7", ANN)) == expected
        assert all(not projection.find_differences(store) for projection in again.projections)


def test_an_index_that_tears_while_open_is_built_anew(store, recall):
    store.declare([user("river one")])
    recall.sync()
    recall.projections[0]._file._connection.execute("DELETE FROM posting_data")
    assert contents(recall.recall("river", ANN)) == ["river one"]


def test_nothing_past_its_validity_is_recalled_from_its_last_nanosecond_on(store, recall, clock):
    store.declare([user("river one", valid_until=NOW_NS + DAY_NS)])
    recall.sync()
    clock.ns = NOW_NS + DAY_NS - 1
    assert recall.recall("river", ANN)
    assert recall.recall("river", ANN, now_ns=NOW_NS + DAY_NS) == []
    clock.ns += 1
    assert recall.recall("river", ANN) == []
    assert recall.recall("river", ANN, now_ns=NOW_NS) == []


def test_types_tags_and_the_archive(store, recall):
    [_, old, _] = store.declare(
        [
            user("river one", tags=("lang:en",)),
            user("river two"),
            user("river three", type=MemoryType.SEMANTIC),
        ]
    )
    recall.sync()
    store.archive(old.memory_id, ANN)
    assert contents(recall.recall("river", ANN, tags=("lang:en",))) == ["river one"]
    assert contents(recall.recall("river", ANN, types=("semantic",))) == ["river three"]
    assert len(recall.recall("river", ANN)) == 2
    assert len(recall.recall("river", ANN, include_archived=True)) == 3
    with pytest.raises(ValueError, match="'poem' is not a valid MemoryType"):
        recall.recall("river", ANN, types=("poem",))


def test_another_processs_change_of_a_global_memory_is_seen(store, recall, tmp_path, clock):
    [memory] = store.declare([everybody("the office closes at six")])
    recall.sync()
    assert recall.recall("office", NOBODY)
    with MemoryStore(tmp_path / "memories.db", clock=clock) as elsewhere:
        changes = {"content": "the office closes at seven"}
        elsewhere.update(memory.memory_id, NOBODY, reason="new hours", changes=changes)
        assert contents(recall.recall("office", NOBODY)) == ["the office closes at seven"]
        elsewhere.forget(memory.memory_id, NOBODY)
    assert recall.recall("office", NOBODY) == []


def test_another_embedding_is_refused_with_both_names_until_reembedded(store, recall, tmp_path, clock):
    store.declare([user("the river is wide")])
    recall.sync()
    recall.close()

    def embed_wider(texts):
        return np.repeat(embed_words(texts), 2, axis=1) / np.sqrt(2, dtype=np.float32)

    with open_recall(store, tmp_path / "index", clock, embed_wider, "wider/16") as other:
        assert other.foreign_fingerprints == ("words/8",)
        for call in (lambda: other.recall("river", ANN), other.sync):
            with pytest.raises(EmbeddingMismatch, match=r"vectors of words/8 .* by wider/16: call reembed"):
                call()
        assert other.reembed() == 1
        assert contents(other.recall("river", ANN)) == ["the river is wide"]
        assert store.fingerprints() == {"wider/16": 1}


def test_an_embed_that_returns_the_wrong_shape_is_refused_and_stores_nothing(store, clock):
    store.declare([user("the river is wide")])
    recall = open_recall(store, None, clock, lambda texts: np.zeros((len(texts) + 1, 3)))
    with recall, pytest.raises(EmbeddingMismatch, match=r"embed must return shape \[1, embed\]"):
        recall.sync()
    assert store.fingerprints() == {}


def test_what_is_missing_or_out_of_range_is_named(store):
    with pytest.raises(ValueError, match="fingerprint must name the embedding that embed makes"):
        MemoryRecall(store, embed=embed_words)
    with MemoryRecall(store) as recall:
        with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
            recall.recall("river", ANN, top_k=0)
        with pytest.raises(ValueError, match="fingerprint must name the embedding of query_vector"):
            recall.recall("river", ANN, query_vector=np.ones(3))
        with pytest.raises(ValueError, match="embed must be given"):
            recall.reembed()


def test_before_anything_is_embedded_constraints_and_pinned_memories_stand_in(store, recall):
    store.declare(
        [
            user("always wear a helmet", type=MemoryType.CONSTRAINT),
            user("my name is Ann", pinned=True),
            user("lives in Ghent"),
            user("ben's rule", "ben", type=MemoryType.CONSTRAINT),
        ]
    )
    results = recall.recall("where?", ANN)
    assert contents(results) == ["always wear a helmet", "my name is Ann"]
    assert {result.score for result in results} == {0.0}
    assert contents(recall.recall("where?", ANN, types=("context",))) == ["my name is Ann"]
    recall.sync()
    assert "lives in Ghent" in contents(recall.recall("Ghent", ANN))


def test_while_the_first_index_is_built_elsewhere_recall_does_not_wait(store, recall):
    store.declare([user("always wear a helmet", type=MemoryType.CONSTRAINT), user("river one")])
    found = []
    with recall._lock:
        thread = threading.Thread(target=lambda: found.extend(recall.recall("river", ANN)))
        thread.start()
        thread.join()
    assert contents(found) == ["always wear a helmet"]
    assert contents(recall.recall("river", ANN)) == ["river one"]


def test_contradicting_memories_are_marked_also_when_only_one_is_recalled(store, recall):
    store.declare(
        [
            user("works at the river authority", key="employer"),
            user("employed by a bank", key="employer"),
            user("likes the river"),
        ]
    )
    recall.sync()
    marks = {result.memory.content: result.has_conflict for result in recall.recall("river", ANN, top_k=5)}
    assert marks["works at the river authority"]
    assert not marks["likes the river"]


def test_words_alone_search_without_an_embedding(store, clock):
    store.declare([user("the river is wide"), user("an invoice")])
    with MemoryRecall(store, clock=clock) as recall:
        [result] = recall.recall("river", ANN)
        assert (result.score, result.breakdown.similarity, result.breakdown.vector_rank) == (1.0, None, None)


def test_a_query_may_bring_its_vector(store, clock):
    [memory] = store.declare([user("brook")], vectors=embed_words(["brook"]), fingerprint="words/8")
    with MemoryRecall(store, fingerprint="words/8", clock=clock) as recall:
        [result] = recall.recall("stream", ANN, query_vector=embed_words(["brook"])[0])
    assert result.memory.memory_id == memory.memory_id
    assert result.breakdown.similarity == pytest.approx(1.0)


def test_threads_recall_while_another_syncs(store, recall):
    store.declare([user(f"river {number}") for number in range(20)])
    recall.sync()
    failures = []

    def ask():
        try:
            for _ in range(30):
                assert len(recall.recall("river", ANN, top_k=20)) == 20
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        store.declare([user(f"invoice {number}", "ben")])
        recall.sync()
    for thread in threads:
        thread.join()
    assert failures == []


def test_indexes_are_rebuilt_on_demand(store, recall):
    store.declare([user("river one")])
    recall.sync()
    before = [projection.sha256 for projection in recall.projections]
    recall.rebuild()
    assert [projection.sha256 for projection in recall.projections] == before


def test_what_is_past_its_last_age_step_counts_as_archived_before_maintenance(store, recall, clock):
    old, _ = store.declare([user("river old"), user("river pinned", pinned=True)])
    recall.sync()
    clock.ns = NOW_NS + 90 * DAY_NS
    assert set(contents(recall.recall("river", ANN))) == {"river old", "river pinned"}
    clock.ns += 1
    assert contents(recall.recall("river", ANN)) == ["river pinned"]
    assert len(recall.recall("river", ANN, include_archived=True)) == 2
    store.touch([old.memory_id], ANN)
    assert len(recall.recall("river", ANN)) == 2


@pytest.mark.parametrize("by_words", [False, True])
def test_a_young_memory_is_not_hidden_behind_old_ones_that_fit_better(store, clock, by_words):
    store.declare([user(f"river boat {i}", key="boat") for i in range(400)])
    clock.ns = NOW_NS + 91 * DAY_NS
    store.declare([user("river", key="boat")])
    with MemoryRecall(store, clock=clock) if by_words else open_recall(store, clock=clock) as recall:
        recall.sync()
        (found,) = recall.recall("river boat", ANN)
    assert found.memory.content == "river"
    assert not found.has_conflict  # what belongs in the archive contradicts nothing
