"""Rendering 100 memories to a template: median and 95th percentile, token counts left out and included."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from rich.table import Table

from salience.context import load_template, render_context
from salience.context.rendering import CountTokens
from salience_experiments.bench.measure import Bar, build_table
from salience_memory import Memory, MemoryType

__all__ = ["RenderTiming", "build_memories", "measure_render", "render_bars", "render_table"]

LIMIT_MS = 5.0
_NOW_NS = 1_700_000_000_000_000_000
_TYPES = (
    MemoryType.SEMANTIC,
    MemoryType.EXTERNAL,
    MemoryType.CONTEXT,
    MemoryType.HISTORY,
    MemoryType.TASK,
    MemoryType.CONSTRAINT,
)


@dataclass(frozen=True)
class RenderTiming:
    """Milliseconds of each render, in the order run."""

    name: str
    samples_ms: tuple[float, ...]
    n_rendered: int
    n_truncated: int

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def p95_ms(self) -> float:
        return sorted(self.samples_ms)[math.ceil(0.95 * len(self.samples_ms)) - 1]


def build_memories(count: int) -> list[Memory]:
    """Memories of mixed types, weights and scripts; the same for every call."""
    return [
        Memory(
            memory_id=f"m{i}",
            content=f"Record {i}: the user said [{i}] that topic {i % 7} matters, 退款需要三天 \\ {i}.",
            type=_TYPES[i % len(_TYPES)],
            key=f"topic.{i % 7}",
            semantic_weight=0.5 + 0.49 * (i % 50) / 50,
            trust=0.6 + 0.4 * (i % 3) / 2,
        )
        for i in range(count)
    ]


def measure_render(
    memories: Sequence[Memory], repeats: int, count_tokens: CountTokens, template: str = "personal_assistant"
) -> list[RenderTiming]:
    """Time renders within the template's budgets and without cuts, with a free count and with the model's.

    Raises:
        AssertionError: Two renders of one input differ.
    """
    shipped = load_template(template)
    roomy = shipped.model_copy(
        update={"sections": tuple(s.model_copy(update={"max_tokens": 10**6}) for s in shipped.sections)}
    )
    timings: list[RenderTiming] = []
    counters = {"counts excluded": lambda text: len(text) // 4, "counts included": count_tokens}
    for (counted, count), (cut, chosen) in product(
        counters.items(), {"all rendered": roomy, "cut to budget": shipped}.items()
    ):
        render = partial(
            render_context, chosen, memories, count_tokens=count, budget_tokens=10**6, now_ns=_NOW_NS
        )
        first, samples = render(), []
        for _ in range(repeats):
            started = time.perf_counter()
            again = render()
            samples.append((time.perf_counter() - started) * 1000.0)
            assert again.text.encode() == first.text.encode()
        n_rendered, n_truncated = len(first.spans), len(first.truncations)
        timings.append(RenderTiming(f"{cut}, {counted}", tuple(samples), n_rendered, n_truncated))
    return timings


def render_bars(timings: Sequence[RenderTiming], n_memories: int) -> list[Bar]:
    """The bar is the renderer's own time, counts by the tokenizer left out."""
    return [
        Bar(f"{n_memories} memories, {timing.name}, median ms", timing.median_ms, LIMIT_MS)
        for timing in timings
        if timing.name.endswith("excluded")
    ]


def render_table(timings: Sequence[RenderTiming]) -> Table:
    """Median and 95th percentile of each way to render."""
    rows = [
        (t.name, f"{t.median_ms:.2f}", f"{t.p95_ms:.2f}", str(t.n_rendered), str(t.n_truncated))
        for t in timings
    ]
    return build_table(("render",), ("median ms", "p95 ms", "rendered", "left out"), rows)
