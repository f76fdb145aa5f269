"""The check after the answer, which shares nothing with the masks but the rules."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for

from salience_models.constraints.bans import contains_banned
from salience_models.constraints.engine import is_accepted
from salience_models.constraints.events import Violation
from salience_models.constraints.json_schema import decoded_strings, schema_grammar, with_explicit_patterns
from salience_models.constraints.lark_source import LarkSource
from salience_models.constraints.patterns import ForbiddenPattern, compile_python
from salience_models.constraints.rule import Rule, RuleKind

__all__ = ["find_violations", "find_violations_in_value"]

_TAIL_CHARACTERS = 400

# Those of which Python's checks agree with the RFCs; the others are the engine's word alone.
_FORMATS = FormatChecker(formats=("date", "ipv4", "ipv6", "uuid", "email"))


def find_violations(
    text: str, rules: Sequence[Rule], *, is_complete: bool = True, prompt_tail: str = ""
) -> tuple[Violation, ...]:
    """The rules that `text` breaks.

    Bans are looked for in the text, across its border with the prompt, and, beside a rule that asks for JSON,
    in its decoded strings.

    Args:
        text: The whole answer.
        rules: Those that bind, `check` rules included.
        is_complete: Whether the answer ended by itself; one cut short breaks no ban for that.
        prompt_tail: What stood right before the answer.
    """
    strings: list[str] = []
    if any(rule.kind is RuleKind.JSON_SCHEMA for rule in rules):
        try:
            strings = list(decoded_strings(_read_json(text)))
        except ValueError:
            strings = []  # reported by the rule that asks for JSON
    found = []
    for rule in rules:
        detail = _what_is_banned(rule, text, strings, prompt_tail) or _what_is_missing(rule, text)
        if detail:
            cut = rule.says_when_to_end and not is_complete
            found.append(Violation(rule.rule_id, rule.kind.value, detail, is_incomplete=cut))
    return tuple(found)


def find_violations_in_value(value: Any, text: str, bans: Sequence[Rule]) -> tuple[Violation, ...]:
    """The bans broken by every answer that holds this JSON value, written as `text`."""
    strings = list(decoded_strings(value))
    found = ((rule, _what_is_banned(rule, text, strings, "", is_whole=False)) for rule in bans)
    return tuple(Violation(rule.rule_id, rule.kind.value, detail) for rule, detail in found if detail)


def _what_is_banned(
    rule: Rule, text: str, strings: Sequence[str], prompt_tail: str, *, is_whole: bool = True
) -> str:
    """What of a ban's the text or a decoded string holds, in words; empty for nothing and for other rules."""
    if rule.forbid_phrases is not None:
        banned = partial(
            contains_banned,
            phrases=rule.forbid_phrases,
            whole_word=rule.whole_word,
            confusables=rule.confusables,
        )
        tail = prompt_tail[-_TAIL_CHARACTERS:]
        # A phrase within the prompt is not the answer's: only what follows the last one counts.
        tail = next(tail[start:] for start in range(len(tail) + 1) if not banned(tail[start:]))
        phrases = next(filter(None, map(banned, (tail + text, *strings))), ())
        return f"holds {phrases[0]!r}" if phrases else ""
    if rule.forbid_regex is not None:
        pattern = ForbiddenPattern.parse(rule.forbid_regex, "forbid_regex")
        matches = (pattern.find(text, is_whole=is_whole), *(pattern.find(s, is_whole=False) for s in strings))
        match = next(filter(None, matches), None)
        return "" if match is None else f"holds {match.group()!r}, which matches {rule.forbid_regex!r}"
    return ""


def _what_is_missing(rule: Rule, text: str) -> str:
    """Why the text is not what a rule asks for; empty where it is, and for bans."""
    if rule.allow_values is not None:
        return "" if text in rule.allow_values else f"is none of the {len(rule.allow_values)} values"
    if rule.regex is not None:
        is_match = compile_python(rule.regex, "regex").fullmatch(text) is not None
        return "" if is_match else f"does not match {rule.regex!r} as a whole"
    if rule.json_schema is not None:
        try:
            value = _read_json(text)
        except ValueError as error:
            return f"is not JSON: {error}"
        schema = with_explicit_patterns(rule.json_schema)
        base = validator_for(schema, default=Draft202012Validator)
        validator = extend(base, {"multipleOf": _multiple_of})(schema, format_checker=_FORMATS)
        error = next(iter(validator.iter_errors(value)), None)
        return "" if error is None else f"breaks the schema at {error.json_path}: {error.message}"
    if rule.grammar is not None:
        render = partial(schema_grammar, max_whitespace=rule.max_whitespace)
        is_sentence = is_accepted(LarkSource.parse(rule.grammar, "grammar").grammar(render), text)
        return "" if is_sentence else "is no sentence of the grammar"
    if rule.check is not None:
        return "" if re.search(rule.check, text) else f"holds no match of {rule.check!r}"
    return ""


def _read_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    # Python reads no integer of more than 4,300 digits; as a number it is compared well enough.
    return json.loads(
        text,
        parse_constant=refuse,
        parse_int=lambda digits: int(digits) if len(digits) < 4000 else float(digits),
    )


def _multiple_of(_: Any, divisor: Any, value: Any, __: Any) -> Any:
    """In decimals, as the answer was written: in binary 0.3 is no multiple of 0.1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    try:
        is_multiple = Decimal(repr(value)) % Decimal(repr(divisor)) == 0
    except InvalidOperation:
        return  # more digits than the context holds
    if not is_multiple:
        yield ValidationError(f"{value!r} is not a multiple of {divisor!r}")
