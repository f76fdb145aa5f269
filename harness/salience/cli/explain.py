"""`salience explain`: where attention went, layer by layer, and what each memory did to the answer."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from salience.cli.options import (
    DeviceOption,
    DtypeOption,
    EmbedderOption,
    GivenFileOption,
    GivenOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    NoEmbedOption,
    NoMemoryOption,
    PhaseOption,
    RevisionOption,
    SessionOption,
    SteeringOption,
    StrengthOption,
    UserOption,
    load_harness,
    read_given,
    steering_from,
)
from salience.cli.terminal import Terminal, print_json, shorten, visible
from salience.config import DEFAULT_MODEL
from salience.memory_access import DEFAULT_EMBEDDER, memory_path, open_store

if TYPE_CHECKING:
    from salience.session import Explanation

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
    no_memory: NoMemoryOption = False,
    user: UserOption = None,
    session: SessionOption = None,
    given: GivenOption = None,
    given_file: GivenFileOption = None,
    embedder: EmbedderOption = DEFAULT_EMBEDDER,
    no_embed: NoEmbedOption = False,
    steering: SteeringOption = None,
    strength: StrengthOption = None,
    phase: PhaseOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show the prompt with its memories, their attention per layer, and their influence on the answer.

    Memories are recalled as `chat` does, where there is a file of them; nothing of the question is kept.
    """
    memories = read_given(given, given_file)
    if no_memory and (user or session or memory):
        raise ValueError("--no-memory must stand without --memory, --user and --session")
    is_absent = memory is None and not memory_path().exists()
    if not memories and (no_memory or is_absent):
        raise ValueError("explain needs at least one --given, or a file of memories to recall from, got none")
    from salience_models import Sampling

    with ExitStack() as stack:
        store = None if no_memory or is_absent else stack.enter_context(open_store(memory))
        harness = stack.enter_context(
            load_harness(
                model,
                memory=store,
                embedder=None if no_embed else embedder,
                steering=steering_from(steering, strength, phase),
                revision=revision,
                device=device,
                dtype=dtype,
            )
        )
        with Terminal(stderr=True).status("answering, then leaving each memory out in turn"):
            found = harness.session(user, session).explain(
                question, memories, sampling=Sampling(max_new_tokens=max_new_tokens)
            )
    if as_json:
        print_json({**found.answer.to_dict(), "influence": found.influence})
        return
    Terminal().print(_page(found))


def _page(found: "Explanation") -> Group:
    """Prompt, answer, a row of figures for each memory, and a map of their shares by layer."""
    answer = found.answer
    receipt, plan, shown = answer.receipt, answer.turn.request.plan, answer.shown
    colours = [_BLOCK_COLOURS[i % len(_BLOCK_COLOURS)] for i in range(len(shown))]

    prompt = Text(visible(answer.turn.prompt.text), style="dim")
    context, end = answer.turn.rendered.context, 0
    blocks = {} if context is None else {s.name: context.text[s.start : s.end] for s in context.spans}
    for memory, colour in zip(shown, colours, strict=True):
        block = visible(blocks[memory.memory.memory_id])
        start = prompt.plain.index(block, end)  # in their order, so that a like text further up isn't taken
        end = start + len(block)
        prompt.stylize(f"not dim {colour}", start, end)

    summary = Table(
        title="Attention of the question's rows (steered layers, mean over heads)", title_justify="left"
    )
    for name in ("memory", "weight", "asked", "share", "unbiased", "influence"):
        summary.add_column(name, justify="left" if name == "memory" else "right")
    after, before = receipt.shares(), receipt.unbiased_shares()
    for block, (memory, colour) in enumerate(zip(shown, colours, strict=True)):
        name, span = memory.memory.memory_id, plan.spans[block]
        asked = "nothing"
        if plan.asks[block]:
            asked = f"share {span.share:.2f}" if span.share else f"bias {span.bias_nats:+.2f} nats"
            nats = receipt.bias_nats[list(receipt.layers), block]
            if nats.size and not any(nats != nats):  # NaN under target share, whose bias differs by row
                asked += f" ({nats.min():+.1f} to {nats.max():+.1f} nats)"
        summary.add_row(
            Text(shorten(memory.memory.content), style=colour),
            f"{memory.weight:.2f}",
            asked,
            f"{after[name]:.1%}",
            f"{before[name]:.1%}",
            f"{found.influence[name]:+.2f} nats/token",
        )

    maps: list[Table] = []
    names = [shorten(memory.memory.content, 24) for memory in shown]
    tables = (("question", receipt.question), ("answer", receipt.answer))
    for rows, table in tables if shown else ():
        if table is not None:
            title = f"Achieved share by layer, {rows} rows"
            maps.append(_heat_map(title, table.achieved.mean(1)[:, 1:].tolist(), names, colours))
        if table is not None and rows == "question":
            title = "Without each layer's own bias"
            maps.append(_heat_map(title, table.unbiased.mean(1)[:, 1:].tolist(), names, colours))
    legend = Text("share ")
    for colour, shade, label in zip(_HEAT, _SHADES, ("<1%", "1%", "5%", "10%", "20%", "40%+"), strict=True):
        legend.append(shade, style=colour).append(f" {label}  ")

    layers = receipt.layers
    is_range = len(layers) > 1 and layers == tuple(range(layers[0], layers[-1] + 1))
    where = f"{layers[0]}–{layers[-1]}" if is_range else ", ".join(map(str, layers)) or "none"
    ran = Text(f"{receipt.method} on layers {where}; ran {', '.join(receipt.impls)}")
    left_out = [Text(visible(str(event)), style="dim") for event in answer.truncations]
    said = Text(visible(answer.text), style="bold")
    return Group(prompt, said, *left_out, summary, *maps, *([legend] if maps else []), ran)


def _heat_map(
    title: str, shares: Sequence[Sequence[float]], names: Sequence[str], colours: Sequence[str]
) -> Table:
    """A row for each memory, a cell for each layer; `shares` by layer, then by memory."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 1, 0, 0))
    ruler = "".join(f"{layer:<10}" for layer in range(0, len(shares), 5))
    table.add_row("", Text(ruler[: 2 * len(shares)], style="dim"))
    for block, (name, colour) in enumerate(zip(names, colours, strict=True)):
        cells = Text()
        for layer in shares:
            level = sum(layer[block] >= edge for edge in _HEAT_EDGES)
            cells.append(_SHADES[level], style=_HEAT[level])
        table.add_row(Text(name, style=colour), cells)
    return table
