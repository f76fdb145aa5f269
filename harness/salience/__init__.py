"""Salience: a local inference harness that makes a Hugging Face model use its memory.

Names are imported when first used, so that the `salience` command is there at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience.context.rendering import TruncationEvent
    from salience.context.template import ContextTemplate, load_template
    from salience.errors import (
        ContextError,
        ContextOverBudget,
        HarnessError,
        MemoryFileInvalid,
        ProtocolMismatch,
        RulePackInvalid,
        TemplateInvalid,
    )
    from salience.harness import Harness
    from salience.memory_access import MemoryAccess
    from salience.session import AnswerEvent, Explanation, Session
    from salience.turn import Answer, GatheredMemory, Gathering, Parts, Rendering, Steps, Turn, TurnOptions
    from salience_memory import (
        DecayPolicy,
        Memory,
        MemoryNotFound,
        MemoryRoomError,
        MemoryStore,
        MemoryType,
        Provenance,
        RecalledMemory,
        Reference,
        RegistrarOutcome,
        Scope,
        StoredMemory,
        StoreError,
        StoreUnavailable,
        Viewer,
    )
    from salience_models import (
        BiasNotApplied,
        BiasPlan,
        ConstraintContradiction,
        ConstraintError,
        LanguageModel,
        Message,
        ModelsError,
        Phase,
        PromptTooLong,
        QueryScope,
        Receipt,
        Sampling,
        Steering,
        SteeringMethod,
        TextSpan,
        TokenSpan,
    )

_HOMES = {
    "salience.context.rendering": "TruncationEvent",
    "salience.context.template": "ContextTemplate load_template",
    "salience.errors": (
        "ContextError ContextOverBudget HarnessError MemoryFileInvalid ProtocolMismatch RulePackInvalid "
        "TemplateInvalid"
    ),
    "salience.harness": "Harness",
    "salience.memory_access": "MemoryAccess",
    "salience.session": "AnswerEvent Explanation Session",
    "salience.turn": "Answer GatheredMemory Gathering Parts Rendering Steps Turn TurnOptions",
    "salience_memory": (
        "DecayPolicy Memory MemoryNotFound MemoryRoomError MemoryStore MemoryType Provenance RecalledMemory "
        "Reference RegistrarOutcome Scope StoredMemory StoreError StoreUnavailable Viewer"
    ),
    "salience_models": (
        "BiasNotApplied BiasPlan ConstraintContradiction ConstraintError LanguageModel Message ModelsError "
        "Phase PromptTooLong QueryScope Receipt Sampling Steering SteeringMethod TextSpan TokenSpan"
    ),
}
"""Which module holds which names: what the public signatures need, and what they raise."""

__all__ = [
    "Answer",
    "AnswerEvent",
    "BiasNotApplied",
    "BiasPlan",
    "ConstraintContradiction",
    "ConstraintError",
    "ContextError",
    "ContextOverBudget",
    "ContextTemplate",
    "DecayPolicy",
    "Explanation",
    "GatheredMemory",
    "Gathering",
    "Harness",
    "HarnessError",
    "LanguageModel",
    "Memory",
    "MemoryAccess",
    "MemoryFileInvalid",
    "MemoryNotFound",
    "MemoryRoomError",
    "MemoryStore",
    "MemoryType",
    "Message",
    "ModelsError",
    "Parts",
    "Phase",
    "PromptTooLong",
    "ProtocolMismatch",
    "Provenance",
    "QueryScope",
    "RecalledMemory",
    "Receipt",
    "Reference",
    "RegistrarOutcome",
    "Rendering",
    "RulePackInvalid",
    "Sampling",
    "Scope",
    "Session",
    "Steering",
    "SteeringMethod",
    "Steps",
    "StoreError",
    "StoreUnavailable",
    "StoredMemory",
    "TemplateInvalid",
    "TextSpan",
    "TokenSpan",
    "TruncationEvent",
    "Turn",
    "TurnOptions",
    "Viewer",
    "load_template",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
