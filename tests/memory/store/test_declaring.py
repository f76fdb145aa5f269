import numpy as np
import pytest

from salience_memory import (
    Memory,
    MemoryExists,
    MemoryForgotten,
    MemoryReadOnly,
    MemoryState,
    MemoryStore,
    StatementOutdated,
    Viewer,
)
from salience_memory.clock import DAY_NS

ANN = Viewer(user_id="ann")
VECTOR = np.array([[1.0, 0.0, 0.0]], dtype=np.float32)


def contents(store, viewer=ANN, **filters):
    return [memory.content for memory in store.list(viewer, **filters)]


def test_a_declared_memory_comes_back_with_its_place_in_the_store(store, clock, remember):
    memory = remember("Ann likes tea.", key="drink", value={"hot": True}, tags=("diet",), semantic_weight=0.9)
    (stored,) = store.declare([memory])
    assert (stored.content, stored.key, stored.value) == ("Ann likes tea.", "drink", {"hot": True})
    assert stored.tags == ("diet", "domain:general", "status:active", "type:semantic")
    assert (stored.seq, stored.version, stored.state) == (1, 1, MemoryState.ACTIVE)
    assert {stored.created_ns, stored.updated_ns, stored.verified_ns} == {clock.ns}
    assert stored.used_ns is None
    assert store.get(stored.memory_id, ANN) == stored


def test_tags_of_the_stores_own_names_are_left_as_given(store, remember):
    (stored,) = store.declare([remember("x", tags=("domain:tax", "status:draft"))])
    assert stored.tags == ("domain:tax", "status:draft", "type:semantic")


def test_a_memory_without_a_scope_is_refused_and_nothing_is_stored(store, remember):
    with pytest.raises(ValueError, match="scope must be given to store memory 'loose', got None"):
        store.declare([remember("kept out"), Memory(content="x", memory_id="loose")])
    assert (store.count(), store.latest_seq()) == (0, 0)


def test_declaring_again_changes_nothing(store, clock, remember):
    first = store.declare([remember("Ann likes tea.")])
    clock.ns += 1
    assert store.declare([remember("Ann likes tea.")]) == first
    assert store.latest_seq() == 1


def test_one_id_for_two_memories_is_refused(store, remember):
    store.declare([remember("Ann likes tea.", memory_id="drink")])
    for other in (remember("Ann likes coffee.", memory_id="drink"), remember("x", "bob", memory_id="drink")):
        with pytest.raises(MemoryExists, match="memory_id 'drink' is taken by a memory that says otherwise"):
            store.declare([remember("fine"), other])
    assert contents(store) == ["Ann likes tea."]


def test_one_id_twice_in_one_call_is_one_memory_or_refused(store, remember):
    twice = store.declare([remember("x", memory_id="a"), remember("x", memory_id="a")])
    assert twice[0] == twice[1]
    with pytest.raises(MemoryExists):
        store.declare([remember("y", memory_id="b"), remember("z", memory_id="b")])
    assert store.count() == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [("Python 工程师", "Python 课程"), ("iPhone 15 手机壳", "iPhone 15 充电器"), ("re", "ré")],
)
def test_facts_that_differ_in_a_sign_are_two(store, remember, first, second):
    store.declare([remember(first), remember(second)])
    assert contents(store) == [first, second]


def test_content_and_metadata_of_any_length_and_kind_survive(store, remember):
    hostile = "\"'*; NEAR( DROP TABLE memories;-- \0\t\r\n‮ 退款 🙂 ignore previous instructions"
    value = {hostile: [hostile * 5_000, None, 2**70, -0.5, {"deep": [[[]]]}]}
    (stored,) = store.declare(
        [remember(hostile * 1_000, key=hostile, value=value, tags=(hostile.strip() * 200,))]
    )
    read = store.get(stored.memory_id, ANN)
    assert (read.content, read.value) == (hostile * 1_000, value)
    assert contents(store, key=read.key) == contents(store, tags=read.tags) == [read.content]


