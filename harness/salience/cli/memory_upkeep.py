"""`salience memory ingest`, `export`, `import`, `audit` and `doctor`: files, and what becomes of a store."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from salience.cli.options import (
    EmbedderOption,
    JsonOption,
    MemoryOption,
    SessionOption,
    UserOption,
    scope_of,
)
from salience.cli.terminal import Terminal, line_of, print_json, shorten, show_time, visible
from salience.memory_access import DEFAULT_EMBEDDER, MemoryAccess, open_indexes, open_store
from salience.memory_use import HEAVY_USE, MANY_CUTS, MemoryUse, count_memory_use, count_template_use
from salience_memory import MemoryType, Verification, Viewer, to_ns

if TYPE_CHECKING:
    from salience_memory import AuditEvent, MemoryStore

__all__ = ["add_commands"]

_SHOWN = 20
_PAGE = 1000
_BAR = 10
_WARNED_FROM = 3
"""Renders of a template before one may say that it always truncates."""


def add_commands(group: typer.Typer) -> None:
    """Add `ingest`, `export`, `import`, `audit` and `doctor`."""
    group.command()(ingest)
    group.command()(export)
    group.command("import")(import_memories)
    group.command()(audit)
    group.command()(doctor)


def ingest(
    files: Annotated[list[Path], typer.Argument(help="PDF or Markdown documents.")],
    source_id: Annotated[
        str | None,
        typer.Option(help="What the document is called across editions; default: its file's name."),
    ] = None,
    type: Annotated[str, typer.Option(help="external or constraint.")] = "external",
    weight: Annotated[
        float | None, typer.Option("--weight", "-w", help="0.5 to 0.99; default neutral.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", "-t", help="word or name:value; repeatable.")
    ] = None,
    trust: Annotated[float | None, typer.Option(help="0 to 1; default 0.6, with --verified 1.0.")] = None,
    valid_until: Annotated[str | None, typer.Option(help="ISO 8601 with an offset.")] = None,
    verified: Annotated[bool, typer.Option("--verified", help="The document is known to be right.")] = False,
    pinned: Annotated[bool, typer.Option("--pinned", help="Every clause always in the prompt.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Forget clauses that vanished.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Remember documents clause by clause, each with its page and lines; tables row by row.

    A changed document ingested again updates its clauses: unchanged ones keep their ids, reworded ones become
    new versions, vanished ones are listed and, with --prune, forgotten.
    """
    from salience_memory.ingestion import DocumentFields, ingest_document

    if source_id is not None and len(files) > 1:
        raise ValueError(f"--source-id must be given with one document, got {len(files)}")
    if type not in (MemoryType.EXTERNAL, MemoryType.CONSTRAINT):
        raise ValueError(f"--type must be external or constraint, got {type!r}")
    fields = DocumentFields(
        scope=scope_of(user, session),
        user_id=user,
        session_id=session,
        type=MemoryType(type),
        verification=Verification.VERIFIED if verified else None,
        tags=None if tag is None else tuple(tag),
        semantic_weight=weight,
        trust=trust,
        valid_until=None if valid_until is None else to_ns(valid_until),
        pinned=pinned or None,
    )
    console = Terminal()
    reports = []
    with open_store(memory, create=True) as store:
        for file in files:
            with Terminal(stderr=True).status(f"reading {file}"):
                report = ingest_document(
                    store,
                    file,
                    source_id=source_id or file.name,
                    fields=fields,
                    prune=prune,
                    dry_run=dry_run,
                    actor="cli",
                )
            reports.append(report)
            if json:
                continue
            sorts = ("added", "changed", "moved", "unchanged")
            counts = ", ".join(f"{len(getattr(report, sort))} {sort}" for sort in sorts)
            would = " (dry run: nothing was stored)" if dry_run else ""
            console.say(f"{report.source_id}: {counts}{would}")
            for warning in report.warnings:
                console.say(f"  note: {warning}", "yellow")
            fate = "forgotten" if report.is_pruned else "no longer in it; --prune forgets them"
            for title, clauses in (("changed", report.changed), (f"vanished ({fate})", report.vanished)):
                for clause in clauses[:_SHOWN]:
                    where = f"{clause.memory_id}  {clause.location}"
                    console.say(f"  {title}: {where}  {shorten(clause.key, 80)}")
                if len(clauses) > _SHOWN:
                    console.say(f"  {title}: {len(clauses) - _SHOWN} more; --json lists all")
            for refused in report.refused:
                beginning = shorten(refused.beginning)
                console.say(f"  refused: {refused.location}  {beginning} ({refused.reason})", "yellow")
    if json:
        print_json([report.model_dump(mode="json") for report in reports])


