"""Salience: a local inference harness that makes a Hugging Face model use its memory.

Names are imported when first used, so that the `salience` command is there at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience.context.template import ContextTemplate, load_template
    from salience.conversation import ChatAnswer, Conversation, ConversationOptions
    from salience.harness import Answer, Explanation, Harness
    from salience_memory import Memory, MemoryStore, MemoryType, Viewer
    from salience_models import BiasPlan, Receipt, Sampling, Steering, SteeringMethod

__all__ = [
    "Answer",
    "BiasPlan",
    "ChatAnswer",
    "ContextTemplate",
    "Conversation",
    "ConversationOptions",
    "Explanation",
    "Harness",
    "Memory",
    "MemoryStore",
    "MemoryType",
    "Receipt",
    "Sampling",
    "Steering",
    "SteeringMethod",
    "Viewer",
    "load_template",
]

_HOMES = {
    "salience.context.template": ("ContextTemplate", "load_template"),
    "salience.conversation": ("ChatAnswer", "Conversation", "ConversationOptions"),
    "salience.harness": ("Answer", "Explanation", "Harness"),
    "salience_memory": ("Memory", "MemoryStore", "MemoryType", "Viewer"),
    "salience_models": ("BiasPlan", "Receipt", "Sampling", "Steering", "SteeringMethod"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
