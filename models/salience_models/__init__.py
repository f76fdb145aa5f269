"""Language models of transformers: loading, the attention seam, prefill and decode, receipts."""

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
    BlockSpan,
    Phase,
    QueryScope,
    SteeringMethod,
    layers_of_depth,
)
from salience_models.steering.plan_weights import Steering, plan_from_weights, weight_to_bias
from salience_models.steering.receipts import MassTable, Receipt
from salience_models.text.prompt import EncodedPrompt, Message, TextSpan, TokenSpan, encode_chat, encode_text
from salience_models.weights.bundled import pull
from salience_models.weights.model_info import ModelInfo

__all__ = [
    "ATTENTION_NAME",
    "STEP_BACK_TOKENS",
    "BiasNotApplied",
    "BiasPlan",
    "BlockSpan",
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