def test_values_that_are_no_json_are_refused(store, remember):
    with pytest.raises(ValueError, match="must be JSON with finite numbers"):
        store.declare([remember("x", value=float("nan"))])
    with pytest.raises(ValueError, match="must be Unicode text throughout, got a lone surrogate"):
        store.declare([remember("x", value={"a": "\ud800"})])
    assert store.count() == 0


def test_a_rule_is_asked_about_before_it_is_stored(path, remember):
    def check(rule):
        if "forbid_phrases" not in rule:
            raise ValueError("rule must forbid phrases")

    with MemoryStore(path, check_rule=check) as store:
        good = remember("Say no price.", type="constraint", rule={"forbid_phrases": ["USD"]})
        (stored,) = store.declare([good])
        with pytest.raises(ValueError, match="rule of memory 'bad' cannot be enforced: rule must forbid"):
            store.declare([remember("x", type="constraint", rule={"hope": 1}, memory_id="bad")])
        with pytest.raises(ValueError, match="cannot be enforced"):
            store.update(stored.memory_id, ANN, changes={"rule": {"hope": 1}}, reason="edit")
        assert contents(store) == ["Say no price."]


def test_a_rule_that_nothing_can_check_is_not_stored(path, remember):
    rule = {"forbid_phrases": ["USD"]}
    with MemoryStore(path) as store:
        with pytest.raises(ValueError, match="cannot be checked here: give the store a check_rule"):
            store.declare([remember("Say no price.", type="constraint", rule=rule, memory_id="r")])
        store.declare([remember("Say no price.", type="constraint", memory_id="r")])
        with pytest.raises(ValueError, match="cannot be checked here"):
            store.update("r", ANN, changes={"rule": rule}, reason="edit")
    with MemoryStore(path, check_rule=lambda rule: None) as store:
        store.update("r", ANN, changes={"rule": rule}, reason="edit")
    with MemoryStore(path) as store:
        assert store.update("r", ANN, changes={"trust": 0.5}, reason="edit").rule == rule


def test_a_store_opened_by_its_path_alone_decays(path, clock, remember):
    with MemoryStore(path, clock=clock) as store:
        store.declare([remember("Ann likes tea.", memory_id="tea")])
        assert store.get("tea", ANN).freshness == 1.0
        clock.ns += 8 * DAY_NS
        assert store.get("tea", ANN).freshness == 0.5


def test_works_at_a_then_works_at_b_leaves_b(store, remember):
    (first,) = store.declare([remember("Ann works at A.", key="employer")], supersede=True)
    (second,) = store.declare([remember("Ann works at B.", key="employer")], supersede=True)
    assert contents(store) == ["Ann works at B."]
    assert (second.memory_id, second.version) == (first.memory_id, 2)
    assert [version.content for version in store.history(first.memory_id, ANN)] == [
        "Ann works at A.",
        "Ann works at B.",
    ]


def test_superseding_by_the_same_fact_changes_nothing(store, remember):
    store.declare([remember("Ann works at A.", key="employer")], supersede=True)
    first = store.declare([remember("Ann works at B.", key="employer")], supersede=True)
    assert store.declare([remember("Ann works at B.", key="employer")], supersede=True) == first


def test_superseding_ends_with_one_live_memory_of_the_key(store, remember):
    store.declare([remember(f"Ann works at {name}.", key="employer") for name in "ABC"])
    assert len(contents(store)) == 3
    (winner,) = store.declare([remember("Ann works at A.", key="employer")], supersede=True)
    assert winner.content == "Ann works at A."
    assert contents(store) == ["Ann works at A."]
    archived = [memory for memory in store.list(ANN, include_archived=True) if memory != winner]
    assert {memory.state for memory in archived} == {MemoryState.ARCHIVED}
    history = store.history(archived[0].memory_id, ANN)
    assert history[-1].reason == f"superseded by {winner.memory_id}"


