"""Domain failures of the harness, and how any room's failure reads at the command line.

    HarnessError
    ├── MemoryFileInvalid     a file of memories cannot be read as memories
    └── ConflictingInstall    faiss-cpu and faiss-gpu are both installed
"""

from pydantic import ValidationError

__all__ = ["ConflictingInstall", "HarnessError", "MemoryFileInvalid", "describe_validation"]


class HarnessError(Exception):
    """Root of the room's failures."""


class MemoryFileInvalid(HarnessError):
    """A file of memories is missing, not JSON, or holds a memory that its contract refuses."""


class ConflictingInstall(HarnessError):
    """Two installed distributions provide the same module."""


def describe_validation(error: ValidationError) -> str:
    """One line for a refused declaration: each field, what was expected, what came."""
    parts = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"]) or error.title
        parts.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)
