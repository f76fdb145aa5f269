"""`salience bench attention`, whole models: ours, biased, against unmodified stock transformers models."""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from salience_experiments.bench.measure import Bar, Row, Timing, alternate
from salience_models import BiasPlan, DecodeState, LanguageModel, Request, TokenSpan
from salience_models.weights.loader import load_model

__all__ = ["CASES", "ModelCase", "OurLoop", "StockLoop", "compare_models", "load_pair"]

CHECKED_STEPS = 4
"""Decode steps, after the prefill, at which logits are compared."""

MAX_LOGIT_DIFFERENCE = 1e-4
"""Largest difference of unbiased logits from stock's, over the largest logit: float32 rounding."""

BIAS_NATS = 2.0

MAX_STEP_RATIO = 1.02
"""A decode step with a bias over one without."""


@dataclass(frozen=True)
class ModelCase:
    """What is run: prompts of these lengths in one left-padded batch, then `decode_steps` tokens each."""

    source: str
    lengths: tuple[int, ...]
    decode_steps: int
    limit: float


CASES = (
    ModelCase("bundled:smollm2-135m-instruct", (256, 360, 464, 568, 672, 776, 880, 1024), 64, 0.9),
    ModelCase("bundled:gemma-3-270m", (4096,), 0, 0.7),
)


