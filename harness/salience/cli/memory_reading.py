"""`salience memory list`, `show`, `history` and `search`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from salience.cli.memory_options import (
    DEFAULT_EMBEDDER,
    DbOption,
    EmbedderOption,
    JsonOption,
    NoEmbedOption,
    SessionOption,
    UserOption,
    line_of,
    open_recall,
    open_store,
    print_json,
    show_memories,
    show_time,
    viewer_of,
    weight,
    whose,
)
from salience_memory import EmbeddingMismatch, MemoryType

if TYPE_CHECKING:
    from salience_memory.memory_recall import RecalledMemory

__all__ = ["add_commands"]

TypeOption = Annotated[list[MemoryType] | None, typer.Option("--type", help="Only of that type; repeatable.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", "-t", help="Only with that tag; repeatable.")]
ArchivedOption = Annotated[bool, typer.Option("--archived", help="Archived ones too.")]

_TIMES = ("created_ns", "updated_ns", "verified_ns", "used_ns", "valid_until")


def add_commands(group: typer.Typer) -> None:
    """Add `list`, `show`, `history` and `search`."""
    group.command("list")(list_memories)
    for command in (show, history, search):
        group.command()(command)


def list_memories(
    type: TypeOption = None,
    tag: TagOption = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only of that key.")] = None,
    pinned: Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Only pinned, or others.")
    ] = None,
    archived: ArchivedOption = False,
    expired: Annotated[bool, typer.Option("--expired", help="Those past valid_until too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    after: Annotated[int, typer.Option(min=0, help="Only after this seq, for the next page.")] = 0,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """List everybody's memories, and with --user or --session that one's; longest unchanged first."""
    with open_store(db) as store:
        found = store.list(
            viewer_of(user, session),
            types=type or (),
            tags=tag or (),
            key=key,
            pinned=pinned,
            include_archived=archived,
            include_expired=expired,
            limit=limit + 1,
            after_seq=after,
        )
    more, found = len(found) > limit, found[:limit]
    if json:
        print_json([memory.model_dump(mode="json") for memory in found])
        return
    console = Console(highlight=False)
    if not found:
        console.print("no memories" + ("" if user or session else " of everybody's; --user shows a user's"))
        return
    show_memories(console, found)
    if more:
        console.print(f"more: --after {found[-1].seq}", style="dim")


def show(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    version: Annotated[int | None, typer.Option(min=1, help="An earlier version.")] = None,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Show every field of a memory."""
    with open_store(db) as store:
        memory = store.get(memory_id, viewer_of(user, session), version=version)
    if json:
        print_json(memory.model_dump(mode="json"))
        return
    table = Table(show_header=False, box=None)
    for name, value in memory.model_dump(mode="json").items():
        if value is None or value is False or value == "":
            continue
        offset_min = memory.timezone_offset_min if name == "valid_until" else 0
        shown = show_time(value, offset_min) if name in _TIMES else _show_field(value)
        table.add_row(Text(name, style="dim"), Text(shown))
    table.add_row(Text("effective_weight", style="dim"), Text(f"{memory.effective_weight:.4f}"))
    Console(highlight=False).print(table)


def _show_field(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {inner}" for key, inner in value.items() if inner is not None)
    return str(value)


def history(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a memory said, version by version, and why it changed."""
    with open_store(db) as store:
        versions = store.history(memory_id, viewer_of(user, session))
    if json:
        print_json([version.model_dump(mode="json") for version in versions])
        return
    table = Table("version")
    table.add_column("when", no_wrap=True)
    for name in ("why", "by", "weight", "state", "memory"):
        table.add_column(name)
    for version in versions:
        changed = (show_time(version.updated_ns), version.reason, version.actor)
        state = (f"{version.semantic_weight:.2f}", version.state.value)
        table.add_row(str(version.version), *map(Text, changed), *state, line_of(version))
    Console(highlight=False).print(table)


def search(
    query: Annotated[str, typer.Argument(help="What is asked.")],
    top_k: Annotated[int, typer.Option("--top-k", "-n", min=1, help="Most results.")] = 5,
    type: TypeOption = None,
    tag: TagOption = None,
    archived: ArchivedOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show how each score came about.")] = False,
    no_embed: NoEmbedOption = False,
    embedder: EmbedderOption = DEFAULT_EMBEDDER,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Find the memories that a query is about, as a prompt would get them."""
    if not query.strip():
        raise ValueError(f"query must hold text, got {query!r}")
    with open_store(db) as store, open_recall(store, None if no_embed else embedder) as recall:
        try:
            recall.sync()
        except EmbeddingMismatch as error:
            if not recall.foreign_fingerprints:
                raise
            held = ", ".join(recall.foreign_fingerprints)
            raise EmbeddingMismatch(
                f"the store's vectors are of {held}, not of {embedder}: search with that --embedder, with "
                f"--no-embed, or run 'salience memory doctor --reembed --embedder {embedder}'"
            ) from error
        found = recall.recall(
            query,
            viewer_of(user, session),
            top_k=top_k,
            types=type or (),
            tags=tag or (),
            include_archived=archived,
        )
    if json:
        print_json([_as_json(result) for result in found])
        return
    console = Console(highlight=False)
    if not found:
        console.print("nothing found")
        return
    console.print(_results(found))
    if explain:
        console.print(_breakdown(found))


def _as_json(result: "RecalledMemory") -> dict[str, Any]:
    return {
        "memory": result.memory.model_dump(mode="json"),
        "score": result.score,
        "probability": result.probability,
        "confidence": result.confidence,
        "has_conflict": result.has_conflict,
        "breakdown": asdict(result.breakdown),
    }


def _results(found: Sequence["RecalledMemory"]) -> Table:
    table = Table("#", "score", "likely", "id", "whose", "weight", "memory")
    for place, result in enumerate(found, start=1):
        memory = result.memory
        figures = (f"{result.score:.3f}", f"{result.probability:.2f}")
        columns = (*figures, memory.memory_id, whose(memory), weight(memory))
        table.add_row(str(place), *columns, _marked_line(result))
    return table


def _breakdown(found: Sequence["RecalledMemory"]) -> Table:
    """The score's parts, then what breaks ties; see memory/README.md."""
    table = Table(
        title="score = (max(similarity, 0) + coverage) / 2, without embeddings the coverage; ties: trust, "
        "then freshness",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("#", "score", "similarity", "coverage", "bm25", "fused", "ranks", "trust", "fresh"):
        table.add_column(name, justify="right")
    for place, result in enumerate(found, start=1):
        parts = result.breakdown
        ranks = "/".join(
            "–" if rank is None else str(rank) for rank in (parts.vector_rank, parts.lexical_rank)
        )
        similarity = "–" if parts.similarity is None else f"{parts.similarity:.3f}"
        relevance = (f"{result.score:.3f}", similarity, f"{parts.coverage:.3f}")
        words = (f"{parts.bm25:.2f}", f"{parts.fused:.4f}", ranks)
        belief = (f"{result.memory.trust:.2f}", f"{result.memory.freshness:.2f}")
        table.add_row(str(place), *relevance, *words, *belief)
    return table


def _marked_line(result: "RecalledMemory") -> Text:
    line = line_of(result.memory)
    return line.append("  conflicts with another", style="yellow") if result.has_conflict else line
