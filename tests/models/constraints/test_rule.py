from typing import Any

import pytest
from pydantic import ValidationError

from salience_models.constraints import Rule, RuleKind


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "exactly one of forbid_phrases, .*, got none"),
        ({"regex": "a", "check": "b"}, "exactly one of .*, got regex and check"),
        (
            {"regex": "a", "whole_word": True},
            "whole_word must be left out except beside forbid_phrases, got regex",
        ),
        ({"forbid_phrases": []}, "forbid_phrases cannot be enforced: phrases must hold at least one"),
        ({"forbid_phrases": ["ok", ""]}, "an empty phrase"),
        ({"forbid_phrases": ["\u0301\u0302"]}, "all marks or invisible characters"),
        ({"forbid_phrases": ["a\ud800"]}, "lone surrogate"),
        ({"forbid_regex": "a*"}, "must not match the empty text"),
        ({"forbid_regex": r"\bbad\b"}, "forbid_regex must have no word boundaries"),
        ({"forbid_regex": "a|^b"}, r"'\^' and '\$' at its ends only"),
        ({"forbid_regex": "^[a[]x|b"}, r"must group alternatives beside"),
        ({"forbid_regex": "(^|[^0-9])15|20"}, r"must group alternatives beside"),
        ({"forbid_regex": "(?#c)(?i)bad"}, "must have no comments"),
        ({"forbid_regex": "(?i)(?m)^a"}, "must not have flag m"),
        ({"forbid_regex": "(?x)^ a"}, "not be in verbose mode"),
        ({"forbid_regex": "b(?x: a )"}, "not be in verbose mode"),
        ({"forbid_regex": "^a|b"}, r"must group alternatives beside"),
        ({"regex": "(?=a)b"}, "regex must have no look-around"),
        ({"regex": "(?!)"}, "regex must have no look-around"),
        ({"regex": r"(a)\1"}, "or back-references"),
        ({"regex": "(?m)^a$"}, "regex must not have flag m"),
        ({"regex": "a(?>b*)"}, "no possessive quantifiers"),
        ({"regex": r"[\ud800-\udbff]"}, "must name no surrogates"),
        ({"regex": "(?a)(?u)a"}, "ASCII and UNICODE flags are incompatible"),
        ({"regex": "[[:alpha:]]+"}, "Possible nested set"),
        ({"regex": r"\p{L}+"}, r"bad escape \\p"),
        ({"regex": "a*+ab"}, "no possessive quantifiers"),
        ({"regex": "(?x) a b"}, "not be in verbose mode"),
        ({"regex": "a{3,1}"}, "min repeat greater than max repeat"),
        ({"regex": "(" * 5000 + ")" * 5000}, "must be a regular expression"),
        ({"allow_values": []}, "at least one value"),
        ({"allow_values": ["yes", ""]}, "no empty value"),
        ({"allow_values": ["\udc00"]}, "lone surrogate"),
        ({"grammar": 'start: "a" missing\n'}, "grammar cannot be enforced: .*missing"),
        ({"grammar": 'start: "a" <[7]>\n'}, r"must not name tokens, which are no text, got '<\[7\]>'"),
        ({"grammar": "start: <|im_end|>\n"}, "must not name tokens"),
        ({"grammar": "start: a\na[max_tokens=3]: /.*/\n"}, "no attributes but"),
        ({"grammar": '%llguidance {"no_forcing": false}\nstart: "a"\n'}, "must not set '%llguidance'"),
        (
            {"grammar": 'start: %json {"type": "integer", "foo": 1}\n'},
            r"grammar.%json\[0\].foo cannot be enforced",
        ),
        ({"grammar": "start: %json 5\n"}, "must hold an object after '%json'"),
        ({"check": "(?=x"}, "check must be a regular expression"),
        ({"max_whitespace": 65, "regex": "a"}, "less than or equal to 64"),
        ({"trust": 1.5, "regex": "a"}, "less than or equal to 1"),
        ({"rule_id": "", "regex": "a"}, "at least 1 character"),
        ({"text": "be nice"}, "Extra inputs"),
    ],
)
def test_rule_that_cannot_be_enforced_is_refused_and_says_why(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Rule(**({"rule_id": "r"} | rule))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {"type": "string"}}, "json_schema.not cannot be enforced"),
        ({"type": "array", "uniqueItems": True}, "json_schema.uniqueItems cannot"),
        ({"if": {}, "then": {}}, "json_schema.if cannot"),
        ({"type": "object", "dependentSchemas": {}}, "json_schema.dependentSchemas cannot"),
        ({"type": "object", "dependentRequired": {}}, "json_schema.dependentRequired cannot"),
        ({"type": "object", "propertyNames": {}}, "json_schema.propertyNames cannot"),
        ({"type": "array", "contains": {}}, "json_schema.contains cannot"),
        ({"type": "object", "unevaluatedProperties": False}, "json_schema.unevaluatedProperties cannot"),
        ({"$dynamicRef": "#a"}, r"json_schema.\$dynamicRef cannot"),
        ({"type": "string", "contentEncoding": "base64"}, "json_schema.contentEncoding cannot"),
        ({"x-guidance": {"lenient": True}, "type": "string"}, "json_schema.x-guidance cannot"),
        ({"type": "string", "minlength": 2}, "json_schema.minlength cannot"),
        ({"properties": {"a": {"items": {"not": {}}}}}, "json_schema.properties.a.items.not cannot"),
        ({"anyOf": [{}, {"not": {}}]}, r"json_schema.anyOf\[1\].not cannot"),
        ({"allOf": [{"uniqueItems": True}]}, r"json_schema.allOf\[0\].uniqueItems cannot"),
        ({"$defs": {"x": {"not": {}}}}, r"json_schema.\$defs.x.not cannot"),
        ({"patternProperties": {"^x": {"not": {}}}}, r"json_schema.patternProperties.\^x.not cannot"),
        ({"prefixItems": [{"not": {}}]}, r"json_schema.prefixItems\[0\].not cannot"),
        ({"$ref": "http://example.com/x.json"}, r"json_schema.\$ref must point into the schema itself"),
        ({"$ref": "#/$defs/x"}, "json_schema cannot be enforced"),
        ({"$ref": "#"}, "json_schema cannot be enforced: no text satisfies it"),
        ({"items": [{"type": "integer"}]}, "json_schema.items must be"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]}, "items must be one schema"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, r"json_schema.\$schema must be one of"),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/a",
                "minimum": 3,
                "definitions": {"a": {"type": "integer"}},
            },
            "must stand alone",
        ),
        ({"type": "number", "exclusiveMaximum": 0}, "exclusiveMaximum cannot be enforced at 0"),
        ({"type": "object", "minProperties": 2}, "minProperties cannot be enforced beyond the required"),
        ({"properties": {'a"b': {}}}, "names that need no escapes"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "minimum .5. is greater than maximum .2."),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf constraints are not supported"),
        ({"patternProperties": {"^x": {}, "1$": {}}}, "not disjoint"),
        ({"type": "string", "format": "regex"}, "Unknown format: regex"),
        ({"type": "string", "pattern": "(?=a)b"}, "json_schema.pattern must have no look-around"),
        ({"items": {"pattern": "a++b"}}, "json_schema.items.pattern must have no possessive"),
        ({"patternProperties": {"[": {}}}, "is not a 'regex'"),
        ({"patternProperties": {"^x-": {}, r"^x\-": {}}}, "patternProperties must match differently"),
        ({"items": {"pattern": "(?u)a"}}, "json_schema.items.pattern must be a regular expression"),
        ({"type": "texte"}, "json_schema.type must be valid JSON Schema"),
        ({"enum": [float("nan")]}, "must be plain JSON"),
        ({"enum": []}, "json_schema"),
    ],
)
def test_schema_with_a_part_that_would_be_dropped_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Rule(rule_id="r", json_schema=schema)


