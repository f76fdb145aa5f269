import json
import math
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch

from salience_models import (
    LanguageModel,
    Request,
    Sampling,
    StreamEvent,
    answer_with_draft,
    generate,
    repeat,
    score,
    stream,
)
from salience_models.constraints import EventKind, TokenConstraint, Vocabulary, compile_rules
from salience_models.constraints import Rule as MadeRule
from salience_models.constraints.bans import contains_banned
from salience_models.decoding.scoring import DraftedAnswer

Constrain = Callable[..., TokenConstraint]
Speak = Callable[..., LanguageModel]
PROMPT = (10, 11, 12)
HOT = {"temperature": 1.5, "max_new_tokens": 40}
OBJECT = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 15}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


def say(lm: LanguageModel, constraint: TokenConstraint | None, **settings: Any) -> Any:
    (answer,) = generate(lm, [Request(PROMPT, constraint=constraint)], Sampling(**settings))
    return answer


def collect(
    lm: LanguageModel, requests: list[Request], samplings: list[Sampling], **rest: Any
) -> list[list[StreamEvent]]:
    rows: list[list[StreamEvent]] = [[] for _ in requests]
    for event in stream(lm, requests, samplings, **rest):
        rows[event.row].append(event)
    return rows


def test_random_model_keeps_every_rule_in_a_mixed_batch(lm: LanguageModel, constrain: Constrain) -> None:
    """Near-uniform logits are the adversary; a third of the answers have no rules."""
    bans = ["a", "the", "badger", "1", "é"]
    constraints = [
        None,
        constrain({"forbid_phrases": bans}),
        constrain({"json_schema": OBJECT}),
        None,
        constrain({"regex": "[a-z]{3,6}"}),
        constrain({"allow_values": ["yes", "no", "maybe"]}),
    ] * 2
    requests = [Request(PROMPT, constraint=constraint) for constraint in constraints]
    samplings = [Sampling(**HOT, seed=i) for i in range(len(requests))]
    answers = generate(lm, requests, samplings)
    for request, sampling, answer in zip(requests, samplings, answers, strict=True):
        if request.constraint is not None:
            assert [v for v in answer.violations if not v.is_incomplete] == []
            assert answer.finish_reason in ("stop", "length")
        (alone,) = generate(lm, [request], sampling)
        assert alone.token_ids == answer.token_ids
    assert all(not contains_banned(answer.text, bans) for answer in answers[1::6])
    assert any(contains_banned(answer.text, bans) for answer in answers[0::6])
    for answer in answers[2::6]:
        value = json.loads(answer.text)
        assert set(value) == {"ok", "n"}
        assert value["n"] <= 15
    assert all(re.fullmatch("[a-z]{3,6}", answer.text) for answer in answers[4::6])
    assert {answer.text for answer in answers[5::6]} <= {"yes", "no", "maybe"}


