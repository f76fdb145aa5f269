import random

import numpy as np
import pytest

from salience_memory import Episode, MemoryNotFound, MemoryStore, Scope, Viewer

ANN = Viewer(user_id="ann")
BOB = Viewer(user_id="bob")
SECRET = "The safe opens with 8417-xylophone."


def bytes_on_disk(path):
    files = [entry for entry in path.parent.iterdir() if entry.name.startswith(path.name)]
    return b"".join(entry.read_bytes() for entry in files)


def vectors(count, dimension=8, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)


def test_forgetting_removes_every_version_and_vector_and_leaves_a_tombstone(store, remember):
    (stored,) = store.declare([remember(SECRET, memory_id="m")], vectors=vectors(1), fingerprint="f")
    store.update("m", ANN, changes={"trust": 0.1}, reason="edit")
    seq = store.latest_seq()
    assert store.forget("m", ANN)
    assert not store.forget("m", ANN)
    for read in (lambda: store.get("m", ANN), lambda: store.history("m", ANN)):
        with pytest.raises(MemoryNotFound):
            read()
    assert store.list(ANN, include_archived=True, include_expired=True) == []
    assert store.get_many(["m"], ANN) == {}
    assert (store.fingerprints(), list(store.iter_vectors("f")), list(store.iter_rows())) == ({}, [], [])
    deletions = [change for change in store.changes_since(seq) if change.memory_id == "m"]
    assert [(change.kind, change.version) for change in deletions] == [("delete", 2)]
    assert stored.seq < deletions[0].seq


def test_nothing_of_what_was_forgotten_is_left_on_the_disk(path, remember):
    rng = random.Random(7)
    with MemoryStore(path) as store:
        words = [f"word{number}" * rng.randint(1, 400) for number in range(120)]
        store.declare([remember(text, memory_id=f"n{number}") for number, text in enumerate(words)])
        store.declare([remember(SECRET, memory_id="m", key="safe", value=SECRET)])
        store.update("m", ANN, changes={"content": SECRET + "!"}, reason=SECRET)
        said = Episode(session_id="s", user_id="ann", role="user", text=SECRET, ns=1, memory_ids=("m",))
        store.append_episode(said)
        assert b"8417-xylophone" in bytes_on_disk(path)
        for number in rng.sample(range(120), 60):
            store.update(f"n{number}", ANN, changes={"content": f"new{number}"}, reason="edit")
        store.forget("m", ANN)
        assert b"8417-xylophone" not in bytes_on_disk(path)


def test_forgetting_deletes_the_episodes_it_came_from_and_no_others(store, remember):
    store.declare([remember("Ann likes tea.", memory_id="tea"), remember("Ann is 30.", memory_id="age")])

    def say(text, *memory_ids):
        turn = Episode(session_id="s", user_id="ann", role="user", text=text, ns=1, memory_ids=memory_ids)
        return store.append_episode(turn)

    say("I like tea and I am 30.", "tea", "age")
    say("Hello.")
    store.link_episode(say("Tea, as I said."), ["tea"])
    store.forget("tea", ANN)
    assert [episode.text for episode in store.episodes(ANN, "s")] == ["Hello."]
    assert store.get("age", ANN).content == "Ann is 30."


def test_a_forgotten_memory_does_not_come_back_by_a_late_update_or_vector(store, remember):
    (stored,) = store.declare([remember("Ann likes tea.", memory_id="m")])
    store.forget("m", ANN)
    with pytest.raises(MemoryNotFound):
        store.update("m", ANN, changes={"content": "Ann likes tea!"}, reason="queued", expected_version=1)
    with pytest.raises(MemoryNotFound):
        store.rollback("m", 1, ANN)
    assert store.put_vectors(["m"], [stored.version], vectors(1), "f") == 0
    (anew,) = store.declare([remember("Something else.", memory_id="m")])
    assert anew.version == 2
    assert store.put_vectors(["m"], [stored.version], vectors(1), "f") == 0
    assert [change.kind for change in store.changes_since(0) if change.memory_id == "m"] == ["put"]


def test_forgetting_all_of_one_user_leaves_everybody_else(store, clock, remember):
    store.declare([remember(f"ann {number}") for number in range(3)])
    others = [
        remember("bob", "bob"),
        remember("all", None),
        remember("ann in s", "ann", "s"),
        remember("someone in s", None, "s"),
        remember("bob in s", "bob", "s"),
    ]
    kept = store.declare(others)
    for user in ("ann", "bob"):
        store.append_episode(Episode(session_id="s", user_id=user, role="user", text=user, ns=clock.ns))
        store.set_task(Viewer(user_id=user), "order", 1, "open")
    assert store.forget_all(ANN, scope=Scope.USER) == 3
    assert {row.memory_id for row in store.iter_rows()} == {memory.memory_id for memory in kept}
    assert (store.episodes(ANN, "s"), store.tasks(ANN)) == ([], [])
    assert len(store.episodes(BOB, "s")) == len(store.tasks(BOB)) == 1
    assert store.forget_all(Viewer(user_id="ann", session_id="s"), scope=Scope.SESSION) == 2
    assert {row.content for row in store.iter_rows()} == {"bob", "all", "bob in s"}


def test_forgetting_all_of_nobody_is_refused(store, remember):
    store.declare([remember("all", None), remember("ann")])
    for viewer, scope, needed in (
        (Viewer(), Scope.USER, "viewer must name a user_id"),
        (Viewer(session_id="s"), Scope.USER, "viewer must name a user_id"),
        (ANN, Scope.SESSION, "viewer must name a session_id"),
        (ANN, Scope.GLOBAL, "scope must be user or session, got global"),
    ):
        with pytest.raises(ValueError, match=needed):
            store.forget_all(viewer, scope=scope)
    assert store.count() == 2


def test_the_end_of_a_session_deletes_its_memories_and_tasks(store, remember):
    store.declare(
        [
            remember("s of ann", "ann", "s"),
            remember("s of nobody", None, "s"),
            remember("s of bob", "bob", "s"),
            remember("other session", "ann", "t"),
            remember("ann"),
        ]
    )
    viewer = Viewer(user_id="ann", session_id="s")
    store.set_task(viewer, "order", 1, "open")
    store.append_episode(Episode(session_id="s", user_id="ann", role="user", text="hi", ns=1))
    assert store.end_session("s") == 1
    assert store.end_session("s", user_id="ann") == 1
    assert {row.content for row in store.iter_rows()} == {"s of bob", "other session", "ann"}
    assert store.tasks(viewer) == []
    assert len(store.episodes(viewer, "s")) == 1


def test_deleting_800_rows_is_one_transaction_of_a_few_statements_each(store, remember):
    store.declare(
        [remember(f"fact {number}") for number in range(800)], vectors=vectors(800, 384), fingerprint="f"
    )
    statements = []
    store._database._connection.set_trace_callback(statements.append)
    assert store.forget_all(ANN, scope=Scope.USER) == 800
    assert statements.count("COMMIT") == 1
    assert len(statements) < 800 * 10


def test_a_memory_whose_row_is_damaged_can_be_forgotten(store, remember):
    store.declare([remember("x", memory_id="m")])
    with store._database.writing(durable=False) as connection:
        connection.execute("UPDATE memories SET body = '{}'")
    assert store.forget("m", ANN)
    assert store.count() == 0