@pytest.mark.parametrize(
    "rule",
    [
        {"forbid_phrases": ["bad\x00word", "tab\there", "ばか"], "whole_word": True, "confusables": True},
        {"forbid_regex": "(^|[^0-9])(1[6-9]|[2-9][0-9]|[0-9]{3,}) ?%"},
        {"allow_values": ["yes", "no", 'say "hi"\n']},
        {"regex": r"\d{4}-\d{2}"},
        {"json_schema": {"type": "object", "required": ["a"]}},
        {"grammar": 'start: "<a>" /<[0-9]+>/ // <[7]>\n'},
        {"grammar": 'start: "x" %json {"type": "integer", "maximum": 3}\n'},
        {"check": r"(?s)\A(?!.*\bsecret\b)"},
    ],
)
def test_rule_is_plain_data_and_comes_back_from_it(rule: dict[str, Any]) -> None:
    made = Rule(rule_id="r", **rule)
    again = Rule.model_validate_json(made.model_dump_json())
    assert again == made
    assert again.fingerprint == made.fingerprint
    assert made.kind == next(iter(rule))


def test_kinds_say_what_they_are() -> None:
    check, ban, regex = (
        Rule(rule_id="r", **{name: value})
        for name, value in (("check", "a"), ("forbid_phrases", ("a",)), ("regex", "a"))
    )
    assert check.kind is RuleKind.CHECK
    assert [rule.is_enforced for rule in (check, ban, regex)] == [False, True, True]
    assert [rule.says_when_to_end for rule in (ban, regex)] == [False, True]
