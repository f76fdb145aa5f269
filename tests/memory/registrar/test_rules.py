import pytest
import yaml

from salience_memory import NoticingPackInvalid
from salience_memory.registrar import (
    Utterance,
    load_noticing_pack,
    parse_noticing_pack,
    read_utterance,
    shipped_noticing_packs,
)
from salience_memory.registrar.patterns import (
    MAX_PATHS,
    compile_pattern,
    count_paths,
    fill_template,
    template_names,
)

RULE = {
    "name": "colour",
    "trigger": "preference",
    "pattern": r"\bpaint it (?P<colour>\w{2,20})",
    "type": "semantic",
    "key": "colour.{colour:slug}",
    "value": "{colour}",
    "content": "The user wants {colour}.",
}
PACK = {
    "version": 1,
    "language": "en",
    "script": "[a-z]",
    "correction": {"strong": ["^wrong"], "weak": ["^no,"]},
    "referents": ["^it$"],
    "vague": ["^them$"],
    "fillers": "please$",
    "judge_prompt": "Lasting? {text}",
    "phrases": {
        "which": "{text}?",
        "what_instead": "What?",
        "whether": "{text}?",
        "which_holds": "{old} or {new}?",
        "whether_still": "{text}?",
    },
    "rules": [RULE],
}


def parse(**changes):
    return parse_noticing_pack(yaml.safe_dump(PACK | changes, allow_unicode=True), "mine.yaml")


def with_rule(**changes):
    return parse(rules=[RULE | changes])


def test_a_pack_of_ones_own_reads_utterances(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(PACK), encoding="utf-8")
    (found,) = read_utterance("Please paint it Sky.", [load_noticing_pack(path)]).findings
    assert (found.key, found.result, found.content) == ("colour.sky", "Sky", "The user wants Sky.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pattern": "(paint"},
            r"mine.yaml: rule colour.pattern: pattern must be a regular expression, got '\(paint'",
        ),
        ({"pattern": r"(?P<colour>x*)"}, "rule colour.pattern: pattern must not match the empty text"),
        ({"pattern": r"(?P<colour>(\w+)+)!"}, "rule colour.pattern: pattern must have at most 200,000 ways"),
        (
            {"key": "colour.{color}"},
            r"rule colour: key must name groups of the pattern \(colour\), got color",
        ),
        ({"value": "{colour.__class__}"}, "rule colour.value: template must hold only"),
        ({"content": "{colour!r}"}, "rule colour.content: template must hold only"),
        ({"content": "{colour"}, "rule colour.content: template must hold only"),
        ({"trigger": "mood"}, "rule colour.trigger: Input should be"),
        (
            {"trigger": "correction"},
            "rule colour: trigger must be one a single statement sets off, got correction",
        ),
        ({"trigger": "task"}, "rule colour: status must be given for trigger task and no other, got None"),
        ({"status": "done"}, "rule colour: status must be given for trigger task and no other, got 'done'"),
        ({"scope": "global"}, "rule colour: scope must be user or session"),
        ({"weight": 1.0}, "rule colour.weight: Input should be less than or equal to 0.99"),
        ({"ttl_days": 0}, "rule colour.ttl_days: Input should be greater than 0"),
        ({"colour": "red"}, "rule colour.colour: Extra inputs are not permitted"),
    ],
)
def test_a_bad_rule_is_refused_with_its_name_and_field(changes, message):
    with pytest.raises(NoticingPackInvalid, match=message):
        with_rule(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": [RULE, RULE]}, "rules must have names of their own, got colour twice"),
        ({"rules": ["x"]}, "rule 0"),
        ({"version": 2}, "version: Input should be less than or equal to 1"),
        ({"fillers": "["}, "fillers: pattern must be a regular expression"),
        (
            {"correction": {"strong": ["^x"], "weak": ["^y"], "replaces": ["(?P<what>x)"]}},
            "replaces must have the groups",
        ),
    ],
)
def test_a_bad_pack_is_refused(changes, message):
    with pytest.raises(NoticingPackInvalid, match=message):
        parse(**changes)


@pytest.mark.parametrize("text", ["a: [", "- x", "", "!!python/object/apply:os.getcwd []"])
def test_what_is_no_pack_is_refused(text):
    with pytest.raises(NoticingPackInvalid, match=r"mine\.yaml"):
        parse_noticing_pack(text, "mine.yaml")


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(a|a)*b",
        r"(a|aa)+b",
        r"(\w+\s?)*:",
        r"(.*)(.*)(.*)=",
        r"([a-z]+){2,}x",
        r"a*a*a*b",
        r"(?:x?){40}y\w",
    ],
)
def test_patterns_that_could_run_away_are_refused(pattern):
    assert count_paths(pattern) > MAX_PATHS
    with pytest.raises(ValueError, match="bound its repeats"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("abc", 1),
        ("a?", 2),
        ("a{2,5}", 4),
        ("a+b", 300),
        ("(?:ab|cd)", 1),
        ("(?:a|ab)", 2),
        ("(?:a|ab)(?:x|xy)?", 6),
        (r"\w{1,3}-\d{1,3}", 9),
        (r"(?=a{1,3})b", 3),
        (r"(?:\w{1,2}){1,2}", 6),
    ],
)
def test_ways_are_counted(pattern, paths):
    assert count_paths(pattern) == paths


def test_the_shipped_packs_are_valid_safe_and_of_both_languages():
    packs = shipped_noticing_packs()
    assert [pack.language for pack in packs] == ["en", "zh"]
    assert all(count_paths(rule.pattern) <= MAX_PATHS for pack in packs for rule in pack.rules)
    triggers = [{rule.trigger.value for rule in pack.rules} for pack in packs]
    assert triggers == [{"preference", "constraint", "task", "entity"}] * 2


def test_what_was_captured_is_never_a_template():
    assert fill_template("{a} and {a:slug}", {"a": "{b} The X"}) == "{b} The X and b-x"
    assert template_names("{a} {b:slug}") == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            "I like tea, but I hate coffee and I prefer trains.",
            ["preference.tea", "preference.coffee", "preference.trains"],
        ),
        ("She said I like jazz. I like blues.", ["preference.blues"]),
        ("If it rains I like tea.", []),
        ("I like tea?", []),
        ('He sang "I love Paris" and left.', []),
        ("我说过“我喜欢茶”。我喜欢咖啡。", ["preference.咖啡"]),
        ("I love tea today.", []),
        ("I finished the report today.", ["task.report"]),
        ("My doctor is Dr. Feldman. I live in Lisbon.", ["relation.doctor", "profile.home"]),
        ("I like tea." + "x" * 400, []),
    ],
)
def test_filters_keep_what_the_speaker_states(text, keys):
    assert [found.key for found in read_utterance(text, shipped_noticing_packs()).findings] == keys


@pytest.mark.parametrize(
    ("before", "is_correction"),
    [("You like coffee.", True), ("Do you like coffee?", False), ("您喜欢咖啡吗？", False), (None, False)],
)
def test_a_weak_no_corrects_a_statement_and_answers_a_question(before, is_correction):
    turns = [] if before is None else [Utterance(role="assistant", text=before)]
    reading = read_utterance("No, I prefer tea.", shipped_noticing_packs(), turns)
    assert (reading.correction is not None) is is_correction
    assert [found.key for found in reading.findings] == ["preference.tea"]
