import re
from collections.abc import Callable
from typing import Any

import pytest

from salience_models.constraints import (
    EventKind,
    Rule,
    TokenConstraint,
    Vocabulary,
    compile_rules,
    find_violations,
    winning_rules,
)
from salience_models.errors import ConstraintContradiction

Constrain = Callable[..., TokenConstraint]
Accepts = Callable[[TokenConstraint, str], bool]


def test_bans_of_several_rules_all_bind(constrain: Constrain, accepts: Accepts) -> None:
    both = constrain({"forbid_phrases": ["badger"]}, {"forbid_phrases": ["fox"], "whole_word": True})
    assert accepts(both, "a bad foxtrot")
    for text in ("a Badger", "the fox.", "the fox", "ｂａｄｇｅｒ", "bád\u200bger"):
        assert not accepts(both, text)


@pytest.mark.parametrize(
    ("ban", "text"),
    [
        ("badger", " badger"),
        ("badger", "Badger"),
        ("badger", "xbadgerx"),
        ("中国", "在中国的"),
        ("ばか", "ばか"),
        ("사과", "사과"),
    ],
)
def test_banned_phrase_is_banned_however_it_stands(
    ban: str, text: str, constrain: Constrain, accepts: Accepts
) -> None:
    assert not accepts(constrain({"forbid_phrases": [ban]}), text)


@pytest.mark.parametrize(
    ("ban", "text"), [("ばか", "はか"), ("사과", "사관학교"), ("badger", "bad ger"), ("中国", "中 国")]
)
def test_what_only_resembles_a_phrase_stays_allowed(
    ban: str, text: str, constrain: Constrain, accepts: Accepts
) -> None:
    assert accepts(constrain({"forbid_phrases": [ban]}), text)


def test_phrase_across_the_border_of_prompt_and_answer_is_banned(
    constrain: Constrain, accepts: Accepts
) -> None:
    constraint = constrain({"forbid_phrases": ["badger"]})
    assert accepts(constraint, "ger is here")
    assert not accepts(constraint.after("a bad"), "ger is here")
    assert accepts(constraint.after("a badger, a bad "), "ger is here")


def test_patterns_are_intersected_as_languages(constrain: Constrain, accepts: Accepts) -> None:
    """Token by token `foob` would be entered and never left."""
    constraint = constrain({"regex": "foobar|foxtrot"}, {"forbid_regex": "bar$"})
    state = constraint.start()
    tokens = {data: i for i, data in enumerate(constraint.vocabulary.token_bytes) if data and len(data) == 1}
    for char in b"fo":
        state.advance(tokens[bytes([char])])
    mask = state.mask()
    assert mask is not None
    assert not mask.unpack(constraint.vocabulary.n_vocab)[tokens[b"o"]]
    assert accepts(constraint, "foxtrot")


def test_forbidden_pattern_with_borders_spares_what_it_should(constrain: Constrain, accepts: Accepts) -> None:
    rate = constrain({"forbid_regex": "(^|[^0-9])(1[6-9]|[2-9][0-9]|[0-9]{3,}) ?%"})
    for text in ("15 %", "the rate is 9%", "2015", "1600", "0.16"):
        assert accepts(rate, text)
    for text in ("16%", "at 20 % now", "115%", "x16%"):
        assert not accepts(rate, text)
    ends = constrain({"forbid_regex": "^no"}, {"forbid_regex": "please$"}, {"forbid_regex": "ab([0-9]|$)"})
    for text in ("yes no", "please yes", "abc"):
        assert accepts(ends, text)
    for text in ("no", "now", "yes please", "ab", "ab1 "):
        assert not accepts(ends, text)


def test_values_that_contradict_a_ban_are_dropped_with_an_event(
    constrain: Constrain, accepts: Accepts
) -> None:
    constraint = constrain(
        {"allow_values": ["foobar", "foxtrot", "{}"]}, {"forbid_phrases": ["FOOB"]}, {"regex": "[a-z]+"}
    )
    assert accepts(constraint, "foxtrot")
    assert not accepts(constraint, "foobar")
    assert not accepts(constraint, "{}")
    assert [(event.kind, event.rule_ids) for event in constraint.events] == [
        (EventKind.DROPPED_VALUE, ("r0", "r1")),
        (EventKind.DROPPED_VALUE, ("r0", "r2")),
    ]
    assert constraint.events[0].detail == "'foobar' cannot be the answer: 'r1': holds 'FOOB'"


