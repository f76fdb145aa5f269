"""Step 5: the answer as it is shown: masked, without references, and never the prompt's own marks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from salience import Harness, LanguageModel, Memory, Sampling, Session, StoredMemory, TurnOptions

FERRY = Memory("The ferry leaves at seven.", memory_id="ferry")
LONG = Sampling(max_new_tokens=60)


@contextmanager
def saying(lm: Any, text: str) -> Iterator[None]:
    """The model's likeliest next tokens spell `text`, one after the other, whatever it was asked."""
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    said: list[int] = []

    def prefer(_: object, __: object, output: Any) -> None:
        # One pass for the prompt, then one for each token of the answer.
        output.logits[..., -1, (*ids, lm.info.eos_token_ids[0])[min(len(said), len(ids))]] += 1000.0
        said.append(0)

    hook = lm.model.register_forward_hook(prefer)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize(
    "mark",
    [
        "[MEMORY_CONTEXT]",
        "[/MEMORY_CONTEXT]",
        "[/Memory_Context]",
        "[CONSTRAINTS]",
        "[/CONSTRAINTS]",
        "[MODEL_CONTEXT_PROTOCOL v1.2 | fp:sha256:",
        "［/ＭＥＭＯＲＹ_CONTEXT］",
    ],
)
def test_no_mark_of_the_prompt_comes_back_in_an_answer_however_likely(harness: Harness, mark: str):
    memories = [FERRY, Memory("Be kind.", type="constraint")]
    with saying(harness.lm, f"Seven. {mark} So."):
        answer = harness.ask("When?", memories, sampling=LONG)
        streamed = list(harness.session().stream("When?", memories, sampling=LONG))
    assert answer.text.startswith("Seven.")
    for text in (answer.text, "".join(event.text for event in streamed)):
        assert mark.rstrip("]］") not in text
    assert any("protocol" in event.rule_ids for event in answer.turn.generation.constraint_events)


def test_a_mark_that_the_prompt_does_not_hold_is_somebodys_text(harness: Harness):
    with saying(harness.lm, "[SESSION_STATE] (weight: 0.5)"):
        assert harness.ask("When?", [FERRY], sampling=LONG).text == "[SESSION_STATE] (weight: 0.5)"


def test_a_hot_model_says_no_mark_either(harness: Harness):
    pieces = harness.lm.tokenizer("[/MEMORY_CONTEXT]", add_special_tokens=False)["input_ids"]
    for seed in range(5):
        hot = Sampling(max_new_tokens=60, temperature=2.0, seed=seed, logit_bias=dict.fromkeys(pieces, 100.0))
        text = harness.ask("When?", [FERRY], sampling=hot).text
        assert "[MEMORY_CONTEXT" not in text
        assert "[/MEMORY_CONTEXT" not in text
        assert "[MODEL_CONTEXT_PROTOCOL" not in text


def test_the_digest_of_a_long_dialogue_does_not_come_back(harness: Harness, roomy: TurnOptions):
    options = roomy.model_copy(update={"has_summaries": False})
    talk = Harness(harness.lm, options=options).session()
    for place in range(8):
        talk.chat(
            f"My meeting with Bob{place} is tomorrow. " + "bla " * 20, sampling=Sampling(max_new_tokens=2)
        )
    with saying(harness.lm, "Well. [CONVERSATION_SUMMARY] so"):
        answer = talk.chat("And?", sampling=LONG)
    assert "[CONVERSATION_SUMMARY]" in answer.turn.prompt.text
    assert answer.text.startswith("Well.")
    assert "[CONVERSATION_SUMMARY" not in answer.text


def test_references_are_read_and_not_shown(harness: Harness):
    with saying(harness.lm, 'At seven<memory_ref id="ferry" type="external"/>.'):
        answer = harness.ask("When?", [FERRY], sampling=LONG)
    assert answer.text == "At seven."
    assert [reference.memory_id for reference in answer.references] == ["ferry"]


def test_what_a_rule_let_pass_is_shown_to_the_letter(harness: Harness):
    """Taking a reference out could join two halves of what is forbidden."""
    value = '<memory_ref id="a" type="semantic"/>x'
    rule = Memory("Answer so.", type="constraint", rule={"allow_values": [value]})
    assert harness.ask("Is it?", [rule], sampling=LONG).text == value


def test_a_model_that_only_continues_text_does_not_go_on_asking_itself(
    with_tokenizer: Callable[..., LanguageModel], roomy: TurnOptions
):
    lm = with_tokenizer(None)
    with saying(lm, " At seven.\nQuestion: And then?"):
        answer = Harness(lm, options=roomy).ask("When?", [FERRY], sampling=LONG)
    assert answer.text == "At seven."


def test_a_rule_masks_the_answer_as_long_as_it_lives(ann: Session, declare: Callable[..., StoredMemory]):
    short = Sampling(max_new_tokens=6)
    rule = declare("Answer yes or no.", "constraint", rule={"allow_values": ["yes", "no"]})
    assert ann.chat("Is it?", sampling=short).text in ("yes", "no")
    ann.forget(rule.memory_id)
    assert ann.chat("Is it?", sampling=short).text not in ("yes", "no")


def test_an_answer_that_rules_leave_no_way_on_goes_back_and_another(
    ann: Session, declare: Callable[..., StoredMemory]
):
    """Only `nyy` is neither foreign to the pattern nor banned; thirteen other starts lead nowhere."""
    declare("Answer so.", "constraint", rule={"regex": "[a-m]xx|nyy"})
    declare("Never say xx.", "constraint", rule={"forbid_phrases": ["xx"]})
    for seed in range(3):
        answer = ann.chat("Is it?", sampling=Sampling(max_new_tokens=5, temperature=1.0, seed=seed))
        assert (answer.text, answer.finish_reason) == ("nyy", "stop")