def test_mask_costs_one_call_a_step_and_nothing_without_constraints(
    lm: LanguageModel, constrain: Constrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    from salience_models.decoding import generation

    calls: list[int] = []
    apply = generation.apply_constraint_mask
    monkeypatch.setattr(
        generation,
        "apply_constraint_mask",
        lambda scores, masks: calls.append(len(masks)) or apply(scores, masks),
    )
    free, bound = Request(PROMPT), Request(PROMPT, constraint=constrain({"forbid_phrases": ["a"]}))
    settings = Sampling(max_new_tokens=5, ignore_eos=True)
    generate(lm, [free, free], settings)
    assert calls == []
    generate(lm, [free, bound, bound], settings)
    assert calls == [3] * 5


def test_answers_do_not_change_for_the_rules_of_others(lm: LanguageModel, constrain: Constrain) -> None:
    free = Request(PROMPT)
    (alone,) = generate(lm, [free], Sampling(**HOT, seed=3))
    strict = Request(PROMPT, constraint=constrain({"regex": "x+"}))
    together = generate(lm, [strict, free, strict], [Sampling(**HOT, seed=seed) for seed in (1, 3, 2)])
    assert together[1].token_ids == alone.token_ids
    assert together[1].constraint_events == ()
    assert generate(lm, [free], Sampling(**HOT, seed=3))[0].token_ids == alone.token_ids


def test_stream_gives_what_generate_does(lm: LanguageModel, constrain: Constrain) -> None:
    requests = [
        Request(PROMPT, constraint=constrain({"json_schema": OBJECT})),
        Request(PROMPT, constraint=constrain({"forbid_phrases": ["e", "t"]})),
    ]
    samplings = [Sampling(**HOT, seed=4, top_logprobs=3)] * 2
    for answer, events in zip(
        generate(lm, requests, samplings), collect(lm, requests, samplings), strict=True
    ):
        assert tuple(event.token_id for event in events) == answer.token_ids
        assert "".join(event.text for event in events) == answer.text
        assert tuple(event.raw_logprob for event in events) == answer.raw_logprobs
        assert tuple(event.top_logprobs for event in events) == answer.top_logprobs
        assert events[-1].violations == answer.violations
        assert events[-1].constraint_events == answer.constraint_events


def test_banned_word_becomes_another_one(speak: Speak, constrain: Constrain) -> None:
    lm, ban = speak("a badger"), constrain({"forbid_phrases": ["badger"]})
    assert say(lm, None).text == "a badger"
    answer = say(lm, ban)
    assert answer.text.startswith("a badge")
    assert not contains_banned(answer.text, ["badger"])
    (masked,) = [event for event in answer.constraint_events if event.kind is EventKind.MASKED]
    assert (masked.rule_ids, masked.count) == (("r0",), 1)


def test_end_token_waits_for_the_json_to_be_complete(speak: Speak, constrain: Constrain) -> None:
    """Both end tokens: the model wants one of them from the first step on."""
    for end in (0, 1):
        answer = say(speak("", then=end), constrain({"json_schema": OBJECT}), max_new_tokens=60)
        assert answer.finish_reason == "stop"
        assert json.loads(answer.text)["n"] <= 15
        assert answer.token_ids[-1] == end


def test_special_and_padded_tokens_that_the_model_wants_are_never_chosen(
    speak: Speak, constrain: Constrain, vocabulary: Vocabulary
) -> None:
    for token in (2, vocabulary.n_vocab - 1):
        lm = speak("ok", then=token)
        answer = say(lm, constrain({"forbid_phrases": ["zzz"]}), max_new_tokens=6)
        assert token not in answer.token_ids
        assert answer.text.startswith("ok")
        assert token in say(lm, None, max_new_tokens=6).token_ids


DEAD_END = ({"grammar": 'start: "foobar" | "foxtrot"\n'}, {"forbid_phrases": ["foobar"]})


def test_dead_end_is_left_by_stepping_back_over_unseen_tokens(speak: Speak, constrain: Constrain) -> None:
    """`foob` can only become what is banned; three tokens are taken back, as if never said."""
    lm, constraint = speak("foobar"), constrain(*DEAD_END)
    answer = say(lm, constraint)
    assert (answer.text, answer.finish_reason) == ("foxtrot", "stop")
    (event,) = [e for e in answer.constraint_events if e.kind is EventKind.STEPPED_BACK]
    assert event.position == 4
    assert event.count == 3


def test_tokens_taken_back_leave_no_trace_in_the_cache(lm: LanguageModel, constrain: Constrain) -> None:
    """The answer's log-probabilities are those of the same tokens read in one pass."""
    tokens = {data: i for i, data in enumerate(lm.vocabulary.token_bytes)}
    wanted = {tokens[bytes([byte])]: 50.0 for byte in b"foba"}
    answer = say(lm, constrain(*DEAD_END), logit_bias=wanted)
    assert answer.text == "foxtrot"
    assert [e.count for e in answer.constraint_events if e.kind is EventKind.STEPPED_BACK] == [3]
    (verdict,) = score(lm, [Request(PROMPT)], [answer.token_ids])
    assert answer.raw_logprobs == pytest.approx(verdict.logprobs, abs=1e-4)


def test_stepping_back_disturbs_no_other_row(speak: Speak, constrain: Constrain) -> None:
    lm, constraint = speak("foobar and more"), constrain(*DEAD_END)
    requests = [
        Request(PROMPT),
        Request(PROMPT, constraint=constraint),
        Request(PROMPT, constraint=constraint),
    ]
    samplings = [Sampling(max_new_tokens=n, temperature=0.2, seed=1) for n in (15, 20, 3)]
    answers = generate(lm, requests, samplings)
    for request, sampling, answer in zip(requests, samplings, answers, strict=True):
        (alone,) = generate(lm, [request], sampling)
        assert answer.token_ids == alone.token_ids
        assert answer.raw_logprobs == pytest.approx(alone.raw_logprobs, abs=1e-4)
    assert answers[1].text == "foxtrot"


@pytest.mark.parametrize(("hold_back", "text"), [(0, "foo"), (1, "foo"), (2, "foxtrot"), (8, "foxtrot")])
def test_stream_goes_back_as_far_as_it_held_back(
    hold_back: int, text: str, speak: Speak, constrain: Constrain
) -> None:
    requests = [Request(PROMPT, constraint=constrain(*DEAD_END))]
    (events,) = collect(speak("foobar"), requests, [Sampling()], hold_back_tokens=hold_back)
    assert "".join(event.text for event in events).startswith(text)
    last = events[-1]
    if text == "foo":
        assert (last.finish_reason, last.token_id, last.rule_ids) == ("content_filter", None, ("r0", "r1"))
        assert last.constraint_events[-2].kind is EventKind.CONTENT_FILTER
        assert [v.is_incomplete for v in last.violations] == [True]
    else:
        assert last.finish_reason == "stop"


def test_dead_end_of_which_nothing_leads_out_is_a_content_filter(speak: Speak, constrain: Constrain) -> None:
    constraint = constrain({"grammar": 'start: "ab" /[0-9]/ "cd"\n'}, {"regex": "ab[0-9]ce|ab7x|ab"})
    answer = say(speak("ab7cd"), constraint)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", (), "content_filter")
    assert answer.rule_ids == ("r1", "r0")[::-1]
    assert math.isfinite(sum(answer.logprobs))


def test_caches_that_cannot_go_back_end_by_the_content_filter(speak: Speak, constrain: Constrain) -> None:
    request = Request(PROMPT, constraint=constrain(*DEAD_END))
    for cache in ("static", "dynamic"):
        (answer,) = generate(speak("foobar"), [request], Sampling(), cache=cache)
        assert answer.finish_reason == "content_filter"
        with pytest.raises(ValueError, match="cache must be 'growing' to hold tokens back"):
            next(stream(speak("x"), [request], [Sampling()], cache=cache, hold_back_tokens=2))


def test_limit_does_not_cut_to_a_banned_whole_word(speak: Speak, constrain: Constrain) -> None:
    """`cats` is allowed, and so is `cat` while a letter may follow; the last token must not leave `cat`."""
    ban = constrain({"forbid_phrases": ["cat"], "whole_word": True})
    assert say(speak("two cats"), ban).text == "two cats"
    for n in range(1, 9):
        answer = say(speak("two cats"), ban, max_new_tokens=n)
        assert not contains_banned(answer.text, ["cat"], whole_word=True)
        assert answer.violations == ()
        assert len(answer.token_ids) == n


def test_stop_string_does_not_cut_to_a_banned_whole_word(speak: Speak, constrain: Constrain) -> None:
    ban = constrain({"forbid_phrases": ["cat"], "whole_word": True})
    assert say(speak("two cats"), None, stop=("s",)).text == "two cat"
    answer = say(speak("two cats"), ban, stop=("s",), max_new_tokens=20)
    assert not contains_banned(answer.text, ["cat"], whole_word=True)
    assert answer.violations == ()


def test_stop_string_ends_a_constrained_answer_and_says_it_is_incomplete(
    speak: Speak, constrain: Constrain
) -> None:
    answer = say(speak('{"ok":true,"n":3}'), constrain({"json_schema": OBJECT}), stop=(":",))
    assert (answer.text, answer.finish_reason) == ('{"ok"', "stop")
    assert [(v.rule_id, v.is_incomplete) for v in answer.violations] == [("r0", True)]
    assert [e.kind for e in answer.constraint_events] == [EventKind.INCOMPLETE]


def test_answers_of_one_prompt_differ_by_seed(lm: LanguageModel, constrain: Constrain) -> None:
    request = Request(PROMPT, constraint=constrain({"regex": "[a-z]{8}"}))
    requests, samplings = repeat(request, Sampling(**HOT, seed=7), 4)
    answers = generate(lm, requests, samplings)
    assert len({answer.text for answer in answers}) == 4
    for i, answer in enumerate(answers):
        (alone,) = generate(lm, [request], Sampling(**HOT, seed=7 + i))
        assert alone.token_ids == answer.token_ids
    assert [s.seed for s in repeat(request, Sampling(seed=2**64 - 1), 2)[1]] == [2**64 - 1, 0]
    assert repeat(request, Sampling(), 2)[1] == [Sampling()] * 2
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        repeat(request, Sampling(), 0)


def test_bias_and_penalties_come_before_the_mask(lm: LanguageModel, constrain: Constrain) -> None:
    constraint = constrain({"allow_values": ["ab", "ac"]})
    tokens = {data: i for i, data in enumerate(lm.vocabulary.token_bytes)}
    a, b, c, z = (tokens[letter] for letter in (b"a", b"b", b"c", b"z"))
    for wanted, text in ((b, "ab"), (c, "ac")):
        answer = say(lm, constraint, logit_bias={z: 100.0, a: -100.0, wanted: 90.0})
        assert answer.text == text


def test_logprobs_are_of_the_masked_logits_and_the_raw_ones_stay(
    lm: LanguageModel, constrain: Constrain
) -> None:
    constraint = constrain({"regex": "[xy]"})
    answer = say(lm, constraint, top_logprobs=5)
    logits = lm.prefill([Request(PROMPT)]).logits[0]
    tokens = {data: i for i, data in enumerate(lm.vocabulary.token_bytes)}
    ids = [tokens[b"x"], tokens[b"y"]]
    masked = logits[ids].log_softmax(-1)
    best = int(masked.argmax())
    assert answer.logprobs[0] == pytest.approx(float(masked[best]), abs=1e-5)
    assert answer.raw_logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[ids[best]]), abs=1e-5)
    assert dict(answer.top_logprobs[0]) == pytest.approx(
        dict(zip(ids, masked.tolist(), strict=True)), abs=1e-5
    )
    assert [len(step) for step in answer.top_logprobs] == [2, 2]  # then one of the two end tokens
    assert sum(math.exp(logprob) for _, logprob in answer.top_logprobs[1]) == pytest.approx(1.0)


