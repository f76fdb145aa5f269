"""A document's clauses into the store, and a new edition of it over the old one."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from salience_memory.errors import DocumentUnreadable
from salience_memory.ingestion.clauses import Clause, split_clauses
from salience_memory.ingestion.documents import read_document
from salience_memory.ingestion.elements import SourceText
from salience_memory.ingestion.matching import Matches, match_clauses
from salience_memory.records import Memory, MemoryState, MemoryType, Provenance, StoredMemory, Verification
from salience_memory.scopes import Scope, Viewer
from salience_memory.store import MemoryStore

__all__ = ["ClauseReport", "DocumentFields", "IngestReport", "RefusedClause", "ingest_document"]

_PAGE_ROWS = 500


class DocumentFields(BaseModel):
    """What all memories of a document share.

    None leaves a field of a stored clause as it is, and takes `Memory`'s default for a new one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scope: Scope = Scope.GLOBAL
    user_id: str | None = Field(default=None, min_length=1)
    session_id: str | None = Field(default=None, min_length=1)
    type: MemoryType = MemoryType.EXTERNAL
    verification: Verification | None = None
    tags: tuple[str, ...] | None = None
    semantic_weight: float | None = None
    trust: float | None = None
    valid_until: int | None = None
    urgency: str | None = None
    pinned: bool | None = None

    def given(self) -> dict[str, object]:
        """The shared fields that a declaration or an update takes over."""
        names = ("tags", "semantic_weight", "trust", "valid_until", "urgency", "pinned")
        given: dict[str, object] = {name: getattr(self, name) for name in names}
        return {"type": self.type, **{name: value for name, value in given.items() if value is not None}}


class ClauseReport(BaseModel):
    """One clause of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_id: str
    key: str
    location: str


class RefusedClause(BaseModel):
    """A clause that was not stored, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    location: str
    beginning: str
    reason: str


