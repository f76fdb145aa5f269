"""Statements: turning a finding into a memory, and settling it against what is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from pydantic import JsonValue

from salience_memory.clock import DAY_NS, from_ns
from salience_memory.conflicts import CONFLICT_EVENT, find_conflicts
from salience_memory.errors import MemoryExists, MemoryForgotten, MemoryReadOnly, StatementOutdated
from salience_memory.normalisation import content_words, is_same_text, says_the_same
from salience_memory.records import Memory, MemoryType, Provenance, StoredMemory, Verification
from salience_memory.registrar.outcomes import OutcomeKind, RegistrarOutcome
from salience_memory.registrar.patterns import fill_template
from salience_memory.registrar.reader import Finding
from salience_memory.registrar.rules import ConflictFilter, LifetimeFilter, Trigger
from salience_memory.scopes import Scope, Viewer
from salience_memory.store import MemoryStore
from salience_memory.vectors import Embed

__all__ = ["SUSPICIOUS_TAG", "Statement", "StatementWriter", "make_provenance", "make_value", "read_result"]

SUSPICIOUS_TAG = "suspicious:instruction"
"""Marks a memory whose sentence reads like an order to the model. It is kept as data all the same."""

ACTOR = "registrar"

_MOST_COMPARED = 500
_MOST_EMBEDDED = 5


@dataclass(frozen=True)
class Statement:
    """Who said something, and when."""

    viewer: Viewer
    stated_ns: int
    source_id: str


def make_value(finding: Finding, said_ns: int) -> dict[str, JsonValue]:
    """Who, what, when and result: the structured form of what was said."""
    when = finding.when or from_ns(said_ns).isoformat(timespec="seconds")
    return {"who": "user", "what": finding.key, "when": when, "result": finding.result}


def read_result(memory: Memory) -> str | None:
    """The result in a memory that a registrar wrote, or a plain text value."""
    value = memory.value
    result = cast(Mapping[str, JsonValue], value).get("result") if isinstance(value, Mapping) else value
    return result if isinstance(result, str) else None


class StatementWriter:
    """Settles findings: known already, another value of something known, or new."""

    def __init__(self, store: MemoryStore, embed: Embed | None) -> None:
        self._store = store
        self._embed = embed

    def settle(
        self, finding: Finding, statement: Statement, trigger: Trigger | None = None
    ) -> RegistrarOutcome:
        """Store what a finding states, or say why not.

        Args:
            finding: Explained and certain.
            statement: Who said it, and when.
            trigger: What to report it under; a correction also replaces a constraint.
        """
        trigger = trigger or finding.trigger
        memory = _make_memory(finding, statement)
        if memory is None:
            return RegistrarOutcome(
                OutcomeKind.IGNORED, trigger, "no user or session is named whose memory it would be"
            )
        # Live memories of the same owner, type and key, the one confirmed last first.
        kinds = (memory.type,)
        rivals = self._store.list(statement.viewer, key=memory.key, types=kinds, limit=_MOST_COMPARED)
        rivals = [other for other in rivals if _owner_fields(other) == _owner_fields(memory)]
        rivals.sort(key=lambda other: (-other.verified_ns, -other.seq))
        for same in rivals:
            result = read_result(same)
            if is_same_text(same.content, memory.content) or (
                result is not None and is_same_text(result, finding.result)
            ):
                break
        else:
            same = self._find_duplicate(memory, rivals, statement.viewer)
        if same is not None:
            with self._store.transaction(durable=same.type is MemoryType.CONSTRAINT):
                if statement.stated_ns >= same.verified_ns:
                    same = self._store.verify(same.memory_id, statement.viewer)
                    self._set_task(finding, statement.viewer)
            return RegistrarOutcome(OutcomeKind.MERGED, trigger, "known already", same)
        known = rivals[0] if rivals else None
        if known and finding.rule.conflict is ConflictFilter.ASK and trigger is not Trigger.CORRECTION:
            values = {"old": read_result(known) or known.content, "new": finding.result}
            question = fill_template(finding.pack.phrases.which_holds, values)
            return RegistrarOutcome(OutcomeKind.CLARIFY, trigger, "another value is known", known, question)
        try:
            return self._write(memory, rivals, finding, statement, trigger)
        except StatementOutdated:
            return RegistrarOutcome(OutcomeKind.IGNORED, trigger, "what is known was said later", known)
        except MemoryForgotten:
            return RegistrarOutcome(OutcomeKind.IGNORED, trigger, "it was forgotten after it was said")
        except MemoryReadOnly:
            return RegistrarOutcome(OutcomeKind.IGNORED, trigger, "what is known is read-only", known)

    def declare_plainly(self, sentence: str, statement: Statement, trigger: Trigger) -> RegistrarOutcome:
        """Store a sentence that a judge took for a lasting fact and that no rule structures."""
        owner = _owner_of(Scope.USER, statement.viewer)
        if owner is None:
            return RegistrarOutcome(
                OutcomeKind.IGNORED, trigger, "no user or session is named whose memory it would be"
            )
        memory = Memory(
            content=f'The user said: "{sentence}"',
            type=MemoryType.SEMANTIC,
            tags=("kind:said",),
            semantic_weight=0.6,
            provenance=make_provenance(statement),
            scope=owner.scope,
            user_id=owner.user_id,
            session_id=owner.session_id,
        )
        same = self._find_duplicate(memory, [], statement.viewer)
        if same is not None:
            return RegistrarOutcome(OutcomeKind.MERGED, trigger, "known already", same)
        try:
            (stored,) = self._store.declare(
                [memory], reason=trigger.value, actor=ACTOR, stated_ns=statement.stated_ns
            )
        except (MemoryForgotten, StatementOutdated):
            return RegistrarOutcome(
                OutcomeKind.IGNORED, trigger, "it was forgotten or set aside after it was said"
            )
        return RegistrarOutcome(OutcomeKind.DECLARED, trigger, "judged a lasting fact", stored)

    def _find_duplicate(
        self, memory: Memory, rivals: Sequence[StoredMemory], viewer: Viewer
    ) -> StoredMemory | None:
        """A memory under another key, or none, that says the same; those of this key say otherwise."""
        rival_ids = {rival.memory_id for rival in rivals}
        words = set(content_words(memory.content))
        others = [
            other
            for other in self._store.list(viewer, types=(memory.type,), limit=_MOST_COMPARED)
            if other.memory_id not in rival_ids
            and _owner_fields(other) == _owner_fields(memory)
            and _topic(other) in (None, _topic(memory))
        ]
        for other in others:
            if is_same_text(other.content, memory.content):
                return other
        if self._embed is None or rivals:
            return None
        others.sort(key=lambda other: -len(words & set(content_words(other.content))))
        nearest = others[:_MOST_EMBEDDED]
        return next((o for o in nearest if says_the_same(o.content, memory.content, self._embed)), None)

    def _write(
        self,
        memory: Memory,
        rivals: Sequence[StoredMemory],
        finding: Finding,
        statement: Statement,
        trigger: Trigger,
    ) -> RegistrarOutcome:
        is_constraint = memory.type is MemoryType.CONSTRAINT
        with self._store.transaction(durable=is_constraint):
            if is_constraint and trigger is Trigger.CORRECTION and len(rivals) == 1:
                known = rivals[0]
                if statement.stated_ns < known.verified_ns:
                    raise StatementOutdated(
                        f"memory {known.memory_id!r} was confirmed after this was stated"
                    )
                names = ("content", "value", "tags", "semantic_weight", "valid_until", "provenance", "trust")
                stored = self._store.update(
                    known.memory_id,
                    statement.viewer,
                    changes={name: getattr(memory, name) for name in names},
                    reason=Trigger.CORRECTION.value,
                    actor=ACTOR,
                    expected_version=known.version,
                )
            else:
                try:
                    (stored,) = self._store.declare(
                        [memory],
                        reason=trigger.value,
                        actor=ACTOR,
                        supersede=finding.rule.conflict is not ConflictFilter.KEEP,
                        stated_ns=statement.stated_ns,
                    )
                except MemoryExists:
                    # The same content under the same owner, noted meanwhile or by hand: the same memory.
                    stored = self._store.verify(memory.memory_id, statement.viewer)
            self._set_task(finding, statement.viewer)
            if is_constraint or finding.rule.conflict is ConflictFilter.KEEP:
                latest = {one.memory_id: one for one in (*rivals, stored)}
                for conflict in find_conflicts(latest.values()):
                    self._store.append_event(CONFLICT_EVENT, "", conflict.as_facts())
        is_update = any(rival.memory_id == stored.memory_id for rival in rivals)
        kind = OutcomeKind.UPDATED if is_update else OutcomeKind.DECLARED
        return RegistrarOutcome(kind, trigger, f"rule {finding.rule.name}", stored)

    def _set_task(self, finding: Finding, viewer: Viewer) -> None:
        if finding.rule.status is None:
            return
        scope = Scope.USER if viewer.user_id is not None else Scope.SESSION
        self._store.set_task(viewer, finding.key, finding.result, finding.rule.status, scope=scope)


def _make_memory(finding: Finding, statement: Statement) -> Memory | None:
    rule = finding.rule
    wants_session = finding.is_passing and rule.lifetime is LifetimeFilter.SESSION
    owner = _owner_of(Scope.SESSION if wants_session else rule.scope, statement.viewer)
    if owner is None:
        return None
    ttl_ns = None if rule.ttl_days is None else round(rule.ttl_days * DAY_NS)
    return Memory(
        content=finding.content,
        type=rule.type,
        key=finding.key,
        value=make_value(finding, statement.stated_ns),
        tags=(*rule.tags, *((SUSPICIOUS_TAG,) if finding.is_suspicious else ())),
        semantic_weight=rule.weight,
        valid_until=None if ttl_ns is None else statement.stated_ns + ttl_ns,
        provenance=make_provenance(statement),
        scope=owner.scope,
        user_id=owner.user_id,
        session_id=owner.session_id,
    )


def make_provenance(statement: Statement) -> Provenance:
    """The turn it was said in, as the user's claim."""
    return Provenance(
        source_id=statement.source_id,
        source_format="utterance",
        verification=Verification.USER_CLAIMED,
    )


class _Owner(NamedTuple):
    scope: Scope | None
    user_id: str | None
    session_id: str | None


def _owner_of(scope: Scope, viewer: Viewer) -> _Owner | None:
    """Whose a memory will be: the session's where no user is named, None where neither is."""
    if scope is Scope.USER and viewer.user_id is not None:
        return _Owner(Scope.USER, viewer.user_id, None)
    return None if viewer.session_id is None else _Owner(Scope.SESSION, viewer.user_id, viewer.session_id)


def _owner_fields(memory: Memory) -> _Owner:
    return _Owner(memory.scope, memory.user_id, memory.session_id)


def _topic(memory: Memory) -> str | None:
    return None if memory.key is None else memory.key.split(".")[0]
