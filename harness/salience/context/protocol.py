"""The first line of a context: which version of the protocol it follows, and a hash of its template.

Version 1.1 is 1.2 without weights: none in the lines, and none that steer.
"""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from salience.context.template import ContextTemplate
from salience.errors import ProtocolMismatch

__all__ = [
    "PROTOCOL_VERSIONS",
    "ContextHeader",
    "OnMismatch",
    "check_header",
    "fingerprint_template",
    "has_weights",
    "negotiate_version",
    "parse_header",
]

PROTOCOL_VERSIONS = ("1.1", "1.2")
"""What `render_context` writes."""

_DOWNGRADED = "1.1"
_HEADER = re.compile(r"\[MODEL_CONTEXT_PROTOCOL v(\d+\.\d+) \| fp:sha256:([0-9a-f]{16})\]")


class OnMismatch(StrEnum):
    """What becomes of a request whose template is of a version that its consumer does not support."""

    DOWNGRADE = "downgrade"
    """Write it in version 1.1, where the consumer supports that."""
    STOP = "stop"
    """Raise `ProtocolMismatch`, for a person to decide."""


@dataclass(frozen=True)
class ContextHeader:
    """The first line; `str` gives it."""

    version: str
    fingerprint: str

    def __str__(self) -> str:
        return f"[MODEL_CONTEXT_PROTOCOL v{self.version} | fp:sha256:{self.fingerprint}]"


@lru_cache(maxsize=64)
def fingerprint_template(template: ContextTemplate) -> str:
    """Sixteen hex digits of the SHA-256 of the template's whole content, so any change of it is another one.

    The content is hashed as JSON in one spelling: keys sorted, no spaces, defaults written out.
    """
    fields = template.model_dump(mode="json")
    spelt = json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(spelt.encode()).hexdigest()[:16]


def parse_header(text: str) -> ContextHeader:
    """Read the first line of a context.

    Raises:
        ProtocolMismatch: The first line is none of the protocol's.
    """
    line = text.split("\n", 1)[0]
    match = _HEADER.fullmatch(line)
    if match is None:
        raise ProtocolMismatch(
            f"context must begin with [MODEL_CONTEXT_PROTOCOL vN.N | fp:sha256:<16 hex>], got {line[:80]!r}"
        )
    return ContextHeader(match[1], match[2])


def check_header(
    text: str, supported: Collection[str] = PROTOCOL_VERSIONS, fingerprint: str | None = None
) -> ContextHeader:
    """What a consumer does before it reads a context: refuse a version it does not support.

    Args:
        text: The context.
        supported: Versions the consumer reads.
        fingerprint: The template's that the consumer expects; None takes any.

    Raises:
        ProtocolMismatch: The version or the fingerprint is another one, or there is no protocol line.
    """
    header = parse_header(text)
    if header.version not in supported:
        raise ProtocolMismatch(f"protocol version must be {_any_of(supported)}, got {header.version}")
    if fingerprint is not None and header.fingerprint != fingerprint:
        raise ProtocolMismatch(f"template fingerprint must be {fingerprint}, got {header.fingerprint}")
    return header


def negotiate_version(wanted: str, supported: Collection[str], on_mismatch: OnMismatch) -> str:
    """The version to write for a consumer: the wanted one, or 1.1 where that may stand in for it.

    Raises:
        ProtocolMismatch: The consumer does not support the wanted version and nothing may stand in for it.
    """
    can_write = [version for version in supported if version in PROTOCOL_VERSIONS]
    if wanted in can_write:
        return wanted
    if on_mismatch is OnMismatch.DOWNGRADE and _DOWNGRADED in can_write and _number(wanted) > (1, 1):
        return _DOWNGRADED
    raise ProtocolMismatch(f"protocol version must be {_any_of(can_write)}, got a template of {wanted}")


def has_weights(version: str) -> bool:
    """Whether contexts of a version carry weights."""
    return version != _DOWNGRADED


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _any_of(versions: Collection[str]) -> str:
    return " or ".join(sorted(versions, key=_number)) or "one that both sides support (none is)"
