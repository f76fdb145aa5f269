"""Stored text as one line of data: nothing in it can end its line or pose as a delimiter.

Escapes are visible and reversible: a backslash is doubled, what would break or reorder a line is written
`\\n`, `\\r`, `\\t` or `\\u{2028}`, and a bracket that would open one of the protocol's delimiters has a
backslash before it.
Letters of other scripts that merely look like a delimiter's pass as they are.
"""

import json
import re
import unicodedata
from collections.abc import Mapping

from pydantic import JsonValue

__all__ = ["DELIMITERS", "escape_json", "escape_text", "shorten_escaped", "unescape_text"]

DELIMITERS = (
    "MODEL_CONTEXT_PROTOCOL",
    "CONSTRAINTS",
    "SESSION_STATE",
    "MEMORY_CONTEXT",
    "CONVERSATION_SUMMARY",
)
"""Names that stand in square brackets around the parts of a context, with `/` before them at a part's end."""

_FOLDED = tuple(name.casefold() for name in DELIMITERS)
_REACH = 4 * max(map(len, DELIMITERS))
"""Characters after a bracket that are looked at: a name with three invisible ones after each letter."""

# Controls, line and paragraph separators, the marks that reorder text, and all that NFKC makes a "[".
_SPECIAL = re.compile("[\\\\\\x00-\\x1f\\x7f-\\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069[\uff3b\ufe47]")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-f]+)\}|(.))", re.DOTALL)
_UNIT = re.compile(r"\\u\{[0-9a-f]+\}|\\.|.", re.DOTALL)
_BRACKETS = "[\uff3b\ufe47"
_LETTERS = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t"}


def escape_text(text: str) -> str:
    """The text as one line in which no delimiter begins; `unescape_text` gives it back."""

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if character in _BRACKETS:
            return f"\\{character}" if _opens_delimiter(text, match.end()) else character
        return _LETTERS.get(character) or f"\\u{{{ord(character):x}}}"

    return _SPECIAL.sub(escape, text)


def unescape_text(text: str) -> str:
    """What `escape_text` was given."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _CHARACTERS.get(m[2], m[2]), text)


def escape_json(value: Mapping[str, JsonValue]) -> str:
    """Canonical JSON on one line in which no delimiter begins; still JSON of the same value."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        is_harmless = character in _BRACKETS and not _opens_delimiter(text, match.end())
        # A backslash is JSON's own escape already.
        return character if character == "\\" or is_harmless else f"\\u{ord(character):04x}"

    return _SPECIAL.sub(escape, text)


def _opens_delimiter(text: str, after_bracket: int) -> bool:
    """Whether a delimiter's name follows, in any case and width, whatever invisible stands between."""
    following = unicodedata.normalize("NFKC", text[after_bracket : after_bracket + _REACH])
    visible = "".join(c for c in following if not c.isspace() and unicodedata.category(c) not in ("Cf", "Cc"))
    return visible.lstrip("/").casefold().startswith(_FOLDED)


def shorten_escaped(text: str, width: int) -> str:
    """Escaped text cut to `width` characters, `…` at its end included, no escape or cluster torn apart."""
    if len(text) <= width:
        return text
    kept, length = [], 0
    for unit in _UNIT.findall(text):
        if length + len(unit) > width - 1:
            break
        kept.append(unit)
        length += len(unit)
    following = text[length]
    # A mark, joiner, variation selector or skin tone belongs to the character before it, which goes too.
    while kept and (
        unicodedata.category(following[0]) in ("Mn", "Mc", "Me")
        or "\u200d" in (following, kept[-1])
        or "\U0001f3fb" <= following <= "\U0001f3ff"
    ):
        following = kept.pop()
    return "".join(kept).rstrip() + "…"