@pytest.mark.parametrize(
    ("rules", "ids"),
    [
        (({"allow_values": ["badger"]}, {"forbid_phrases": ["bad"]}), {"r0", "r1"}),
        (({"allow_values": ["a"]}, {"allow_values": ["b"]}), {"r0", "r1"}),
        (({"allow_values": ["7"]}, {"json_schema": {"type": "string"}}), {"r0", "r1"}),
        (({"allow_values": ["x"]}, {"grammar": 'start: "y"\n'}), {"r0", "r1"}),
        (({"regex": "a+"}, {"regex": "b+"}), {"r0", "r1"}),
        (({"regex": "a+"}, {"forbid_regex": "a"}, {"forbid_phrases": ["z"]}), {"r0", "r1"}),
        (({"json_schema": {"type": "integer"}}, {"json_schema": {"type": "string"}}), {"r0", "r1"}),
    ],
)
def test_rules_that_leave_nothing_are_an_error_that_names_them(
    rules: tuple[dict[str, Any], ...], ids: set[str], constrain: Constrain
) -> None:
    with pytest.raises(ConstraintContradiction, match=r"must leave an? (answer|value) together") as failure:
        constrain(*rules)
    assert set(failure.value.rule_ids) == ids


def test_value_that_begins_another_is_an_answer_too(constrain: Constrain, accepts: Accepts) -> None:
    constraint = constrain({"allow_values": ["foo", "foobar", 'a "b"\n']})
    assert [text for text in ("foo", "foobar", 'a "b"\n', "foob", "fo", "") if accepts(constraint, text)] == [
        "foo",
        "foobar",
        'a "b"\n',
    ]


def test_strongest_rule_of_a_key_binds_and_other_keys_all_do() -> None:
    def rule(rule_id: str, key: str | None, trust: float, declared_at: int) -> Rule:
        return Rule(rule_id=rule_id, key=key, trust=trust, declared_at=declared_at, forbid_phrases=(rule_id,))

    rules = [
        rule("old", "a", 0.9, 1),
        rule("new", "a", 0.9, 2),
        rule("doubtful", "a", 0.5, 3),
        rule("other", "b", 0.1, 0),
        rule("first", "c", 0.5, 5),
        rule("last", "c", 0.5, 5),
        rule("free", None, 0.0, 0),
        rule("free too", None, 0.0, 0),
    ]
    kept, events = winning_rules(rules)
    assert [r.rule_id for r in kept] == ["new", "other", "last", "free", "free too"]
    assert [(event.kind, event.rule_ids) for event in events] == [
        (EventKind.DROPPED_RULE, ("old", "new")),
        (EventKind.DROPPED_RULE, ("doubtful", "new")),
        (EventKind.DROPPED_RULE, ("first", "last")),
    ]


def test_dropped_rule_no_longer_binds(constrain: Constrain, accepts: Accepts) -> None:
    weak = {"forbid_phrases": ["fox"], "key": "animal", "trust": 0.4}
    assert not accepts(constrain(weak), "fox")
    constraint = constrain(weak, {"forbid_phrases": ["badger"], "key": "animal", "trust": 0.8})
    assert accepts(constraint, "fox")
    assert constraint.rule_ids == ("r1",)
    assert [event.kind for event in constraint.events] == [EventKind.DROPPED_RULE]


def test_rules_need_ids_of_their_own(vocabulary: Vocabulary) -> None:
    with pytest.raises(ValueError, match=r"must have an id each, got \['a', 'a'\]"):
        compile_rules([Rule(rule_id="a", regex="x"), Rule(rule_id="a", regex="y")], vocabulary)


def test_equal_rules_are_compiled_once(constrain: Constrain) -> None:
    rules = {"forbid_phrases": ["one", "two"]}
    assert constrain(rules) is constrain(rules)
    assert constrain(rules).fingerprint != constrain(rules | {"whole_word": True}).fingerprint


def test_check_alone_masks_nothing(constrain: Constrain) -> None:
    constraint = constrain({"check": "please"})
    assert constraint.start().mask() is None
    assert constraint.masked_rule_ids == ()
    assert [v.rule_id for v in constraint.find_violations("no")] == ["r0"]


