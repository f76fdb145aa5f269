"""`salience constrain` and `constrain check`: rules tried on a model, and checked for a tokenizer."""

import json
import shutil
from pathlib import Path

import pytest

from salience.cli import main
from salience.constraint_trace import trace_masked
from salience.rule_check import check_rules
from salience_models import (
    LanguageModel,
    ModelsError,
    Request,
    Rule,
    Sampling,
    compile_rules,
    generate,
)
from salience_models.weights.loader import load_vocabulary

VALUES = '{"rule_id": "colour", "allow_values": ["green", "greyish"]}'


@pytest.fixture
def model(tiny_checkpoint: Path) -> list[str]:
    return ["--model", str(tiny_checkpoint)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command; returns what it printed, errors too."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    return out + err


def constrain(lm: LanguageModel, *rules: Rule, prompt: str = "Which?") -> Request:
    assert lm.tokenizer is not None
    ids = tuple(lm.tokenizer(prompt)["input_ids"])
    return Request(ids, constraint=compile_rules(rules, lm.vocabulary) if rules else None)


def test_an_answer_is_shown_with_every_place_the_rule_overruled_the_model(
    capsys: pytest.CaptureFixture[str], model: list[str]
):
    arguments = ("constrain", "--rule", VALUES, "--prompt", "Which?", *model, "--device", "cpu")
    found = json.loads(run(capsys, *arguments, "--json"))
    assert found["text"] in ("green", "greyish")
    assert found["finish_reason"] == "stop"
    assert found["masked"]
    assert {rule for step in found["masked"] for rule in step["rule_ids"]} == {"colour"}
    (masked,) = [event for event in found["events"] if event["kind"] == "masked"]
    assert masked["count"] == len(found["masked"])
    assert found["violations"] == []
    shown = run(capsys, *arguments)
    assert shown.startswith(found["text"])
    assert "finish reason: stop" in shown
    assert "the model wanted" in shown
    assert "check: all 1 rules are kept" in shown


def test_a_raw_prompt_is_continued_and_bans_reach_across_its_end(
    capsys: pytest.CaptureFixture[str], model: list[str]
):
    rule = '{"rule_id": "b", "regex": "[a-d]"}'
    ban = '{"rule_id": "x", "forbid_phrases": ["ya", "yb", "yc"]}'
    arguments = (
        "--rule",
        rule,
        "--rule",
        ban,
        "--raw",
        "--prompt",
        "xy",
        *model,
        "--device",
        "cpu",
        "--json",
    )
    found = json.loads(run(capsys, "constrain", *arguments))
    assert found["text"] == "d"


def test_rules_of_a_file_and_of_a_pack_bind_together(
    capsys: pytest.CaptureFixture[str], model: list[str], tmp_path: Path
):
    file = tmp_path / "rules.json"
    file.write_text(json.dumps([{"allow_values": ["25 %", "5 %"]}]))
    arguments = ("--rule", f"@{file}", "--rule", "compliance", "--prompt", "Rate?", *model, "--json")
    found = json.loads(run(capsys, "constrain", *arguments))
    assert found["text"] == "5 %"
    (dropped,) = [event for event in found["events"] if event["kind"] == "dropped_value"]
    assert dropped["rule_ids"] == ["rule-1", "rate"]


def test_rules_without_ids_are_numbered_through_all_arguments(
    capsys: pytest.CaptureFixture[str], model: list[str]
):
    texts = ('{"allow_values": ["yes", "no"]}', '{"forbid_phrases": ["no"]}', '{"regex": "[a-z]+"}')
    rules = [part for text in texts for part in ("--rule", text)]
    found = json.loads(run(capsys, "constrain", *rules, "--prompt", "Which?", *model, "--json"))
    assert found["text"] == "yes"
    (dropped,) = [event for event in found["events"] if event["kind"] == "dropped_value"]
    assert dropped["rule_ids"] == ["rule-1", "rule-2"]


def test_an_answer_that_breaks_a_verified_rule_exits_with_1(
    capsys: pytest.CaptureFixture[str], model: list[str]
):
    rules = ("--rule", VALUES, "--rule", '{"rule_id": "says", "check": "blue"}')
    shown = run(capsys, "constrain", *rules, "--prompt", "Which?", *model, code=1)
    assert "check: BROKEN: says: holds no match of 'blue'" in shown


def test_an_answer_cut_short_is_told_apart_from_a_broken_rule(
    capsys: pytest.CaptureFixture[str], model: list[str]
):
    arguments = ("--rule", VALUES, "--prompt", "Which?", *model, "--max-new-tokens", "1")
    assert "check: cut short: colour" in run(capsys, "constrain", *arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--prompt", "a"), 2, "--rule must be given, got none"),
        (("--rule", VALUES), 2, "--prompt must be given, got none"),
        (("--rule", VALUES, "--prompt", "a", "--raw", "--system", "s"), 2, "--system must be left out"),
        (("--rule", VALUES, "--rule", VALUES, "--prompt", "a"), 2, "an id of its own, got 'colour' twice"),
        (("--rule", "{", "--prompt", "a"), 1, "--rule must be JSON"),
        (("--rule", '{"regex": "a", "grammar": "b"}', "--prompt", "a"), 1, "exactly one of"),
        (("--rule", "@nowhere.json", "--prompt", "a"), 1, "cannot be read"),
        (("--rule", "complience", "--prompt", "a"), 1, "got 'complience'"),
    ],
)
def test_wrong_arguments_are_one_sentence_before_any_model_is_loaded(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
):
    shown = run(capsys, "constrain", *arguments, "--model", "no/such/model/anywhere", code=code)
    assert message in " ".join(shown.replace("│", " ").split())


