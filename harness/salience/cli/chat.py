"""`salience chat`: ask once, or talk; with memories of the command line, of a file, or of a store."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import Console

from salience.cli.memory_options import (
    DEFAULT_EMBEDDER,
    EmbedderOption,
    NoEmbedOption,
    open_recall,
    open_store,
    shorten,
)
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
from salience.context.template import load_template
from salience.conversation import ChatAnswer, Conversation
from salience.errors import ContextError
from salience.harness import Harness
from salience.judge import model_judge
from salience_memory import Memory, Viewer, maintain, system_clock
from salience_memory.registrar.registrar import Registrar
from salience_memory.registrar.registrar_queue import RegistrarQueue
from salience_models import PromptTooLong, Receipt, Sampling

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
    memory_db: Annotated[
        Path | None, typer.Option(help="A store's file: recall from it, and remember what is said.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Whose memories.")] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", "-s", help="Session to go on with; default, a new one that ends with the talk."
        ),
    ] = None,
    template: Annotated[
        str, typer.Option(help="A shipped template or a .json file, with --memory-db.")
    ] = "personal_assistant",
    judge: Annotated[
        bool, typer.Option("--judge", help="Let the model say what is worth remembering where no rule does.")
    ] = False,
    embedder: EmbedderOption = DEFAULT_EMBEDDER,
    no_embed: NoEmbedOption = False,
    method: MethodOption = None,
    strength: StrengthOption = None,
    phase: PhaseOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same answer.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Answer with memories that draw attention by their weights.

    With --memory-db it is a conversation that remembers; without, each question stands alone.
    """
    console = Console(highlight=False)
    declared = read_memories(memory, memories)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    if memory_db is None and (user or session or judge):
        raise ValueError("--memory-db must be given with --user, --session and --judge, got none")
    chosen = load_template(template)
    harness = load_harness(console, model, revision, device, dtype, steering_from(method, strength, phase))
    with ExitStack() as stack:
        if memory_db is None:
            answer = _answerer(console, harness, declared, sampling)
        else:
            session_id = session or uuid4().hex
            viewer = Viewer(user_id=user, session_id=session_id)
            store = stack.enter_context(open_store(memory_db, create=True))
            maintain(store, system_clock())
            recall = stack.enter_context(open_recall(store, None if no_embed else embedder))
            if session is None:  # nobody can come back to it; ended once the registrar below has drained
                stack.callback(store.end_session, session_id, user_id=user)
            noticing = Registrar(store, judge=model_judge(harness.lm) if judge else None)
            registrar = stack.enter_context(RegistrarQueue(noticing, store))
            registrar.replay()  # what a crash left acknowledged and unsettled
            conversation = harness.conversation(
                viewer=viewer, template=chosen, store=store, recall=recall, registrar=registrar
            )

            def converse(message: str) -> None:
                recall.sync()
                _converse(console, conversation, message, declared, sampling)

            answer = converse

        if question is not None:
            answer(question)
        else:
            _talk(console, answer)


def _talk(console: Console, answer: Callable[[str], None]) -> None:
    """Questions until an empty line; one that cannot be answered is said so, and the next may be asked."""
    console.print("Ask away; an empty line or Ctrl-D leaves.", style="dim")
    while True:
        try:
            asked = console.input("[bold]> [/bold]")
        except EOFError:
            return
        if not asked.strip():
            return
        try:
            answer(asked)
        except (PromptTooLong, ContextError) as error:
            console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)


def _answerer(
    console: Console, harness: Harness, memories: list[Memory], sampling: Sampling
) -> Callable[[str], None]:
    def answer(question: str) -> None:
        receipt = None
        for event in harness.stream(question, memories, sampling=sampling):
            console.print(event.text, end="", markup=False, soft_wrap=True)
            receipt = event.receipt or receipt
        console.print()
        assert receipt is not None
        _show_attention(console, receipt, memories)

    return answer


def _converse(
    console: Console, conversation: Conversation, message: str, memories: list[Memory], sampling: Sampling
) -> None:
    answer: ChatAnswer | None = None
    for event in conversation.stream(message, memories=memories, sampling=sampling):
        console.print(event.text, end="", markup=False, soft_wrap=True)
        answer = event.answer
    console.print()
    assert answer is not None
    if answer.disclaimer is not None:
        console.print(answer.disclaimer, style="italic", markup=False)
    rendered = set(answer.receipt.blocks)
    _show_attention(console, answer.receipt, [m for m in answer.memories if m.memory_id in rendered])
    for cut in answer.rendered.truncations:
        console.print(f"  {cut}", style="dim", markup=False)
    for outcome in answer.outcomes.result() if answer.outcomes is not None else ():
        if outcome.question is not None:
            console.print(f"  {outcome.question}", style="yellow", markup=False)
        elif outcome.memory is not None:
            told = shorten(outcome.memory.content)
            console.print(f"  {outcome.kind.value}: {told}", style="green", markup=False)


def _show_attention(console: Console, receipt: Receipt, memories: list[Memory]) -> None:
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
