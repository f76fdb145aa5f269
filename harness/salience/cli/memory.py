"""`salience memory`: declare, find, change and forget memories."""

import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from salience.cli import memory_upkeep
from salience.cli.options import (
    EmbedderOption,
    JsonOption,
    MemoryOption,
    NoEmbedOption,
    SessionOption,
    UserOption,
    read_json,
    scope_of,
)
from salience.cli.terminal import (
    Terminal,
    line_of,
    print_json,
    shorten,
    show_time,
    table_of,
    visible,
    weight_of,
    whose,
)
from salience.memory_access import DEFAULT_EMBEDDER, MemoryAccess, index_folder, open_indexes, open_store
from salience_memory import (
    EmbeddingMismatch,
    Memory,
    MemoryType,
    Scope,
    Urgency,
    Viewer,
    system_clock,
)
from salience_memory.records import DEFAULT_WEIGHT

if TYPE_CHECKING:
    from salience_memory import MemoryStore

__all__ = ["add_commands"]

NewTagOption = Annotated[
    list[str] | None, typer.Option("--tag", "-t", help="word or name:value; repeatable.")
]
TypeOption = Annotated[list[MemoryType] | None, typer.Option("--type", help="Only of that type; repeatable.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", "-t", help="Only with that tag; repeatable.")]
ArchivedOption = Annotated[bool, typer.Option("--archived", help="Archived ones too.")]

_TIMES = ("created_ns", "updated_ns", "verified_ns", "used_ns", "valid_until")


def add_commands(app: typer.Typer) -> None:
    """Add the group `memory`."""
    group = typer.Typer(help="Declare, find, change and forget memories.", no_args_is_help=True)
    for command in (add, rollback, contradict, forget):
        group.command()(command)
    group.command("maintain")(maintain_store)
    group.command("list")(list_memories)
    for command in (show, history, search):
        group.command()(command)
    memory_upkeep.add_commands(group)
    app.add_typer(group, name="memory")


