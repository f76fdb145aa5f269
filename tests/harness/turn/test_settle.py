"""Step 6: what is kept, fed back and audited, and the answer as whoever serves it needs it."""

import hashlib
import json
from collections.abc import Callable

import pytest

from salience import Harness, Memory, MemoryAccess, Sampling, Session, StoredMemory
from salience.turn.answer_reading import find_repeated
from salience_memory import Reference

Declare = Callable[..., StoredMemory]


def test_the_audit_tells_of_render_and_generation_without_content(
    ann: Session, memory: MemoryAccess, declare: Declare, short: Sampling
):
    ferry = declare("The secretferry leaves at seven.", semantic_weight=0.9).memory_id
    answer = ann.chat("When does the secretferry leave?", sampling=short)
    events = memory.store.events(request_id=answer.turn.request_id)
    render, generation, feedback = events
    assert (render.kind, generation.kind, feedback.kind) == ("render", "generation", "feedback")
    context = answer.turn.rendered.context
    assert context is not None
    assert render.facts["declared_types"] == {"semantic": 1}
    (found,) = answer.memories
    assert render.facts["rendered"] == [{"memory_id": ferry, "weight": round(found.weight, 6)}]
    assert render.facts["rendered_tokens"] == context.tokens
    assert render.facts["template_fingerprint"] == context.header.fingerprint
    assert generation.facts["bias_plan_sha256"] == answer.receipt.plan_fingerprint
    said = answer.turn.generation.text
    assert generation.facts["response_sha256"] == hashlib.sha256(said.encode()).hexdigest()
    assert "secretferry" not in str([event.facts for event in memory.store.events(limit=1000)])


def test_an_answer_survives_json(ann: Session, declare: Declare, short: Sampling):
    shown = declare("The ferry leaves at seven.").memory_id
    declare("Speak French.", "constraint", key="language", trust=0.5, memory_id="weak")
    declare("Speak German.", "constraint", key="language", trust=0.9, memory_id="strong")
    answer = ann.chat("When does the ferry leave?", [Memory("Blue.", weight=0.5)], sampling=short)
    told = json.loads(json.dumps(answer.to_dict()))
    assert told["text"] == answer.text
    rows = {row["memory_id"]: row for row in told["memories"]}
    assert rows[shown]["origin"] == "recalled"
    assert rows[shown]["asked"] == pytest.approx(0.2 * (2 * rows[shown]["weight"] - 1), abs=1e-5)
    assert rows[shown]["share"] > rows[shown]["unbiased_share"] > 0.0
    assert (rows["weak"]["is_shown"], rows["weak"]["asked"], rows["weak"]["share"]) == (False, None, None)
    assert [(cut["memory_id"], cut["reason"]) for cut in told["truncations"]] == [("weak", "conflict")]
    assert told["receipt"]["method"] == "share_control"
    assert [found.memory.memory_id for found in answer.shown] == list(answer.receipt.blocks)


def test_an_answer_without_a_store_survives_json_too(harness: Harness, short: Sampling):
    told = json.loads(json.dumps(harness.ask("When?", sampling=short).to_dict()))
    assert (told["memories"], told["disclaimer"], told["references"]) == ([], None, [])


def test_what_rests_on_a_claim_carries_a_disclaimer(ann: Session, declare: Declare, short: Sampling):
    claimed = {"source_id": "chat", "verification": "user_claimed"}
    declare("The ferry leaves at seven.", semantic_weight=0.99, trust=1.0, provenance=claimed)
    answer = ann.chat("When does the ferry leave?", sampling=short)
    assert answer.disclaimer is not None
    assert "not been verified" in answer.disclaimer


def test_a_used_memory_is_refreshed(
    ann: Session, memory: MemoryAccess, declare: Declare, short: Sampling, clock: Callable[[], int]
):
    ferry = declare("The ferry leaves at seven.", semantic_weight=0.99)
    clock.ns += 10**9  # type: ignore[attr-defined]
    ann.chat("When does the ferry leave?", sampling=short)
    (after,) = memory.store.list(ann.viewer)
    assert (ferry.used_ns, after.used_ns) == (None, clock())


def test_a_message_beside_the_dialogue_leaves_only_its_audit(
    ann: Session, memory: MemoryAccess, short: Sampling
):
    ann.ask("I work at Acme.", sampling=short)
    memory.registrar.flush()
    assert ann.turns == ()
    assert memory.store.list(ann.viewer) == []
    assert {event.kind for event in memory.store.events()} == {"render", "generation", "feedback"}


def test_the_registrar_sees_what_was_said_and_not_what_the_prompt_held(
    ann: Session, memory: MemoryAccess, short: Sampling
):
    told = ann.chat("I work at Acme.", ["I work at Globex."], sampling=short)
    assert told.noted is not None
    assert [outcome.kind for outcome in told.noted.result()] == ["declared"]
    assert [turn.role for turn in memory.store.episodes(ann.viewer, "one")] == ["user", "assistant"]
    (kept,) = memory.store.list(ann.viewer)
    assert "Acme" in kept.content
    pasted = ann.chat("I live in Lisbon.", ["I live in Lisbon."], sampling=short)
    assert pasted.noted is not None
    pasted.noted.result()
    assert not any("Lisbon" in stored.content for stored in memory.store.list(ann.viewer))


def test_forgetting_a_memory_takes_the_answers_that_repeat_it_out_of_the_dialogue(
    ann: Session, memory: MemoryAccess, declare: Declare, short: Sampling
):
    code = declare("The code is zebra.").memory_id
    first = ann.chat("code?", sampling=short)
    log = memory.store.episodes(ann.viewer, "one")
    memory.store.link_episode(log[1].episode_id, [code])
    ann.forget(code)
    later = ann.chat("Once more", sampling=short)
    assert "zebra" not in later.turn.prompt.text
    assert first.text not in later.turn.prompt.text
    assert later.memories == ()


def test_an_answer_repeats_what_it_refers_to_or_shares_a_telling_word_with():
    zebra, lion = Memory("The code is zebra.", memory_id="z"), Memory("The lion sleeps.", memory_id="l")
    assert find_repeated("It is zebra.", "What is the code?", [zebra, lion], []) == ["z"]
    assert find_repeated("The code.", "What is the code?", [zebra, lion], []) == []
    assert find_repeated("Yes.", "Well?", [zebra, lion], [Reference("l", None, 0, 4)]) == ["l"]
