"""Steered and stock twins of the tiny models, and a dense reference for any plan on stock eager attention."""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from salience_models.decoding.decode_state import Request
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import BiasPlan, Phase, QueryScope, SteeringMethod, TokenSpan
from salience_models.weights.architecture import attention_modules
from salience_models.weights.loader import load_model

TinyModel = Callable[..., Any]
ByLayer = dict[int, tuple[float, ...]]


@pytest.fixture(scope="session")
def stock_model(tiny_model: TinyModel) -> TinyModel:
    """`stock_model(name, dtype, exact=False)`: the tiny model with transformers' own eager attention.

    `exact` computes in float32 with the parameters that `dtype` has rounded.
    """

    @cache
    def build(name: str, dtype: torch.dtype = torch.float32, exact: bool = False) -> PreTrainedModel:
        model = twin(tiny_model(name, dtype), "eager")
        return copy.deepcopy(model).float() if exact else model

    return build


@pytest.fixture(scope="session")
def language_model(
    tiny_model: TinyModel, byte_tokenizer: PreTrainedTokenizerBase
) -> Callable[..., LanguageModel]:
    """`language_model(name, dtype)`: the tiny model behind the seam, with a tokenizer of one token a byte."""

    @cache
    def build(name: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
        return LanguageModel(twin(tiny_model(name, dtype)), byte_tokenizer)

    return build


def twin(model: PreTrainedModel, attention: str | None = None) -> PreTrainedModel:
    """A model of its own that shares `model`'s parameters and buffers."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)
    if attention is not None:
        other.set_attn_implementation(attention)
    return other


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerBase:
    """256 tokens, one a byte; token 2, the tiny models' end token, is the byte of `#` and not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.fixture(scope="session")
def draw_tokens() -> Callable[..., tuple[int, ...]]:
    """`draw_tokens(n, seed=0)`: token ids in [3, 256), special ones left out."""

    def draw(n: int, seed: int = 0) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(1000 + seed)
        return tuple(torch.randint(3, 256, (n,), generator=generator).tolist())

    return draw


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., BiasPlan]:
    """`plan_of(method, **changes)`: block a [5, 12) raised, b [16, 22) lowered, c [22, 24) neutral.

    The question starts at 25, so that a prompt of 32 tokens has seven question rows, and a window of 16 keys
    holds all of b in each of them and a in the first two.
    """

    def build(method: SteeringMethod | str = SteeringMethod.LOGIT_BIAS, **changes: Any) -> BiasPlan:
        spans = (
            TokenSpan(name="a", start=5, end=12, bias_nats=1.5, share=0.3),
            TokenSpan(name="b", start=16, end=22, bias_nats=-1.0, share=0.15),
            TokenSpan(name="c", start=22, end=24),
        )
        return BiasPlan(**({"spans": spans, "method": method, "question_start": 25} | changes))

    return build


@pytest.fixture(scope="session")
def dense_logits() -> Callable[..., Tensor]:
    """`dense_logits(stock, token_ids, plan, prompt_length=None, solved=None)`: every row's, `[query, vocab]`.

    The stock eager model in one pass without a cache, each layer's mask replaced by a dense one
    `[1, head, query, key]` that carries what the plan's definition asks of each row. `solved` gives share
    control's biases by layer.
    """
    return _dense_logits


