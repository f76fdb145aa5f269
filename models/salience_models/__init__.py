"""Language models of transformers: loading, the attention seam, prefill and decode, receipts.

Names are imported when first used: torch and transformers take seconds, and `salience --help` needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience_models.constraints import (
        ConstraintEvent,
        Rule,
        TokenConstraint,
        Violation,
        Vocabulary,
        compile_rules,
        find_violations,
    )
    from salience_models.decoding.cache import CacheKind, RowCache
    from salience_models.decoding.decode_state import DecodeState, Request
    from salience_models.decoding.generation import (
        STEP_BACK_TOKENS,
        Generation,
        StreamEvent,
        generate,
        join_events,
        repeat,
        stream,
    )
    from salience_models.decoding.sampling import Sampling
    from salience_models.decoding.scoring import DraftedAnswer, Score, answer_with_draft, score
    from salience_models.errors import (
        BiasNotApplied,
        ConstraintContradiction,
        ConstraintError,
        ModelsError,
        PromptTooLong,
    )
    from salience_models.language_model import LanguageModel
    from salience_models.steering.attention import ATTENTION_NAME, register_attention
    from salience_models.steering.bias_plan import (
        BiasPlan,
        Phase,
        QueryScope,
        SteeringMethod,
        layers_of_depth,
    )
    from salience_models.steering.plan_weights import Steering, plan_from_weights, weight_to_bias
    from salience_models.steering.receipts import MassTable, Receipt
    from salience_models.text.prompt import (
        EncodedPrompt,
        Message,
        TextSpan,
        TokenSpan,
        encode_chat,
        encode_text,
    )
    from salience_models.weights.bundled import pull
    from salience_models.weights.model_info import ModelInfo

__all__ = [
    "ATTENTION_NAME",
    "STEP_BACK_TOKENS",
    "BiasNotApplied",
    "BiasPlan",
    "CacheKind",
    "ConstraintContradiction",
    "ConstraintError",
    "ConstraintEvent",
    "DecodeState",
    "DraftedAnswer",
    "EncodedPrompt",
    "Generation",
    "LanguageModel",
    "MassTable",
    "Message",
    "ModelInfo",
    "ModelsError",
    "Phase",
    "PromptTooLong",
    "QueryScope",
    "Receipt",
    "Request",
    "RowCache",
    "Rule",
    "Sampling",
    "Score",
    "Steering",
    "SteeringMethod",
    "StreamEvent",
    "TextSpan",
    "TokenConstraint",
    "TokenSpan",
    "Violation",
    "Vocabulary",
    "answer_with_draft",
    "compile_rules",
    "encode_chat",
    "encode_text",
    "find_violations",
    "generate",
    "join_events",
    "layers_of_depth",
    "plan_from_weights",
    "pull",
    "register_attention",
    "repeat",
    "score",
    "stream",
    "weight_to_bias",
]

_HOMES = {
    "salience_models.constraints": (
        "ConstraintEvent Rule TokenConstraint Violation Vocabulary compile_rules find_violations"
    ),
    "salience_models.decoding.cache": "CacheKind RowCache",
    "salience_models.decoding.decode_state": "DecodeState Request",
    "salience_models.decoding.generation": (
        "STEP_BACK_TOKENS Generation StreamEvent generate join_events repeat stream"
    ),
    "salience_models.decoding.sampling": "Sampling",
    "salience_models.decoding.scoring": "DraftedAnswer Score answer_with_draft score",
    "salience_models.errors": (
        "BiasNotApplied ConstraintContradiction ConstraintError ModelsError PromptTooLong"
    ),
    "salience_models.language_model": "LanguageModel",
    "salience_models.steering.attention": "ATTENTION_NAME register_attention",
    "salience_models.steering.bias_plan": "BiasPlan Phase QueryScope SteeringMethod layers_of_depth",
    "salience_models.steering.plan_weights": "Steering plan_from_weights weight_to_bias",
    "salience_models.steering.receipts": "MassTable Receipt",
    "salience_models.text.prompt": "EncodedPrompt Message TextSpan TokenSpan encode_chat encode_text",
    "salience_models.weights.bundled": "pull",
    "salience_models.weights.model_info": "ModelInfo",
}
"""Which module holds which names."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
