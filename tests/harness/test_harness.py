"""`Harness` on a tiny model: answers, receipts, streams, explanations; the README's lines on a real one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import salience
from salience import Harness, Memory, Sampling, Steering, SteeringMethod
from salience_models import ConstraintContradiction, LanguageModel, PromptTooLong

FERRY = Memory(content="The ferry leaves at seven.", semantic_weight=0.9, memory_id="ferry")
MUSEUM = Memory(content="The museum opens at ten.", semantic_weight=0.6, memory_id="museum")
NEUTRAL = Memory(content="The bridge is blue.", memory_id="bridge")
QUESTION = "When does the ferry leave?"
SHORT = Sampling(max_new_tokens=8)


def test_the_public_names_are_these():
    assert salience.__all__ == [
        "Answer",
        "BiasPlan",
        "ChatAnswer",
        "ContextTemplate",
        "Conversation",
        "ConversationOptions",
        "Explanation",
        "Harness",
        "Memory",
        "MemoryStore",
        "MemoryType",
        "Receipt",
        "Sampling",
        "Steering",
        "SteeringMethod",
        "Viewer",
        "load_template",
    ]


def test_the_rooms_readme_tells_the_defaults():
    readme = (Path(__file__).resolve().parents[2] / "harness" / "README.md").read_text(encoding="utf-8")
    default = Steering()
    assert f"- `{default.method}`, the default:" in readme
    assert f"(`share`, {default.share})" in readme
    assert f"`max_total_share` ({default.max_total_share})" in readme
    assert (default.depth, default.query_scope, default.phase) == ((0.5, 1.0), "question", "prefill")


def test_the_plan_has_a_block_for_each_memory_and_a_neutral_one_asks_for_nothing(harness: Harness):
    prompt, request = harness.prepare(QUESTION, [FERRY, NEUTRAL, MUSEUM])
    plan = request.plan
    assert [span.name for span in plan.spans] == ["ferry", "bridge", "museum"]
    assert [(s.start, s.end) for s in plan.spans] == [(s.start, s.end) for s in prompt.spans[:3]]
    ferry, bridge, museum = plan.asks
    assert (ferry, bridge) == (pytest.approx(0.2), 0.0)
    assert museum == pytest.approx(0.2 * 1.5 / 9.0)
    assert plan.question_start == prompt.spans[3].start


def test_trust_and_freshness_shrink_what_a_memory_asks_for(harness: Harness):
    steering = Steering(method=SteeringMethod.LOGIT_BIAS)
    doubted = FERRY.model_copy(update={"trust": 0.5, "memory_id": "doubted"})
    _, request = harness.prepare(QUESTION, [FERRY, doubted], steering=steering)
    assert request.plan.asks == (pytest.approx(np.log(9.0)), pytest.approx(np.log(0.7 / 0.3)))


def test_the_answers_receipt_tells_what_steering_did(harness: Harness):
    answer = harness.ask(QUESTION, [FERRY, NEUTRAL], sampling=SHORT)
    receipt = answer.receipt
    assert (receipt.blocks, receipt.method, receipt.layers) == (("ferry", "bridge"), "share_control", (1,))
    assert receipt.impls
    assert all(receipt.impls)
    assert receipt.shares()["ferry"] == pytest.approx(0.2, abs=0.01)
    assert receipt.unbiased_shares()["ferry"] < 0.2
    assert receipt.bias_nats[1, 0] > 0
    assert not receipt.bias_nats[:, 1].any()
    assert answer.finish_reason in ("stop", "length")
    assert answer.prompt.text.count("ferry leaves") == 1


def test_neutral_memories_leave_the_model_as_it_is(harness: Harness):
    memories = [NEUTRAL, Memory(content="The ferry leaves at seven.", memory_id="ferry")]
    _, steered = harness.prepare(QUESTION, memories)
    assert not steered.plan.is_steering
    plain = harness.ask(QUESTION, memories, sampling=SHORT)
    heavy = harness.ask(QUESTION, [NEUTRAL, FERRY], sampling=SHORT)
    assert plain.receipt.method == "none"
    assert plain.receipt.shares() == plain.receipt.unbiased_shares()
    assert heavy.prompt.token_ids == plain.prompt.token_ids
    assert heavy.generation.logprobs[0] != plain.generation.logprobs[0]


def test_without_memories_the_question_is_answered_unsteered(harness: Harness):
    answer = harness.ask(QUESTION, sampling=SHORT)
    assert (answer.receipt.method, answer.receipt.blocks) == ("none", ())


def test_the_stream_is_the_answer_piece_by_piece(harness: Harness):
    events = list(harness.stream(QUESTION, [FERRY, MUSEUM], sampling=SHORT))
    answer = harness.ask(QUESTION, [FERRY, MUSEUM], sampling=SHORT)
    assert "".join(event.text for event in events).strip() == answer.text
    assert tuple(event.token_id for event in events) == answer.generation.token_ids
    assert [event.receipt is None for event in events] == [True] * (len(events) - 1) + [False]
    assert events[-1].receipt.shares() == answer.receipt.shares()
    assert events[-1].finish_reason == answer.finish_reason


def test_the_steering_of_one_question_overrides_the_harness(harness: Harness):
    steering = Steering(method=SteeringMethod.LOGIT_BIAS, depth=(0.0, 1.0))
    assert harness.ask(QUESTION, [FERRY], steering=steering, sampling=SHORT).receipt.layers == (0, 1)
    assert harness.ask(QUESTION, [FERRY], sampling=SHORT).receipt.layers == (1,)


def test_the_same_seed_gives_the_same_answer(harness: Harness):
    sampling = Sampling(max_new_tokens=8, temperature=1.5, seed=3)
    texts = {harness.ask(QUESTION, [FERRY], sampling=sampling).text for _ in range(2)}
    assert len(texts) == 1
    other = sampling.model_copy(update={"seed": 4})
    assert harness.ask(QUESTION, [FERRY], sampling=other).text not in texts


def test_explain_gives_each_memory_its_influence(harness: Harness):
    found = harness.explain(QUESTION, [FERRY, NEUTRAL, MUSEUM], sampling=SHORT)
    assert set(found.influence) == {"ferry", "bridge", "museum"}
    assert all(np.isfinite(list(found.influence.values())))
    assert found.answer.text == harness.ask(QUESTION, [FERRY, NEUTRAL, MUSEUM], sampling=SHORT).text
    assert [span.name for span in found.plan.spans] == ["ferry", "bridge", "museum"]


def test_explain_leaves_the_other_memories_steered_as_they_were(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    scored = salience.harness.score

    def score(lm, requests, continuations):
        asked.extend({s.name: s.share for s in request.plan.spans} for request in requests)
        return scored(lm, requests, continuations)

    monkeypatch.setattr(salience.harness, "score", score)
    harness.explain(QUESTION, [FERRY, MUSEUM], sampling=SHORT)
    whole, without_ferry, without_museum = asked
    assert without_ferry == {"museum": whole["museum"]}
    assert without_museum == {"ferry": whole["ferry"]}


def test_a_prompt_over_the_window_says_by_how_much(harness: Harness):
    for ask in (harness.ask, harness.explain, lambda *a, **k: list(harness.stream(*a, **k))):
        with pytest.raises(PromptTooLong, match=r"which is \d+ over the context window of 2048"):
            ask("long " * 3000, [FERRY], sampling=SHORT)
    length = len(harness.prepare(QUESTION, [FERRY])[0].token_ids)
    with pytest.raises(PromptTooLong, match=f"has {length} tokens .* which is 1 over"):
        harness.ask(QUESTION, [FERRY], sampling=Sampling(max_new_tokens=2049 - length))
    assert harness.ask(QUESTION, [FERRY], sampling=SHORT).prompt.token_ids[-1] is not None


def test_a_block_that_the_chat_template_drops_is_refused_by_name(tiny_lm: LanguageModel):
    from transformers import AutoTokenizer

    from salience_models.errors import BlockDropped

    tokenizer = AutoTokenizer.from_pretrained(tiny_lm.info.path)
    tokenizer.chat_template = "{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    lm = LanguageModel(tiny_lm.model, tokenizer, tiny_lm.info)
    with pytest.raises(BlockDropped, match=r"block 'ferry' .* must come out of the chat template as it is"):
        Harness(lm).ask(QUESTION, [FERRY], sampling=SHORT)


def constraint(rule_id: str, rule: Mapping[str, object], **rest: object) -> Memory:
    return Memory.model_validate(
        {"content": f"Rule {rule_id}.", "type": "constraint", "memory_id": rule_id, "rule": dict(rule)} | rest
    )


def test_rules_of_constraints_bind_every_way_of_answering(harness: Harness):
    memories = [FERRY, constraint("yes-no", {"allow_values": ["yes", "no"]})]
    free = constraint("yes-no", {"allow_values": ["yes"]}).model_copy(update={"rule": None})
    assert harness.ask(QUESTION, [FERRY, free], sampling=SHORT).text not in ("yes", "no")
    answer = harness.ask(QUESTION, memories, sampling=SHORT)
    assert answer.text in ("yes", "no")
    assert answer.generation.constraint_events
    streamed = harness.stream(QUESTION, memories, sampling=SHORT)
    assert "".join(event.text for event in streamed) == answer.text
    found = harness.explain(QUESTION, memories, sampling=SHORT)
    assert found.answer.text == answer.text
    assert set(found.influence) == {"ferry", "yes-no"}


def test_of_two_rules_on_one_key_the_trusted_memorys_binds(harness: Harness):
    strong = constraint("strong", {"allow_values": ["yes"], "trust": 0.1}, key="k", trust=0.9)
    weak = constraint("weak", {"allow_values": ["no"], "trust": 1.0}, key="k", trust=0.5)
    answer = harness.ask(QUESTION, [strong, weak], sampling=SHORT)
    assert answer.text == "yes"
    assert answer.generation.constraint_events[0].rule_ids == ("weak", "strong")


def test_rules_that_cannot_be_kept_are_refused_by_the_memorys_name(harness: Harness):
    with pytest.raises(ValueError, match=r"^rule of memory 'odd': json_schema.not cannot be enforced"):
        harness.ask(QUESTION, [constraint("odd", {"json_schema": {"not": {}}})], sampling=SHORT)
    pair = [constraint("a", {"allow_values": ["yes"]}), constraint("b", {"forbid_phrases": ["YES"]})]
    with pytest.raises(ConstraintContradiction, match=r"\['a', 'b'\] must leave a value"):
        harness.ask(QUESTION, pair, sampling=SHORT)


@pytest.mark.parametrize("is_rules", [True, False])
def test_a_broken_answer_is_withheld_where_the_memory_or_its_rule_asks_for_it(
    harness: Harness, is_rules: bool
):
    breaks = {"break_on_violation": True}
    rule = {"check": "never said by it"} | (breaks if is_rules else {})
    memory = constraint("polite", rule, **({} if is_rules else breaks))
    answer = harness.ask(QUESTION, [memory], sampling=SHORT)
    assert answer.text == '{"error": "CONSTRAINT_VIOLATION", "rule_id": "polite"}'
    assert answer.finish_reason == "content_filter"
    with pytest.raises(ValueError, match=r"got none under the rules \['polite'\]"):
        harness.explain(QUESTION, [memory], sampling=SHORT)


@pytest.mark.model
def test_the_readmes_lines_answer_from_a_memory():
    harness = Harness.load("bundled:smollm2-135m-instruct")
    answer = harness.ask(
        "When does the ferry leave?",
        memories=[
            Memory(content="The ferry leaves at seven.", semantic_weight=0.9),
            Memory(content="The museum opens at ten."),
        ],
    )
    assert "seven" in answer.text.lower()
    ferry, museum = answer.receipt.blocks
    assert answer.receipt.shares()[ferry] > answer.receipt.unbiased_shares()[ferry]
    assert answer.receipt.shares()[ferry] > answer.receipt.shares()[museum]
