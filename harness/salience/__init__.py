"""Salience: a local inference harness that makes a Hugging Face model use its memory.

Names are imported when first used, so that the `salience` command is there at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience.harness import Answer, Explanation, Harness
    from salience_memory import Memory, MemoryType
    from salience_models import BiasPlan, Receipt, Sampling, Steering, SteeringMethod

__all__ = [
    "Answer",
    "BiasPlan",
    "Explanation",
    "Harness",
    "Memory",
    "MemoryType",
    "Receipt",
    "Sampling",
    "Steering",
    "SteeringMethod",
]

_HOMES = {
    "salience.harness": ("Answer", "Explanation", "Harness"),
    "salience_memory": ("Memory", "MemoryType"),
    "salience_models": ("BiasPlan", "Receipt", "Sampling", "Steering", "SteeringMethod"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
