"""JSON Schema: what of it can be enforced, keyword by keyword, and how it is handed to the engine.

The engine ignores keywords it has never heard of, so a misspelt `maxlength` would bind nobody. Here only
keywords of a list pass, at every depth. What an answer must look like is narrower than the schema in three
ways: properties come in the order given, an integer has no fraction or exponent (`1`, never `1.0`), and
strings hold no escapes but those that JSON needs: of quotes, backslashes and control characters. By others a
key could pose as another and a banned word pass as something else.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for

from salience_models.constraints.engine import accepted_texts, grammar_error, random_sentence
from salience_models.constraints.pattern_syntax import explicit_pattern
from salience_models.constraints.patterns import compile_python

__all__ = [
    "ALL_ESCAPES",
    "check_schema",
    "decoded_strings",
    "escapes_within",
    "schema_grammar",
    "spell_values",
    "with_explicit_patterns",
    "without_values",
]

ALL_ESCAPES = 'nrbtf\\"u'
"""What may follow a backslash in a string of an answer; `u` for control characters only: `\\u0000`."""

_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
)

_ANNOTATIONS = frozenset(
    [
        "$comment",
        "$schema",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
    ]
)
_ENFORCED = frozenset(
    [
        "type",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$anchor",
        "$defs",
        "definitions",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ]
)
_SUBSCHEMAS = ("additionalProperties", "items")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_BESIDE_VALUES = frozenset(
    [
        "type",
        "minLength",
        "maxLength",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minItems",
        "maxItems",
    ]
)


def check_schema(schema: dict[str, Any], name: str) -> None:
    """Refuse, naming the place, what the engine would not enforce.

    Raises:
        ValueError: One sentence that begins with the place, such as `json_schema.properties.age.not`.
    """
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be plain JSON, got a value that is not: {error}") from error
    draft = str(schema.get("$schema", _DRAFTS[0])).rstrip("#")
    if draft not in _DRAFTS:
        raise ValueError(f"{name}.$schema must be one of {', '.join(_DRAFTS)}, got {draft!r}")
    try:
        validator_for(schema, default=validator_for({"$schema": _DRAFTS[0]})).check_schema(schema)
    except SchemaError as error:
        path = ".".join([name, *map(str, error.absolute_path)])
        raise ValueError(f"{path} must be valid JSON Schema, got: {error.message}") from error
    escapes = escapes_within(schema)
    _check(schema, name, is_root=True, has_siblings_of_ref=draft in _DRAFTS[:2], escapes=escapes)


def _check(schema: Any, name: str, *, is_root: bool, has_siblings_of_ref: bool, escapes: str) -> None:
    if isinstance(schema, bool):
        return
    for keyword in schema:
        if keyword not in _ENFORCED | _ANNOTATIONS and not (is_root and keyword == "$id"):
            raise ValueError(f"{name}.{keyword} cannot be enforced: the keyword is not among those supported")
    reference = schema.get("$ref", "#")
    if not reference.startswith("#"):
        raise ValueError(f"{name}.$ref must point into the schema itself ('#/$defs/...'), got {reference!r}")
    if "$ref" in schema and not has_siblings_of_ref and (set(schema) - _ANNOTATIONS) & _ENFORCED - _HARMLESS:
        raise ValueError(
            f"{name}.$ref must stand alone in a draft that ignores its siblings, got {list(schema)}"
        )
    if isinstance(schema.get("items"), list):
        raise ValueError(f"{name}.items must be one schema (give a tuple's as 'prefixItems'), got a list")
    if schema.get("exclusiveMaximum") == 0 and schema.get("type") != "integer":
        raise ValueError(f"{name}.exclusiveMaximum cannot be enforced at 0 for numbers: -0 would pass")
    if schema.get("minProperties", 0) > max(1, len(set(schema.get("required", ())))):
        raise ValueError(
            f"{name}.minProperties cannot be enforced beyond the required ones: a repeated key counts twice"
        )
    patterns = [("pattern", schema["pattern"])] if "pattern" in schema else []
    written: list[tuple[str, str]] = []
    for keyword, pattern in (
        *patterns,
        *(("patternProperties", p) for p in schema.get("patternProperties", ())),
    ):
        compile_python(pattern, f"{name}.{keyword}")
        written.append((keyword, explicit_pattern(pattern, f"{name}.{keyword}", is_ascii=True)))
    if len(set(written)) < len(written):
        raise ValueError(f"{name}.patternProperties must match differently, got two that match the same")
    for key in (*schema.get("properties", ()), *schema.get("required", ())):
        if any(char in '"\\' or char < " " or char == "\x7f" for char in key):
            raise ValueError(f"{name}.properties must have names that need no escapes, got {key!r}")
    beside = with_explicit_patterns({k: v for k, v in schema.items() if k in _BESIDE_VALUES})
    for keyword, values in (("const", [schema.get("const")]), ("enum", schema.get("enum", ()))):
        if keyword in schema:
            values = [value for value in values if Draft202012Validator(beside).is_valid(value)]
            for value, text in zip(values, spell_values(values, escapes=escapes, beside=beside), strict=True):
                if text is None:
                    open_ = "" if "u" in escapes else " while an object has additionalProperties"
                    raise ValueError(
                        f"{name}.{keyword} cannot be enforced: no answer can hold {value!r}{open_}"
                    )
    for place, child in _children(schema):
        _check(
            child,
            f"{name}.{place}",
            is_root=False,
            has_siblings_of_ref=has_siblings_of_ref,
            escapes=escapes,
        )


_HARMLESS = frozenset(("$ref", "$defs", "definitions", "$anchor"))


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in _SUBSCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in _SUBSCHEMA_LISTS:
        yield from ((f"{keyword}[{i}]", child) for i, child in enumerate(schema.get(keyword, ())))
    for keyword in _SUBSCHEMA_MAPS:
        yield from ((f"{keyword}.{key}", child) for key, child in schema.get(keyword, {}).items())


def escapes_within(schema: Any, free: str = ALL_ESCAPES) -> str:
    """The escapes that strings in an answer of a schema may use.

    No `u` where an object names some properties and leaves others open: the engine compares names as they
    are written there, so that `\\u0061` would pass for another than `a`.

    Args:
        schema: Any part of a schema.
        free: The escapes for strings beside the given constants, which are compared with bans already.
    """
    escapes = free if _has_free_strings(schema) else ALL_ESCAPES
    return escapes.replace("u", "") if _has_open_names(schema) else escapes


def _has_open_names(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    names = schema.get("properties") or schema.get("patternProperties")
    if names and schema.get("additionalProperties") is not False:
        return True
    return any(_has_open_names(child) for _, child in _children(schema))


def _has_free_strings(schema: Any) -> bool:
    """Whether an answer may hold strings that the schema does not list; True where that is hard to tell."""
    if not isinstance(schema, Mapping):
        return schema is not False
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if "const" in schema or "enum" in schema:
        is_free = False
    elif not kinds:
        is_free = not any(keyword in schema for keyword in ("anyOf", "oneOf", "allOf", "$ref"))
    else:
        names = "additionalProperties" not in schema or schema.get("patternProperties")
        items = "array" in kinds and "items" not in schema
        is_free = "string" in kinds or items or ("object" in kinds and bool(names))
    return is_free or any(_has_free_strings(child) for _, child in _children(schema))


def schema_grammar(
    schema: Mapping[str, Any] | bool, *, max_whitespace: int, escapes: str | None = None
) -> str:
    """A checked schema as the `%json` expression of a Lark grammar.

    Args:
        schema: Has passed `check_schema`; False for one that no value satisfies.
        max_whitespace: Most characters of whitespace at each place that may have some.
        escapes: What may follow a backslash in strings; None for what `escapes_within` says.
    """
    escapes = escapes_within(schema) if escapes is None else escapes
    options: dict[str, Any] = {"json_allowed_escapes": escapes}
    if max_whitespace:
        options["whitespace_pattern"] = rf"[ \n\r\t]{{1,{max_whitespace}}}"
    else:
        options["whitespace_flexible"] = False
    body = _rewritten(with_explicit_patterns(schema))
    return f"%json {json.dumps({'x-guidance': options} | (body if body is not False else {'enum': []}))}"


def with_explicit_patterns(schema: Any) -> Any:
    """The same schema with its patterns written out: the check reads them as the mask does."""

    def rewrite(part: dict[str, Any]) -> dict[str, Any]:
        if "pattern" in part:
            part = part | {"pattern": explicit_pattern(part["pattern"], "pattern", is_ascii=True)}
        if "patternProperties" in part:
            explicit = {
                explicit_pattern(key, "patternProperties", is_ascii=True): value
                for key, value in part["patternProperties"].items()
            }
            part = part | {"patternProperties": explicit}
        return part

    return _map_schemas(schema, rewrite)


def _rewritten(schema: Any) -> Any:
    """The same schema without what the engine reads too widely: below 0 it would let `-0` through."""

    def rewrite(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") == "integer" and part.get("exclusiveMaximum") == 0:
            limit = min(-1, part.get("maximum", -1))
            return {k: v for k, v in part.items() if k != "exclusiveMaximum"} | {"maximum": limit}
        return part

    return _map_schemas(schema, rewrite)


def spell_values(
    values: Sequence[Any], *, escapes: str = ALL_ESCAPES, beside: Mapping[str, Any] | None = None
) -> list[str | None]:
    """How an answer writes each value: as JSON's canonical text where the engine takes that.

    The engine writes a constant in its own way, and leaves out, without a word, a character whose escape it
    may not use. None where what it writes is read as another value, or it writes nothing.

    Args:
        values: Plain JSON.
        escapes: As in `schema_grammar`.
        beside: Keywords that bind the values too.
    """
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]

    def grammar(of: dict[str, Any]) -> str:
        return f"start: {schema_grammar(of | dict(beside or {}), max_whitespace=0, escapes=escapes)}\n"

    together = grammar({"enum": list(values)})
    is_taken = [False] * len(texts) if grammar_error(together) else accepted_texts(together, texts)
    spelled: list[str | None] = []
    for value, text, taken in zip(values, texts, is_taken, strict=True):
        written = text if taken else None
        if not taken and not grammar_error(alone := grammar({"const": value})):
            sentence = random_sentence(alone, random.Random(0), max_bytes=64 + 12 * len(text))
            try:
                if Draft202012Validator({"const": value}).is_valid(json.loads(sentence)):
                    written = sentence.decode()
            except ValueError:  # broken off within a number or a string
                pass
        spelled.append(written)
    return spelled


def without_values(
    schema: Mapping[str, Any], take: Callable[[Sequence[Any]], Sequence[bool]]
) -> Mapping[str, Any] | bool:
    """The schema with those of its values and properties' names that `take` says may be in an answer.

    A schema that loses its every value becomes `False`; the engine then finds out whether an answer is left.
    """

    def rewrite(part: dict[str, Any]) -> dict[str, Any] | bool:
        kept = dict(part)
        if "const" in part and not take([part["const"]])[0]:
            return False
        if "enum" in part:
            is_taken = take(part["enum"])
            kept["enum"] = [value for value, taken in zip(part["enum"], is_taken, strict=True) if taken]
            if not kept["enum"]:
                return False
        if "properties" in part:
            names = list(part["properties"])
            kept["properties"] = {
                name: part["properties"][name] if taken else False
                for name, taken in zip(names, take(names), strict=True)
            }
        return kept

    return _map_schemas(schema, rewrite)


def _map_schemas(schema: Any, rewrite: Callable[[dict[str, Any]], Any]) -> Any:
    """`rewrite` applied to every schema within `schema`, the inner ones first; nothing else is touched."""
    if isinstance(schema, bool):
        return schema
    result = dict(schema)
    for keyword in _SUBSCHEMAS:
        if keyword in result:
            result[keyword] = _map_schemas(result[keyword], rewrite)
    for keyword in _SUBSCHEMA_LISTS:
        if keyword in result:
            result[keyword] = [_map_schemas(child, rewrite) for child in result[keyword]]
    for keyword in _SUBSCHEMA_MAPS:
        if keyword in result:
            result[keyword] = {key: _map_schemas(child, rewrite) for key, child in result[keyword].items()}
    return rewrite(result)


def decoded_strings(value: Any) -> Iterator[str]:
    """All strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from decoded_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from decoded_strings(item)
