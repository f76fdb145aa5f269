"""`Session`: it asks, talks, remembers, recalls, forgets and explains, with a store and without."""

from collections.abc import Callable

import numpy as np
import pytest

import salience.session
from salience import (
    Harness,
    Memory,
    MemoryAccess,
    MemoryNotFound,
    PromptTooLong,
    Sampling,
    Session,
    Steering,
    StoredMemory,
    StoreUnavailable,
    Viewer,
)
from salience_memory import Role, Utterance

FERRY = Memory("The ferry leaves at seven.", memory_id="ferry")
BRIDGE = Memory("The bridge is blue.", weight=0.5, memory_id="bridge")
MUSEUM = Memory("The museum opens at ten.", weight=0.6, memory_id="museum")
QUESTION = "When does the ferry leave?"

Declare = Callable[..., StoredMemory]


def test_the_receipt_tells_what_steering_did(harness: Harness, short: Sampling):
    answer = harness.session().ask(QUESTION, [FERRY, BRIDGE], sampling=short)
    receipt = answer.receipt
    assert (receipt.blocks, receipt.method, receipt.layers) == (("ferry", "bridge"), "share_control", (1,))
    assert receipt.impls
    assert all(receipt.impls)
    assert receipt.shares()["ferry"] == pytest.approx(0.16, abs=0.01)
    assert receipt.unbiased_shares()["ferry"] < 0.16
    assert receipt.bias_nats[1, 0] > 0
    assert not receipt.bias_nats[:, 1].any()
    assert answer.finish_reason in ("stop", "length")


def test_neutral_memories_leave_the_model_as_it_is(harness: Harness, short: Sampling):
    neutral = [FERRY.model_copy(update={"semantic_weight": 0.5}), BRIDGE]
    session = harness.session()
    plain, heavy = (session.ask(QUESTION, m, sampling=short) for m in (neutral, [FERRY, BRIDGE]))
    off = session.ask(QUESTION, [FERRY, BRIDGE], sampling=short, steering="none")
    assert plain.receipt.method == off.receipt.method == "none"
    assert plain.receipt.shares() == plain.receipt.unbiased_shares()
    assert heavy.turn.prompt.token_ids == plain.turn.prompt.token_ids
    assert off.turn.generation.logprobs == plain.turn.generation.logprobs
    assert heavy.turn.generation.logprobs[0] != plain.turn.generation.logprobs[0]


def test_the_stream_is_the_answer_piece_by_piece(harness: Harness, short: Sampling):
    session = harness.session()
    events = list(session.stream(QUESTION, [FERRY], sampling=short, is_kept=False))
    answer = session.ask(QUESTION, [FERRY], sampling=short)
    assert "".join(event.text for event in events).strip() == answer.text
    assert [event.answer is None for event in events] == [True] * (len(events) - 1) + [False]
    assert events[-1].answer is not None
    assert events[-1].answer.receipt.shares() == answer.receipt.shares()


def test_the_same_seed_gives_the_same_answer(harness: Harness):
    sampling = Sampling(max_new_tokens=8, temperature=1.5, seed=3)
    texts = {harness.ask(QUESTION, [FERRY], sampling=sampling).text for _ in range(2)}
    assert len(texts) == 1
    other = sampling.model_copy(update={"seed": 4})
    assert harness.ask(QUESTION, [FERRY], sampling=other).text not in texts


def test_without_a_store_a_dialogue_goes_on_and_a_question_stands_alone(harness: Harness, short: Sampling):
    session = harness.session()
    first = session.chat("Hello there", sampling=short)
    second = session.chat("And again", sampling=short)
    said = f"user\nHello there<|im_end|>\n<|im_start|>assistant\n{first.text}<|im_end|>"
    assert said in second.turn.prompt.text
    assert "Hello there" not in session.ask("Alone?", sampling=short).turn.prompt.text
    assert "Hello there" not in harness.session().chat("Another", sampling=short).turn.prompt.text
    assert [turn.text for turn in session.turns] == ["Hello there", first.text, "And again", second.text]