class Loop(Protocol):
    """A batch of prompts being answered; both calls return logits `[batch, vocab]`."""

    def prefill(self) -> Tensor: ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token `[batch]` per prompt."""
        ...


class OurLoop:
    """Through `LanguageModel`, each request with its plan."""

    def __init__(self, lm: LanguageModel, requests: Sequence[Request], decode_steps: int) -> None:
        self._lm, self._requests, self._decode_steps = lm, requests, decode_steps
        self._state: DecodeState | None = None

    def prefill(self) -> Tensor:
        self._state = self._lm.prefill(self._requests, new_tokens=self._decode_steps)
        return self._state.logits

    def step(self, tokens: Tensor) -> Tensor:
        assert self._state is not None
        return self._lm.decode(self._state, tokens.tolist())


class StockLoop:
    """transformers' own prefill and decode as `generate` runs them: its DynamicCache and a 2-D mask.

    The model is a stock one with `attn_implementation="sdpa"`; only the last position's logits are asked for.
    """

    def __init__(self, model: nn.Module, prompts: Sequence[Sequence[int]]) -> None:
        self._model, self._prompts = model, prompts
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._cache: object = None
        self._mask = torch.empty(0)

    @torch.inference_mode()
    def prefill(self) -> Tensor:
        width = max(map(len, self._prompts))
        ids = torch.zeros(len(self._prompts), width, dtype=torch.int64)
        self._mask, self._cache = torch.zeros_like(ids), None
        for row, prompt in enumerate(self._prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            self._mask[row, width - len(prompt) :] = 1
        return self._forward(ids, (self._mask.cumsum(1) - 1).clamp(min=0))

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, torch.ones_like(self._mask[:, :1])], 1)
        return self._forward(tokens[:, None], self._mask.sum(1, keepdim=True) - 1)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        self._cache = getattr(output, self._cache_name)
        return output.logits[:, -1]


def load_pair(source: str, cache_dir: Path | None) -> tuple[LanguageModel, nn.Module]:
    """The same weights twice on the CPU: steered by us, and stock."""
    ours = LanguageModel.load(source, device="cpu", dtype="float32", cache_dir=cache_dir)
    stock = load_model(source, device="cpu", dtype="float32", cache_dir=cache_dir, attn_implementation="sdpa")
    return ours, stock.model


def compare_models(
    case: ModelCase,
    lm: LanguageModel,
    stock: nn.Module,
    repeats: int,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Row], list[Bar]]:
    """Time biased ours against stock, phase by phase and together; and compare unbiased logits."""
    prompts = make_prompts(case.lengths, lm.model.config.vocab_size)
    name = case.source.removeprefix("bundled:")
    say(f"{name}: comparing unbiased logits with stock's")
    unbiased = OurLoop(lm, [Request(prompt) for prompt in prompts], case.decode_steps)
    difference = _logit_difference(unbiased, StockLoop(stock, prompts), min(CHECKED_STEPS, case.decode_steps))
    say(f"{name}: {repeats} rounds of prefill and {case.decode_steps} decode steps, ours and stock in turn")
    # A bias on a block in the middle, in every layer and head and for every row that sees it.
    biased = []
    for prompt in prompts:
        start, end = len(prompt) // 3, len(prompt) // 2
        block = TokenSpan(name="block", start=start, end=end, bias_nats=BIAS_NATS)
        biased.append(Request(prompt, BiasPlan(spans=(block,))))
    ours, theirs = alternate(
        lambda: _time_phases(OurLoop(lm, biased, case.decode_steps), case.decode_steps),
        lambda: _time_phases(StockLoop(stock, prompts), case.decode_steps),
        repeats,
    )
    rows = [
        _row(case, f"{name}: {phase}", [run[phase] for run in ours], [run[phase] for run in theirs])
        for phase in ours[0]
    ]
    bars = [
        Bar(f"{rows[-1].name}, biased, over stock's time", rows[-1].timing.ratio, case.limit),
        Bar(f"{name}: unbiased logits' difference from stock's", difference, MAX_LOGIT_DIFFERENCE),
    ]
    if case.decode_steps:
        say(f"{name}: {case.decode_steps} decode steps, biased and not in turn")
        plain = [Request(prompt) for prompt in prompts]
        rows.append(_time_steps(case, f"{name}: decode step, biased", lm, biased, plain))
        bars.append(
            Bar(f"{name}: decode step, biased, over one without", rows[-1].timing.ratio, MAX_STEP_RATIO)
        )
    return rows, bars


def make_prompts(lengths: Sequence[int], vocab_size: int) -> list[tuple[int, ...]]:
    """Random tokens: meaning does not change the work. The first hundred ids, often special, are left out."""
    draw = torch.Generator().manual_seed(0)
    lowest = min(100, vocab_size // 2)
    return [tuple(torch.randint(lowest, vocab_size, (n,), generator=draw).tolist()) for n in lengths]


def _time_phases(loop: Loop, decode_steps: int) -> dict[str, float]:
    """Seconds by phase, the last entry the whole; greedy, end tokens ignored."""
    started = time.perf_counter()
    tokens = loop.prefill().argmax(-1)
    prefilled = time.perf_counter()
    if not decode_steps:
        return {"prefill": prefilled - started}
    for _ in range(decode_steps):
        tokens = loop.step(tokens).argmax(-1)
    ended = time.perf_counter()
    return {
        "prefill": prefilled - started,
        "decode": ended - prefilled,
        "prefill and decode": ended - started,
    }


def _time_steps(
    case: ModelCase, name: str, lm: LanguageModel, biased: Sequence[Request], plain: Sequence[Request]
) -> Row:
    """Each decode step of two batches in turn, the first not counted."""
    turns = [OurLoop(lm, requests, case.decode_steps + 1) for requests in (biased, plain)]
    tokens = [loop.prefill().argmax(-1) for loop in turns]

    def timed(at: int) -> float:
        started = time.perf_counter()
        logits = turns[at].step(tokens[at])
        taken = time.perf_counter() - started
        tokens[at] = logits.argmax(-1)
        return taken

    for at in range(2):
        timed(at)
    ours_s, peer_s = alternate(lambda: timed(0), lambda: timed(1), case.decode_steps)
    return _row(case, name, ours_s, peer_s, "ours, no bias")


def _logit_difference(ours: Loop, stock: Loop, steps: int) -> float:
    """Largest difference over prefill and `steps` steps fed alike, over the largest logit."""
    pairs = [(ours.prefill(), stock.prefill())]
    for _ in range(steps):
        tokens = pairs[-1][1].argmax(-1)
        pairs.append((ours.step(tokens), stock.step(tokens)))
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)
    return max(float((mine - theirs).abs().max()) for mine, theirs in pairs) / largest


def _row(
    case: ModelCase,
    name: str,
    ours_s: Sequence[float],
    peer_s: Sequence[float],
    peer: str = "transformers, sdpa, no bias",
) -> Row:
    where: dict[str, str | int] = {
        "model": case.source,
        "dtype": "float32",
        "prompts": len(case.lengths),
        "shortest": min(case.lengths),
        "longest": max(case.lengths),
        "decode_steps": case.decode_steps,
    }
    return Row(name, peer, where, Timing(tuple(ours_s), tuple(peer_s)))