@torch.inference_mode()
def _dense_logits(
    stock: PreTrainedModel,
    token_ids: Sequence[int],
    plan: BiasPlan,
    prompt_length: int | None = None,
    solved: ByLayer | None = None,
) -> Tensor:
    rows = _steered_rows(plan, len(token_ids), prompt_length or len(token_ids))

    def add_bias(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        if plan.layers is not None and layer not in plan.layers:
            return None
        heads = [
            h
            for h in range(stock.config.num_attention_heads)
            if plan.heads is None or (layer, h) in plan.heads
        ]
        mask = kwargs["attention_mask"]
        bias = torch.zeros(1, stock.config.num_attention_heads, *mask.shape[2:], dtype=mask.dtype)
        if plan.method in (SteeringMethod.LOGIT_BIAS, SteeringMethod.SHARE_CONTROL):
            nats = [s.bias_nats for s in plan.spans] if solved is None else solved[layer]
            for span, value, is_steered in zip(plan.spans, nats, rows, strict=True):
                for head in heads:
                    bias[0, head, is_steered, span.start : span.end] = value
        else:
            weights = module.forward(*args, **kwargs)[1]  # attention before steering, of these very inputs
            _add_shares(bias, weights, plan, rows, heads)
        return args, kwargs | {"attention_mask": mask + bias}

    with ExitStack() as hooks:
        for module in attention_modules(stock):
            hooks.callback(module.register_forward_pre_hook(add_bias, with_kwargs=True).remove)
        return stock(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]


def _steered_rows(plan: BiasPlan, n_rows: int, prompt_length: int) -> list[Tensor]:
    """Per span a mask `[query]` of the rows that the plan steers it in: the definition, row by row."""
    question = plan.first_question_row
    steered = []
    for span in plan.spans:
        first = {
            QueryScope.ALL: 0,
            QueryScope.AFTER_BLOCK: span.end,
            QueryScope.QUESTION: question,
            QueryScope.LAST: prompt_length - 1,
        }[plan.query_scope]
        is_prompt = [row >= first and plan.phase != Phase.DECODE for row in range(prompt_length)]
        is_answer = [plan.phase != Phase.PREFILL] * (n_rows - prompt_length)
        steered.append(torch.tensor(is_prompt + is_answer))
    return steered


def _add_shares(bias: Tensor, weights: Tensor, plan: BiasPlan, rows: list[Tensor], heads: list[int]) -> None:
    """Write the bias that gives each row and head its shares into `bias` `[1, head, query, key]`."""
    for row in range(weights.shape[2]):
        asked = {m: s for m, s in enumerate(plan.spans) if s.share and bool(rows[m][row]) and s.start <= row}
        for head in heads:
            mass = {m: float(weights[0, head, row, s.start : s.end].sum()) for m, s in asked.items()}
            wanted = {m: s.share for m, s in asked.items() if mass[m] > 0}
            for m, nats in _share_nats(mass, wanted, plan).items():
                bias[0, head, row, plan.spans[m].start : plan.spans[m].end] = nats


def _share_nats(mass: dict[int, float], wanted: dict[int, float], plan: BiasPlan) -> dict[int, float]:
    """The README of the kernels room: bias per raised block, relative to everything else's 0."""
    if plan.method is SteeringMethod.TARGET_SHARE_PAPER:
        nats = {m: math.log(t / mass[m]) for m, t in wanted.items()}
        return {m: max(0.0, b) if plan.only_raise else b for m, b in nats.items()}
    active = {m for m, t in wanted.items() if not plan.only_raise or mass[m] < t}
    while True:
        left, held = 1 - sum(wanted[m] for m in active), 1 - sum(mass[m] for m in active)
        if held < 1e-6:
            return {}
        fallen = {m for m, t in wanted.items() if m not in active and mass[m] * left / held < t}
        if not (plan.only_raise and fallen):
            return {m: math.log(wanted[m] / mass[m]) - math.log(left / held) for m in active}
        active |= fallen


@pytest.fixture(scope="session")
def solved_biases() -> Callable[..., ByLayer]:
    """`solved_biases(receipt)`: the biases that share control found, by layer."""
    return lambda receipt: {layer: tuple(receipt.bias_nats[layer].tolist()) for layer in receipt.layers}


@pytest.fixture(scope="session")
def step_logits() -> Callable[..., Tensor]:
    """`step_logits(lm, requests, answer=(), **options)`: prefill, then feed `answer` to every request.

    Logits `[batch, step, vocab]`: after the prompt and after each answer token.
    """

    def run(
        lm: LanguageModel, requests: Sequence[Request], answer: Sequence[int] = (), **options: Any
    ) -> Tensor:
        state = lm.prefill(requests, new_tokens=len(answer), **options)
        logits = [state.logits, *(lm.decode(state, [token] * len(requests)) for token in answer)]
        return torch.stack(logits, dim=1)

    return run


@pytest.fixture(scope="session")
def assert_close() -> Callable[..., None]:
    """`assert_close(actual, expected)`: float32 logits of two paths that sum in different orders.

    2e-5 is four times the largest difference seen; logits are of size 5 after up to four layers.
    """

    def check(actual: Tensor, expected: Tensor) -> None:
        assert actual.shape == expected.shape
        assert float((actual - expected).abs().max()) <= 2e-5

    return check


@pytest.fixture(scope="session")
def assert_as_close_as_stock() -> Callable[[Tensor, Tensor, Tensor], None]:
    """`assert_as_close_as_stock(actual, stock, exact)`: low-precision logits against those of float32.

    At most twice as far as stock attention at that precision, plus one rounding step of the largest value.
    """

    def check(actual: Tensor, stock: Tensor, exact: Tensor) -> None:
        assert actual.dtype == stock.dtype
        step = torch.finfo(actual.dtype).eps * float(exact.abs().max())
        error, allowed = (float((x.float() - exact).abs().max()) for x in (actual, stock))
        assert error <= 2 * allowed + step

    return check


@pytest.fixture(scope="session")
def smollm2() -> tuple[PreTrainedModel, LanguageModel]:
    """The bundled SmolLM2 in float32: stock with eager attention, and behind the seam on its parameters."""
    return _load_bundled("bundled:smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3() -> tuple[PreTrainedModel, LanguageModel]:
    """The bundled Gemma 3 270M in float32, its windows shrunk to 64, as `smollm2`."""
    stock, lm = _load_bundled("bundled:gemma-3-270m")
    for model in (stock, lm.model):
        model.config.sliding_window = 64
        for module in attention_modules(model):
            if module.is_sliding:
                module.sliding_window = 64
    return stock, lm


def _load_bundled(source: str) -> tuple[PreTrainedModel, LanguageModel]:
    loaded = load_model(source, device="cpu", dtype="float32", attn_implementation="eager")
    return loaded.model, LanguageModel(twin(loaded.model), loaded.tokenizer)
