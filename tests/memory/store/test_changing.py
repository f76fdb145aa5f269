import pytest
from pydantic import ValidationError

from salience_memory import (
    MemoryNotFound,
    MemoryReadOnly,
    MemoryState,
    MemoryStore,
    VersionConflict,
    Viewer,
)

ANN = Viewer(user_id="ann")
BOB = Viewer(user_id="bob")


@pytest.fixture
def tea(store, remember):
    (stored,) = store.declare([remember("Ann likes tea.", key="drink", memory_id="tea")], actor="chat")
    return stored


def test_an_update_is_a_new_version_and_the_old_one_stays(store, clock, tea):
    clock.ns += 5
    changed = store.update(
        "tea", ANN, changes={"content": "Ann likes oolong."}, reason="said so", actor="ann"
    )
    assert (changed.version, changed.content) == (2, "Ann likes oolong.")
    assert changed.seq > tea.seq
    assert (changed.created_ns, changed.updated_ns, changed.verified_ns) == (clock.ns - 5, clock.ns, clock.ns)
    assert store.get("tea", ANN, version=1) == tea
    assert [(v.version, v.reason, v.actor) for v in store.history("tea", ANN)] == [
        (1, "declared", "chat"),
        (2, "said so", "ann"),
    ]


def test_a_new_weight_does_not_count_as_verified(store, clock, tea):
    clock.ns += 5
    assert store.update("tea", ANN, changes={"trust": 0.2}, reason="doubt").verified_ns == tea.verified_ns


def test_an_update_that_changes_nothing_makes_no_version(store, tea):
    assert store.update("tea", ANN, changes={"content": tea.content}, reason="again") == tea


@pytest.mark.parametrize("name", ["memory_id", "scope", "user_id", "session_id", "freshness"])
def test_identity_and_owner_cannot_change(store, tea, name):
    with pytest.raises(ValueError, match=f"changes must leave .* as they are, got {name}"):
        store.update("tea", ANN, changes={name: "bob"}, reason="theft")
    assert store.history("tea", ANN)[-1].version == 1


def test_an_update_is_validated_as_a_declaration_is(store, tea):
    with pytest.raises(ValueError, match="changes must name fields of a memory, got colour"):
        store.update("tea", ANN, changes={"colour": "green"}, reason="edit")
    with pytest.raises(ValidationError, match="semantic_weight must be in"):
        store.update("tea", ANN, changes={"semantic_weight": 1.0}, reason="edit")
    with pytest.raises(ValidationError, match="key must be given for a stored task"):
        store.update("tea", ANN, changes={"type": "task", "key": None}, reason="edit")
    assert store.get("tea", ANN) == tea


def test_a_changed_type_changes_its_tag(store, tea):
    changed = store.update("tea", ANN, changes={"type": "context"}, reason="edit")
    assert changed.tags == ("domain:general", "status:active", "type:context")


def test_an_expected_version_keeps_what_others_did(store, tea):
    store.update("tea", ANN, changes={"content": "theirs"}, reason="edit", expected_version=1)
    with pytest.raises(VersionConflict, match="must be its current 2, got 1"):
        store.update("tea", ANN, changes={"content": "mine"}, reason="edit", expected_version=1)
    assert store.get("tea", ANN).content == "theirs"


def test_rollback_brings_an_old_version_back_as_a_new_one(store, tea):
    store.update("tea", ANN, changes={"content": "Ann hates tea.", "trust": 0.9}, reason="edit")
    back = store.rollback("tea", 1, ANN)
    assert (back.version, back.content, back.trust) == (3, tea.content, tea.trust)
    assert [version.content for version in store.history("tea", ANN)] == [
        "Ann likes tea.",
        "Ann hates tea.",
        "Ann likes tea.",
    ]
    assert store.history("tea", ANN)[-1].reason == "rolled back to version 1"
    assert store.rollback("tea", 3, ANN) == back
    with pytest.raises(MemoryNotFound, match="memory 'tea' has no version 9"):
        store.rollback("tea", 9, ANN)