def test_a_named_session_outlives_its_object_and_another_store_owner_sees_nothing(
    remembering: Harness, ann: Session, short: Sampling
):
    first = ann.chat("Hello there", sampling=short)
    ann.close()
    again = remembering.session("ann", "one")
    assert [turn.text for turn in again.turns] == ["Hello there", first.text]
    assert remembering.session("bob", "one").turns == ()
    assert remembering.session("ann", "two").turns == ()


def test_a_session_without_a_name_leaves_nothing_but_what_is_a_users(
    remembering: Harness, memory: MemoryAccess, short: Sampling
):
    with remembering.session() as session:
        viewer = session.viewer
        session.chat("I work at Acme.", sampling=short)
        session.remember("The code is zebra.")
        assert session.turns
    assert memory.store.episodes(viewer, viewer.session_id or "") == []
    assert memory.store.list(viewer) == []
    with remembering.session("ann") as session:
        session.chat("I work at Acme.", sampling=short)
        viewer = session.viewer
    assert ["Acme" in kept.content for kept in memory.store.list(Viewer(user_id="ann"))] == [True]


def test_what_is_remembered_is_recalled_until_it_is_forgotten(ann: Session, remembering: Harness):
    kept = ann.remember("The ferry leaves at seven.", weight=0.8, key="ferry")
    assert (kept.content, kept.semantic_weight, kept.user_id) == ("The ferry leaves at seven.", 0.8, "ann")
    (found,) = ann.recall(QUESTION, top_k=5)
    assert found.content == "The ferry leaves at seven."
    assert 0.0 < found.probability < 1.0
    turn = ann.prepare(QUESTION)
    weight = 0.5 + 0.3 * found.probability
    assert turn.request.plan.asks == (pytest.approx(0.2 * (2 * weight - 1)),)
    assert remembering.session("bob").recall(QUESTION) == []
    with pytest.raises(MemoryNotFound):
        remembering.session("bob").forget(kept.memory_id)
    ann.forget(kept.memory_id)
    assert ann.recall(QUESTION) == []


def test_a_harness_without_a_memory_says_so(harness: Harness):
    session = harness.session("ann")
    for use in (lambda: session.remember("x"), lambda: session.recall("x"), lambda: session.forget("x")):
        with pytest.raises(StoreUnavailable, match=r"memory must be given to Harness\.load"):
            use()


def test_a_message_that_cannot_be_answered_leaves_the_dialogue_as_it_was(ann: Session, short: Sampling):
    ann.chat("Hello", sampling=short)
    before = ann.turns
    with pytest.raises(PromptTooLong, match="over the context window of 2048"):
        ann.chat("long " * 3000, sampling=short)
    for blank in ("", " ", "\n\t"):
        with pytest.raises(ValueError, match="message must hold text, got a blank one"):
            ann.chat(blank)
    next(ann.stream("Never mind", sampling=short))  # not read to its end
    assert ann.turns == before


def test_a_prompt_over_the_window_says_by_how_much(harness: Harness, short: Sampling):
    session = harness.session()
    for ask in (session.ask, session.chat, session.explain):
        with pytest.raises(PromptTooLong, match=r"which is \d+ over the context window of 2048"):
            ask("long " * 3000, [FERRY], sampling=short)
    length = len(session.prepare(QUESTION, [FERRY]).prompt.token_ids)
    with pytest.raises(PromptTooLong, match=f"has {length} tokens .* which is 1 over"):
        session.ask(QUESTION, [FERRY], sampling=Sampling(max_new_tokens=2049 - length))


