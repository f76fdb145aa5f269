"""`salience memory ingest`, `export` and `import`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from salience.cli.memory_options import (
    DbOption,
    JsonOption,
    SessionOption,
    UserOption,
    open_store,
    print_json,
    scope_of,
    shorten,
    viewer_of,
)
from salience_memory import MemoryType, Verification, to_ns

if TYPE_CHECKING:
    from salience_memory.ingestion import IngestReport

__all__ = ["add_commands"]

_SHOWN = 20


def add_commands(group: typer.Typer) -> None:
    """Add `ingest`, `export` and `import`."""
    group.command()(ingest)
    group.command()(export)
    group.command("import")(import_memories)


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
    db: DbOption = None,
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
    console = Console(highlight=False)
    reports = []
    with open_store(db, create=True) as store:
        for file in files:
            with Console(stderr=True).status(f"reading {file}"):
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
            if not json:
                _show_report(console, report, dry_run)
    if json:
        print_json([report.model_dump(mode="json") for report in reports])


def _show_report(console: Console, report: "IngestReport", dry_run: bool) -> None:
    sorts = ("added", "changed", "moved", "unchanged")
    counts = ", ".join(f"{len(getattr(report, sort))} {sort}" for sort in sorts)
    would = " (dry run: nothing was stored)" if dry_run else ""
    console.print(f"{report.source_id}: {counts}{would}", markup=False, soft_wrap=True)
    for warning in report.warnings:
        console.print(f"  note: {warning}", style="yellow", markup=False, soft_wrap=True)
    fate = "forgotten" if report.is_pruned else "no longer in it; --prune forgets them"
    for title, clauses in (("changed", report.changed), (f"vanished ({fate})", report.vanished)):
        for clause in clauses[:_SHOWN]:
            line = f"  {title}: {clause.memory_id}  {clause.location}  {shorten(clause.key, 80)}"
            console.print(line, markup=False, soft_wrap=True)
        if len(clauses) > _SHOWN:
            console.print(f"  {title}: {len(clauses) - _SHOWN} more; --json lists all", markup=False)
    for refused in report.refused:
        line = f"  refused: {refused.location}  {shorten(refused.beginning)} ({refused.reason})"
        console.print(line, style="yellow", markup=False, soft_wrap=True)


def export(
    folder: Annotated[
        Path, typer.Argument(file_okay=False, help="Where to; the file's name tells day and hash.")
    ],
    name: Annotated[str, typer.Option(help="How the file's name begins.")] = "memories",
    everything: Annotated[bool, typer.Option("--all", help="Everyone's memories.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
) -> None:
    """Write a snapshot: memories with their histories, as JSON lines that carry their own hash."""
    from salience_memory.snapshots import export_snapshot

    if everything and (user or session):
        raise ValueError("--all must stand without --user and --session, got both")
    with open_store(db) as store:
        viewer = None if everything else viewer_of(user, session)
        path = export_snapshot(store, folder, viewer=viewer, name=name)
    print(path)


def import_memories(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A snapshot.")],
    restore_forgotten: Annotated[
        bool, typer.Option("--restore-forgotten", help="Bring back what was forgotten here.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Everyone's memories.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Take in a snapshot's memories, all or none; what the store has is never overwritten."""
    from salience_memory.snapshots import import_snapshot

    if everything and (user or session):
        raise ValueError("--all must stand without --user and --session, got both")
    with open_store(db, create=True) as store:
        viewer = None if everything else viewer_of(user, session)
        report = import_snapshot(store, file, viewer=viewer, restore_forgotten=restore_forgotten)
    if json:
        print_json(report.model_dump(mode="json"))
        return
    counts = {name: len(ids) for name, ids in report.model_dump().items()}
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    for memory_id in report.conflicting:
        print(f"  conflicting: {memory_id} has another history here, which is kept")
