"""Every causal language model type of the installed transformers: exact under a bias, or refused by name.

Run as a script it writes the table of all of them (two minutes on one core); as tests it examines a dozen:

    python tests/models/test_model_types.py models/MODEL_TYPES.md

Each type is built tiny from its configuration class, with random parameters. Its own eager attention, each
layer's mask made dense and given the bias, is the truth, in one pass without a cache. Behind the seam the
same parameters decode a left-padded batch of two prompts, first without a bias, then with one on some keys.
"""

import copy
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from salience_models.decoding.decode_state import Request
from salience_models.errors import ModelsError
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan
from salience_models.text.token_spans import TokenSpan
from salience_models.weights.architecture import attention_modules, check_config

TABLE = Path(__file__).parents[2] / "models" / "MODEL_TYPES.md"

TOLERANCE = 1e-4
"""Largest difference in a logit, per unit of the largest logit where that exceeds 1."""

_PROMPTS = (24, 17)
_ANSWER = (7, 9, 30, 11)
_BLOCKS = ((3, 9, 1.5), (12, 15, -1.0))
"""Spans of keys `[start, end)` and their bias in nats, in each prompt."""

_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "intermediate_size": 48,
    "n_inner": 48,
    "ffn_dim": 48,
    "dff": 48,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 24,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "dense_intermediate_size": 48,
    "prefix_dense_intermediate_size": 48,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "head_dim": 8,
    "kv_channels": 8,
    "rotary_dim": 4,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "n_ctx": 128,
    "max_seq_len": 128,
    "sliding_window": 8,
    "local_attention": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "zero_expert_num": 2,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
    "laurel_rank": 8,
    "initializer_range": 0.15,
    "init_std": 0.15,
    "embedding_initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "sep_token_id": 4,
    "cls_token_id": 3,
    "eod_token_id": 3,
}
_MAX_LAYERS = 4


@dataclass(frozen=True)
class Finding:
    """What became of one model type: "exact", "refused" (by name, `reason` says why) or "inexact".

    `moved` is how far the bias moves a logit: with little of it, exactness would say nothing.
    """

    model_type: str
    verdict: str
    reason: str = ""
    error: float = float("nan")
    moved: float = float("nan")


_SPECIAL: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10_000.0}
            for kind in ("full_attention", "sliding_attention")
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "num_kv_shared_layers": 2,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "phi3": {"original_max_position_embeddings": 128},
    "phi4_multimodal": {"original_max_position_embeddings": 128},
    "roc_bert": {
        "pronunciation_embed_dim": 8,
        "pronunciation_vocab_size": 96,
        "shape_embed_dim": 8,
        "shape_vocab_size": 96,
    },
}
"""What a type's own defaults lack or what makes them large."""


def tiny_config(model_type: str) -> PretrainedConfig:
    """A small configuration of a type: 2 to 4 layers, one of each kind that its default lists."""
    return _shrink(CONFIG_MAPPING[model_type], _SPECIAL.get(model_type, {}))


def _shrink(config_class: type[PretrainedConfig], special: dict[str, Any]) -> PretrainedConfig:
    default = config_class()
    known = {field.name for field in fields(config_class)}  # type: ignore[arg-type]
    changes = {name: size for name, size in _SIZES.items() if name in known}
    if "num_key_value_heads" in known:
        # Latent attention expands its keys to all heads.
        changes["num_key_value_heads"] = 4 if "kv_lora_rank" in known else 2
    values = {}
    for name in known:
        with suppress(AmbiguousGlobalPerLayerAttributeError):  # Gemma 4 has no head_dim but each layer's
            values[name] = getattr(default, name)
    depths = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    depth = next((name for name in depths if name in known), None)
    if depth is not None:
        n_layers = values[depth]
        by_layer = {
            name: list(value)
            for name, value in values.items()
            if isinstance(value, list | tuple) and len(value) == n_layers
        }
        kinds = list(zip(*by_layer.values(), strict=True)) or [()] * n_layers
        picked = {kinds.index(kind) for kind in kinds}
        picked = sorted(picked | ({0, 1} if len(picked) < 2 else set()))[:_MAX_LAYERS]
        changes |= {depth: len(picked)} | {name: [v[i] for i in picked] for name, v in by_layer.items()}
    sub_configs: Any = config_class.sub_configs
    for name in sub_configs:
        if values.get(name) is not None and name not in special:
            changes[name] = _shrink(type(values[name]), {})
    return config_class(**(changes | special))


def examine(model_type: str) -> Finding:
    """Build one type and compare it; what cannot be built from its class alone is refused for that."""
    try:
        # The default first: a hybrid's layers may be of one kind once there are only two.
        check_config(CONFIG_MAPPING[model_type]())
        model = build(model_type)
        lm = LanguageModel(copy.deepcopy(model))
    except ModelsError as error:
        return Finding(model_type, "refused", str(error))
    except (ImportError, StrictDataclassClassValidationError) as error:
        return Finding(model_type, "not built", " ".join(str(error).split()).partition(". ")[0])
    tokens = [
        tuple(torch.randint(5, 90, (n,), generator=torch.Generator().manual_seed(n)).tolist())
        for n in _PROMPTS
    ]
    errors, moved = [], 0.0
    plain = [dense_logits(model, (*ids, *_ANSWER), ()) for ids in tokens]
    for blocks in ((), _BLOCKS):
        spans = tuple(TokenSpan(name=str(a), start=a, end=b, bias_nats=nats) for a, b, nats in blocks)
        try:
            ours = decoded_logits(lm, [Request(ids, BiasPlan(spans=spans)) for ids in tokens])
        except ModelsError as error:
            return Finding(model_type, "refused", str(error))
        for ids, row, unbiased in zip(tokens, ours, plain, strict=True):
            expected = dense_logits(model, (*ids, *_ANSWER), blocks) if blocks else unbiased
            scale = max(1.0, float(expected.abs().max()))
            errors.append(float((row - expected[len(ids) - 1 :]).abs().max()) / scale)
            moved = max(moved, float((expected - unbiased)[len(ids) - 1 :].abs().max()) / scale)
    verdict = "exact" if max(errors) <= TOLERANCE else "inexact"
    return Finding(model_type, verdict, "", max(errors), moved)


