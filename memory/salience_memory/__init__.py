"""Memories: what is declared, and what of it a query recalls. Knows nothing of the language model.

Names are imported when first used, so that `salience --help` reads none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience_memory.clock import Clock, from_ns, system_clock, to_ns
    from salience_memory.conflicts import CONFLICT_EVENT, Conflict, find_conflicts
    from salience_memory.decay import AgeStep, DecayPolicy, Standing, assess, compute_freshness
    from salience_memory.embedder import Embedder
    from salience_memory.errors import (
        DocumentUnreadable,
        EmbedderNotFound,
        EmbeddingMismatch,
        MemoryExists,
        MemoryForgotten,
        MemoryNotFound,
        MemoryReadOnly,
        MemoryRoomError,
        MissingExtra,
        NoticingPackInvalid,
        ProjectionInvalid,
        SnapshotInvalid,
        StatementOutdated,
        StoreBusy,
        StoreCorrupt,
        StoreError,
        StoreForeign,
        StoreTooNew,
        StoreUnavailable,
        VersionConflict,
    )
    from salience_memory.feedback import (
        AnswerFeedback,
        apply_answer,
        guess_language,
        lower_corrected,
        mark_contradicted,
        write_disclaimer,
    )
    from salience_memory.integrity import check_store, repair_store
    from salience_memory.lexical import tokenize
    from salience_memory.maintenance import MaintenanceReport, maintain
    from salience_memory.memory_recall import MemoryRecall, RecalledMemory
    from salience_memory.normalisation import is_same_text, says_the_same
    from salience_memory.ranking import Ranked, RecallBreakdown
    from salience_memory.records import (
        MAX_SEMANTIC_WEIGHT,
        NEUTRAL_WEIGHT,
        Memory,
        MemoryState,
        MemoryType,
        Provenance,
        StoredMemory,
        Urgency,
        Verification,
        derive_memory_id,
    )
    from salience_memory.references import (
        Position,
        Reference,
        ReferenceScanner,
        count_positions,
        format_reference,
    )
    from salience_memory.registrar import (
        NoticingPack,
        OutcomeKind,
        Registrar,
        RegistrarOutcome,
        RegistrarQueue,
        Role,
        Trigger,
        Utterance,
        load_noticing_pack,
        shipped_noticing_packs,
    )
    from salience_memory.scopes import NOBODY, Scope, Viewer
    from salience_memory.snapshots import export_snapshot, import_snapshot
    from salience_memory.store import (
        AuditEvent,
        Change,
        Episode,
        MemoryStore,
        MemoryVersion,
        ProjectionRow,
        StoredEpisode,
        TaskState,
        VectorBatch,
    )
    from salience_memory.text_recall import TextRecall
    from salience_memory.vectors import Embed, EmbeddingCache

__all__ = [
    "CONFLICT_EVENT",
    "MAX_SEMANTIC_WEIGHT",
    "NEUTRAL_WEIGHT",
    "NOBODY",
    "AgeStep",
    "AnswerFeedback",
    "AuditEvent",
    "Change",
    "Clock",
    "Conflict",
    "DecayPolicy",
    "DocumentUnreadable",
    "Embed",
    "Embedder",
    "EmbedderNotFound",
    "EmbeddingCache",
    "EmbeddingMismatch",
    "Episode",
    "MaintenanceReport",
    "Memory",
    "MemoryExists",
    "MemoryForgotten",
    "MemoryNotFound",
    "MemoryReadOnly",
    "MemoryRecall",
    "MemoryRoomError",
    "MemoryState",
    "MemoryStore",
    "MemoryType",
    "MemoryVersion",
    "MissingExtra",
    "NoticingPack",
    "NoticingPackInvalid",
    "OutcomeKind",
    "Position",
    "ProjectionInvalid",
    "ProjectionRow",
    "Provenance",
    "Ranked",
    "RecallBreakdown",
    "RecalledMemory",
    "Reference",
    "ReferenceScanner",
    "Registrar",
    "RegistrarOutcome",
    "RegistrarQueue",
    "Role",
    "Scope",
    "SnapshotInvalid",
    "Standing",
    "StatementOutdated",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreForeign",
    "StoreTooNew",
    "StoreUnavailable",
    "StoredEpisode",
    "StoredMemory",
    "TaskState",
    "TextRecall",
    "Trigger",
    "Urgency",
    "Utterance",
    "VectorBatch",
    "Verification",
    "VersionConflict",
    "Viewer",
    "apply_answer",
    "assess",
    "check_store",
    "compute_freshness",
    "count_positions",
    "derive_memory_id",
    "export_snapshot",
    "find_conflicts",
    "format_reference",
    "from_ns",
    "guess_language",
    "import_snapshot",
    "is_same_text",
    "load_noticing_pack",
    "lower_corrected",
    "maintain",
    "mark_contradicted",
    "repair_store",
    "says_the_same",
    "shipped_noticing_packs",
    "system_clock",
    "to_ns",
    "tokenize",
    "write_disclaimer",
]

_HOMES = {
    "clock": "Clock from_ns system_clock to_ns",
    "conflicts": "CONFLICT_EVENT Conflict find_conflicts",
    "decay": "AgeStep DecayPolicy Standing assess compute_freshness",
    "embedder": "Embedder",
    "errors": (
        "DocumentUnreadable EmbedderNotFound EmbeddingMismatch MemoryExists MemoryForgotten "
        "MemoryNotFound MemoryReadOnly MemoryRoomError MissingExtra NoticingPackInvalid "
        "ProjectionInvalid SnapshotInvalid StatementOutdated StoreBusy StoreCorrupt StoreError "
        "StoreForeign StoreTooNew StoreUnavailable VersionConflict"
    ),
    "feedback": (
        "AnswerFeedback apply_answer guess_language lower_corrected mark_contradicted "
        "write_disclaimer"
    ),
    "integrity": "check_store repair_store",
    "lexical": "tokenize",
    "maintenance": "MaintenanceReport maintain",
    "memory_recall": "MemoryRecall RecalledMemory",
    "normalisation": "is_same_text says_the_same",
    "ranking": "Ranked RecallBreakdown",
    "records": (
        "MAX_SEMANTIC_WEIGHT NEUTRAL_WEIGHT Memory MemoryState MemoryType Provenance StoredMemory "
        "Urgency Verification derive_memory_id"
    ),
    "references": "Position Reference ReferenceScanner count_positions format_reference",
    "registrar": (
        "NoticingPack OutcomeKind Registrar RegistrarOutcome RegistrarQueue Role Trigger "
        "Utterance load_noticing_pack shipped_noticing_packs"
    ),
    "scopes": "NOBODY Scope Viewer",
    "snapshots": "export_snapshot import_snapshot",
    "store": (
        "AuditEvent Change Episode MemoryStore MemoryVersion ProjectionRow StoredEpisode "
        "TaskState VectorBatch"
    ),
    "text_recall": "TextRecall",
    "vectors": "Embed EmbeddingCache",
}
"""Which module holds which names."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
