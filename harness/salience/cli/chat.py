"""`salience chat`: ask once, or talk; memories given on the command line or in a file."""

from typing import Annotated

import typer
from rich.console import Console

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
    shorten,
    steering_from,
)
from salience.harness import Harness
from salience_memory import Memory
from salience_models import Sampling

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add `chat`."""
    app.command()(chat)


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this and leave; without it, talk.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    revision: RevisionOption = None,
    memory: MemoryOption = None,
    memories: MemoryFileOption = None,
    method: MethodOption = None,
    strength: StrengthOption = None,
    phase: PhaseOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same answer.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Answer with memories that draw attention by their weights. Each question stands alone."""
    console = Console(highlight=False)
    declared = read_memories(memory, memories)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    harness = load_harness(console, model, revision, device, dtype, steering_from(method, strength, phase))
    if question is not None:
        _answer(console, harness, question, declared, sampling)
        return
    console.print("Ask away; an empty line or Ctrl-D leaves.", style="dim")
    while True:
        try:
            asked = console.input("[bold]> [/bold]")
        except EOFError:
            return
        if not asked.strip():
            return
        _answer(console, harness, asked, declared, sampling)


def _answer(
    console: Console, harness: Harness, question: str, memories: list[Memory], sampling: Sampling
) -> None:
    receipt = None
    for event in harness.stream(question, memories, sampling=sampling):
        console.print(event.text, end="", markup=False, soft_wrap=True)
        receipt = event.receipt or receipt
    console.print()
    assert receipt is not None
    before, after = receipt.unbiased_shares(), receipt.shares()
    for shown in memories:
        name = shown.memory_id
        line = f"  {after[name]:6.1%} of attention (unbiased {before[name]:.1%})  {shorten(shown.content)}"
        console.print(line, style="dim", markup=False)
    console.print(
        f"  {receipt.method}, {len(receipt.layers)} layers, {', '.join(receipt.impls)}",
        style="dim",
        markup=False,
    )
