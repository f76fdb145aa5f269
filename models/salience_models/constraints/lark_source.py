"""A user's Lark grammar, checked for what would not be enforced as it reads, its JSON schemas prepared."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from salience_models.constraints.json_schema import check_schema

__all__ = ["LarkSource"]

_TOKENS = re.compile(
    r"""
      (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<json>%json\b\s*)
    | (?P<option>%llguidance\b)
    | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/)
    | (?P<token><[^<>\n]*>)
    | (?P<attributes>(?<=[A-Za-z0-9_])\[[^\]\n]*\])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_HARMLESS_ATTRIBUTES = {"lazy", "capture", "suffix"}


@dataclass(frozen=True)
class LarkSource:
    """Source text with a schema between every two of its pieces."""

    pieces: tuple[str, ...]
    schemas: tuple[Mapping[str, Any], ...]

    @classmethod
    def parse(cls, text: str, name: str) -> "LarkSource":
        """Take the `%json` schemas out.

        Raises:
            ValueError: The grammar sets options of the engine, names tokens (special ones are never text),
                limits a rule by tokens, or holds a schema that cannot be enforced.
        """
        pieces, schemas, start = [], [], 0
        for match in _matches(text):
            kind, found = match.lastgroup, match.group()
            if kind == "option":
                raise ValueError(f"{name} must not set '%llguidance' options, got some")
            if kind == "token":
                raise ValueError(f"{name} must not name tokens, which are no text, got {found!r}")
            if kind == "attributes":
                names = {part.partition("=")[0].strip() for part in found[1:-1].split(",")}
                if names - _HARMLESS_ATTRIBUTES:
                    raise ValueError(
                        f"{name} must give rules no attributes but {sorted(_HARMLESS_ATTRIBUTES)}, "
                        f"got {found!r}"
                    )
            if kind == "json":
                schema, end = _read_schema(text, match.end(), name)
                check_schema(schema, f"{name}.%json[{len(schemas)}]")
                pieces.append(text[start : match.start()])
                schemas.append(schema)
                start = end
        return cls((*pieces, text[start:]), tuple(schemas))

    def grammar(self, render: Callable[[Mapping[str, Any]], str]) -> str:
        """The source with each schema rendered as a `%json` expression."""
        rendered = [*map(render, self.schemas), ""]
        return "".join(a + b for a, b in zip(self.pieces, rendered, strict=True)) + "\n"


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Lexical parts of the source; what lies inside a schema is none."""
    at = 0
    while (match := _TOKENS.match(text, at)) is not None:
        yield match
        at = match.end()
        if match.lastgroup == "json":
            at = _read_schema(text, at, "grammar")[1]


def _read_schema(text: str, start: int, name: str) -> tuple[dict[str, Any], int]:
    try:
        schema, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} must hold a JSON schema after '%json', got: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"{name} must hold an object after '%json', got {schema!r}")
    return schema, end
