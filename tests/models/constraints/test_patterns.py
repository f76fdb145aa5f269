import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLParserLimits

from salience_models.constraints import Rule, TokenConstraint, engine, find_violations
from salience_models.constraints.engine import is_accepted
from salience_models.constraints.pattern_syntax import explicit_classes
from salience_models.constraints.patterns import ANY_TEXT, ForbiddenPattern, lark_literal, texts_that_match
from salience_models.errors import ConstraintFailed

PATTERNS = [
    r"\w+,\w+",
    r"[\w-]+",
    r"[^\W\d]+",
    r"\s*\S",
    "[]a]+x",
    r"[^]]+",
    r"\++|[*+]+",
    r"[\[\]]+",
    "(?i)stra(ß|ss)e",
    "a.b|(?s:a.b)c",
    r"^(a|b)*\d{2,3}$",
]
TEXTS = [
    "a,b",
    "é,e\u05a9",
    "ab-",
    "]]x",
    "]ax",
    " x",
    "\x1cx",
    "++",
    "[]",
    "STRASSE",
    "ſtraße",
    "a\nb",
    "a\nbc",
    "ab12",
    "٣٤",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_both_engines_read_a_pattern_alike(pattern: str) -> None:
    grammar = f"start: T\nT: {lark_literal(pattern)} & {ANY_TEXT}\n"
    assert {text: is_accepted(grammar, text) for text in TEXTS} == {
        text: re.fullmatch(pattern, text) is not None for text in TEXTS
    }


@given(st.text(max_size=6))
def test_both_engines_count_the_same_characters_as_words_digits_and_space(text: str) -> None:
    for pattern in (r"\w*", r"\d*", r"\s*", r"[\W]*"):
        grammar = f"start: T\nT: {lark_literal(pattern)} & {ANY_TEXT}\n"
        assert is_accepted(grammar, text) == (re.fullmatch(pattern, text) is not None)


def test_classes_of_schemas_are_those_of_ascii() -> None:
    assert re.fullmatch(explicit_classes(r"\w\d", "p", is_ascii=True), "é5") is None
    assert re.fullmatch(explicit_classes(r"\w\d", "p"), "é5") is not None


FORBIDDEN = [
    "ba?d",
    "^no",
    "please$",
    "^all$",
    "(^|[^0-9])1[0-9]%",
    "(?:x|^)y",
    "ab(s|$)",
    "c($|s|[0-9])",
    "(^|a)(b)(c|$)",
    "(?i)B(?:A)?D",
    "(?i)(^|[^0-9])X(Y|$)",
    "(?i)^NO",
]


@pytest.mark.parametrize("pattern", FORBIDDEN)
@given(text=st.text("abcsnolyxep019% ", max_size=8))
def test_forbidden_pattern_is_masked_where_search_finds_it(pattern: str, text: str) -> None:
    """`$` is the end of the text, not the place before a last newline."""
    forbidden = ForbiddenPattern.parse(pattern, "p")
    found = re.search(pattern, text) is not None
    assert (forbidden.find(text) is not None) == found
    assert is_accepted(f"start: T\nT: {ANY_TEXT} & {texts_that_match([forbidden])}\n", text) == found


def test_several_forbidden_patterns_bind_together(
    constrain: Callable[..., TokenConstraint], accepts: Callable[[TokenConstraint, str], bool]
) -> None:
    every = constrain(*({"forbid_regex": pattern} for pattern in FORBIDDEN))
    for text in ("bad", "no", "oh please", "15%", "abs", "xy"):
        assert not accepts(every, text)
        assert every.find_violations(text) != ()
    assert accepts(every, "115% o")


# The union of any five takes the engine from seconds to minutes.
UNLIKE = [
    r"[^\x00-\u024F\u2010-\u2027\u20A0-\u20BF]",
    r"(^|[^0-9.])(1[6-9]|[2-9][0-9])(\.[0-9]+)?\s*(?:%|‰|per ?cent)",
    r"(?i)(loan|credit)(?s:.*)(minor|child)|(minor|child)(?s:.*)(loan|credit)",
    r"\w+@\w+\.\w+",
    r"(?i)\w+ly\s\w+ed",
    *(f"(?i){word}[^.]*{other}" for word, other in itertools.product(("fund", "bank"), ("gain", "tax"))),
]


def test_unlike_forbidden_patterns_compile_at_once_and_all_bind(
    constrain: Callable[..., TokenConstraint], accepts: Callable[[TokenConstraint, str], bool]
) -> None:
    every = constrain(*({"forbid_regex": pattern} for pattern in UNLIKE))
    assert [grammar.rule_ids for grammar in every.grammars] == [(f"r{i}",) for i in range(len(UNLIKE))]
    for text in ("日", "rate 17 %", "A child wants credit", "a@b.c", "kindly asked", "Bank: no tax"):
        assert not accepts(every, text)
        assert every.find_violations(text) != ()
    assert accepts(every, "Rate 15 %. A bank. No tax, credit")


def test_patterns_allowed_and_forbidden_meet_as_languages_up_to_a_number(
    constrain: Callable[..., TokenConstraint], accepts: Callable[[TokenConstraint, str], bool]
) -> None:
    """Else `fooba` would be begun, which nothing may follow."""
    both = constrain({"regex": "foobar|foxtrot|x1y"}, {"forbid_regex": "bar"}, *({"forbid_regex": "1"},) * 4)
    assert [len(grammar.rule_ids) for grammar in both.grammars] == [4, 1, 1]
    assert [accepts(both, text) for text in ("foobar", "x1y", "foxtrot")] == [False, False, True]


def test_forbidden_pattern_that_the_engine_would_give_up_on_is_refused_before_any_token(
    constrain: Callable[..., TokenConstraint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a vocabulary of 49,152 it does so for gaps of 40; over this small one with less to spend."""
    monkeypatch.setattr(engine, "_LIMITS", LLParserLimits(step_lexer_fuel=30_000))
    constrain({"forbid_regex": "(?i)(credit|loan) (minor|kid)"})
    with pytest.raises(ConstraintFailed, match=r"rule 'r1' cannot be masked: forbid_regex must be simpler"):
        constrain({"forbid_regex": "az"}, {"forbid_regex": r"(?i)(credit|loan) .{0,40}(minor|kid)"})


def test_anchors_are_the_answers_and_not_those_of_its_strings() -> None:
    rules = [Rule(rule_id="f", forbid_regex="^a"), Rule(rule_id="j", json_schema={})]
    assert find_violations('"abc"', rules) == ()
    assert [
        v.rule_id for v in find_violations('"\\u0062ad"', [Rule(rule_id="f", forbid_regex="bad"), rules[1]])
    ] == ["f"]
