"""Step 2: the context as the system's message, the dialogue, and what is asked now."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from salience import (
    Harness,
    LanguageModel,
    Memory,
    Message,
    Parts,
    ProtocolMismatch,
    Rendering,
    Sampling,
    Session,
    Steps,
    TextSpan,
    Turn,
    TurnOptions,
)
from salience.context import Compaction, OnMismatch, list_templates, load_template


def test_memories_stand_in_the_systems_message_and_the_question_in_the_users(
    prepare: Callable[..., Turn], ferry: Memory, museum: Memory
):
    rendered = prepare(memories=[museum, ferry]).rendered
    system, asked = rendered.messages
    assert [message.role for message in rendered.messages] == ["system", "user"]
    texts = {span.name: system.content[span.start : span.end] for span in system.spans}
    assert texts == {"ferry": ferry.content, "museum": museum.content}
    assert asked.spans == (TextSpan("question", 0, len("When does it leave?")),)
    assert dict(rendered.weights) == {"ferry": 0.9, "museum": 0.6}
    assert rendered.is_chat


@pytest.mark.parametrize("name", list_templates())
def test_without_memories_a_prompt_says_nothing_of_them(prepare: Callable[..., Turn], name: str):
    turn = prepare("When?", [], template=name)
    context = turn.rendered.context
    assert context is not None
    header, instruction = context.text.split("\n", 1)
    assert header == str(context.header)
    assert instruction == load_template(name).instruction
    assert [span.name for span in turn.prompt.spans] == ["question"]


def test_the_instruction_can_be_replaced_for_a_message_or_left_out(prepare: Callable[..., Turn]):
    assert "\nBe French.\n" in prepare(system="Be French.").rendered.messages[0].content
    assert "assistant" not in prepare(system="").rendered.messages[0].content


def test_a_protocol_mismatch_stops_or_downgrades_by_option(prepare: Callable[..., Turn], roomy: TurnOptions):
    old = roomy.model_copy(update={"supported_versions": ("1.1",)})
    with pytest.raises(ProtocolMismatch, match=r"must be 1\.1, got a template of 1\.2"):
        prepare(turn_options=old)
    turn = prepare(turn_options=old.model_copy(update={"on_mismatch": OnMismatch.DOWNGRADE}))
    assert turn.rendered.messages[0].content.startswith("[MODEL_CONTEXT_PROTOCOL v1.1 |")
    assert dict(turn.rendered.weights) == {}
    assert not turn.request.plan.is_steering
    assert [span.name for span in turn.request.plan.spans] == ["ferry"]


def test_another_rendering_is_used_in_the_place_of_the_template(prepare: Callable[..., Turn], ferry: Memory):
    def render(turn: Turn, parts: Parts) -> None:
        text = f"{ferry.content} Now: {turn.message}"
        spans = (TextSpan("ferry", 0, len(ferry.content)), TextSpan("question", 32, len(text)))
        turn.rendered = Rendering((Message("user", text, spans),), {"ferry": 0.8}, is_chat=False)

    turn = prepare("Really?", steps=replace(Steps(), render=render))
    assert turn.prompt.text == f"{ferry.content} Now: Really?"
    assert turn.request.plan.asks == (pytest.approx(0.2 * (2 * 0.8 - 1)),)
    assert turn.question.end == len(turn.prompt.token_ids)


def test_expired_constraints_are_not_rendered(ann: Session, declare: Callable, clock: Callable[[], int]):
    live = declare("Never mention prices.", "constraint").memory_id
    ended = declare("Only speak French.", "constraint", valid_until=clock() + 10).memory_id
    assert {span.name for span in ann.prepare("xyzzy").blocks} == {live, ended}
    clock.ns += 10  # type: ignore[attr-defined]
    turn = ann.prepare("xyzzy")
    assert [span.name for span in turn.blocks] == [live]
    assert "French" not in turn.prompt.text


def test_a_history_that_outgrows_its_share_becomes_a_digest_and_fits(
    tiny_lm: LanguageModel, roomy: TurnOptions, short: Sampling
):
    options = roomy.model_copy(update={"has_summaries": False, "compaction": Compaction(threshold=0.6)})
    talk = Harness(tiny_lm, options=options).session()
    prompt = talk.prepare("Hello").prompt
    for place in range(8):
        said = f"My meeting with Bob{place} is tomorrow at {place} pm. " + "bla " * 20
        prompt = talk.chat(said, sampling=short).turn.prompt
        assert len(prompt.token_ids) + short.max_new_tokens <= tiny_lm.info.context_window
    assert "[CONVERSATION_SUMMARY]" in prompt.text
    assert "- [Appointment] day=tomorrow" in prompt.text