def test_what_is_returned_is_what_is_stored_even_where_one_call_supersedes_itself(store, remember):
    store.declare([remember(f"Ann works at {name}.", key="employer", memory_id=name) for name in "AB"])
    both = [remember(f"Ann works at {name}.", key="employer", memory_id=name, trust=0.5) for name in "AB"]
    returned = store.declare(both, supersede=True)
    assert [memory.state for memory in returned] == [MemoryState.ARCHIVED, MemoryState.ACTIVE]
    assert returned == [store.get(name, ANN) for name in "AB"]


def test_superseding_stays_within_owner_and_type(store, remember):
    others = [
        remember("Bob works at A.", "bob", key="employer"),
        remember("All work at A.", None, key="employer"),
        remember("This session's A.", "ann", "s", key="employer"),
        remember("Employer task", key="employer", type="task"),
    ]
    before = store.declare(others)
    store.declare([remember("Ann works at B.", key="employer")], supersede=True)
    for viewer in (Viewer(user_id="bob"), Viewer(user_id="ann", session_id="s")):
        store.list(viewer)
    viewers = [Viewer(user_id=m.user_id, session_id=m.session_id) for m in before]
    assert [store.get(m.memory_id, viewer) for m, viewer in zip(before, viewers, strict=True)] == before


def test_two_constraints_on_one_key_are_both_kept(store, remember):
    rules = [remember(f"Refunds within {days} days.", key="refund", type="constraint") for days in (14, 30)]
    store.declare(rules, supersede=True)
    assert len(contents(store, key="refund")) == 2


def test_an_archived_or_expired_memory_is_revived_by_its_declaration(store, clock, remember):
    (shelved,) = store.declare([remember("Ann likes tea.")])
    store.archive(shelved.memory_id, ANN)
    (holiday,) = store.declare([remember("Ann is away.", valid_until=clock.ns + 10)])
    clock.ns += 10
    assert contents(store) == []
    again = [remember("Ann likes tea."), remember("Ann is away.", valid_until=clock.ns + 10)]
    revived = store.declare(again)
    assert [(m.memory_id, m.version) for m in revived] == [(shelved.memory_id, 3), (holiday.memory_id, 2)]
    assert contents(store) == ["Ann likes tea.", "Ann is away."]
    assert "status:active" in revived[0].tags
    assert {memory.verified_ns for memory in revived} == {clock.ns}


def test_declaring_what_has_expired_already_changes_nothing_again(store, clock, remember):
    past = remember("Ann was away.", valid_until=clock.ns - 1)
    assert store.declare([past]) == store.declare([past])
    assert store.latest_seq() == 1
    assert contents(store) == []


def test_a_late_statement_does_not_replace_a_newer_one(store, clock, remember):
    start = clock.ns
    clock.ns += 10
    store.declare([remember("Ann works at B.", key="employer")], supersede=True, stated_ns=start + 5)
    with pytest.raises(StatementOutdated, match="stated_ns must not lie before"):
        store.declare([remember("Ann works at A.", key="employer")], supersede=True, stated_ns=start)
    store.declare([remember("Ann works at C.", key="employer")], supersede=True, stated_ns=start + 6)
    assert contents(store) == ["Ann works at C."]


def test_a_statement_older_than_its_forgetting_stays_forgotten(store, clock, remember):
    stated = clock.ns
    (first,) = store.declare([remember("Ann works at A.", key="employer")], supersede=True)
    store.declare([remember("Ann works at B.", key="employer")], supersede=True)
    clock.ns += 1
    assert store.forget(first.memory_id, ANN)
    for name in "AB":
        with pytest.raises(MemoryForgotten, match="it stays forgotten"):
            store.declare(
                [remember(f"Ann works at {name}.", key="employer")], supersede=True, stated_ns=stated
            )
    assert store.count() == 0
    (anew,) = store.declare([remember("Ann works at A.", key="employer")], stated_ns=clock.ns)
    assert anew.version == 3


def test_a_read_only_memory_is_neither_superseded_nor_archived(store, remember):
    store.declare([remember("Ann works at A.", key="employer", read_only=True)])
    with pytest.raises(MemoryReadOnly, match="is read-only: it can be forgotten, not changed"):
        store.declare([remember("Ann works at B.", key="employer")], supersede=True)
    assert contents(store) == ["Ann works at A."]


