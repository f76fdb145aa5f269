"""Feedback: what an answer and its reader tell about the memories it was given.

A global memory is everybody's: one person's conversation marks it as used and never changes its trust.
Read-only memories keep theirs too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from salience_memory.decay import CONTRADICTED_TAG
from salience_memory.errors import MemoryNotFound, MemoryReadOnly, VersionConflict
from salience_memory.records import StoredMemory, Verification
from salience_memory.references import Position, Reference, count_positions
from salience_memory.scopes import Scope, Viewer
from salience_memory.store import MemoryStore

__all__ = [
    "CLAIMED_TRUST_LIMIT",
    "CORRECTED_SHARE",
    "FEEDBACK_EVENT",
    "HEAD_GAIN",
    "USED_MASS",
    "AnswerFeedback",
    "apply_answer",
    "guess_language",
    "lower_corrected",
    "mark_contradicted",
    "write_disclaimer",
]

FEEDBACK_EVENT = "feedback"
"""Kind of the audit event that an answer leaves."""

HEAD_GAIN = 0.05
"""What a reference in the first third of an answer adds to a memory's trust, once an answer."""

CLAIMED_TRUST_LIMIT = 0.8
"""What a user claimed and nobody verified never gains more trust than this, however often it is used."""

CORRECTED_SHARE = 0.5
"""The share of its trust that a memory keeps when an answer that used it is corrected."""

USED_MASS = 0.05
"""The share of attention from which a memory counts as used even where the answer does not refer to it."""

_DISCLAIMERS = {
    "en": "This answer rests on information you gave that has not been verified.",
    "zh": "本回答依据您提供的、尚未核实的信息。",
}
_ATTEMPTS = 5


@dataclass(frozen=True)
class AnswerFeedback:
    """What one answer told."""

    used: tuple[StoredMemory, ...]
    """The memories it refers to or attended to, as they stand now."""
    unknown_ids: tuple[str, ...]
    """Ids it refers to that the viewer has no live memory of: the model made them up, or they are gone."""
    raised_ids: tuple[str, ...]
    """Those that gained trust."""
    positions: Mapping[Position, int]
    """References by third of the answer."""
    disclaimer: str | None
    """What the answer should say where it rests on what nobody verified."""


def apply_answer(
    store: MemoryStore,
    viewer: Viewer,
    references: Sequence[Reference],
    *,
    masses: Mapping[str, float] | None = None,
    request_id: str = "",
    language: str = "en",
) -> AnswerFeedback:
    """Mark what an answer used, raise the trust of what stands at its head, and log the counts.

    Args:
        store: Where the memories are.
        viewer: On whose behalf it was answered.
        references: Those of the answer, from a flushed `ReferenceScanner`.
        masses: The receipts' share of attention by memory id, a second signal; it refreshes, no more.
        request_id: For the audit log.
        language: Of the disclaimer: `en` or `zh`.

    Raises:
        ValueError: A mass outside [0, 1], or a language without a disclaimer.
    """
    masses = masses or {}
    if bad := {name: mass for name, mass in masses.items() if not 0.0 <= mass <= 1.0}:
        raise ValueError(f"masses must be shares in [0, 1], got {bad}")
    _disclaimer_in(language)
    cited = list(dict.fromkeys(reference.memory_id for reference in references))
    attended = [memory_id for memory_id, mass in masses.items() if mass >= USED_MASS]
    known = store.get_many([*cited, *attended], viewer, include_archived=True)
    store.touch(list(known), viewer)
    at_head = {found.memory_id for found in references if found.position is Position.HEAD} & set(known)
    raised = [i for i in cited if i in at_head and _raise_trust(store, viewer, known[i])]
    positions = count_positions(references)
    facts: dict[str, JsonValue] = {
        "memory_ids": list(known),
        "positions": {position.value: count for position, count in positions.items()},
        "masses": [masses.get(memory_id) for memory_id in known],
        "unknown": len(set(cited) - set(known)),
        "raised": len(raised),
    }
    store.append_event(FEEDBACK_EVENT, request_id, facts)
    used = tuple(store.get_many(list(known), viewer, include_archived=True).values())
    return AnswerFeedback(
        used=used,
        unknown_ids=tuple(memory_id for memory_id in cited if memory_id not in known),
        raised_ids=tuple(raised),
        positions=positions,
        disclaimer=write_disclaimer(used, language),
    )


