"""Context templates: which memories a prompt shows, where and how; needs no torch."""

from salience.context.escaping import escape_text, unescape_text
from salience.context.history import (
    CompactedHistory,
    Compaction,
    CompactionMethod,
    EventRule,
    LayerBudgets,
    LayerShares,
    compact_history,
    extract_events,
)
from salience.context.protocol import (
    PROTOCOL_VERSIONS,
    ContextHeader,
    OnMismatch,
    check_header,
    fingerprint_template,
    negotiate_version,
    parse_header,
)
from salience.context.rendering import (
    RenderedContext,
    TruncationEvent,
    TruncationReason,
    render_context,
)
from salience.context.template import (
    Accepts,
    ContextTemplate,
    Layer,
    Section,
    list_templates,
    load_template,
)

__all__ = [
    "PROTOCOL_VERSIONS",
    "Accepts",
    "CompactedHistory",
    "Compaction",
    "CompactionMethod",
    "ContextHeader",
    "ContextTemplate",
    "EventRule",
    "Layer",
    "LayerBudgets",
    "LayerShares",
    "OnMismatch",
    "RenderedContext",
    "Section",
    "TruncationEvent",
    "TruncationReason",
    "check_header",
    "compact_history",
    "escape_text",
    "extract_events",
    "fingerprint_template",
    "list_templates",
    "load_template",
    "negotiate_version",
    "parse_header",
    "render_context",
    "unescape_text",
]