def test_what_a_crash_left_unsettled_is_settled_by_the_next_to_open_it(
    memory: MemoryAccess, clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    viewer = Viewer(user_id="ann", session_id="one")
    said = Utterance(role=Role.USER, text="I work at Acme.", ns=clock())
    registrar = memory.registrar
    monkeypatch.setattr(registrar, "_enqueue", lambda *_: None)  # acknowledged and never settled
    registrar.submit(said, viewer)
    with MemoryAccess.open(memory.store.path, embedder=None, clock=clock) as reopened:
        reopened.registrar.flush()
        assert ["Acme" in kept.content for kept in reopened.store.list(viewer)] == [True]


def constraint(name: str, rule: dict, **fields) -> Memory:
    return Memory(f"Rule {name}.", type="constraint", memory_id=name, rule=rule, **fields)


def test_rules_of_constraints_bind_every_way_of_answering(harness: Harness, short: Sampling):
    session, memories = harness.session(), [FERRY, constraint("yes-no", {"allow_values": ["yes", "no"]})]
    answer = session.ask(QUESTION, memories, sampling=short)
    assert answer.text in ("yes", "no")
    assert answer.turn.generation.constraint_events
    assert session.chat(QUESTION, memories, sampling=short).text in ("yes", "no")
    assert "".join(event.text for event in harness.stream(QUESTION, memories, sampling=short)) in (
        "yes",
        "no",
    )
    found = session.explain(QUESTION, memories, sampling=short)
    assert found.answer.text == answer.text
    assert set(found.influence) == {"ferry", "yes-no"}


def test_of_two_rules_on_one_key_the_trusted_memorys_binds(harness: Harness, short: Sampling):
    strong = constraint("strong", {"allow_values": ["yes"], "trust": 0.1}, key="k", trust=0.9)
    weak = constraint("weak", {"allow_values": ["no"], "trust": 1.0}, key="k", trust=0.5)
    answer = harness.ask(QUESTION, [strong, weak], sampling=short)
    assert answer.text == "yes"
    assert answer.turn.generation.constraint_events[0].rule_ids == ("weak", "strong")


@pytest.mark.parametrize("is_rules", [True, False])
def test_a_broken_answer_is_withheld_where_the_memory_or_its_rule_asks_for_it(
    harness: Harness, short: Sampling, is_rules: bool
):
    breaks = {"break_on_violation": True}
    rule = {"check": "never said by it"} | (breaks if is_rules else {})
    memory = constraint("polite", rule, **({} if is_rules else breaks))
    answer = harness.ask(QUESTION, [memory], sampling=short)
    assert answer.text == '{"error": "CONSTRAINT_VIOLATION", "rule_id": "polite"}'
    assert answer.finish_reason == "content_filter"
    with pytest.raises(ValueError, match=r"got none under the rules \['polite'\]"):
        harness.explain(QUESTION, [memory], sampling=short)


def test_explain_gives_each_memory_its_influence(harness: Harness, short: Sampling):
    memories = [FERRY, BRIDGE, MUSEUM]
    found = harness.explain(QUESTION, memories, sampling=short)
    assert set(found.influence) == {"ferry", "bridge", "museum"}
    assert all(np.isfinite(list(found.influence.values())))
    assert found.answer.text == harness.ask(QUESTION, memories, sampling=short).text


def test_explain_leaves_the_other_memories_steered_as_they_were(
    harness: Harness, short: Sampling, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    scored = salience.session.score

    def score(lm, requests, continuations):
        asked.extend({s.name: s.share for s in request.plan.spans} for request in requests)
        return scored(lm, requests, continuations)

    monkeypatch.setattr(salience.session, "score", score)
    harness.explain(QUESTION, [FERRY, MUSEUM], sampling=short)
    whole, without_ferry, without_museum = asked
    assert without_ferry == {"museum": whole["museum"]}
    assert without_museum == {"ferry": whole["ferry"]}


def test_explain_leaves_one_render_in_the_audit(
    ann: Session, memory: MemoryAccess, declare: Declare, short: Sampling
):
    declare("The ferry leaves at seven.")
    found = ann.explain(QUESTION, sampling=short)
    assert len(found.influence) == 1
    assert [event.kind for event in memory.store.events()].count("render") == 1


def test_a_harness_on_its_own_is_a_session_of_nobodys(
    remembering: Harness, declare: Declare, short: Sampling
):
    declare("The ferry leaves at seven.")
    assert remembering.ask(QUESTION, sampling=short).memories == ()
    first = remembering.chat("Hello there", sampling=short)
    assert first.text in remembering.chat("And again", sampling=short).turn.prompt.text
    assert Steering.of("none") == remembering.session(steering="none").steering