def test_the_trace_of_an_answer_without_rules_is_empty(tiny_lm: LanguageModel):
    assert trace_masked(tiny_lm, constrain(tiny_lm), [65, 66]) == []


def wanting_a_letter(lm: LanguageModel) -> tuple[str, str]:
    """A prompt after which the tiny model's first choice is an ASCII letter, and that letter."""
    for prompt in "abcdefghijklmnopqrstuvwxyz":
        data = lm.vocabulary.token_bytes[int(lm.prefill([constrain(lm, prompt=prompt)]).logits.argmax())]
        if data is not None and data.isalpha():
            return prompt, data.decode()
    raise AssertionError("no prompt makes the tiny model want a letter")


def test_the_trace_names_the_rule_whose_own_mask_forbids_the_choice(tiny_lm: LanguageModel):
    prompt, wanted = wanting_a_letter(tiny_lm)
    ban = Rule(rule_id="ban", forbid_phrases=(wanted,))
    idle = Rule(rule_id="idle", forbid_phrases=("something else entirely",))
    request = constrain(tiny_lm, ban, idle, prompt=prompt)
    (answer,) = generate(tiny_lm, [request], Sampling(max_new_tokens=4))
    step = trace_masked(tiny_lm, request, answer.token_ids)[0]
    assert (step.position, step.wanted, step.rule_ids) == (0, wanted, ("ban",))
    assert step.taken not in (None, wanted)
    assert not step.is_dead_end


def test_a_choice_that_nothing_could_follow_is_told_apart(tiny_lm: LanguageModel):
    """The rule allows what was wanted; the answer went on with something else all the same."""
    prompt, wanted = wanting_a_letter(tiny_lm)
    rule = Rule(rule_id="idle", forbid_phrases=("something else entirely",))
    request = constrain(tiny_lm, rule, prompt=prompt)
    other = tiny_lm.vocabulary.token_bytes.index(b"!")
    (step,) = trace_masked(tiny_lm, request, [other])
    assert (step.wanted, step.taken, step.is_dead_end) == (wanted, "!", True)
    assert trace_masked(tiny_lm, request, [other], is_greedy=False) == []


