"""The indexes of one store together: where they are kept, who may write them, when they are built anew."""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from salience_memory.errors import ProjectionInvalid
from salience_memory.index.lexical_index import LexicalIndex
from salience_memory.index.projection import ProjectedStore, Projection, is_of_store
from salience_memory.index.vector_index import VectorIndex

__all__ = ["Projections"]

_VECTORS = "vectors.bin"
_LEXICAL = "lexical.db"
_LOCK = "lock"

_SAVED_AFTER = 1_000
"""Saving the vectors writes all of them: it is done after so many changes, or a tenth of the rows if more."""


class Projections:
    """The vector index, where there is an embedding, and the lexical index.

    The first process in a folder owns it and writes there; others read what it left and keep their own
    indexes in memory.
    """

    def __init__(
        self, store: ProjectedStore, fingerprint: str | None, folder: Path | None, device: str
    ) -> None:
        """Load what the folder holds; `catch_up` builds what is missing or invalid from the rows."""
        self._store = store
        self._folder = folder
        self._lock: FileLock | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / _LOCK, timeout=0)
            with suppress(Timeout):
                lock.acquire()
                self._lock = lock
        self.vectors = None if fingerprint is None else self._load_vectors(fingerprint, device)
        self.lexical = self._load_lexical()
        self.is_ready = self.lexical.applied_seq > 0
        """Whether there is anything to search while another thread catches up."""

    @property
    def is_owner(self) -> bool:
        """Whether this process writes the folder's files."""
        return self._lock is not None

    @property
    def all(self) -> tuple[Projection, ...]:
        return (self.lexical,) if self.vectors is None else (self.lexical, self.vectors)

    def catch_up(self) -> None:
        """Apply what any process has changed since."""
        for projection in self.all:
            projection.catch_up(self._store)
        self.is_ready = True

    def rebuild(self) -> None:
        """Read everything anew from the rows."""
        for projection in self.all:
            projection.rebuild(self._store)
        self.is_ready = True

    def save_if_worthwhile(self) -> None:
        """Write the vectors if much has changed since they were last written."""
        if self.vectors is not None and self.vectors.changed_rows >= max(
            _SAVED_AFTER, len(self.vectors) // 10
        ):
            self._save()

    def close(self) -> None:
        """Write what changed, and let the folder go."""
        if self.vectors is not None and self.vectors.changed_rows:
            self._save()
        self.lexical.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _save(self) -> None:
        if self.vectors is not None and self._folder is not None and self.is_owner:
            self.vectors.save(self._folder / _VECTORS)

    def _load_vectors(self, fingerprint: str, device: str) -> VectorIndex:
        if self._folder is not None:
            try:
                index = VectorIndex.load(self._folder / _VECTORS, fingerprint, device=device)
                if is_of_store(index, self._store):
                    return index
            except ProjectionInvalid:
                pass  # the rows hold all of it
        return VectorIndex(fingerprint, device=device)

    def _load_lexical(self) -> LexicalIndex:
        if self._folder is None:
            return LexicalIndex()
        path = self._folder / _LEXICAL
        try:
            index = LexicalIndex.load(path, is_shared=not self.is_owner)
            if is_of_store(index, self._store):
                return index
            index.close()
        except ProjectionInvalid:
            pass  # likewise
        return LexicalIndex(path if self.is_owner else None)
