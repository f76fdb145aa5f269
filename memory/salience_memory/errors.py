"""Errors of the memory room.

    MemoryRoomError
    ├── MissingExtra        a library of an optional extra is not installed
    ├── EmbedderNotFound    the embedding model cannot be loaded from where it was said to be
    ├── EmbeddingMismatch   an `embed` broke its contract, or the store holds vectors of another
    ├── StoreError          the file of the store cannot be used
    │   ├── StoreForeign        it is not a memory store; nothing was changed
    │   ├── StoreTooNew         a later version of Salience wrote it; nothing was changed
    │   ├── StoreCorrupt        it is damaged; nothing was changed
    │   ├── StoreBusy           another process held it for longer than the time-out
    │   └── StoreUnavailable    it cannot be opened, read or written: rights, disk space, closed
    ├── MemoryNotFound      no memory of that id, or none that the viewer may see
    ├── MemoryExists        the id is taken by a memory that says something else
    ├── MemoryReadOnly      a memory declared read-only was to be changed
    ├── MemoryForgotten     a statement older than its own forgetting was to be stored
    ├── StatementOutdated   a statement older than the one stored was to replace it
    ├── VersionConflict     another version than the expected one is stored
    ├── SnapshotInvalid     a snapshot is damaged, cut off or of another format; nothing was imported
    ├── NoticingPackInvalid a registrar's rule pack cannot be used; the message names the rule and the field
    ├── ProjectionInvalid   an index's file is torn, altered or of another embedding; rows build it anew
    └── DocumentUnreadable  a document cannot be ingested: no PDF or Markdown, encrypted, without text

A refused declaration is pydantic's `ValidationError`, which is a `ValueError`.
"""

__all__ = [
    "DocumentUnreadable",
    "EmbedderNotFound",
    "EmbeddingMismatch",
    "MemoryExists",
    "MemoryForgotten",
    "MemoryNotFound",
    "MemoryReadOnly",
    "MemoryRoomError",
    "MissingExtra",
    "NoticingPackInvalid",
    "ProjectionInvalid",
    "SnapshotInvalid",
    "StatementOutdated",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreForeign",
    "StoreTooNew",
    "StoreUnavailable",
    "VersionConflict",
]


class MemoryRoomError(Exception):
    """Root of every error that this room raises on purpose."""


class MissingExtra(MemoryRoomError):
    """A library is missing; the message names the extra that brings it."""


class EmbedderNotFound(MemoryRoomError):
    """No embedding model could be loaded from the given folder or name."""


class EmbeddingMismatch(MemoryRoomError):
    """An embedding function broke its contract: float [record, embed], finite, one row a text."""


class StoreError(MemoryRoomError):
    """The store's file cannot be used; the message names the file and why."""


class StoreForeign(StoreError):
    """The file is not a memory store."""


class StoreTooNew(StoreError):
    """The file has a schema that only a later Salience knows."""


class StoreCorrupt(StoreError):
    """The file is damaged, or a row of it holds no valid memory."""


class StoreBusy(StoreError):
    """Another process kept the file locked for longer than `busy_timeout_s`."""


class StoreUnavailable(StoreError):
    """The file cannot be opened, read or written, or the store was closed."""


class MemoryNotFound(MemoryRoomError):
    """No memory of that id that the viewer may see; the message never tells which of the two."""


class MemoryExists(MemoryRoomError):
    """The id is taken, and what is declared differs from what is stored under it."""


class MemoryReadOnly(MemoryRoomError):
    """A read-only memory can be read, verified and forgotten, not changed."""


class MemoryForgotten(MemoryRoomError):
    """What was stated before it was forgotten is not stored after."""


class StatementOutdated(MemoryRoomError):
    """What is stored was stated, or confirmed, later than what is declared."""


class VersionConflict(MemoryRoomError):
    """Somebody changed the memory since the caller read it."""


class SnapshotInvalid(MemoryRoomError):
    """A snapshot that does not hold what it says it holds."""


class NoticingPackInvalid(MemoryRoomError):
    """A rule pack that cannot be used: no YAML, an unknown field, a pattern that could run away."""


class DocumentUnreadable(MemoryRoomError):
    """A document cannot be ingested; nothing of it was stored."""


class ProjectionInvalid(MemoryRoomError):
    """An index's file is not what was written, or not of this embedding; the rows can build it anew."""