def test_filters_of_sampling_never_bring_a_masked_token_back(lm: LanguageModel, constrain: Constrain) -> None:
    constraint = constrain({"regex": "[xyz]{30}"})
    for settings in ({"top_k": 1}, {"top_k": 400}, {"top_p": 0.01}, {"min_p": 0.9}, {"temperature": 90.0}):
        answer = say(lm, constraint, **({"temperature": 1.0, "seed": 0, "max_new_tokens": 60} | settings))
        assert re.fullmatch("[xyz]{30}", answer.text)


def test_answer_is_withheld_until_it_has_passed_the_check(speak: Speak, constrain: Constrain) -> None:
    rule = {"check": "please", "break_on_violation": True}
    request = [Request(PROMPT, constraint=constrain(rule | {"rule_id": "polite"}))]
    shown: list[int] = []
    for text, events in (
        (said, collect(speak(said), request, [Sampling()], hold_back_tokens=0)[0])
        for said in ("yes please", "no")
    ):
        shown.append(len(events))
        if text == "no":
            (last,) = events
            assert json.loads(last.text) == {"error": "CONSTRAINT_VIOLATION", "rule_id": "polite"}
            assert (last.finish_reason, last.token_id, last.rule_ids) == ("content_filter", None, ("polite",))
            assert [v.rule_id for v in last.violations] == ["polite"]
            assert last.receipt is not None
        else:
            assert "".join(event.text for event in events) == text
            assert events[-1].finish_reason == "stop"
    assert shown == [11, 1]


