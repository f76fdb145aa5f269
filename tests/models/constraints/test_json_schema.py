import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from salience_models.constraints import EventKind, Rule, TokenConstraint, find_violations
from salience_models.constraints.engine import is_accepted
from salience_models.constraints.json_schema import schema_grammar
from salience_models.errors import ConstraintContradiction

Constrain = Callable[..., TokenConstraint]
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


def is_answer(schema: Any, text: str, *, max_whitespace: int = 2, **rest: Any) -> bool:
    rule = Rule(rule_id="r", json_schema=schema, max_whitespace=max_whitespace)
    assert rule.json_schema is not None
    return is_accepted(
        f"start: {schema_grammar(rule.json_schema, max_whitespace=max_whitespace, **rest)}\n", text
    )


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":{"b":[]},"c":2}'], ["{}", '{"b":1}']),
        ({"required": ["a"]}, ['{"a":1}', "3", '"text"'], ["{}"]),
        ({"type": "integer", "maximum": 15}, ["15", "-3", "0"], ["16", "150", "15.5"]),
        ({"type": "integer", "minimum": 3, "exclusiveMaximum": 5}, ["3", "4"], ["2", "5", "-4"]),
        ({"type": "number", "maximum": 0.15}, ["0.15", "0.10", "-7"], ["0.16", "0.150001", "1"]),
        ({"type": "integer", "exclusiveMaximum": 0}, ["-1", "-20"], ["0", "-0", "1"]),
        ({"type": "integer", "exclusiveMaximum": 0, "maximum": -5}, ["-5"], ["-4", "-0"]),
        ({"type": "number", "multipleOf": 0.01}, ["0.15", "3"], ["0.155"]),
        ({"type": "string", "pattern": "^a", "minLength": 3}, ['"abc"'], ['"ab"', '"bcd"']),
        ({"type": "string", "pattern": "[0-9]", "maxLength": 2}, ['"a1"'], ['"abc"', '"aa1"']),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, ["5"], ["4", '"a"']),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["5", '"a"'], ["null"]),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
            ['{"a":[1,{"x":null}]}', "{}"],
            ['{"b":1}', '{"a":1,"a":2}'],
        ),
        ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, ['{"x1":1}'], ['{"x1":"s"}']),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
            ["[1]"],
            ["[1,2]", '["a"]'],
        ),
        ({"$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": {"type": "integer"}}}, ["5"], ["4"]),
        ({"enum": [1, "a", None, {"b": [2]}]}, ["1", '"a"', "null", '{"b":[2]}'], ["2", '"b"']),
        ({"type": ["string", "null"]}, ["null", '"x"'], ["1"]),
    ],
)
def test_schema_means_what_it_says(schema: Any, right: list[str], wrong: list[str]) -> None:
    assert {text: is_answer(schema, text) for text in right} == dict.fromkeys(right, True)
    assert {text: is_answer(schema, text) for text in wrong} == dict.fromkeys(wrong, False)
    for text in right:
        jsonschema.validate(json.loads(text), schema)


def test_escaped_key_cannot_pose_as_a_property() -> None:
    assert is_answer(OBJECT, '{"a":1}')
    assert not is_answer(OBJECT, '{"a":"text"}')
    assert not is_answer(OBJECT, '{"\\u0061":"text"}')
    assert not is_answer(OBJECT, '{"a":1,"\\u0061":"text"}')
    assert not is_answer({"type": "string"}, '"\\u0062adger"')


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_whitespace_is_capped(n: int) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for text in (f"[{' ' * n}1]", f"[1{' ' * n},{' ' * n}2]", f"[{chr(10) * n}]"):
        assert is_answer(schema, text, max_whitespace=n)
        assert not is_answer(schema, text.replace("]", " " * (n + 1) + "]"), max_whitespace=n)
    assert not is_answer(schema, " [1]", max_whitespace=n)
    assert not is_answer(schema, "[1] ", max_whitespace=n)


