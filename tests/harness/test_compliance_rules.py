"""The shipped compliance pack: what it forbids, what it lets through, and that masks and the check agree."""

import json
from pathlib import Path

import pytest

from salience.errors import RulePackInvalid
from salience.rule_pack import RulePack, list_rule_packs, load_rule_pack, read_rules
from salience_models import ConstraintContradiction, TokenConstraint, compile_rules, find_violations
from salience_models.constraints import Vocabulary

BYTES = Vocabulary.from_bytes([*(bytes([value]) for value in range(256)), None], eos_token_ids=[256])
EOS = 256

FORBIDDEN = {
    "rate": [
        "25%",
        "16 %",
        "15.5%",
        "15,01 percent",
        "15 . 5 %",
        "15.000001%",
        "the rate is...99%",
        "2 5 %",
        "025%",
        "100 per cent",
        "1,600 %",
        "1.600%",
        "1e2 %",
        "15.1.2%",
        "20-5 %",
        "from 20 to 5 percent",
        "25-percent",
        "25**%**",
        "25 whole\npercent",
        "2 5 p e r c e n t",
        "25 PCT",
        "25 Prozent",
        "25 pour cent",
        "25 por ciento",
        "25 per cento",
        "25 процентов",
        "25パーセント",
        "25个百分点",
        "twenty percent",
        "TWENTY-five per cent",
        "fifteen point five percent",
        "zwanzig Prozent",
        "二十%",
        "5٪, 25٪",
    ],
    "rate_after_unit": ["%25", "百分之25", "百分之二十", "percentage rate: 25"],
    "plain_text": ["２５%", "25％", "2\u200b5%", "²⁵ %", "٢٥%", "pe\u0301rcent", "𝟐𝟓%", "①⑥ %"],
    "no_credit_to_minors": [
        "A loan for a minor",
        "Minors can get CREDIT",
        "Your child is welcome.\n\nAsk for a mortgage.",
        "Borrow at 16 years old",
        "un préstamo a un menor",
        "未成年人可以申请贷款",
    ],
    "withdrawn_products": [
        "QUICKCASH",
        "Titán Yield",
        "P\u0430yday Rocket",
        "Q\u200buickCash",
        "K1ddieCard",
        "闪电贷",
    ],
}
ALLOWED = [
    "15%",
    "15.00 %",
    "0.25 %",
    "2.25%",
    "14,99 percent",
    "10-15 %",
    "5 % of 200 customers",
    "In 2024, 5 % of",
    "fifteen percent",
    "twenty euros",
    "25 euros",
    "7.25 per cent",
    "1. 5 %",
    "百分之十五",
    "between 3 and 12.5 %",
    "Room 25 has a bed and 10 % off",
    "A loan at 9 %.",
    "Your child is welcome.",
    "You must be 18.",
    "Cash, quick!",
    "naïve café, привет, ばか 🔥",
]


@pytest.fixture(scope="module")
def pack() -> TokenConstraint:
    return compile_rules(read_rules("compliance", "pack"), BYTES)


@pytest.fixture(scope="module")
def verdict() -> TokenConstraint:
    rules = [*read_rules("compliance", "pack"), *read_rules("compliance_verdict", "pack")]
    return compile_rules(rules, BYTES)


def is_sayable(constraint: TokenConstraint, text: str) -> bool:
    """Whether the masks let an answer be `text`, byte by byte, end included."""
    state = constraint.start()
    for token in (*text.encode(), EOS):
        mask = state.mask()
        if mask is not None and not mask.unpack(BYTES.n_vocab)[token]:
            return False
        if token != EOS:
            state.advance(token)
    return True


@pytest.mark.parametrize(
    ("rule_id", "text"), [(rule, text) for rule, texts in FORBIDDEN.items() for text in texts]
)
def test_the_pack_forbids_it_to_masks_and_check_alike(pack: TokenConstraint, rule_id: str, text: str):
    assert rule_id in {violation.rule_id for violation in find_violations(text, pack.rules)}
    assert not is_sayable(pack, f"So: {text}")


@pytest.mark.parametrize("text", ALLOWED)
def test_the_pack_lets_it_through(pack: TokenConstraint, text: str):
    assert find_violations(text, pack.rules) == ()
    assert is_sayable(pack, text)


def judge(**changed: object) -> str:
    fields = {"customer": "adult", "offer": "credit", "rate_percent": 9.5, "reason": "solvent"} | changed
    return json.dumps(fields, separators=(",", ":"))