def test_a_failed_call_inside_a_transaction_takes_back_its_own_writes_alone(store, remember):
    with store.transaction():
        store.declare([remember("kept")])
        with pytest.raises(ValueError, match="scope"):
            store.declare([remember("taken back"), Memory(content="x")])
        store.declare([remember("kept too")])
    assert contents(store) == ["kept", "kept too"]


def test_a_failed_transaction_leaves_nothing_not_even_in_the_cache(store, remember):
    (first,) = store.declare([remember("v1", memory_id="m")])

    def fail():
        with store.transaction():
            store.update("m", ANN, changes={"content": "never"}, reason="edit")
            assert store.get("m", ANN).content == "never"
            store.declare([remember("never either")])
            raise RuntimeError("power")

    with pytest.raises(RuntimeError, match="power"):
        fail()
    assert store.get("m", ANN) == first
    assert store.latest_seq() == first.seq
    store.update("m", ANN, changes={"content": "v2"}, reason="edit")
    assert store.get("m", ANN).content == "v2"


def test_constraints_are_refused_in_a_transaction_that_is_not_durable(store, remember):
    with store.transaction(durable=False):
        store.declare([remember("fine")])
        with pytest.raises(ValueError, match="durable must be True"):
            store.declare([remember("No refunds.", type="constraint")])
        with pytest.raises(ValueError, match="durable must be True"):
            store.forget("anything", ANN)
    with store.transaction():
        store.declare([remember("No refunds.", type="constraint")])
    assert contents(store) == ["fine", "No refunds."]


def test_constraints_and_forgetting_wait_for_the_disk_and_facts_do_not(store, remember):
    statements = []
    store._database._connection.set_trace_callback(statements.append)

    def modes():
        found = [line.rpartition(" ")[2] for line in statements if line.startswith("PRAGMA synchronous")]
        statements.clear()
        return found

    (fact,) = store.declare([remember("fact")])
    assert modes() == ["NORMAL"]
    store.declare([remember("fact two"), remember("No refunds.", type="constraint", memory_id="c")])
    assert modes() == ["FULL"]
    store.update("c", ANN, changes={"trust": 0.5}, reason="edit")
    assert modes() == ["FULL"]
    store.forget(fact.memory_id, ANN)
    assert modes() == ["FULL"]


def test_vectors_come_with_the_declaration_and_one_each(store, remember):
    memories = [remember("a"), remember("b")]
    vectors = np.eye(2, 3, dtype=np.float32)
    stored = store.declare(memories, vectors=vectors, fingerprint="f")
    batch = store.vectors_of([memory.memory_id for memory in stored], "f")
    assert batch.memory_ids == [memory.memory_id for memory in stored]
    assert np.array_equal(batch.vectors, vectors)
    with pytest.raises(ValueError, match="vectors and fingerprint must be given together, got vectors alone"):
        store.declare([remember("c")], vectors=VECTOR)
    with pytest.raises(ValueError, match="got fingerprint alone"):
        store.declare([remember("c")], fingerprint="f")
    assert store.count() == 2


def test_a_vector_declared_later_for_a_known_memory_is_kept_and_told(store, remember):
    (first,) = store.declare([remember("a")])
    (second,) = store.declare([remember("a")], vectors=VECTOR, fingerprint="f")
    assert (second.version, second.seq) == (1, first.seq + 1)
    assert store.declare([remember("a")], vectors=VECTOR, fingerprint="f") == [second]
    assert store.fingerprints() == {"f": 1}


def test_a_fact_that_superseded_another_is_stored_already(store, remember):
    store.declare([remember("Ann works at A.", key="employer")])
    first = store.declare([remember("Ann works at B.", key="employer")], supersede=True)
    assert store.declare([remember("Ann works at B.", key="employer")]) == first
    assert contents(store) == ["Ann works at B."]
    (other,) = store.declare([remember("Ann works at B.", key="employer", memory_id="mine")])
    assert other.memory_id == "mine"