def test_nothing_is_sent_before_the_end_where_a_violation_would_break_it(
    speak: Speak, constrain: Constrain
) -> None:
    lm, constraint = speak("yes please"), constrain({"check": "please", "break_on_violation": True})
    fed: list[int] = []
    lm.model.register_forward_pre_hook(lambda *_: fed.append(1))
    next(stream(lm, [Request(PROMPT, constraint=constraint)], [Sampling()]))
    assert len(fed) == len("yes please") + 1
    fed.clear()
    next(stream(lm, [Request(PROMPT)], [Sampling()]))
    assert len(fed) == 1


def test_cut_answer_is_replaced_where_its_rule_breaks_on_violation(
    speak: Speak, constrain: Constrain
) -> None:
    rule = {"json_schema": OBJECT, "break_on_violation": True}
    answer = say(speak('{"ok":true,"n":3}'), constrain(rule), max_new_tokens=5)
    assert json.loads(answer.text)["error"] == "CONSTRAINT_VIOLATION"
    assert (answer.token_ids, answer.logprobs, answer.finish_reason) == ((), (), "content_filter")
    whole = say(speak('{"ok":true,"n":3}'), constrain(rule))
    assert json.loads(whole.text) == {"ok": True, "n": 3}


def test_check_that_fails_is_reported_and_the_answer_kept(speak: Speak, constrain: Constrain) -> None:
    answer = say(speak("no"), constrain({"check": "please"}))
    assert (answer.text, answer.finish_reason) == ("no", "stop")
    assert [(v.rule_id, v.kind) for v in answer.violations] == [("r0", "check")]
    assert [e.kind for e in answer.constraint_events] == [EventKind.VIOLATION]


