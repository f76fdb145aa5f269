"""A template's fingerprint: a hash over its whole content, so that any change of it is another one."""

import hashlib
import json
from functools import lru_cache

from salience.context.template import ContextTemplate

__all__ = ["canonical_json", "fingerprint_template"]


def canonical_json(template: ContextTemplate) -> str:
    """The template as JSON in one spelling: keys sorted, no spaces, defaults written out."""
    fields = template.model_dump(mode="json")
    return json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=64)
def fingerprint_template(template: ContextTemplate) -> str:
    """Sixteen hex digits of the SHA-256 of the canonical JSON; remembered by content, never by version."""
    return hashlib.sha256(canonical_json(template).encode()).hexdigest()[:16]