def export(
    folder: Annotated[
        Path, typer.Argument(file_okay=False, help="Where to; the file's name tells day and hash.")
    ],
    name: Annotated[str, typer.Option(help="How the file's name begins.")] = "memories",
    everything: Annotated[bool, typer.Option("--all", help="Everyone's memories.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
) -> None:
    """Write a snapshot: memories with their histories, as JSON lines that carry their own hash."""
    from salience_memory.snapshots import export_snapshot

    if everything and (user or session):
        raise ValueError("--all must stand without --user and --session, got both")
    with open_store(memory) as store:
        viewer = None if everything else Viewer(user_id=user, session_id=session)
        path = export_snapshot(store, folder, viewer=viewer, name=name)
    Terminal().say(str(path))


def import_memories(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A snapshot.")],
    restore_forgotten: Annotated[
        bool, typer.Option("--restore-forgotten", help="Bring back what was forgotten here.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Everyone's memories.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Take in a snapshot's memories, all or none; what the store has is never overwritten."""
    from salience_memory.snapshots import import_snapshot

    if everything and (user or session):
        raise ValueError("--all must stand without --user and --session, got both")
    with open_store(memory, create=True) as store:
        viewer = None if everything else Viewer(user_id=user, session_id=session)
        report = import_snapshot(store, file, viewer=viewer, restore_forgotten=restore_forgotten)
    if json:
        print_json(report.model_dump(mode="json"))
        return
    counts = {name: len(ids) for name, ids in report.model_dump().items()}
    console = Terminal()
    console.say(", ".join(f"{count} {name}" for name, count in counts.items()))
    for memory_id in report.conflicting:
        console.say(f"  conflicting: {memory_id} has another history here, which is kept")


def audit(
    kind: Annotated[str | None, typer.Option(help="Such as render, generation, feedback.")] = None,
    request: Annotated[str | None, typer.Option("--request", help="Of that request id.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only after this event.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="The latest so many events, and rows of the map.")] = 20,
    user: UserOption = None,
    session: SessionOption = None,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Show the latest audit events, and a heat map: references, mean weight and truncation rate by memory.

    Rows of heavy use and of many truncations stand out. Events never hold content; the map shows that of
    memories which --user and --session may see.
    """
    with open_store(memory) as store:
        latest: deque[AuditEvent] = deque(maxlen=limit)

        def seen() -> "Iterator[AuditEvent]":
            for event in _events(store, kind, request, after):
                latest.append(event)
                yield event

        use = count_memory_use(seen())
        if json:
            rows = [{**asdict(row), "truncation_rate": row.truncation_rate} for row in use]
            print_json({"events": [event.model_dump(mode="json") for event in latest], "heat_map": rows})
            return
        console = Terminal()
        if not latest:
            console.print("no audit events")
            return
        table = Table("event", "when", "kind", "request", "facts", title="Events", title_justify="left")
        for event in latest:
            facts = shorten(dumps(event.facts, ensure_ascii=False), 160)
            row = (show_time(event.ns), event.kind, event.request_id, facts)
            table.add_row(str(event.event_id), *(Text(visible(cell)) for cell in row))
        console.print(table)
        if use:
            console.print(_heat_map(use[:limit], store, Viewer(user_id=user, session_id=session)))
            console.print(f"▲ heavy use   ✂ left out of {MANY_CUTS:.0%} of its prompts or more", style="dim")


def _events(
    store: "MemoryStore", kind: str | None = None, request: str | None = None, after: int = 0
) -> "Iterator[AuditEvent]":
    while page := store.events(kind=kind, request_id=request, after=after, limit=_PAGE):
        yield from page
        after = page[-1].event_id


def _heat_map(rows: Sequence[MemoryUse], store: "MemoryStore", viewer: Viewer) -> Table:
    known = store.get_many(
        [row.memory_id for row in rows], viewer, include_archived=True, include_expired=True
    )
    table = Table(title="Heat map", title_justify="left")
    table.add_column("references", no_wrap=True)
    table.add_column("prompts", justify="right")
    table.add_column("mean weight", justify="right")
    table.add_column("truncated", no_wrap=True)
    table.add_column("memory")
    most = max(row.references for row in rows)
    for row in rows:
        is_heavy = bool(most) and row.references >= HEAVY_USE * most
        is_cut = row.truncation_rate >= MANY_CUTS
        style = "bold red" if is_cut else "bold green" if is_heavy else ""
        name = Text(visible(row.memory_id))
        if row.memory_id in known:
            name.append("\n").append_text(line_of(known[row.memory_id]))
        table.add_row(
            Text(f"{_bar(row.references, most)} {row.references}{' ▲' if is_heavy else ''}"),
            str(row.renders),
            "–" if row.mean_weight is None else f"{row.mean_weight:.2f}",
            Text(f"{_bar(row.truncation_rate, 1)} {row.truncation_rate:.0%}{' ✂' if is_cut else ''}"),
            name,
            style=style,
        )
    return table


def _bar(figure: float, most: float) -> str:
    filled = round(_BAR * figure / most) if most else 0
    return "█" * filled + "·" * (_BAR - filled)


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    reembed: Annotated[
        bool, typer.Option("--reembed", help="Replace the vectors of another embedder by this one's.")
    ] = False,
    embedder: EmbedderOption = DEFAULT_EMBEDDER,
    memory: MemoryOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the store's rows with each other and with the indexes; warn of what weights and templates lack.

    The exit code is 1 where a fault remains. Warnings are no faults.
    """
    from salience_memory.integrity import check_store, repair_store

    embedded = None
    if reembed:
        told = Terminal(stderr=True).status(f"embedding by {embedder}")
        with MemoryAccess(open_store(memory), embedder=embedder) as access, told:
            embedded = access.searcher.reembed()
    with open_store(memory) as store:
        with open_indexes(store) as recall:
            indexes = recall.projections
            mended = repair_store(store, indexes) if repair else []
            findings = check_store(store, indexes)
        faults = [finding for finding in findings if finding.kind != "alike_weights"]
        warnings = [finding.message for finding in findings if finding.kind == "alike_weights"]
        warnings += [
            f"template {use.name!r} left memories out for want of room in all {use.renders} of its prompts: "
            "raise its budgets or recall less"
            for use in count_template_use(_events(store, "render"))
            if use.renders >= _WARNED_FROM and use.truncated == use.renders
        ]
        if len(held := store.fingerprints()) > 1:
            warnings.append(f"vectors of several embedders ({', '.join(held)}): --reembed leaves one")
        count, path = store.count(), store.path
    if json:
        found = {"memories": count, "embedded": embedded, "mended": [asdict(f) for f in mended]}
        print_json({**found, "faults": [asdict(f) for f in faults], "warnings": warnings})
    else:
        console = Terminal()
        console.say(f"{path}: {count} memories, {len(indexes)} indexes")
        if embedded is not None:
            console.say(f"embedded {embedded} memories by {embedder}")
        for title, style, lines in (
            ("mended", "green", [f"{f.subject}: {f.message}" for f in mended]),
            ("fault", "red", [f"{f.subject}: {f.message}" for f in faults]),
            ("warning", "yellow", warnings),
        ):
            for line in lines:
                console.say(f"{title}: {line}", style)
        if not faults:
            console.print("rows and indexes agree")
        elif not repair and any(finding.can_mend for finding in faults):
            console.print("'salience memory doctor --repair' mends what can be mended")
    if faults:
        raise typer.Exit(1)
