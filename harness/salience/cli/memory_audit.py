"""`salience memory audit` and `doctor`: what was rendered and cut, and whether the store is sound."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from json import dumps
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from salience.cli.memory_options import (
    DEFAULT_EMBEDDER,
    DbOption,
    EmbedderOption,
    JsonOption,
    SessionOption,
    UserOption,
    line_of,
    open_indexes,
    open_recall,
    open_store,
    print_json,
    shorten,
    show_time,
    viewer_of,
)
from salience.memory_use import (
    HEAVY_USE,
    MANY_CUTS,
    MemoryUse,
    TemplateUse,
    count_memory_use,
    count_template_use,
)
from salience_memory import AuditEvent, MemoryStore, Viewer

__all__ = ["add_commands"]

_PAGE = 1000
_BAR = 10
_WARNED_FROM = 3
"""Renders of a template before one may say that it always truncates."""


def add_commands(group: typer.Typer) -> None:
    """Add `audit` and `doctor`."""
    group.command()(audit)
    group.command()(doctor)


def audit(
    kind: Annotated[str | None, typer.Option(help="Such as render, generation, feedback.")] = None,
    request: Annotated[str | None, typer.Option("--request", help="Of that request id.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only after this event.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="The latest so many events, and rows of the map.")] = 20,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Show the latest audit events, and a heat map: references, mean weight and truncation rate by memory.

    Rows of heavy use and of many truncations stand out. Events never hold content; the map shows that of
    memories which --user and --session may see.
    """
    with open_store(db) as store:
        latest: deque[AuditEvent] = deque(maxlen=limit)
        use = count_memory_use(_seen(_events(store, kind, request, after), latest))
        if json:
            rows = [{**asdict(row), "truncation_rate": row.truncation_rate} for row in use]
            print_json({"events": [event.model_dump(mode="json") for event in latest], "heat_map": rows})
            return
        console = Console(highlight=False)
        if not latest:
            console.print("no audit events")
            return
        console.print(_event_table(latest))
        if use:
            console.print(_heat_map(use[:limit], store, viewer_of(user, session)))
            console.print(f"▲ heavy use   ✂ left out of {MANY_CUTS:.0%} of its prompts or more", style="dim")


def _events(
    store: MemoryStore, kind: str | None = None, request: str | None = None, after: int = 0
) -> Iterator[AuditEvent]:
    while page := store.events(kind=kind, request_id=request, after=after, limit=_PAGE):
        yield from page
        after = page[-1].event_id


def _seen(events: Iterator[AuditEvent], latest: deque[AuditEvent]) -> Iterator[AuditEvent]:
    for event in events:
        latest.append(event)
        yield event


def _event_table(events: Sequence[AuditEvent] | deque[AuditEvent]) -> Table:
    table = Table("event", "when", "kind", "request", "facts", title="Events", title_justify="left")
    for event in events:
        facts = shorten(dumps(event.facts, ensure_ascii=False), 160)
        row = (show_time(event.ns), event.kind, event.request_id, facts)
        table.add_row(str(event.event_id), *map(Text, row))
    return table


def _heat_map(rows: Sequence[MemoryUse], store: MemoryStore, viewer: Viewer) -> Table:
    visible = store.get_many(
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
        name = Text(row.memory_id)
        if row.memory_id in visible:
            name.append("\n").append_text(line_of(visible[row.memory_id]))
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
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the store's rows with each other and with the indexes; warn of what weights and templates lack.

    The exit code is 1 where a fault remains. Warnings are no faults.
    """
    from salience_memory.integrity import check_store, repair_store

    with open_store(db) as store:
        embedded = None
        if reembed:
            with open_recall(store, embedder) as recall:
                embedded = recall.reembed()
        with open_indexes(store) as recall:
            indexes = recall.projections
            mended = repair_store(store, indexes) if repair else []
            findings = check_store(store, indexes)
        faults = [finding for finding in findings if finding.kind != "alike_weights"]
        warnings = [finding.message for finding in findings if finding.kind == "alike_weights"]
        warnings += [
            _warn_of(use) for use in count_template_use(_events(store, "render")) if _always_cuts(use)
        ]
        if len(held := store.fingerprints()) > 1:
            warnings.append(f"vectors of several embedders ({', '.join(held)}): --reembed leaves one")
        count, path = store.count(), store.path
    if json:
        found = {"memories": count, "embedded": embedded, "mended": [asdict(f) for f in mended]}
        print_json({**found, "faults": [asdict(f) for f in faults], "warnings": warnings})
    else:
        console = Console(highlight=False)
        console.print(f"{path}: {count} memories, {len(indexes)} indexes", markup=False, soft_wrap=True)
        if embedded is not None:
            console.print(f"embedded {embedded} memories by {embedder}", markup=False, soft_wrap=True)
        for title, style, lines in (
            ("mended", "green", [f"{f.subject}: {f.message}" for f in mended]),
            ("fault", "red", [f"{f.subject}: {f.message}" for f in faults]),
            ("warning", "yellow", warnings),
        ):
            for line in lines:
                console.print(f"{title}: {line}", style=style, markup=False, soft_wrap=True)
        if not faults:
            console.print("rows and indexes agree")
        elif not repair and any(finding.can_mend for finding in faults):
            console.print("'salience memory doctor --repair' mends what can be mended")
    if faults:
        raise typer.Exit(1)


def _always_cuts(use: TemplateUse) -> bool:
    return use.renders >= _WARNED_FROM and use.truncated == use.renders


def _warn_of(use: TemplateUse) -> str:
    return (
        f"template {use.name!r} left memories out for want of room in all {use.renders} of its prompts: "
        "raise its budgets or recall less"
    )
