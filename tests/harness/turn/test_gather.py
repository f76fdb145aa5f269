"""Step 1: what is given, found and standing, what recall knows of it, and which of two on a key prevails."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from salience import Harness, Memory, MemoryAccess, Session, StoredMemory, Turn
from salience.turn import Origin

Declare = Callable[..., StoredMemory]


def test_two_memories_with_one_id_are_refused_by_their_text(prepare: Callable[..., Turn]):
    twice = [Memory("Same."), Memory("Other."), Memory("Same.", weight=0.6)]
    with pytest.raises(
        ValueError, match=r"memories must have different ids, got 'm-\w+' twice, for 'Same\.'"
    ):
        prepare("When?", twice)


def test_the_questions_name_is_reserved(prepare: Callable[..., Turn]):
    with pytest.raises(ValueError, match="memory_id must not be 'question'"):
        prepare("When?", [Memory("x", memory_id="question")])


def test_what_is_given_is_certain_to_bear_on_the_message(prepare: Callable[..., Turn], ferry: Memory):
    gathered = prepare(memories=[ferry, "The museum opens at ten.", {"content": "x", "weight": 0.5}]).gathered
    assert [found.origin for found in gathered.memories] == [Origin.GIVEN] * 3
    assert [found.probability for found in gathered.memories] == [1.0] * 3
    assert [found.weight for found in gathered.memories] == [0.9, 0.9, 0.5]
    assert gathered.state is None


def test_recalls_score_probability_and_conflict_stay_with_what_it_found(
    ann: Session, memory: MemoryAccess, declare: Declare, monkeypatch: pytest.MonkeyPatch
):
    found = declare("The ferry leaves at seven.", semantic_weight=0.9, trust=0.5)
    binding = declare("Never mention prices.", "constraint")
    hits = [
        SimpleNamespace(memory=stored, score=0.7, probability=0.25, has_conflict=True, breakdown=None)
        for stored in (found, binding)
    ]
    monkeypatch.setattr(memory, "recall", lambda *_, **__: hits)
    recalled, standing = ann.prepare("When does the ferry leave?").gathered.memories
    assert (recalled.origin, recalled.score, recalled.has_conflict) == (Origin.RECALLED, 0.7, True)
    assert recalled.probability == 0.25
    assert recalled.weight == pytest.approx(0.5 + (0.9 - 0.5) * 0.5 * 0.25)
    # What is in every prompt anyway doesn't hang on what the message is about.
    assert (standing.origin, standing.probability, standing.score) == (Origin.STANDING, 1.0, 0.7)


def test_given_memories_come_first_then_recalled_ones_then_what_stands(ann: Session, declare: Declare):
    ferry = declare("The ferry leaves at seven.")
    declare("Bridges rust slowly.")
    rule, pin = declare("Be kind.", "constraint"), declare("Ann is a doctor.", pinned=True)
    memories = ann.prepare(
        "When does the ferry leave?", [Memory("Given.", memory_id="given")]
    ).gathered.memories
    assert [found.memory.memory_id for found in memories] == [
        "given",
        ferry.memory_id,
        rule.memory_id,
        pin.memory_id,
    ]
    given, recalled, *_ = memories
    assert given.score is None
    assert recalled.score is not None
    assert 0.0 < recalled.probability < 1.0


def test_a_session_sees_its_users_memories_and_nobody_sees_anothers(remembering: Harness, declare: Declare):
    declare("Ann's ferry leaves at seven.")
    for session in (
        remembering.session(),
        remembering.session("bob", "one"),
        remembering.session(session_id="one"),
    ):
        assert session.prepare("When does the ferry leave?").gathered.memories == ()


def test_of_two_constraints_on_one_key_the_trusted_one_is_rendered_and_the_conflict_logged(
    ann: Session, memory: MemoryAccess, declare: Declare
):
    weak = declare("Speak French.", "constraint", key="language", trust=0.5)
    strong = declare("Speak German.", "constraint", key="language", trust=0.9)
    turn = ann.prepare("hello")
    assert [span.name for span in turn.blocks] == [strong.memory_id]
    loser = next(found for found in turn.gathered.memories if found.memory.memory_id == weak.memory_id)
    assert loser.has_conflict
    assert loser.overruled is not None
    assert strong.memory_id in loser.overruled
    (logged,) = memory.store.events(kind="conflict", request_id=turn.request_id)
    assert logged.facts["winner"] == {"memory_id": strong.memory_id}
    assert logged.facts["losers"] == {"memory_ids": [weak.memory_id]}


def test_open_tasks_are_the_state_and_those_that_do_not_fit_are_counted(ann: Session, memory: MemoryAccess):
    assert ann.prepare("hello").gathered.state is None
    memory.store.set_task(ann.viewer, "old", 1, "done")
    assert ann.prepare("hello").gathered.state is None
    memory.store.set_task(ann.viewer, "booking", {"hotel": "Ritz"}, "open")
    booking = {"status": "open", "value": {"hotel": "Ritz"}}
    assert ann.prepare("hello").gathered.state == {"tasks": {"booking": booking}}
    for place in range(20):
        memory.store.set_task(ann.viewer, f"task{place}", "a long description " * 2, "open")
    state = ann.prepare("hello").gathered.state
    assert state is not None
    tasks, more = state["tasks"], state["more_tasks"]
    assert isinstance(tasks, dict)
    assert isinstance(more, int)
    assert len(tasks) + more == 21
    assert more > 0
