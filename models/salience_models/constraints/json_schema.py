"""JSON Schema: what of it can be enforced, keyword by keyword, and how it is handed to the engine.

The engine ignores keywords it has never heard of, so a misspelt `maxlength` would bind nobody. Here only
keywords of a list pass, at every depth. What an answer must look like is narrower than the schema in three
ways: properties come in the order given, an integer has no fraction or exponent (`1`, never `1.0`), and
strings hold no `\\u` escapes, by which a key could pose as another and a banned word pass as something else.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import SchemaError
from jsonschema.validators import validator_for

from salience_models.constraints.pattern_syntax import explicit_pattern
from salience_models.constraints.patterns import compile_python

__all__ = [
    "ALL_ESCAPES",
    "check_schema",
    "decoded_strings",
    "schema_grammar",
    "with_explicit_patterns",
    "without_banned",
]

ALL_ESCAPES = 'nrbtf\\"'
"""Letters that may follow a backslash in a string of an answer."""

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
    _check(schema, name, is_root=True, has_siblings_of_ref=draft in _DRAFTS[:2])


def _check(schema: Any, name: str, *, is_root: bool, has_siblings_of_ref: bool) -> None:
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
    for place, child in _children(schema):
        _check(child, f"{name}.{place}", is_root=False, has_siblings_of_ref=has_siblings_of_ref)


_HARMLESS = frozenset(("$ref", "$defs", "definitions", "$anchor"))


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in _SUBSCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in _SUBSCHEMA_LISTS:
        yield from ((f"{keyword}[{i}]", child) for i, child in enumerate(schema.get(keyword, ())))
    for keyword in _SUBSCHEMA_MAPS:
        yield from ((f"{keyword}.{key}", child) for key, child in schema.get(keyword, {}).items())


def schema_grammar(
    schema: Mapping[str, Any] | bool, *, max_whitespace: int, escapes: str = ALL_ESCAPES
) -> str:
    """A checked schema as the `%json` expression of a Lark grammar.

    Args:
        schema: Has passed `check_schema`; False for one that no value satisfies.
        max_whitespace: Most characters of whitespace at each place that may have some.
        escapes: Letters that may follow a backslash in strings.
    """
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


def without_banned(schema: Mapping[str, Any], is_banned: Callable[[str], bool]) -> Mapping[str, Any] | bool:
    """The schema without the values and optional properties whose text holds a banned phrase.

    A schema whose every value is banned becomes `False`; the engine then finds out whether an answer is left.
    """

    def rewrite(part: dict[str, Any]) -> dict[str, Any] | bool:
        if "const" in part and _holds_banned(part["const"], is_banned):
            return False
        kept = dict(part)
        if "enum" in part:
            kept["enum"] = [value for value in part["enum"] if not _holds_banned(value, is_banned)]
            if not kept["enum"]:
                return False
        if "properties" in part:
            kept["properties"] = {k: v if not is_banned(k) else False for k, v in part["properties"].items()}
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


def _holds_banned(value: Any, is_banned: Callable[[str], bool]) -> bool:
    return is_banned(json.dumps(value, ensure_ascii=False)) or any(map(is_banned, decoded_strings(value)))


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