def build(model_type: str) -> PreTrainedModel:
    """The tiny model with its own eager attention and random parameters, the same for every call."""
    config = tiny_config(model_type)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        for parameter in model.parameters():
            if parameter.dim() > 1 and float(parameter.detach().abs().max()) < 0.1:
                nn.init.normal_(parameter, std=0.15)  # so that attention is far from uniform
    return model


@torch.inference_mode()
def dense_logits(
    model: PreTrainedModel, token_ids: Sequence[int], blocks: Sequence[tuple[int, int, float]]
) -> Tensor:
    """Every row's logits `[query, vocab]` of the stock model in one pass, `blocks` in its layers' masks."""

    def add_bias(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        mask = bound.arguments["attention_mask"].clone()
        for start, end, nats in blocks:
            mask[..., start:end] += nats
        bound.arguments["attention_mask"] = mask
        return bound.args, bound.kwargs

    with ExitStack() as hooks:
        for module in attention_modules(model) if blocks else ():
            hooks.callback(module.register_forward_pre_hook(add_bias, with_kwargs=True).remove)
        return model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]


def decoded_logits(lm: LanguageModel, requests: Sequence[Request]) -> Tensor:
    """Logits `[batch, step, vocab]` after the prompts, left-padded in one pass, and each answer token."""
    with patch("salience_models.language_model._CPU_PASS_TOKENS", 10**6):
        state = lm.prefill(requests, new_tokens=len(_ANSWER))
    steps = [state.logits, *(lm.decode(state, [token] * len(requests)) for token in _ANSWER)]
    return torch.stack(steps, dim=1)


def write_table(findings: Sequence[Finding]) -> str:
    """The table as Markdown, and above it how it was made and what it adds up to."""
    counts = Counter(finding.verdict for finding in findings)
    lines = [
        "# Model types",
        "",
        f"Every causal language model type of transformers {transformers.__version__}, built tiny with",
        "random parameters: its logits behind the seam, decoded from a left-padded batch of two prompts",
        "without and with a bias on some keys, against its own eager attention with a dense mask. *error* is",
        "the largest difference per unit of the largest logit (exact: at most 1e-4), *moved* how far the",
        "bias moves a logit. A type is examined as its default configuration has it; another may differ in",
        "its layers, and is judged by those when it is loaded. Regenerate with",
        "",
        "    python tests/models/test_model_types.py models/MODEL_TYPES.md",
        "",
        ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) + ".",
        "",
        "| type | verdict | error | moved | why |",
        "|---|---|---|---|---|",
    ]
    for f in findings:
        figures = ("", "") if f.error != f.error else (f"{f.error:.0e}", f"{f.moved:.1g}")
        lines.append(f"| {f.model_type} | {f.verdict} | {figures[0]} | {figures[1]} | {f.reason} |")
    return "\n".join([*lines, ""])


def main(path: Path) -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    findings = []
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        findings.append(examine(model_type))
        print(findings[-1], file=sys.stderr, flush=True)
    path.write_text(write_table(findings))


DOZEN = (
    "codegen",  # fused projections, rotary on a part of each head
    "cohere2",  # parallel blocks, windows, no rotary where all is seen
    "deepseek_v3",  # latent attention, keys wider than values, experts
    "diffllama",  # two attentions' difference
    "gemma2",  # softcap, windows
    "gemma4_text",  # layers that attend to an earlier layer's keys, heads of two widths
    "gpt2",  # learned positions
    "gpt_oss",  # sinks, windows
    "modernbert-decoder",
    "olmoe",
    "opt",  # learned positions from 2 on
    "phi3",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", DOZEN)
def test_decoding_under_a_bias_is_stock_attention_with_that_bias_in_its_mask(model_type: str) -> None:
    finding = examine(model_type)
    assert finding.verdict == "exact", finding
    assert finding.moved > 100 * TOLERANCE, "a bias that moves nothing proves nothing"


def read_table() -> dict[str, tuple[str, str]]:
    rows = [line.split("|") for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    return {row[1].strip(): (row[2].strip(), row[5].strip()) for row in rows[1:]}


def test_table_holds_every_type_and_none_that_is_inexact() -> None:
    table = read_table()
    assert set(table) == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert {verdict for verdict, _ in table.values()} == {"exact", "refused", "not built"}
    assert sum(verdict == "exact" for verdict, _ in table.values()) > 90


@pytest.mark.filterwarnings("ignore")
def test_types_that_the_table_refuses_are_refused_for_the_reason_it_gives() -> None:
    for model_type, (verdict, reason) in read_table().items():
        if verdict != "exact":
            finding = examine(model_type)
            assert (finding.verdict, finding.reason) == (verdict, reason)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