class IngestReport(BaseModel):
    """What an ingestion did, or would do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source_id: str
    source_format: str
    content_sha256: str
    added: tuple[ClauseReport, ...]
    changed: tuple[ClauseReport, ...] = Field(description="New wording: a new version of the same id.")
    moved: tuple[ClauseReport, ...] = Field(description="Same wording, another number or place.")
    unchanged: tuple[ClauseReport, ...]
    vanished: tuple[ClauseReport, ...] = Field(description="Stored, and no longer in the document.")
    is_pruned: bool = Field(description="Whether the vanished were forgotten.")
    refused: tuple[RefusedClause, ...]
    warnings: tuple[str, ...]


def ingest_document(
    store: MemoryStore,
    document: Path | SourceText,
    *,
    source_id: str,
    fields: DocumentFields | None = None,
    prune: bool = False,
    dry_run: bool = False,
    actor: str = "",
) -> IngestReport:
    """Store a document clause by clause, all or nothing.

    Ingested again under the same `source_id` and owner, a clause keeps its id: one with the same text is
    confirmed, one reworded or renumbered becomes a new version. What vanished is reported and stays, unless
    `prune`. A clause that is refused now but stored before stays as it was.

    Args:
        store: Where to.
        document: The file, or what was read of it.
        source_id: What the document is called across editions.
        fields: What its memories share.
        prune: Forget clauses that the document no longer has.
        dry_run: Change nothing, only report.
        actor: For the history.

    Raises:
        DocumentUnreadable: No clause could be read.
        ValueError: A shared field that the records refuse.
    """
    fields = fields or DocumentFields()
    if not source_id.strip():
        raise ValueError(f"source_id must hold text, got {source_id!r}")
    if fields.type not in (MemoryType.EXTERNAL, MemoryType.CONSTRAINT):
        raise ValueError(
            f"type of a document's memories must be external or constraint, got {fields.type.value}"
        )
    source = read_document(document) if isinstance(document, Path) else document
    clauses, refused = split_clauses(source)
    if not clauses:
        raise DocumentUnreadable(
            f"document {source_id} must hold a whole clause, got {len(refused)} broken off"
        )
    edition = _Edition(source, source_id, fields)
    viewer = Viewer(user_id=fields.user_id, session_id=fields.session_id)
    held = {f"{source_id} > {refusal.key}" for refusal in refused}
    with store.transaction():
        matches = match_clauses(edition.stored(store, viewer), clauses, f"{source_id} > ")
        vanished = [memory for memory in matches.vanished if memory.key not in held]
        new = edition.declare(matches)
        report = edition.report(matches, new, vanished, is_pruned=prune)
        if not dry_run:
            edition.write(store, viewer, matches, new, vanished if prune else [], actor)
    refusals = (
        RefusedClause(key=r.key, location=r.location, beginning=r.beginning, reason=r.reason) for r in refused
    )
    return report.model_copy(update={"refused": tuple(refusals)})


class _Edition:
    """One edition of a document on its way into the store."""

    def __init__(self, source: SourceText, source_id: str, fields: DocumentFields) -> None:
        self._source = source
        self._source_id = source_id
        self._fields = fields
        self._tag = f"source:{source_id.strip()}"

    def stored(self, store: MemoryStore, viewer: Viewer) -> list[StoredMemory]:
        """The memories of an earlier edition that belong to the same owner, archived and expired ones too."""
        owner = (self._fields.scope, self._fields.user_id, self._fields.session_id)
        found: list[StoredMemory] = []
        after_seq = 0
        while True:
            page = store.list(
                viewer,
                tags=(self._tag,),
                include_archived=True,
                include_expired=True,
                limit=_PAGE_ROWS,
                after_seq=after_seq,
            )
            found += [memory for memory in page if (memory.scope, memory.user_id, memory.session_id) == owner]
            if len(page) < _PAGE_ROWS:
                return sorted(found, key=lambda memory: (memory.created_ns, memory.seq))
            after_seq = page[-1].seq

    def declare(self, matches: Matches) -> list[Memory]:
        """The declarations of new clauses."""
        taken = {memory.memory_id for memory, _ in matches.pairs} | {m.memory_id for m in matches.vanished}
        declared: list[Memory] = []
        for clause in matches.added:
            memory_id = self._new_id(clause, taken)
            taken.add(memory_id)
            fields: dict[str, object] = {
                "memory_id": memory_id,
                "tags": (self._tag,),
                "scope": self._fields.scope,
                "user_id": self._fields.user_id,
                "session_id": self._fields.session_id,
                **self._shared(),
                **self._said(clause, self._fields.verification),
            }
            declared.append(Memory.model_validate(fields))
        return declared

    def write(
        self,
        store: MemoryStore,
        viewer: Viewer,
        matches: Matches,
        new: Sequence[Memory],
        pruned: Sequence[StoredMemory],
        actor: str,
    ) -> None:
        """Carry it out; inside a transaction."""
        reason = f"ingested from {self._source_id}"
        for memory, clause in matches.pairs:
            if memory.state is MemoryState.ARCHIVED:
                store.unarchive(memory.memory_id, viewer, reason=reason, actor=actor)
            before = memory.provenance.verification if memory.provenance is not None else None
            believed = self._fields.verification or before
            changes = {**self._shared(), **self._said(clause, believed)}
            if believed is before and _is_same(memory, clause, self._source_id):
                del changes["provenance"]  # where it was read first still holds
            store.update(memory.memory_id, viewer, changes=changes, reason=reason, actor=actor)
            store.verify(memory.memory_id, viewer)
        for memory in pruned:
            store.forget(memory.memory_id, viewer)
        if new:
            store.declare(new, reason=reason, actor=actor)

    def report(
        self, matches: Matches, new: Sequence[Memory], vanished: Sequence[StoredMemory], *, is_pruned: bool
    ) -> IngestReport:
        """What is added, changed, moved, left and gone."""
        sorts: dict[str, list[ClauseReport]] = {"changed": [], "moved": [], "unchanged": []}
        for memory, clause in matches.pairs:
            key = self._key(clause)
            entry = ClauseReport(memory_id=memory.memory_id, key=key, location=clause.location)
            is_reworded = memory.content != clause.content
            is_same = _is_same(memory, clause, self._source_id)
            sorts["unchanged" if is_same else "changed" if is_reworded else "moved"].append(entry)
        return IngestReport(
            source_id=self._source_id,
            source_format=self._source.source_format,
            content_sha256=self._source.content_sha256,
            added=tuple(map(_report, new)),
            changed=tuple(sorts["changed"]),
            moved=tuple(sorts["moved"]),
            unchanged=tuple(sorts["unchanged"]),
            vanished=tuple(map(_report, vanished)),
            is_pruned=is_pruned,
            refused=(),
            warnings=self._source.warnings,
        )

    def _key(self, clause: Clause) -> str:
        return f"{self._source_id} > {clause.key}"

    def _said(self, clause: Clause, believed: Verification | None) -> dict[str, object]:
        """What the document says of a clause."""
        provenance = Provenance(
            source_id=self._source_id,
            source_format=self._source.source_format,
            source_location=clause.location,
            verification=believed or Verification.USER_CLAIMED,
            content_sha256=self._source.content_sha256,
        )
        said = {"content": clause.content, "key": self._key(clause), "value": clause.value}
        return {**said, "provenance": provenance}

    def _shared(self) -> dict[str, object]:
        """The fields given for all clauses; tags carry the document's own."""
        tags = self._fields.tags
        return self._fields.given() | ({} if tags is None else {"tags": tuple(sorted({*tags, self._tag}))})

    def _new_id(self, clause: Clause, taken: set[str]) -> str:
        """Equal for equal clauses of equal documents and owners, so that two processes store them once."""
        fields = self._fields
        owner = (fields.scope.value, fields.user_id or "", fields.session_id or "")
        text = "\0".join((self._source_id, *owner, clause.key, clause.content))
        digest = hashlib.sha256(text.encode()).hexdigest()
        memory_id, count = f"m-{digest[:16]}", 1
        while memory_id in taken:  # a clause that was reworded since has it
            count += 1
            memory_id = f"m-{digest[:16]}-{count}"
        return memory_id


def _is_same(memory: StoredMemory, clause: Clause, source_id: str) -> bool:
    """Whether text, number and place are as they were."""
    said = (clause.content, f"{source_id} > {clause.key}", clause.location)
    location = None if memory.provenance is None else memory.provenance.source_location
    return (memory.content, memory.key, location) == said


def _report(memory: Memory) -> ClauseReport:
    location = None if memory.provenance is None else memory.provenance.source_location
    return ClauseReport(memory_id=memory.memory_id, key=memory.key or "", location=location or "")