def test_check_tells_each_rule_its_time_states_and_refusal(
    capsys: pytest.CaptureFixture[str], model: list[str], tmp_path: Path
):
    file = tmp_path / "rules.json"
    rules = [
        {"rule_id": "names", "forbid_phrases": ["badger"]},
        {"rule_id": "odd", "json_schema": {"type": "object", "not": {}}},
        {"rule_id": "marks", "forbid_phrases": ["\u0301"]},
        {"rule_id": "verify", "check": "a"},
    ]
    file.write_text(json.dumps(rules))
    found = json.loads(run(capsys, "constrain", "check", str(file), *model, "--json", code=1))
    by_id = {rule["rule_id"]: rule for rule in found["rules"]}
    assert by_id["names"]["refusal"] is None
    assert by_id["names"]["n_states"] >= 1
    assert "json_schema.not cannot be enforced" in by_id["odd"]["refusal"]
    assert "forbid_phrases cannot be enforced" in by_id["marks"]["refusal"]
    assert by_id["verify"] == by_id["verify"] | {"refusal": None, "n_states": 0, "kind": "check"}
    assert not found["is_ok"]
    shown = run(capsys, "constrain", "check", str(file), *model, code=1)
    assert "refused" in shown
    assert "together: ok, without the 2 refused" in shown
    file.write_text(json.dumps(rules[1:3]))
    assert "together" not in run(capsys, "constrain", "check", str(file), *model, code=1)


def test_check_names_the_two_rules_that_contradict(tiny_lm: LanguageModel):
    rules = [
        {"rule_id": "a", "allow_values": ["yes"]},
        {"rule_id": "idle", "forbid_phrases": ["badger"]},
        {"rule_id": "b", "forbid_phrases": ["yes"]},
    ]
    report = check_rules(rules, tiny_lm.vocabulary, walk_tokens=4)
    assert not report.is_ok
    (told,) = report.contradictions
    assert "['a', 'b']" in told


def test_check_passes_on_rules_that_go_together_and_tells_which_does_not_bind(tiny_lm: LanguageModel):
    rules = [
        {"rule_id": "old", "key": "k", "forbid_phrases": ["a"], "declared_at": 1},
        {"rule_id": "new", "key": "k", "forbid_phrases": ["b"], "declared_at": 2},
    ]
    report = check_rules(rules, tiny_lm.vocabulary, walk_tokens=4)
    assert report.is_ok
    assert [event.rule_ids for event in report.events] == [("old", "new")]


def test_check_reads_no_weights(capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path):
    folder = tmp_path / "tokenizer"
    shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    shown = run(capsys, "constrain", "check", "compliance_verdict", "--tokenizer", str(folder))
    assert "together: ok" in shown
    assert "limit: " in shown


def test_a_vocabulary_without_weights_is_the_loaded_models(tiny_checkpoint: Path, tiny_lm: LanguageModel):
    assert load_vocabulary(tiny_checkpoint) == tiny_lm.vocabulary


def test_a_folder_without_a_tokenizer_is_refused(tiny_checkpoint: Path, tmp_path: Path):
    shutil.copy(tiny_checkpoint / "config.json", tmp_path)
    with pytest.raises(ModelsError, match="must hold a tokenizer"):
        load_vocabulary(tmp_path)


@pytest.mark.model
def test_a_bundled_models_vocabulary_needs_no_weights():
    name = "bundled:smollm2-135m-instruct"
    assert load_vocabulary(name) == LanguageModel.load(name, device="cpu").vocabulary


@pytest.mark.parametrize(
    "rules",
    [
        ({"regex": "[a-z]{2,6}"}, {"forbid_regex": "e"}),
        ({"regex": "ab"}, {"forbid_regex": "c"}, {"forbid_phrases": ["d"]}),
        ({"allow_values": ["green", "greyish", "red"]}, {"forbid_phrases": ["grey"]}),
        ({"grammar": 'start: "so " /[a-z]{1,3}/\n'}, {"forbid_phrases": ["a"]}),
        ({"json_schema": {"enum": ["a", "b\n"]}}, {"forbid_phrases": ["c"], "whole_word": True}),
        ({"json_schema": {"type": "integer", "maximum": 30}}, {"forbid_regex": "2"}),
        ({"forbid_regex": "e"}, {"forbid_regex": "[0-9]{2}"}),
    ],
)
def test_rules_that_are_joined_are_traced_as_they_ran(tiny_lm: LanguageModel, rules: tuple[dict, ...]):
    request = constrain(tiny_lm, *(Rule(rule_id=f"r{i}", **rule) for i, rule in enumerate(rules)))
    (answer,) = generate(tiny_lm, [request], Sampling(max_new_tokens=12))
    for step in trace_masked(tiny_lm, request, answer.token_ids):
        assert step.rule_ids
        assert set(step.rule_ids) <= {f"r{i}" for i in range(len(rules))}