def test_ban_does_not_end_with_an_escape(constrain: Constrain, accepts: Callable[..., bool]) -> None:
    """What is banned is banned in the decoded string, whichever escape could have written a part of it."""
    ban = {"forbid_phrases": ["badger", 'say "hi"', "two\nlines"]}
    both = constrain(ban, {"json_schema": {"type": "string"}})
    for text in ('"fine"', '"bad ger"', r'"a\\b"', r'"tab\there"'):
        assert accepts(both, text)
    for text in (
        '"badger"',
        r'"\u0062adger"',
        '"ＢＡＤ\u200bger"',
        r'"say \"hi\""',
        '"say ＂hi\\""',
        r'"two\nlines"',
    ):
        assert not accepts(both, text)
    alone = constrain({"json_schema": {"type": "string"}})
    assert accepts(alone, r'"say \"hi\""')


def test_whole_word_is_not_hidden_behind_the_letter_of_an_escape(
    constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    """`\\ncat` is written as one word and means another; other words keep their line breaks."""
    rules = ({"forbid_phrases": ["cat"], "whole_word": True}, {"json_schema": {"type": "string"}})
    for text in (r'"\ncat"', r'"a\tCAT."', r'"\u0001cat"', r'"cat\n"'):
        assert accepts(constrain(rules[1]), text)
        assert not accepts(constrain(*rules), text)
    for text in ('"concat"', r'"\ndog\tcats"', r'"\u0001"'):
        assert accepts(constrain(*rules), text)


NASTY = [
    "C:\\temp",
    'say "hi"',
    "two\nlines",
    "hello\0there",
    "tab\there",
    "\x7f",
    "\x1f\\n",
    "é\u2028🙂",
    "",
]


@pytest.mark.parametrize("value", NASTY)
@pytest.mark.parametrize(
    "ban",
    [
        None,
        {"forbid_phrases": ["badger"]},
        {"forbid_phrases": ["badger"], "whole_word": True},
        {"forbid_regex": "bad(ger|ly)"},
        {"forbid_regex": "(^|[^a-z])bad($|[^a-z])"},
    ],
)
def test_a_constant_is_written_as_json_spells_it_beside_any_ban(
    value: str, ban: dict[str, Any] | None, constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    held = {"type": "object", "properties": {"k": {"enum": [value, 1]}}, "additionalProperties": False}
    bans = [] if ban is None else [ban]
    for schema, answer in (
        ({"enum": [value, "other"]}, text),
        ({"const": value}, text),
        ({"const": {"k": [value]}}, f'{{"k":[{text}]}}'),
        (held, f'{{"k":{text}}}'),
        ({"type": "array", "items": {"const": value}}, f"[{text},{text}]"),
        ({"anyOf": [{"const": value}, {"type": "integer"}]}, text),
    ):
        constraint = constrain(*bans, {"json_schema": schema})
        assert accepts(constraint, answer), schema
        assert constraint.events == ()
    assert accepts(constrain(*bans, {"allow_values": [value or " ", "x"]}), value or " ")
    assert accepts(constrain(*bans, {"grammar": f"start: %json {json.dumps({'const': value})}\n"}), text)


def test_a_ban_takes_values_away_by_what_they_mean_and_says_so(
    constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    schema = {"enum": ["fine\n", 'say "hi"', "two\nlines", "x\\badger"]}
    for ban in (
        {"forbid_phrases": ['SAY "hi"', "two\nlines"]},
        {"forbid_regex": '"hi"|two\nlines'},
        {"forbid_regex": '"hi"|two[^a]lines'},
    ):
        constraint = constrain(ban, {"json_schema": schema})
        taken = {e.detail.partition(" cannot be in the answer: ")[0] for e in constraint.events}
        assert {json.dumps('say "hi"'), json.dumps("two\nlines")} <= taken
        assert {e.kind for e in constraint.events} == {EventKind.DROPPED_VALUE}
        for value in schema["enum"]:
            assert accepts(constraint, json.dumps(value)) == (json.dumps(value) not in taken)
    with pytest.raises(ConstraintContradiction, match="cannot be in the answer: 'r0': holds 'two"):
        constrain({"forbid_phrases": ["two\nlines"]}, {"json_schema": {"const": "two\nlines"}})


def test_a_constant_that_no_answer_can_hold_is_refused_by_name() -> None:
    named = {"type": "object", "properties": {"k": {"const": "nul\0"}}}
    with pytest.raises(
        ValidationError, match=r"json_schema\.properties\.k\.const cannot be enforced.*additionalP"
    ):
        Rule(rule_id="r", json_schema=named)
    assert Rule(rule_id="r", json_schema=named | {"additionalProperties": False})


STRINGS = st.one_of(
    st.sampled_from([*NASTY, "badger", "bad", "x\nbadger", "cat", "\ncat", "a\\ncat", "\u0002cat", '"cat"']),
    st.text(st.sampled_from('abdgerct\\"\n\t\0\x1f né'), max_size=6),
)
VALUES = st.recursive(
    STRINGS | st.integers(-20, 120) | st.sampled_from([None, True, 0.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=3,
)
BANS = st.sampled_from(
    [
        {"forbid_phrases": ["badger", "bad"]},
        {"forbid_phrases": ["cat", "bad"], "whole_word": True},
        {"forbid_phrases": ['"cat', "e\n", "\\"]},
        {"forbid_phrases": ["\0", "r\t", "12"], "whole_word": True},
        {"forbid_regex": "b(a|\n)"},
        {"forbid_regex": "(^|[^a-z])cat($|[^a-z])"},
        {"forbid_regex": "a.+r"},
    ]
)


@st.composite
def finite_schemas(draw: st.DrawFn) -> tuple[dict[str, Any], list[Any]]:
    """A schema and all its values, of which it has few."""
    values = draw(st.lists(VALUES, min_size=1, max_size=4, unique_by=json.dumps))
    inner = draw(st.sampled_from([{"enum": values}, {"anyOf": [{"const": value} for value in values]}]))
    match draw(st.sampled_from(["plain", "object", "array"])):
        case "object":
            shape = {"type": "object", "properties": {"key": inner}, "required": ["key"]}
            return shape | {"additionalProperties": False}, [{"key": value} for value in values]
        case "array":
            return {"type": "array", "items": inner, "maxItems": 1}, [[], *([value] for value in values)]
        case _:
            return inner, values


@settings(max_examples=60)
@given(finite_schemas(), st.none() | BANS)
def test_masks_allow_the_values_of_a_schema_that_no_ban_forbids_and_no_others(
    constrain: Constrain, accepts: Callable[..., bool], finite: Any, ban: dict[str, Any] | None
) -> None:
    schema, values = finite
    rules = [{"json_schema": schema}, *([] if ban is None else [ban])]
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]
    texts = [text.replace("\x7f", "\\u007f") for text in texts]
    made = [Rule(**({"rule_id": f"r{i}"} | rule)) for i, rule in enumerate(rules)]
    allowed = {text for text in texts if not find_violations(text, made)}
    reported, accepted = [], set()
    try:
        constraint = constrain(*rules)
        accepted = {text for text in texts if accepts(constraint, text)}
        reported = [event.detail for event in constraint.events]
    except ConstraintContradiction as error:
        reported = [str(error)]
    assert accepted <= allowed
    # A backslash before `ncat` can be read as half of one before `\ncat`: lost, but never without a word.
    for text in allowed - accepted:
        assert any("cannot be told from" in detail for detail in reported), (text, reported)


def test_forbidden_pattern_holds_in_decoded_strings(
    constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    rules = ({"forbid_regex": r"bad\s+ger"}, {"json_schema": {"type": "string"}})
    assert accepts(constrain(rules[1]), r'"bad\nger"')
    assert not accepts(constrain(*rules), r'"bad\nger"')
    assert not accepts(constrain(*rules), '"bad  ger"')
    assert accepts(constrain(*rules), '"badger"')


def test_banned_values_and_properties_leave_the_schema(
    constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    """They would lead where nothing may follow: `"bad` could not go on."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["badger", "bad", "fox"]}, "badger": {"type": "integer"}},
        "required": ["kind"],
    }
    both = constrain({"forbid_phrases": ["badger"]}, {"json_schema": schema})
    assert accepts(both, '{"kind":"bad"}')
    assert accepts(both, '{"kind":"fox","other":1}')
    assert not accepts(both, '{"kind":"badger"}')
    assert not accepts(both, '{"kind":"fox","badger":1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["badger", "honey BADGER"]},
        {"const": {"k": ["badger"]}},
        {"type": "object", "properties": {"badger": {}}, "required": ["badger"]},
        {"type": "object", "properties": {"k": {"const": "badger"}}, "required": ["k"]},
    ],
)
def test_schema_of_which_a_ban_leaves_nothing_names_both_rules(schema: Any, constrain: Constrain) -> None:
    with pytest.raises(
        ConstraintContradiction, match=r"rules \['schema', 'ban'\] must leave an answer"
    ) as failure:
        constrain(
            {"rule_id": "ban", "forbid_phrases": ["badger"]}, {"rule_id": "schema", "json_schema": schema}
        )
    assert set(failure.value.rule_ids) == {"ban", "schema"}


def test_emoji_and_every_character_can_be_written_in_a_string(
    constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    """An emoji takes several tokens, each of which is no character alone."""
    constraint = constrain({"json_schema": {"type": "string", "maxLength": 4}})
    for text in ('"🙂"', '"日本"', '"é\u0301"', '"👩\u200d🚀"', '"\\\\"'):
        assert accepts(constraint, text)


def test_random_walks_through_random_schemas_are_valid(
    constrain: Constrain, wander: Callable[..., Any]
) -> None:
    """At least 170 answers to 80 schemas of all keywords, each as jsonschema sees it too."""
    draw = random.Random(3)
    n_answers, n_schemas = 0, 0
    while n_schemas < 80:
        schema = random_schema(draw, draw.randint(0, 2))
        try:
            constraint = constrain({"json_schema": schema})
        except (ValidationError, ConstraintContradiction):
            continue  # no value satisfies it, or a part cannot be enforced
        n_schemas += 1
        for seed in range(3):
            text = wander(constraint, seed, liking='0123456789abx"{}[],:-. ', n_tokens=120)
            if text is not None:
                n_answers += 1
                assert find_violations(text.decode(), constraint.rules) == (), schema
    assert n_answers >= 170


def random_schema(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["integer", "number", "string", "enum", "boolean"] + ["array", "object", "anyOf", "allOf"] * (
        depth > 0
    )
    kind = draw.choice(kinds)
    schema: dict[str, Any] = {"type": kind}
    if kind in ("integer", "number"):
        limits = [-20, -3, 0, 2, 7.5, 12, 40]
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if draw.random() < 0.3:
                schema[keyword] = draw.choice(limits)
        if draw.random() < 0.2:
            schema["multipleOf"] = draw.choice([2, 3, 0.5, 0.1])
    elif kind == "string":
        if draw.random() < 0.3:
            schema["minLength"] = draw.randint(0, 3)
        if draw.random() < 0.3:
            schema["maxLength"] = draw.randint(2, 5)
        if draw.random() < 0.3:
            schema["pattern"] = draw.choice(["^a", "b$", "^[a-z]+$", "a|b", "[0-9]{2}", "^a.b", "é"])
    elif kind == "enum":
        schema = {
            "enum": draw.sample([1, "a", None, True, [1], {"a": 1}, 2.5, "long text"], draw.randint(1, 4))
        }
    elif kind == "array":
        if draw.random() < 0.6:
            schema["items"] = random_schema(draw, depth - 1)
        if draw.random() < 0.3:
            schema["prefixItems"] = [random_schema(draw, depth - 1)]
        schema |= {"minItems": draw.randint(0, 2), "maxItems": draw.randint(2, 3)}
    elif kind == "object":
        names = draw.sample(["a", "b", "x1"], draw.randint(0, 3))
        schema["properties"] = {name: random_schema(draw, depth - 1) for name in names}
        if draw.random() < 0.6:
            schema["required"] = draw.sample(["a", "b", "c"], draw.randint(1, 2))
        if draw.random() < 0.6:
            schema["additionalProperties"] = draw.choice([False, True, random_schema(draw, depth - 1)])
        if draw.random() < 0.2:
            schema["patternProperties"] = {"^x": random_schema(draw, depth - 1)}
        if draw.random() < 0.2:
            schema["maxProperties"] = draw.randint(1, 2)
    elif kind in ("anyOf", "allOf"):
        schema = {kind: [random_schema(draw, depth - 1) for _ in range(draw.randint(1, 2))]}
    keywords = list(schema.items())
    draw.shuffle(keywords)  # the engine reads them in order
    return dict(keywords)
