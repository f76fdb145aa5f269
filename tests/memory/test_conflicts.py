from salience_memory import CONFLICT_EVENT, MemoryStore, MemoryType, Scope, StoredMemory
from salience_memory.conflicts import find_conflicts


def stored(memory_id, content, **fields):
    defaults = {
        "memory_id": memory_id,
        "content": content,
        "type": MemoryType.CONSTRAINT,
        "scope": Scope.USER,
        "user_id": "ann",
        "key": "budget",
        "seq": 1,
        "version": 1,
        "created_ns": 0,
        "updated_ns": 0,
        "verified_ns": 0,
    }
    return StoredMemory(**defaults | fields)


def test_higher_trust_wins_and_both_are_named():
    old = stored("a", "At most 500.", trust=0.9, verified_ns=1)
    new = stored("b", "At most 900.", trust=0.6, verified_ns=2, seq=2)
    (conflict,) = find_conflicts([new, old])
    assert (conflict.winner_id, conflict.loser_ids, conflict.reason) == ("a", ("b",), "higher-trust")
    assert conflict.memory_ids == ("a", "b")


def test_of_equal_trust_the_one_confirmed_last_wins():
    old, new = stored("a", "At most 500.", verified_ns=1), stored("b", "At most 900.", verified_ns=2)
    (conflict,) = find_conflicts([old, new])
    assert (conflict.winner_id, conflict.reason) == ("b", "equal-trust-confirmed-later")
    tied = find_conflicts([stored("a", "At most 500.", seq=4), stored("b", "At most 900.", seq=3)])
    assert tied[0].winner_id == "a"


def test_what_says_the_same_is_no_conflict():
    assert find_conflicts([stored("a", "At most 500."), stored("b", "at most 500")]) == []
    assert find_conflicts([stored("a", "x", value=5), stored("b", "y", value=5)]) == []
    assert len(find_conflicts([stored("a", "x", value=5), stored("b", "y", value=6)])) == 1


def test_equal_words_with_other_rules_are_a_conflict():
    first = stored("a", "Be short.", rule={"kind": "forbid", "words": ["x"]})
    assert (
        len(find_conflicts([first, stored("b", "Be short.", rule={"kind": "forbid", "words": ["y"]})])) == 1
    )


def test_other_keys_other_types_and_no_key_do_not_meet():
    memories = [
        stored("a", "At most 500."),
        stored("b", "At most 900.", key="limit"),
        stored("c", "At most 900.", type=MemoryType.SEMANTIC),
        stored("d", "At most 700.", key=None),
        stored("e", "At most 800.", key=None),
    ]
    assert find_conflicts(memories) == []
    assert len(find_conflicts([*memories, stored("f", "At most 1.", key="Budget")])) == 1


def test_the_order_given_changes_nothing():
    memories = [
        stored(name, f"At most {name}.", trust=trust)
        for name, trust in zip("abc", (0.5, 0.9, 0.7), strict=True)
    ]
    assert find_conflicts(memories) == find_conflicts(memories[::-1])
    assert find_conflicts(memories)[0].memory_ids == ("b", "c", "a")


def test_facts_for_the_audit_log_hold_no_content():
    (conflict,) = find_conflicts([stored("a", "At most 500."), stored("b", "At most 900.")])
    assert "500" not in str(conflict.as_facts())
    assert conflict.as_facts()["memory_ids"] == list(conflict.memory_ids)


def test_the_audit_log_takes_the_facts_of_every_conflict(tmp_path):
    conflicts = [
        *find_conflicts([stored("a", "x", trust=0.9), stored("b b", "y", trust=0.6)]),
        *find_conflicts([stored("备忘", "x", key="a key"), stored("b", "y", key="A key")]),
    ]
    assert [conflict.reason for conflict in conflicts] == ["higher-trust", "equal-trust-confirmed-later"]
    with MemoryStore(tmp_path / "m.db") as store:
        for conflict in conflicts:
            store.append_event(CONFLICT_EVENT, "", conflict.as_facts())
        assert [e.facts["memory_ids"] for e in store.events()] == [["a", "b b"], ["备忘", "b"]]
