import pytest

from salience_memory import Memory, MemoryState, MemoryStore, MemoryType, Scope, Viewer
from salience_memory.clock import DAY_NS
from salience_memory.decay import AgeStep, DecayPolicy
from salience_memory.maintenance import maintain

ANN = Viewer(user_id="ann", session_id="s1")
START = 20_000 * DAY_NS


@pytest.fixture
def store(tmp_path):
    with MemoryStore(tmp_path / "m.db", clock=lambda: START) as opened:
        yield opened


def declare(store, content, **fields):
    fields = {"type": MemoryType.SEMANTIC, "scope": Scope.USER, "user_id": "ann"} | fields
    return store.declare([Memory(content=content, **fields)])[0].memory_id


def test_what_is_old_is_archived_and_what_is_long_expired_deleted(store):
    old = declare(store, "Old.")
    in_session = declare(store, "Of a session.", scope=Scope.SESSION, user_id=None, session_id="s1")
    pinned = declare(store, "Pinned.", pinned=True)
    bound = declare(store, "Bound.", type=MemoryType.CONSTRAINT, valid_until=START + DAY_NS)
    expired = declare(store, "Expired.", valid_until=START + 10 * DAY_NS)
    assert maintain(store, START + 39 * DAY_NS).deleted_ids == ()
    before = store.latest_seq()
    assert maintain(store, START + 39 * DAY_NS).archived_ids == ()
    assert store.latest_seq() == before
    report = maintain(store, START + 91 * DAY_NS)
    assert set(report.archived_ids) == {old, in_session}
    assert report.deleted_ids == (expired,)
    assert store.get_many([expired], ANN, include_archived=True, include_expired=True) == {}
    states = {i: store.get(i, ANN).state for i in (old, in_session, pinned, bound)}
    assert [i for i, state in states.items() if state is MemoryState.ARCHIVED] == [old, in_session]
    assert maintain(store, START + 91 * DAY_NS).archived_ids == ()


def test_read_only_rows_are_left_alone(store):
    kept = declare(store, "Locked.", read_only=True, valid_until=START + DAY_NS)
    report = maintain(store, START + 400 * DAY_NS)
    assert (report.archived_ids, report.deleted_ids) == ((), ())
    assert store.get(kept, ANN).state is MemoryState.ACTIVE


def test_expired_memories_are_kept_if_the_policy_says_so(store):
    expired = declare(store, "Expired.", valid_until=START + DAY_NS, pinned=True)
    assert (
        maintain(store, START + 400 * DAY_NS, DecayPolicy(delete_expired_after_days=None)).deleted_ids == ()
    )
    assert maintain(store, START + 400 * DAY_NS).deleted_ids == (expired,)


def test_deletions_are_all_or_none(store, monkeypatch):
    ids = [declare(store, f"Expired {i}.", valid_until=START + DAY_NS) for i in range(3)]
    forget, done = store.forget, []

    def fail_at_the_third(memory_id, viewer):
        if len(done) == 2:
            raise RuntimeError("stopped")
        done.append(memory_id)
        return forget(memory_id, viewer)

    monkeypatch.setattr(store, "forget", fail_at_the_third)
    with pytest.raises(RuntimeError, match="stopped"):
        maintain(store, START + 400 * DAY_NS)
    assert [store.get(i, ANN).memory_id for i in ids] == ids
    monkeypatch.undo()
    assert maintain(store, START + 400 * DAY_NS).deleted_ids == tuple(ids)


def test_a_shorter_last_step_of_one_type_is_kept_to(store):
    brief = DecayPolicy(steps_by_type={MemoryType.EPISODIC: (AgeStep(until_days=2, freshness=1.0),)})
    episode, fact = declare(store, "Rain.", type=MemoryType.EPISODIC), declare(store, "A fact.")
    assert maintain(store, START + 2 * DAY_NS, brief).archived_ids == ()
    assert maintain(store, START + 2 * DAY_NS + 1, brief).archived_ids == (episode,)
    assert store.get(fact, ANN).state is MemoryState.ACTIVE