def test_states_do_not_leak_into_each_other(
    constrain: Constrain, allowed_ids: Callable[..., set[int]], vocabulary: Vocabulary
) -> None:
    """Answers of one constraint, and of it after an answer, all start alike; going back undoes going on."""
    constraint = constrain({"forbid_phrases": ["badger"]}, {"regex": "[a-z ]*"})
    fresh = allowed_ids(constraint.start().mask(), vocabulary.n_vocab)
    tokens = {data: i for i, data in enumerate(vocabulary.token_bytes) if data and len(data) == 1}
    state, other = constraint.start(), constraint.start()
    seen = []
    for byte in b"badge":
        seen.append(allowed_ids(state.mask(), vocabulary.n_vocab))
        state.advance(tokens[bytes([byte])])
    assert tokens[b"r"] not in allowed_ids(state.mask(), vocabulary.n_vocab)
    assert allowed_ids(other.mask(), vocabulary.n_vocab) == fresh
    assert allowed_ids(constraint.start().mask(), vocabulary.n_vocab) == fresh
    branch = state.fork()
    branch.advance(tokens[b"x"])
    assert tokens[b"r"] in allowed_ids(branch.mask(), vocabulary.n_vocab)
    assert tokens[b"r"] not in allowed_ids(state.mask(), vocabulary.n_vocab)
    for n, before in zip((2, 3), (seen[3], seen[0]), strict=True):
        state.rollback(n)
        assert allowed_ids(state.mask(), vocabulary.n_vocab) == before


@pytest.mark.parametrize(
    ("rule", "good", "bad", "detail"),
    [
        ({"forbid_phrases": ["badger"]}, "bad", "a BÁDGER", "holds 'badger'"),
        ({"forbid_phrases": ["cat"], "whole_word": True}, "concat", "a cat", "holds 'cat'"),
        ({"forbid_regex": "(^|x)[0-9]$"}, "y5", "x5", "holds 'x5', which matches"),
        ({"allow_values": ["a", "b"]}, "a", "c", "is none of the 2 values"),
        ({"regex": "a+"}, "aa", "aab", "does not match 'a\\+' as a whole"),
        (
            {"json_schema": {"type": "integer", "maximum": 3}},
            "3",
            "4",
            r"breaks the schema at \$: 4 is greater",
        ),
        ({"json_schema": {"type": "integer"}}, "3", "3 3", "is not JSON"),
        ({"json_schema": {}}, "0", "NaN", "is not JSON: NaN"),
        ({"json_schema": {"type": "number", "multipleOf": 0.1}}, "0.3", "0.35", "is not a multiple of 0.1"),
        ({"json_schema": {"format": "date"}}, '"2024-02-29"', '"2023-02-29"', "is not a 'date'"),
        ({"grammar": 'start: "a" %json {"type": "null"}\n'}, "anull", "a", "is no sentence of the grammar"),
        ({"check": r"\bplease\b"}, "say please", "pleased", "holds no match"),
    ],
)
def test_checker_finds_each_kind_of_violation(rule: dict[str, Any], good: str, bad: str, detail: str) -> None:

    rules = [Rule(rule_id="r", **rule)]
    assert find_violations(good, rules) == ()
    (violation,) = find_violations(bad, rules)
    assert (violation.rule_id, violation.kind) == ("r", next(iter(rule)))
    assert re.search(detail, violation.detail)
    assert not violation.is_incomplete


def test_checker_looks_into_decoded_strings_and_across_the_border() -> None:
    ban, schema = Rule(rule_id="ban", forbid_phrases=("badger",)), Rule(rule_id="json", json_schema={})
    text = '["\\u0062adger"]'
    assert find_violations(text, [ban]) == ()
    assert [v.rule_id for v in find_violations(text, [ban, schema])] == ["ban"]
    assert [v.rule_id for v in find_violations("ger", [ban], prompt_tail="a badger, bad")] == ["ban"]
    assert find_violations("ger", [ban], prompt_tail="a badger, bad ") == ()


def test_checker_tells_a_cut_answer_from_a_wrong_one() -> None:
    rules = [
        Rule(rule_id="ban", forbid_phrases=("bad",)),
        Rule(rule_id="json", json_schema={"type": "array"}),
    ]
    found = find_violations('["bad', rules, is_complete=False)
    assert [(v.rule_id, v.is_incomplete) for v in found] == [("ban", False), ("json", True)]