def lower_corrected(
    store: MemoryStore, viewer: Viewer, memory_ids: Collection[str], *, reason: str, actor: str = ""
) -> list[StoredMemory]:
    """Halve the trust of every memory that a corrected turn used.

    Args:
        store: Where they are.
        viewer: Who corrected. Global and read-only memories, and others', are passed over.
        memory_ids: Those used in that turn.
        reason: For their histories.
        actor: For their histories.

    Returns:
        Those lowered, as they are now.
    """
    known = store.get_many(list(memory_ids), viewer, include_archived=True)
    lowered = [
        _set_trust(store, viewer, memory, lambda trust: trust * CORRECTED_SHARE, reason, actor)
        for memory in known.values()
    ]
    return [memory for memory in lowered if memory is not None]


def mark_contradicted(
    store: MemoryStore, viewer: Viewer, memory_id: str, *, now_ns: int, reason: str, actor: str = ""
) -> StoredMemory:
    """Note that behaviour spoke against a memory, such as buying what it says is disliked.

    Its weight keeps 0.3 of its excess until it is verified again; doing so twice changes nothing more.

    Raises:
        MemoryNotFound: No such memory, or not the viewer's.
        MemoryReadOnly: It was declared read-only, or is everybody's.
    """
    memory = store.get(memory_id, viewer)
    if memory.scope is Scope.GLOBAL:
        raise MemoryReadOnly(
            f"memory {memory_id!r} is global: one person's behaviour says nothing against it"
        )
    prefix = f"{CONTRADICTED_TAG}:"
    tags = (*(tag for tag in memory.tags if not tag.startswith(prefix)), f"{prefix}{now_ns}")
    return store.update(memory_id, viewer, changes={"tags": tags}, reason=reason, actor=actor)


def write_disclaimer(memories: Sequence[StoredMemory], language: str = "en") -> str | None:
    """What an answer that rests on these memories should say; None where no user's claim is among them."""
    text = _disclaimer_in(language)
    return text if any(map(_is_claimed, memories)) else None


def guess_language(text: str) -> str:
    """`zh` for a text in which Chinese signs outweigh Latin words, else `en`."""
    signs = sum("\u4e00" <= character <= "\u9fff" for character in text)
    has_kana = any("\u3040" <= character <= "\u30ff" for character in text)
    words = len([word for word in text.split() if word.isascii() and any(map(str.isalpha, word))])
    return "zh" if signs > words and not has_kana else "en"


def _disclaimer_in(language: str) -> str:
    if language not in _DISCLAIMERS:
        raise ValueError(f"language must be one of {', '.join(_DISCLAIMERS)}, got {language!r}")
    return _DISCLAIMERS[language]


def _raise_trust(store: MemoryStore, viewer: Viewer, memory: StoredMemory) -> bool:
    limit = CLAIMED_TRUST_LIMIT if _is_claimed(memory) else 1.0
    # Trust given beyond the limit by whoever declared it stays.
    raised = _set_trust(
        store,
        viewer,
        memory,
        lambda trust: max(trust, min(trust + HEAD_GAIN, limit)),
        "referred to at the head of an answer",
        FEEDBACK_EVENT,
    )
    return raised is not None and raised.trust > memory.trust


def _is_claimed(memory: StoredMemory) -> bool:
    return memory.provenance is not None and memory.provenance.verification is Verification.USER_CLAIMED


def _set_trust(
    store: MemoryStore,
    viewer: Viewer,
    memory: StoredMemory,
    change: Callable[[float], float],
    reason: str,
    actor: str,
) -> StoredMemory | None:
    """Change a memory's trust by what it is at that moment; None where it is not this viewer's to change."""
    if memory.scope is Scope.GLOBAL or memory.read_only:
        return None
    for _ in range(_ATTEMPTS):
        try:
            return store.update(
                memory.memory_id,
                viewer,
                changes={"trust": round(change(memory.trust), 6)},
                reason=reason,
                actor=actor,
                expected_version=memory.version,
            )
        except VersionConflict:
            memory = store.get(memory.memory_id, viewer)  # somebody else came first: change what is there now
        except (MemoryNotFound, MemoryReadOnly):
            return None  # forgotten, or locked, since it was read
    raise VersionConflict(f"memory {memory.memory_id!r} was changed by others {_ATTEMPTS} times in a row")