def test_emoji_of_several_tokens_is_generated_under_a_grammar(speak: Speak, constrain: Constrain) -> None:
    answer = say(speak('"🙂"'), constrain({"json_schema": {"type": "string"}}))
    assert answer.text == '"🙂"'


def test_tool_call_names_a_known_tool_with_its_own_arguments(lm: LanguageModel, constrain: Constrain) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    days = {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 7}}}
    tools = {
        "weather": city | {"additionalProperties": False},
        "plan": days | {"additionalProperties": False},
    }
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, arguments in tools.items()
    ]
    schema = json.dumps({"anyOf": calls})
    constraint = constrain({"grammar": f'start: "<tool_call>" %json {schema} "</tool_call>"\n'})
    request = Request(PROMPT, constraint=constraint)
    answers = generate(lm, *repeat(request, Sampling(temperature=1.5, max_new_tokens=150, seed=0), 6))
    named = set()
    for answer in answers:
        assert (answer.finish_reason, answer.violations) == ("stop", ())
        call = json.loads(answer.text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        jsonschema.validate(call["arguments"], tools[call["name"]])
        named.add(call["name"])
    assert named == set(tools)


def test_end_token_may_be_ignored_under_bans_and_not_under_grammars(
    lm: LanguageModel, constrain: Constrain
) -> None:
    settings = Sampling(temperature=1.0, seed=0, max_new_tokens=50, ignore_eos=True)
    (answer,) = generate(lm, [Request(PROMPT, constraint=constrain({"forbid_phrases": ["a"]}))], settings)
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 50)
    assert not set(answer.token_ids) & {0, 1}
    with pytest.raises(ValueError, match=r"samplings\[0\].ignore_eos must be False beside rules that say"):
        generate(lm, [Request(PROMPT, constraint=constrain({"regex": "a"}))], settings)


def test_constraint_of_another_vocabulary_is_refused(lm: LanguageModel) -> None:
    other = Vocabulary.from_bytes([b"a", b"b", None], eos_token_ids=[2])
    constraint = compile_rules([MadeRule(rule_id="r", regex="a")], other)
    with pytest.raises(
        ValueError, match=r"requests\[1\].constraint must be compiled for this model's vocabulary"
    ):
        generate(lm, [Request(PROMPT), Request(PROMPT, constraint=constraint)])


def test_bias_outside_the_vocabulary_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(
        ValueError, match=r"samplings\[0\].logit_bias must name tokens in \[0, 448\), got \[448\]"
    ):
        say(lm, None, logit_bias={448: 1.0})


@pytest.mark.parametrize("judge", [score, lambda lm, r, c: answer_with_draft(lm, r, c, 4)])
def test_scoring_refuses_constraints_rather_than_ignore_them(
    judge: Callable[..., list[DraftedAnswer]], lm: LanguageModel, constrain: Constrain
) -> None:
    request = Request(PROMPT, constraint=constrain({"regex": "a"}))
    with pytest.raises(ValueError, match=r"requests\[0\].constraint must be None to score or verify"):
        judge(lm, [request], [(20, 21)])


def test_prompt_tail_reaches_the_answer(speak: Speak, constrain: Constrain) -> None:
    ban = constrain({"forbid_phrases": ["badger"]})
    assert say(speak("ger"), ban).text == "ger"
    answer = say(speak("ger"), ban.after("a bad"))
    assert not answer.text.startswith("ger")
    assert answer.violations == ()


@pytest.mark.model
def test_smollm2_keeps_bans_and_schema_at_high_temperature(smollm2: tuple[Any, LanguageModel]) -> None:
    _, lm = smollm2
    bans = ["the", "and", "is", "of", "cat", "data", "system", "model"]
    rules = [MadeRule(rule_id="bans", forbid_phrases=tuple(bans))]
    schema = MadeRule(rule_id="json", json_schema=OBJECT)
    assert lm.tokenizer is not None
    prompt = tuple(lm.tokenizer("The most important thing about")["input_ids"])
    requests = [Request(prompt, constraint=compile_rules(rules, lm.vocabulary))] * 6
    requests += [Request(prompt, constraint=compile_rules([*rules, schema], lm.vocabulary))] * 2
    samplings = [Sampling(temperature=1.2, max_new_tokens=48, seed=i) for i in range(8)]
    torch.manual_seed(0)
    answers = generate(lm, requests, samplings)
    for answer in answers:
        assert not contains_banned(answer.text, bans)
        assert [v for v in answer.violations if not v.is_incomplete] == []
    for answer in answers[6:]:
        if answer.finish_reason == "stop":
            assert json.loads(answer.text)["n"] <= 15
