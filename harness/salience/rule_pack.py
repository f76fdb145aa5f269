"""Rule packs: rules in a JSON file, with the pieces that their patterns share, and what they do not catch."""

import json
import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from salience.errors import RulePackInvalid, describe_validation
from salience_models.constraints import Rule

__all__ = ["RulePack", "list_rule_packs", "load_rule_pack", "parse_rule", "read_rules"]

_PART = re.compile(r"<([A-Z][A-Z0-9_]*)>")
_PATTERNS = ("forbid_regex", "regex", "check")
_MAX_DEPTH = 8


class RulePack(BaseModel):
    """Rules to be kept together.

    `parts` are pieces of patterns by name: `<UNIT>` in a pattern, or in another part, stands for the part
    `UNIT`; in a pack without parts it stands for itself. A single rule can still be refused when it is
    read: `rules` are data until `parse_rule`.

    Attributes:
        limits: What the rules let through or refuse too widely, for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    description: str = ""
    limits: tuple[str, ...] = ()
    parts: dict[str, str] = Field(default_factory=dict)
    rules: tuple[dict[str, JsonValue], ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _put_parts_in(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("rules"), list):
            return data
        parts = data.get("parts", {})
        return {**data, "rules": [_without_parts(rule, parts) for rule in data["rules"]]}


def load_rule_pack(source: str | Path) -> RulePack:
    """A shipped pack by name, or a JSON file: a pack, a list of rules, or one rule.

    Raises:
        RulePackInvalid: No such pack or file, or it breaks the contract; the message names the field.
    """
    if isinstance(source, str) and source in list_rule_packs():
        return _parse(_folder().joinpath(f"{source}.json").read_bytes(), f"rule pack {source}", source)
    path = Path(source).expanduser()
    if isinstance(source, str) and path.suffix != ".json" and not path.is_file():
        names = ", ".join(list_rule_packs())
        raise RulePackInvalid(f"rules must be a JSON file or one of {names}, got {source!r}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RulePackInvalid(f"rule file {path} cannot be read: {error.strerror or error}") from error
    return _parse(data, f"rule file {path}", path.stem)


def read_rules(text: str, name: str) -> list[Rule]:
    """The rules of a command line's argument: JSON, `@FILE`, or the name of a shipped pack.

    Raises:
        RulePackInvalid: As `load_rule_pack`, or a rule that cannot be enforced; `name` is the argument's.
    """
    if text.lstrip().startswith(("{", "[")):
        pack = _parse(text.encode(), name, name.lstrip("-"))
    else:
        pack = load_rule_pack(Path(text[1:]) if text.startswith("@") else text)
    return [parse_rule(rule, f"{pack.name}, rules[{i}]") for i, rule in enumerate(pack.rules)]


def list_rule_packs() -> list[str]:
    """Names of the shipped packs."""
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def parse_rule(data: Mapping[str, JsonValue], where: str) -> Rule:
    """A rule out of its data.

    Raises:
        RulePackInvalid: It cannot be enforced; the message names the rule and the part.
    """
    try:
        return Rule.model_validate(dict(data))
    except ValidationError as error:
        name = f"{where} ({data['rule_id']!r})" if "rule_id" in data else where
        raise RulePackInvalid(f"{name}: {describe_validation(error)}") from error


def _folder() -> Traversable:
    return resources.files("salience") / "rules"


def _parse(data: bytes, where: str, name: str) -> RulePack:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise RulePackInvalid(f"{where} must be JSON, got: {error}") from error
    if isinstance(found, dict) and "rules" not in found:
        found = [found]
    if isinstance(found, list):
        numbered = [
            {"rule_id": f"rule-{i + 1}", **rule} if isinstance(rule, dict) else rule
            for i, rule in enumerate(found)
        ]
        found = {"name": name, "rules": numbered}
    try:
        return RulePack.model_validate(found)
    except ValidationError as error:
        raise RulePackInvalid(f"{where}: {describe_validation(error)}") from error
    except ValueError as error:
        raise RulePackInvalid(f"{where}: {error}") from error


def _without_parts(rule: Any, parts: Any) -> Any:
    """The rule with its parts written out."""
    if not isinstance(rule, dict) or not isinstance(parts, dict) or not parts:
        return rule
    return {
        name: _expand(value, parts) if name in _PATTERNS and isinstance(value, str) else value
        for name, value in rule.items()
    }


def _expand(pattern: str, parts: Mapping[str, Any]) -> str:
    def part(match: re.Match[str]) -> str:
        if pattern[: match.start()].endswith("?P"):
            return match[0]  # a capture group's name looks like a part: (?P<NAME>...)
        if match[1] not in parts:
            raise ValueError(f"parts must hold {match[1]}, which a pattern names, got {', '.join(parts)}")
        return str(parts[match[1]])

    for _ in range(_MAX_DEPTH):
        expanded = _PART.sub(part, pattern)
        if expanded == pattern:
            return pattern
        pattern = expanded
    raise ValueError(f"parts must not hold one another in a circle, got {pattern[:80]!r}")
