"""`salience explain`: where attention went, layer by layer, and what each memory did to the answer."""

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from salience.cli.memory_options import shorten
from salience.cli.options import (
    DEFAULT_MODEL,
    DeviceOption,
    DtypeOption,
    MemoryFileOption,
    MemoryOption,
    MethodOption,
    ModelOption,
    PhaseOption,
    RevisionOption,
    StrengthOption,
    load_harness,
    read_memories,
    steering_from,
)
from salience.harness import Explanation
from salience_memory import Memory
from salience_models import Receipt, Sampling

__all__ = ["add_commands"]

_BLOCK_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_HEAT = ("grey37", "#3b0f70", "#8c2981", "#de4968", "#fe9f6d", "#fcfdbf")
_HEAT_EDGES = (0.01, 0.05, 0.1, 0.2, 0.4)
_SHADES = (" ·", " ░", " ▒", " ▓", " █", "██")
"""What a cell shows besides its colour, so that a map without colours can still be read."""


def add_commands(app: typer.Typer) -> None:
    """Add `explain`."""
    app.command()(explain)


def explain(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    model: ModelOption = DEFAULT_MODEL,
    revision: RevisionOption = None,
    memory: MemoryOption = None,
    memories: MemoryFileOption = None,
    method: MethodOption = None,
    strength: StrengthOption = None,
    phase: PhaseOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Show the prompt with its memories, their attention per layer, and their influence on the answer."""
    console = Console(highlight=False)
    declared = read_memories(memory, memories)
    if not declared:
        raise ValueError("explain needs at least one --memory or a file of --memories, got none")
    harness = load_harness(console, model, revision, device, dtype, steering_from(method, strength, phase))
    with console.status("answering, then leaving each memory out in turn"):
        found = harness.explain(question, declared, sampling=Sampling(max_new_tokens=max_new_tokens))
    colours = {m.memory_id: _BLOCK_COLOURS[i % len(_BLOCK_COLOURS)] for i, m in enumerate(declared)}
    console.print(_prompt(found, declared, colours))
    console.print(Text(found.answer.text, style="bold"))
    console.print(_summary(found, declared, colours))
    for title, mass in _heat_maps(found.answer.receipt):
        console.print(_heat_map(title, mass, declared, colours))
    console.print(_legend())
    receipt = found.answer.receipt
    console.print(
        f"{receipt.method} on layers {_ranges(receipt.layers)}; ran {', '.join(receipt.impls)}", markup=False
    )


def _prompt(found: Explanation, memories: list[Memory], colours: dict[str, str]) -> Text:
    text = Text(found.answer.prompt.text, style="dim")
    end = 0
    for memory in memories:
        start = found.answer.prompt.text.index(f"- {memory.content}\n", end) + len("- ")
        end = start + len(memory.content)
        text.stylize(f"not dim {colours[memory.memory_id]}", start, end)
    return text


def _summary(found: Explanation, memories: list[Memory], colours: dict[str, str]) -> Table:
    receipt = found.answer.receipt
    table = Table(
        title="Attention of the question's rows (steered layers, mean over heads)", title_justify="left"
    )
    for name in ("memory", "weight", "asked", "share", "unbiased", "influence"):
        table.add_column(name, justify="left" if name == "memory" else "right")
    after, before = receipt.shares(), receipt.unbiased_shares()
    for i, memory in enumerate(memories):
        name = memory.memory_id
        table.add_row(
            Text(shorten(memory.content, 60), style=colours[name]),
            f"{memory.effective_weight:.2f}",
            _asked(found, i),
            f"{after[name]:.1%}",
            f"{before[name]:.1%}",
            f"{found.influence[name]:+.2f} nats/token",
        )
    return table


def _asked(found: Explanation, block: int) -> str:
    """What the plan asked for and the biases it came to."""
    span, receipt = found.plan.spans[block], found.answer.receipt
    nats = receipt.bias_nats[list(receipt.layers), block] if receipt.layers else np.zeros(0)
    if not found.plan.asks[block]:
        return "nothing"
    spread = (
        "" if np.isnan(nats).any() or not nats.size else f" ({nats.min():+.1f} to {nats.max():+.1f} nats)"
    )
    return (f"share {span.share:.2f}" if span.share else f"bias {span.bias_nats:+.2f} nats") + spread


def _heat_maps(receipt: Receipt) -> list[tuple[str, np.ndarray]]:
    """Titles and head-mean masses `[layer, block]`."""
    maps = []
    if receipt.question is not None:
        maps.append(("Achieved share by layer, question rows", receipt.question.achieved.mean(1)[:, 1:]))
        maps.append(("Without each layer's own bias", receipt.question.unbiased.mean(1)[:, 1:]))
    if receipt.answer is not None:
        maps.append(("Achieved share by layer, answer rows", receipt.answer.achieved.mean(1)[:, 1:]))
    return maps


def _heat_map(title: str, mass: np.ndarray, memories: list[Memory], colours: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 1, 0, 0))
    ruler = "".join(f"{layer:<10}" for layer in range(0, mass.shape[0], 5))
    table.add_row("", Text(ruler[: 2 * mass.shape[0]], style="dim"))
    for block, memory in enumerate(memories):
        cells = Text()
        for share in mass[:, block]:
            level = sum(share >= edge for edge in _HEAT_EDGES)
            cells.append(_SHADES[level], style=_HEAT[level])
        table.add_row(Text(shorten(memory.content, 24), style=colours[memory.memory_id]), cells)
    return table


def _legend() -> Text:
    text = Text("share ")
    labels = ("<1%", "1%", "5%", "10%", "20%", "40%+")
    for colour, shade, label in zip(_HEAT, _SHADES, labels, strict=True):
        text.append(shade, style=colour)
        text.append(f" {label}  ")
    return text


def _ranges(layers: tuple[int, ...]) -> str:
    if not layers:
        return "none"
    if len(layers) > 1 and layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}–{layers[-1]}"
    return ", ".join(map(str, layers))
