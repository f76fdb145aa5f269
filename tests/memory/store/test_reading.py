import pytest

from salience_memory import NOBODY, MemoryStore, MemoryType, Scope, StoreCorrupt, Viewer, to_ns
from salience_memory.store.rows import owners_of

ANN = Viewer(user_id="ann")
OWNERS = [(None, None), ("ann", None), ("bob", None), (None, "s"), ("ann", "s"), ("bob", "s"), ("ann", "t")]


@pytest.fixture
def everybodys(store, remember):
    return store.declare([remember(f"{user} {session}", user, session) for user, session in OWNERS])


@pytest.mark.parametrize("user", [None, "ann", "bob", "eve"])
@pytest.mark.parametrize("session", [None, "s", "t"])
def test_a_viewer_reads_exactly_what_the_scopes_allow(store, everybodys, user, session):
    viewer = Viewer(user_id=user, session_id=session)
    allowed = [m for m in everybodys if viewer.can_see(m.scope, m.user_id, m.session_id)]
    assert store.list(viewer) == allowed
    assert list(store.get_many([m.memory_id for m in everybodys], viewer).values()) == allowed
    assert set(owners_of(viewer)) >= {(m.scope, m.user_id, m.session_id) for m in allowed}


def test_nobody_reads_global_memories_only(store, everybodys):
    assert [memory.scope for memory in store.list(NOBODY)] == [Scope.GLOBAL]


def test_filters_narrow_and_pages_follow_by_seq(store, remember):
    memories = [
        remember("a", tags=("diet", "kind:wish"), key="drink"),
        remember("b", tags=("diet",), type="context", pinned=True),
        remember("c", type="context"),
        remember("d", None, type="constraint"),
    ]
    store.declare(memories)

    def found(**filters):
        return "".join(memory.content for memory in store.list(ANN, **filters))

    assert found() == "abcd"
    assert found(types=[MemoryType.CONTEXT, "constraint"]) == "bcd"
    assert found(tags=["diet"]) == "ab"
    assert found(tags=["diet", "kind:wish"]) == "a"
    assert found(tags=["die"]) == ""
    assert found(key="drink") == "a"
    assert (found(pinned=True), found(pinned=False)) == ("b", "acd")
    assert found(limit=2) == "ab"
    assert found(limit=2, after_seq=store.list(ANN, limit=2)[-1].seq) == "cd"
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        store.list(ANN, limit=0)
    with pytest.raises(ValueError, match="'rumour' is not a valid MemoryType"):
        store.list(ANN, types=["rumour"])


def test_a_memory_expires_at_its_nanosecond_whatever_its_time_zone(store, clock, remember):
    clock.ns = to_ns("2026-01-31T23:30:00-08:00")
    (stored,) = store.declare(
        [remember("x", valid_until="2026-02-01T16:30:00+08:00", timezone_offset_min=480)]
    )
    ends_ns = to_ns("2026-02-01T08:30:00Z")
    for ns, expected in ((clock.ns, 1), (ends_ns - 1, 1), (ends_ns, 0), (ends_ns + 1, 0)):
        clock.ns = ns
        assert len(store.list(ANN)) == len(store.get_many([stored.memory_id], ANN)) == expected
    assert len(store.list(ANN, include_expired=True)) == 1
    assert len(store.get_many([stored.memory_id], ANN, include_expired=True)) == 1


def test_many_ids_come_in_the_order_asked_and_once(store, remember):
    stored = store.declare([remember(f"fact {number}") for number in range(1_200)])
    ids = [memory.memory_id for memory in reversed(stored)]
    assert list(store.get_many([*ids, "unknown", *ids], ANN)) == ids
    assert store.get_many([], ANN) == {}


def test_rows_and_changes_are_told_in_order_each_once(store, remember):
    store.declare([remember(name, memory_id=name) for name in "abcd"])
    seq = store.latest_seq()
    store.update("a", ANN, changes={"key": "k"}, reason="edit")
    store.forget("b", ANN)
    store.archive("c", ANN)
    changes = store.changes_since(seq)
    assert [(c.memory_id, c.kind) for c in changes if not c.memory_id.startswith("m-")] == [
        ("a", "put"),
        ("b", "delete"),
        ("c", "put"),
    ]
    assert [change.seq for change in changes] == sorted({change.seq for change in changes})
    assert changes[-1].seq == store.latest_seq()
    assert store.changes_since(seq, limit=1) == changes[:1]
    rows = list(store.iter_rows(batch_rows=2))
    assert [row.memory_id for row in rows] == ["d", "a", "c"]
    assert rows == list(store.iter_rows())
    assert rows[1].key == "k"
    assert [row.memory_id for row in store.iter_rows(rows[0].seq)] == ["a", "c"]
    assert sorted(row.memory_id for row in store.rows_of(["a", "b", "d"])) == ["a", "d"]


@pytest.mark.parametrize(
    ("damage", "whose"),
    [
        ("body = '{}'", "ann"),
        ("body = json_set(body, '$.content', '')", "ann"),
        ("body = json_set(body, '$.memory_id', 'other')", "ann"),
        ("user_id = 'bob'", "bob"),
        ("valid_until = 9000000000000000000", "ann"),
    ],
)
def test_a_row_that_holds_no_valid_memory_passes_no_filter(path, clock, remember, damage, whose):
    with MemoryStore(path, clock=clock, cache_bytes=0) as store:
        store.declare([remember("x", memory_id="m")])
        with store._database.writing(durable=False) as connection:
            connection.execute(f"UPDATE memories SET {damage}")
        viewer, other = Viewer(user_id=whose), Viewer(user_id="eve")
        for read in (lambda: store.list(viewer), lambda: store.get_many(["m"], viewer)):
            with pytest.raises(StoreCorrupt, match="the row of 'm' must"):
                read()
        assert store.list(other) == []
        assert store.get_many(["m"], other) == {}


def test_the_cache_stays_within_its_bytes_and_never_hides_another_processs_change(path, clock, remember):
    limit = 40_000
    with (
        MemoryStore(path, clock=clock, cache_bytes=limit) as store,
        MemoryStore(path, clock=clock) as other,
    ):
        stored = store.declare([remember(f"{number} " + "y" * 1_000) for number in range(50)])
        ids = [memory.memory_id for memory in stored]
        for _ in range(2):
            assert list(store.get_many(ids, ANN)) == ids
            assert 0 < store._cache.used_bytes <= limit
            assert 0 < len(store._cache) < 50
        last = ids[-1]
        assert store._cache.find(last, 1) is not None
        other.update(last, ANN, changes={"content": "theirs"}, reason="edit")
        assert store.get(last, ANN).content == "theirs"
        other.forget(last, ANN)
        assert last not in store.get_many(ids, ANN)
        other.declare([remember("anew", memory_id=last)])
        assert store.get(last, ANN).content == "anew"


def test_a_cached_memory_is_not_parsed_again(store, remember, monkeypatch):
    (stored,) = store.declare([remember("x")])
    store.get(stored.memory_id, ANN)
    monkeypatch.setattr("salience_memory.store.memory_rows.decode_body", None)
    assert store.get(stored.memory_id, ANN) == stored
    assert store.list(ANN) == [stored]
