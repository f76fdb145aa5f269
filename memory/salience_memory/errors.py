"""Errors of the memory room.

    MemoryRoomError
    ├── MissingExtra        a library of an optional extra is not installed
    ├── EmbedderNotFound    the embedding model cannot be loaded from where it was said to be
    └── EmbeddingMismatch   an embedding function returned something other than one vector a text

A refused declaration is pydantic's `ValidationError`, which is a `ValueError`.
"""

__all__ = ["EmbedderNotFound", "EmbeddingMismatch", "MemoryRoomError", "MissingExtra"]


class MemoryRoomError(Exception):
    """Root of every error that this room raises on purpose."""


class MissingExtra(MemoryRoomError):
    """A library is missing; the message names the extra that brings it."""


class EmbedderNotFound(MemoryRoomError):
    """No embedding model could be loaded from the given folder or name."""


class EmbeddingMismatch(MemoryRoomError):
    """An embedding function broke its contract: float [record, embed], finite, one row a text."""