@pytest.mark.parametrize(
    "text",
    [
        judge(),
        judge(rate_percent=15),
        judge(rate_percent=0),
        judge(customer="minor", offer="none", reason="must be 18"),
        judge(customer="unknown", offer="savings"),
    ],
)
def test_a_verdict_within_the_rules_can_be_given(verdict: TokenConstraint, text: str):
    assert find_violations(text, verdict.rules) == ()
    assert is_sayable(verdict, text)


@pytest.mark.parametrize(
    "text",
    [
        judge(rate_percent=15.01),
        judge(rate_percent=99),
        judge(rate_percent=-1),
        judge(rate_percent="9"),
        judge(customer="minor"),
        judge(customer="unknown"),
        judge(customer="anyone"),
        judge(reason="for QuickCash"),
        judge(reason="twenty percent"),
        judge(reason="x" * 81),
        judge(extra=1),
        "{}",
        "Yes.",
    ],
)
def test_a_verdict_outside_the_rules_cannot(verdict: TokenConstraint, text: str):
    assert find_violations(text, verdict.rules) != ()
    assert not is_sayable(verdict, text)


def test_shipped_packs_say_what_they_are_and_what_they_do_not_catch():
    assert list_rule_packs() == ["compliance", "compliance_verdict"]
    for name in list_rule_packs():
        pack = load_rule_pack(name)
        assert pack.name == name
        assert pack.description
        assert pack.limits
    keys = [rule["key"] for name in list_rule_packs() for rule in load_rule_pack(name).rules]
    assert len(set(keys)) == len(keys)


def test_what_the_limits_name_passes_as_they_say(pack: TokenConstraint):
    passing = ("a rate of 25", "10 + 10 %", "two five percent", "2000 basis points", "Q u i c k C a s h")
    for text in passing:
        assert find_violations(text, pack.rules) == ()
        assert is_sayable(pack, text)


def test_parts_are_written_out_wherever_they_are_named(tmp_path: Path):
    file = tmp_path / "pack.json"
    parts = {"DIGIT": "[0-9]", "TWO": "<DIGIT><DIGIT>"}
    rules = [{"rule_id": "a", "forbid_regex": "(?:<TWO>)%"}, {"rule_id": "b", "forbid_phrases": ["<TWO>"]}]
    file.write_text(json.dumps({"name": "own", "parts": parts, "rules": rules}))
    first, second = read_rules(f"@{file}", "--rule")
    assert first.forbid_regex == "(?:[0-9][0-9])%"
    assert second.forbid_phrases == ("<TWO>",)


def test_what_looks_like_a_part_is_text_without_parts_and_as_a_groups_name():
    (rule,) = read_rules('{"regex": "<B>x"}', "--rule")
    assert rule.regex == "<B>x"
    pack = RulePack.model_validate({"name": "p", "parts": {"A": "x"}, "rules": [{"regex": "(?P<A>y)<A>"}]})
    assert pack.rules[0]["regex"] == "(?P<A>y)x"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "rules"),
        ("3", "valid dictionary"),
        ('[{"rule_id": "a", "regex": "("}]', r"rules\[0\] \('a'\): regex must be a regular expression"),
        ('[{"forbid_phrases": ["\u0301"]}]', r"rules\[0\] \('rule-1'\): forbid_phrases cannot be enforced"),
        ('{"name": "p", "rules": [{"rule_id": "a"}]}', "exactly one of"),
        ('{"name": "p", "rule": [], "rules": [{"rule_id": "a"}]}', "rule is not a known field"),
        ('{"name": "p", "parts": {"A": "<A>x"}, "rules": [{"regex": "<A>"}]}', "in a circle"),
        ('{"name": "p", "parts": {"A": "x"}, "rules": [{"regex": "<B>"}]}', "parts must hold B, .* got A"),
        ('{"name": "p", "rules": ["a"]}', r"rules\.0"),
    ],
)
def test_a_pack_that_cannot_be_kept_is_refused_by_name(tmp_path: Path, written: str, message: str):
    file = tmp_path / "rules.json"
    file.write_text(written)
    with pytest.raises(RulePackInvalid, match=message):
        read_rules(f"@{file}", "--rule")


def test_a_pack_that_is_not_there_is_refused_by_name(tmp_path: Path):
    with pytest.raises(RulePackInvalid, match="one of compliance, compliance_verdict, got 'complience'"):
        load_rule_pack("complience")
    with pytest.raises(RulePackInvalid, match="cannot be read: No such file"):
        load_rule_pack(tmp_path / "none.json")


def test_a_rule_against_the_pack_is_a_contradiction():
    rules = [*read_rules("compliance", "pack"), *read_rules('{"allow_values": ["25 %"]}', "--rule")]
    with pytest.raises(ConstraintContradiction, match="rate"):
        compile_rules(rules, BYTES)
