"""Domain failures of the harness, and how any room's failure reads at the command line.

HarnessError
├── MemoryFileInvalid     a file of memories cannot be read as memories
├── RulePackInvalid       a file of rules cannot be read, or holds a rule that cannot be enforced
├── ConflictingInstall    faiss-cpu and faiss-gpu are both installed
└── ContextError          a prompt's context cannot be written
    ├── TemplateInvalid       a context template is missing, not JSON, or breaks its contract
    ├── ProtocolMismatch      a context is of a protocol version that its consumer does not support
    └── ContextOverBudget     what a context must hold is over its budget without any memory
"""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = [
    "ConflictingInstall",
    "ContextError",
    "ContextOverBudget",
    "HarnessError",
    "MemoryFileInvalid",
    "ProtocolMismatch",
    "RulePackInvalid",
    "TemplateInvalid",
    "describe_validation",
]


class HarnessError(Exception):
    """Root of the room's failures."""


class MemoryFileInvalid(HarnessError):
    """A file of memories is missing, not JSON, or holds a memory that its contract refuses."""


class RulePackInvalid(HarnessError):
    """A file of rules is missing, not JSON, or holds a rule that its contract refuses."""


class ConflictingInstall(HarnessError):
    """Two installed distributions provide the same module."""


class ContextError(HarnessError):
    """A prompt's context cannot be written as asked."""


class TemplateInvalid(ContextError):
    """A context template is missing, not JSON, or breaks its contract; the message names the field."""


class ProtocolMismatch(ContextError):
    """A context of a protocol version that its consumer does not support, or without a protocol line."""


class ContextOverBudget(ContextError):
    """Rules, state and delimiters alone are over the budget; memories are cut, these never."""


def describe_validation(error: ValidationError) -> str:
    """One line for a refused declaration: each field, what was expected, what came."""
    return "; ".join(_describe_problem(problem) for problem in error.errors())


def _describe_problem(problem: ErrorDetails) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{field} is missing"
    if problem["type"] == "extra_forbidden":
        return f"{field} is not a known field"
    where = f"{field}: " if field and not message.startswith(f"{field} ") else ""
    if problem["type"] in ("value_error", "json_invalid"):
        return f"{where}{message}"
    return f"{where}{message}, got {str(problem['input'])[:80]!r}"
