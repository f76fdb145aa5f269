import _sre
import itertools
import re
from collections.abc import Callable
from re import _casefix

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from salience_models.constraints import Rule, TokenConstraint, engine, find_violations, pattern_syntax
from salience_models.constraints.engine import is_accepted
from salience_models.constraints.pattern_syntax import explicit_pattern
from salience_models.constraints.patterns import ANY_TEXT, ForbiddenPattern, lark_literal, texts_that_match
from salience_models.errors import ConstraintContradiction, ConstraintFailed

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
    "a[b[c]",
    "a&&b|[a&b]+|[~-]",
    r"(?P<two>\x61\142)(?#note)\N{DIGIT ONE}??2",
    "(?i)minor|[h-j]+|x[^i]|k(?-i:I)",
    r"(?i)(?s)a.b(?:(?a:K\w)|ǆ|µ|\w\d)",
    r"(?ai)[i\d]+|k",
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
    "a[",
    "a&&b",
    "ab12",
    "ab2",
    "mınor",
    "MİNOR",
    "ıİiJ",
    "xİ",
    "xl",
    "Kı",
    "KI",
    "A\nbK\u0131",
    "a\nbkA",
    "a b\u01c5",
    "A b\u03bc",
    "a b\u212a٣",
    "I3",
    "ı",
    "\u212a",
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


ATOMS = [
    "a",
    "i",
    "ı",
    "K",
    "ß",
    "-",
    r"\.",
    r"\n",
    r"\x6b",
    ".",
    r"\w",
    r"\S",
    "[h-j]",
    "[^iß]",
    r"[^\Wk\-]",
    "[]^a]",
]
QUANTIFIERS = ["", "", "*", "+", "?", "??", "{2}", "{1,2}", "{,1}", "*?"]
GROUPS = ["(?:{})", "({})", "(?i:{})", "(?s:{})", "(?a:{})", "(?-i:{})", "(?a-i:{})", "(?P<n>{})"]


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Flags, then pieces one after another, some of them groups of such with alternatives."""

    def sequence(depth: int) -> str:
        return "".join(piece(depth) for _ in range(draw(st.integers(0, 3))))

    def piece(depth: int) -> str:
        if depth and draw(st.booleans()):
            group = draw(st.sampled_from(GROUPS[: -1 if depth < 2 else None]))
            body = group.format("|".join(sequence(depth - 1) for _ in range(draw(st.integers(1, 2)))))
        else:
            body = draw(st.sampled_from(ATOMS))
        return body + draw(st.sampled_from(QUANTIFIERS))

    return draw(st.sampled_from(["", "(?i)", "(?s)(?i)", "(?ai)"])) + sequence(2)


@settings(max_examples=300)
@given(pattern=patterns(), texts=st.lists(st.text("aiıİIkK\u212aßẞſs-. \n", max_size=4), max_size=8))
def test_any_pattern_is_written_out_with_its_meaning(pattern: str, texts: list[str]) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error:  # a group's name twice
        return
    grammar = f"start: T\nT: {lark_literal(pattern)} & {ANY_TEXT}\n"
    for text in texts:
        is_match = compiled.fullmatch(text) is not None
        assert (re.fullmatch(explicit_pattern(pattern, "p"), text) is not None) == is_match
        assert is_accepted(grammar, text) == is_match


def test_classes_of_schemas_are_those_of_ascii() -> None:
    assert re.fullmatch(explicit_pattern(r"\w\d", "p", is_ascii=True), "é5") is None
    assert re.fullmatch(explicit_pattern(r"\w\d", "p"), "é5") is not None


CHARACTERS = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))


@pytest.mark.parametrize(
    "members",
    ["i", "^i", "h-j", "^h-j", "k-tſ", r"\W", r"^\w", r"\wⓐ", r"^\W\d", "а-я", "^𐐀-𐐧", "ß", "ΰ", "ﬅ"],
)
@pytest.mark.parametrize("flags", ["i", "ia", "a"])
def test_a_written_out_class_has_the_members_that_python_counts(members: str, flags: str) -> None:
    pattern = f"(?{flags})[{members}]"
    explicit = explicit_pattern(pattern, "p")
    assert "(?" not in explicit
    assert re.findall(explicit, CHARACTERS) == re.findall(pattern, CHARACTERS)


def test_no_character_has_another_case_for_python_only() -> None:
    """What is left out here is never looked at when cases are written out."""
    cased = set(pattern_syntax._cased_characters())
    for character in CHARACTERS:
        lower = chr(_sre.unicode_tolower(ord(character)))
        assert lower == character or {lower, character} <= cased
    assert {chr(value) for pair in _casefix._EXTRA_CASES.items() for value in (pair[0], *pair[1])} <= cased


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
    "(?i)(?s)X.Y",
    "(?a)(?i)(^|a)X",
    "(?i)(^|[^i])x",
    r"(^|[^\[])x",
    r"[\[]x$",
    "^[a[]x",
    "([]x]|^)y",
]


@pytest.mark.parametrize("pattern", FORBIDDEN)
@given(text=st.text("abcsnolyxep019% [", max_size=8))
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
    rules = [
        {"regex": "foobar|foxtrot|x1y"},
        *({"forbid_regex": pattern} for pattern in ("bar", "1", "1", "2", "z{9}", "1")),
    ]
    for ordered in (rules, rules[::-1]):
        both = constrain(*ordered)
        assert [len(grammar.rule_ids) for grammar in both.grammars] == [6, 2]
        assert [accepts(both, text) for text in ("foobar", "x1y", "foxtrot")] == [False, False, True]
    long = {"forbid_regex": "(?i)foo.*R"}
    with pytest.raises(ConstraintContradiction, match=r"rules \['r0', 'r4'\] must leave an answer"):
        constrain({"regex": "foobar"}, *({"forbid_regex": pattern} for pattern in "123"), long)


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