def test_archived_memories_are_shown_on_request_only(store, clock, tea):
    archived = store.archive("tea", ANN, reason="old")
    assert (archived.state, archived.version) == (MemoryState.ARCHIVED, 2)
    assert "status:archived" in archived.tags
    assert store.list(ANN) == []
    assert store.get_many(["tea"], ANN) == {}
    assert store.list(ANN, include_archived=True) == [archived]
    assert store.archive("tea", ANN) == archived
    clock.ns += 7
    back = store.unarchive("tea", ANN)
    assert (back.state, back.tags, back.verified_ns) == (MemoryState.ACTIVE, tea.tags, clock.ns)
    assert store.rollback("tea", 2, ANN).state is MemoryState.ARCHIVED
    retagged = store.update("tea", ANN, changes={"tags": ("diet",)}, reason="edit")
    assert retagged.tags == ("diet", "domain:general", "status:archived", "type:semantic")


def test_verifying_is_no_new_version_but_a_change(store, clock, tea):
    clock.ns += 9
    verified = store.verify("tea", ANN)
    assert (verified.version, verified.verified_ns) == (1, clock.ns)
    assert verified.seq == store.latest_seq() == tea.seq + 1


def test_touching_notes_the_use_and_changes_nothing_else(store, clock, tea):
    clock.ns += 9
    assert store.touch(["tea", "tea", "unknown"], ANN) == 1
    assert store.touch(["tea"], BOB) == 0
    assert store.get("tea", ANN) == tea.model_copy(update={"used_ns": clock.ns})
    clock.ns -= 4
    store.touch(["tea"], ANN)
    assert store.get("tea", ANN).used_ns == clock.ns + 4


def test_a_read_only_memory_is_verified_and_forgotten_but_not_changed(store, remember):
    store.declare([remember("Fixed.", memory_id="m", read_only=True)])
    for change in (
        lambda: store.update("m", ANN, changes={"read_only": False}, reason="edit"),
        lambda: store.rollback("m", 1, ANN),
        lambda: store.archive("m", ANN),
    ):
        with pytest.raises(MemoryReadOnly, match="memory 'm' is read-only"):
            change()
    assert store.verify("m", ANN).version == 1
    assert store.forget("m", ANN)


def test_nobody_changes_what_is_not_theirs(store, tea):
    for act in (
        lambda: store.update("tea", BOB, changes={"content": "x"}, reason="edit"),
        lambda: store.rollback("tea", 1, BOB),
        lambda: store.archive("tea", BOB),
        lambda: store.unarchive("tea", BOB),
        lambda: store.verify("tea", BOB),
        lambda: store.history("tea", BOB),
        lambda: store.get("tea", BOB),
    ):
        with pytest.raises(MemoryNotFound, match="no memory 'tea' that this viewer may see"):
            act()
    assert not store.forget("tea", BOB)
    assert store.get("tea", ANN) == tea


def test_freshness_is_computed_for_the_moment_and_never_stored(path, clock, remember):
    ages = []

    def decay(memory, now_ns):
        ages.append(now_ns - memory.verified_ns)
        return 0.25

    with MemoryStore(path, clock=clock, decay=decay) as store:
        (stored,) = store.declare([remember("x", semantic_weight=0.9)])
        clock.ns += 40
        read = store.get(stored.memory_id, ANN)
    assert ages == [0, 40]
    assert read.effective_weight == pytest.approx(0.6)
    with MemoryStore(path, clock=clock) as store:
        assert store.get(stored.memory_id, ANN).freshness == 1.0
    with (
        MemoryStore(path, clock=clock, decay=lambda memory, now_ns: 1.5) as store,
        pytest.raises(ValueError, match=r"decay must return a freshness in \[0, 1\], got 1.5"),
    ):
        store.get(stored.memory_id, ANN)


def test_what_a_caller_does_to_a_value_stays_his(store, remember):
    (stored,) = store.declare([remember("x", value={"list": [1]})])
    store.get(stored.memory_id, ANN).value["list"].append(2)
    assert store.get(stored.memory_id, ANN).value == {"list": [1]}