def add(
    content: Annotated[str, typer.Argument(help="What to remember; - reads standard input.")],
    type: Annotated[MemoryType, typer.Option(help="What it is.")] = MemoryType.SEMANTIC,
    key: Annotated[str | None, typer.Option("--key", "-k", help="What it is about, such as diet.")] = None,
    value: Annotated[str | None, typer.Option(help="The structured value, as JSON.")] = None,
    weight: Annotated[float, typer.Option("--weight", "-w", help="0.5 (neutral) to 0.99.")] = DEFAULT_WEIGHT,
    tag: NewTagOption = None,
    trust: Annotated[
        float | None, typer.Option(help="0 to 1; default 1.0, 0.6 for what a user claims.")
    ] = None,
    valid_until: Annotated[
        str | None, typer.Option(help="ISO 8601 with offset: 2030-01-31T18:00+01:00.")
    ] = None,
    stale_after: Annotated[float | None, typer.Option(help="Fraction of the lifetime; default 0.75.")] = None,
    urgency: Annotated[Urgency, typer.Option(help="How much it matters that it is seen.")] = Urgency.MEDIUM,
    source_id: Annotated[str | None, typer.Option(help="Where it comes from, such as a file's name.")] = None,
    source_format: Annotated[str | None, typer.Option(help="Such as pdf; default text.")] = None,
    source_location: Annotated[str | None, typer.Option(help='Such as "page:12, line:45-48".')] = None,
    verified: Annotated[
        bool, typer.Option("--verified", help="The source was checked, not claimed.")
    ] = False,
    rule: Annotated[
        str | None, typer.Option(help="What a constraint enforces: JSON or a file of it.")
    ] = None,
    break_on_violation: Annotated[
        bool, typer.Option("--break-on-violation", help="Hold an answer back until it passed the rule.")
    ] = False,
    pinned: Annotated[bool, typer.Option("--pinned", help="Always in the prompt; does not age.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="May be forgotten, never changed.")] = False,
    supersede: Annotated[
        bool, typer.Option("--supersede", help="Replace the memory of that owner, type and key.")
    ] = False,
    memory_id: Annotated[str | None, typer.Option("--id", help="Default: derived from the content.")] = None,
    reason: Annotated[str, typer.Option(help="For the history.")] = "declared",
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Declare a memory: everybody's, or with --user or --session that one's.

    The same declaration twice is one memory; another one under the same id is refused.
    """
    offset = None
    with suppress(ValueError):  # what is no time is refused below, with the field's name
        offset = None if valid_until is None else datetime.fromisoformat(valid_until).utcoffset()
    if source_id is None and (source_format or source_location or verified):
        raise ValueError("--source-id must be given with --source-format, --source-location or --verified")
    source = {
        "source_id": source_id,
        "source_format": source_format,
        "source_location": source_location,
        "verification": "verified" if verified else "user_claimed",
    }
    fields: dict[str, Any] = {
        "content": sys.stdin.read().strip() if content == "-" else content,
        "type": type,
        "scope": scope_of(user, session),
        "user_id": user,
        "session_id": session,
        "key": key,
        "value": None if value is None else read_json(value, "--value"),
        "tags": tuple(tag or ()),
        "semantic_weight": weight,
        "trust": trust,
        "valid_until": valid_until,
        "timezone_offset_min": 0 if offset is None else int(offset.total_seconds() // 60),
        "urgency": urgency,
        "provenance": None
        if source_id is None
        else {name: said for name, said in source.items() if said is not None},
        "rule": None if rule is None else read_json(rule, "--rule"),
        "break_on_violation": break_on_violation,
        "pinned": pinned,
        "read_only": read_only,
        "memory_id": memory_id,
    }
    if stale_after is not None:
        fields["stale_after"] = stale_after
    declared = Memory.model_validate(fields)
    with open_store(memory, create=True) as store, store.transaction():  # so that only this changes the seq
        before = store.latest_seq()
        (stored,) = store.declare([declared], reason=reason, actor="cli", supersede=supersede)
        is_new = store.latest_seq() > before
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    what = f"version {stored.version}" if is_new else "was there already"
    Terminal().say(f"{stored.memory_id}  {what}, {stored.scope.value if stored.scope else ''}")


def rollback(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    version: Annotated[int, typer.Argument(min=1, help="The version it shall be like again.")],
    reason: Annotated[str, typer.Option(help="For the history.")] = "",
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Make a memory say what it said in an earlier version; nothing in between is lost."""
    viewer = Viewer(user_id=user, session_id=session)
    with open_store(memory) as store:
        stored = store.rollback(memory_id, version, viewer, reason=reason, actor="cli")
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    Terminal().say(f"{stored.memory_id}  version {stored.version} says what version {version} said")


def contradict(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    reason: Annotated[str, typer.Option(help="What was done, for the history.")],
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Note that somebody's behaviour spoke against a memory, which weighs less until it is verified again."""
    from salience_memory import mark_contradicted

    viewer = Viewer(user_id=user, session_id=session)
    with open_store(memory) as store:
        stored = mark_contradicted(
            store, viewer, memory_id, now_ns=system_clock(), reason=reason, actor="cli"
        )
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    Terminal().say(f"{stored.memory_id}  version {stored.version} is contradicted: {reason}")


def forget(
    memory_ids: Annotated[list[str] | None, typer.Argument(help="Their ids.")] = None,
    everything: Annotated[
        Scope | None, typer.Option("--all", help="All that is the user's or the session's: user or session.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
) -> None:
    """Delete memories with their history, vectors and source episodes; only a snapshot brings them back."""
    if bool(memory_ids) == bool(everything):
        raise ValueError("forget needs either ids or --all, got " + ("both" if memory_ids else "neither"))
    if everything is Scope.GLOBAL:
        raise ValueError("--all must be user or session, got global: forget global memories one by one")
    for scope, owner in ((Scope.USER, user), (Scope.SESSION, session)):
        if everything is scope and not owner:
            raise ValueError(f"--{scope.value} must be given with --all {scope.value}, got none")
    viewer = Viewer(user_id=user, session_id=session)
    console = Terminal()
    with open_store(memory) as store:
        if everything is None:
            found = [store.get(memory_id, viewer) for memory_id in dict.fromkeys(memory_ids or ())]
            for stored in found:
                console.say(f"{stored.memory_id}  {shorten(stored.content)}")
            question = f"Forget {_memories(len(found))} for good?"
        else:
            owner = user if everything is Scope.USER else session
            question = (
                f"Forget every memory of {everything.value} {owner!r} for good, with tasks and episodes?"
            )
            found = []
        if not yes:
            try:
                yes = typer.confirm(question)
            except typer.Abort as stop:
                if not isinstance(stop.__context__, EOFError):
                    raise
                raise ValueError(
                    "--yes must be given where nobody can be asked, got the end of input"
                ) from stop
        if not yes:
            console.say("nothing was forgotten")
            raise typer.Exit(1)
        if everything is None:
            count = sum(store.forget(stored.memory_id, viewer) for stored in found)
        else:
            count = store.forget_all(viewer, scope=everything)
        _forget_in_indexes(store)
    console.say(f"forgot {_memories(count)}")


def _forget_in_indexes(store: "MemoryStore") -> None:
    """Words and vectors of what was forgotten leave the disk now, not at the next search."""
    if index_folder(store).is_dir():
        with open_indexes(store) as recall:
            for index in recall.projections:
                index.catch_up(store)


def maintain_store(memory: MemoryOption = None, json: JsonOption = False) -> None:
    """Archive what is past its last age step and delete what expired thirty days ago, whosever it is.

    Constraints, pinned and read-only memories stay. `salience chat` does so at its start.
    """
    from salience_memory import maintain

    with open_store(memory) as store:
        report = maintain(store, system_clock())
        if report.deleted_ids:
            _forget_in_indexes(store)
    if json:
        print_json({"archived": report.archived_ids, "deleted": report.deleted_ids})
        return
    print(f"archived {_memories(len(report.archived_ids))}, deleted {_memories(len(report.deleted_ids))}")


def _memories(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"


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
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """List everybody's memories, and with --user or --session that one's; longest unchanged first."""
    with open_store(memory) as store:
        found = store.list(
            Viewer(user_id=user, session_id=session),
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
        print_json([stored.model_dump(mode="json") for stored in found])
        return
    console = Terminal()
    if not found:
        console.print("no memories" + ("" if user or session else " of everybody's; --user shows a user's"))
        return
    console.print(table_of(found))
    if more:
        console.say(f"more: --after {found[-1].seq}", "dim")


def show(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    version: Annotated[int | None, typer.Option(min=1, help="An earlier version.")] = None,
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Show every field of a memory."""
    with open_store(memory) as store:
        stored = store.get(memory_id, Viewer(user_id=user, session_id=session), version=version)
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    table = Table(show_header=False, box=None)
    for name, value in stored.model_dump(mode="json").items():
        if value is None or value is False or value == "":
            continue
        shown = str(value)
        if name in _TIMES:
            shown = show_time(value, stored.timezone_offset_min if name == "valid_until" else 0)
        elif isinstance(value, list):
            shown = ", ".join(map(str, value))
        elif isinstance(value, dict):
            shown = "; ".join(f"{key}: {inner}" for key, inner in value.items() if inner is not None)
        table.add_row(Text(name, style="dim"), Text(visible(shown)))
    table.add_row(Text("effective_weight", style="dim"), Text(f"{stored.effective_weight:.4f}"))
    Terminal().print(table)


def history(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a memory said, version by version, and why it changed."""
    with open_store(memory) as store:
        versions = store.history(memory_id, Viewer(user_id=user, session_id=session))
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
        told = (Text(visible(cell)) for cell in changed)
        table.add_row(str(version.version), *told, *state, line_of(version))
    Terminal().print(table)


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
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Find the memories that a query is about, as a prompt would get them."""
    if not query.strip():
        raise ValueError(f"query must hold text, got {query!r}")
    with MemoryAccess(open_store(memory), embedder=None if no_embed else embedder) as access:
        with Terminal(stderr=True).status("reading the indexes" if no_embed else f"loading {embedder}"):
            recall = access.searcher
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
            Viewer(user_id=user, session_id=session),
            top_k=top_k,
            types=type or (),
            tags=tag or (),
            include_archived=archived,
        )
    if json:
        print_json(
            [
                {
                    "memory": result.memory.model_dump(mode="json"),
                    "score": result.score,
                    "probability": result.probability,
                    "confidence": result.confidence,
                    "has_conflict": result.has_conflict,
                    "breakdown": asdict(result.breakdown),
                }
                for result in found
            ]
        )
        return
    console = Terminal()
    if not found:
        console.print("nothing found")
        return
    table = Table("#", "score", "bears", "id", "whose", "weight", "memory")
    for place, result in enumerate(found, start=1):
        stored, line = result.memory, line_of(result.memory)
        if result.has_conflict:
            line.append("  conflicts with another", style="yellow")
        figures = (f"{result.score:.3f}", f"{result.probability:.0%}", Text(visible(stored.memory_id)))
        table.add_row(str(place), *figures, whose(stored), weight_of(stored), line)
    console.print(table)
    if not explain:
        return
    # The score's parts, then what breaks ties; see memory/README.md.
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
    console.print(table)
