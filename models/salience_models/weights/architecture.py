"""Which architectures can be steered: causal softmax attention over keys, reached by transformers' interface.

The configuration is checked before the weights are read, the modules after. What is refused is named: an
encoder-decoder, a recurrent or linear layer, a chunked or indexed one, an attention that bypasses the
interface (where a bias would be lost silently), a bidirectional one.
"""

from typing import Any

from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from salience_models.errors import UnknownArchitecture, UnsupportedAttention

STEERABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})

PADDING_BASED_POSITIONS = frozenset(
    {
        "camembert",
        "data2vec-text",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Model types that count positions from their padding token's id + 1; ours count from 0."""

DRAFTERS = frozenset({"gemma4_assistant", "gemma4_unified_assistant"})
"""Model types that read another model's hidden states and keys: alone they answer nothing."""


def check_config(config: PretrainedConfig) -> None:
    """Refuse an architecture by its configuration.

    Raises:
        UnknownArchitecture: transformers has no causal language model of this type.
        UnsupportedAttention: Its attention cannot be steered.
    """
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedAttention(f"architecture must be decoder-only, got encoder-decoder {kind}")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnknownArchitecture(f"model_type must have a causal language model in transformers, got {kind}")
    if kind in PADDING_BASED_POSITIONS:
        raise UnsupportedAttention(f"positions must count from 0, got {kind}: they follow its padding id")
    if kind in DRAFTERS:
        raise UnsupportedAttention(f"keys must be the model's own, got {kind}: it drafts for another model")
    n_loops = getattr(text_config(config), "n_recurrent_loops", 1)
    if n_loops > 1:
        raise UnsupportedAttention(f"each layer of {kind} must run once a pass, got {n_loops} loops")
    # Some versions of transformers name a hybrid's layers by block: "recurrent", "mamba", "attention".
    blocks = getattr(text_config(config), "layers_block_type", None) or ()
    others = sorted({*(layer_types(config) or ()), *blocks} - STEERABLE_LAYERS - {"attention"})
    if others:
        raise UnsupportedAttention(
            f"layers of {kind} must be full_attention or sliding_attention, got {', '.join(others)}"
        )
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not model_class._supports_attention_backend:
        raise UnsupportedAttention(
            f"attention of {kind} must go through transformers' attention interface, "
            f"got {model_class.__name__}, which computes its own"
        )


def check_model(model: PreTrainedModel) -> None:
    """Refuse a model whose modules are not one causal self-attention per layer.

    Raises:
        UnsupportedAttention: Cross attention, bidirectional attention, layers without or with two attentions.
    """
    kind = model.config.model_type
    attentions = attention_modules(model)
    n_layers = text_config(model.config).num_hidden_layers
    indices = [module.layer_idx for module in attentions]
    if indices != list(range(n_layers)):
        raise UnsupportedAttention(
            f"{kind} must have one self-attention in each of its {n_layers} layers, got {indices}"
        )
    if not all(module.is_causal for module in attentions):
        raise UnsupportedAttention(f"attention of {kind} must be causal, got bidirectional attention")


def check_implementation(model: PreTrainedModel, name: str) -> None:
    """Refuse a model that transformers did not switch to the attention called `name`.

    Raises:
        UnsupportedAttention: It kept another one.
    """
    actual = model.config._attn_implementation
    if actual != name:
        raise UnsupportedAttention(
            f"attention of {model.config.model_type} must run as {name!r}, got {actual!r}"
        )


def attention_modules(model: PreTrainedModel) -> list[Any]:
    """The text decoder's self-attention modules, by layer; modules of a vision tower are left out."""
    decoder: nn.Module = model.get_decoder()
    if not isinstance(decoder, PreTrainedModel):  # ModernBERT calls its output layer "decoder"
        decoder = model.base_model
    modules: list[Any] = [m for m in decoder.modules() if hasattr(m, "layer_idx") and hasattr(m, "is_causal")]
    return sorted(modules, key=lambda module: module.layer_idx)


def text_config(config: PretrainedConfig) -> Any:
    """The language model's part of a configuration; the configuration itself where there is no other part."""
    return config.get_text_config(decoder=True)


def layer_types(config: PretrainedConfig) -> list[str] | None:
    """transformers' name for each layer's kind, or None where the architecture has only one kind."""
    return getattr(text_config(config), "layer_types", None)


def layer_windows(config: PretrainedConfig) -> tuple[int | None, ...]:
    """Keys that each layer sees, itself included: its sliding window, or None where it sees all before it."""
    text = text_config(config)
    window = getattr(text, "sliding_window", None) or None
    kinds = layer_types(config)
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    # Mistral and its kin slide in every layer; Qwen names a window and says whether it is used.
    is_sliding = getattr(text, "use_sliding_window", True)
    return (window if is_sliding else None,) * text.num_hidden_layers
