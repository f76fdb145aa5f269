"""`salience memory add`, `rollback`, `contradict`, `forget` and `maintain`."""

import sys
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from salience.cli.memory_options import (
    DEFAULT_WEIGHT,
    DbOption,
    JsonOption,
    SessionOption,
    UserOption,
    index_folder,
    open_indexes,
    open_store,
    print_json,
    read_json,
    scope_of,
    shorten,
    viewer_of,
)
from salience_memory import (
    Memory,
    MemoryStore,
    MemoryType,
    Scope,
    Urgency,
    Viewer,
    maintain,
    mark_contradicted,
    system_clock,
)

__all__ = ["add_commands"]

TagOption = Annotated[list[str] | None, typer.Option("--tag", "-t", help="word or name:value; repeatable.")]


def add_commands(group: typer.Typer) -> None:
    """Add `add`, `rollback`, `contradict`, `forget` and `maintain`."""
    for command in (add, rollback, contradict, forget):
        group.command()(command)
    group.command("maintain")(maintain_store)


def add(
    content: Annotated[str, typer.Argument(help="What to remember; - reads standard input.")],
    type: Annotated[MemoryType, typer.Option(help="What it is.")] = MemoryType.SEMANTIC,
    key: Annotated[str | None, typer.Option("--key", "-k", help="What it is about, such as diet.")] = None,
    value: Annotated[str | None, typer.Option(help="The structured value, as JSON.")] = None,
    weight: Annotated[float, typer.Option("--weight", "-w", help="0.5 (neutral) to 0.99.")] = DEFAULT_WEIGHT,
    tag: TagOption = None,
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
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Declare a memory: everybody's, or with --user or --session that one's.

    The same declaration twice is one memory; another one under the same id is refused.
    """
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
        "timezone_offset_min": _offset_min(valid_until),
        "urgency": urgency,
        "provenance": _provenance(source_id, source_format, source_location, verified),
        "rule": None if rule is None else read_json(rule, "--rule"),
        "break_on_violation": break_on_violation,
        "pinned": pinned,
        "read_only": read_only,
        "memory_id": memory_id,
    }
    if stale_after is not None:
        fields["stale_after"] = stale_after
    memory = Memory.model_validate(fields)
    with open_store(db, create=True) as store, store.transaction():  # so that only this changes the seq
        before = store.latest_seq()
        (stored,) = store.declare([memory], reason=reason, actor="cli", supersede=supersede)
        is_new = store.latest_seq() > before
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    what = f"version {stored.version}" if is_new else "was there already"
    print(f"{stored.memory_id}  {what}, {stored.scope.value if stored.scope else ''}")


def _offset_min(moment: str | None) -> int:
    """Minutes east of UTC that the user wrote, for showing the time as he did."""
    with suppress(ValueError, TypeError):
        offset = datetime.fromisoformat(moment or "").utcoffset()
        return 0 if offset is None else int(offset.total_seconds() // 60)
    return 0


def _provenance(
    source_id: str | None, source_format: str | None, location: str | None, verified: bool
) -> dict[str, Any] | None:
    if source_id is None:
        if source_format or location or verified:
            raise ValueError(
                "--source-id must be given with --source-format, --source-location or --verified"
            )
        return None
    given = {"source_format": source_format, "source_location": location}
    believed = {"verification": "verified" if verified else "user_claimed"}
    return {"source_id": source_id, **{k: v for k, v in given.items() if v is not None}, **believed}


def rollback(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    version: Annotated[int, typer.Argument(min=1, help="The version it shall be like again.")],
    reason: Annotated[str, typer.Option(help="For the history.")] = "",
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Make a memory say what it said in an earlier version; nothing in between is lost."""
    with open_store(db) as store:
        stored = store.rollback(memory_id, version, viewer_of(user, session), reason=reason, actor="cli")
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    print(f"{stored.memory_id}  version {stored.version} says what version {version} said")


def contradict(
    memory_id: Annotated[str, typer.Argument(help="Its id.")],
    reason: Annotated[str, typer.Option(help="What was done, for the history.")],
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Note that somebody's behaviour spoke against a memory, which weighs less until it is verified again."""
    with open_store(db) as store:
        stored = mark_contradicted(
            store, viewer_of(user, session), memory_id, now_ns=system_clock(), reason=reason, actor="cli"
        )
    if json:
        print_json(stored.model_dump(mode="json"))
        return
    print(f"{stored.memory_id}  version {stored.version} is contradicted: {reason}")


def forget(
    memory_ids: Annotated[list[str] | None, typer.Argument(help="Their ids.")] = None,
    everything: Annotated[
        Scope | None, typer.Option("--all", help="All that is the user's or the session's: user or session.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    user: UserOption = None,
    session: SessionOption = None,
    db: DbOption = None,
) -> None:
    """Delete memories with their history, vectors and source episodes; only a snapshot brings them back."""
    if bool(memory_ids) == bool(everything):
        raise ValueError("forget needs either ids or --all, got " + ("both" if memory_ids else "neither"))
    viewer = viewer_of(user, session)
    console = Console(highlight=False)
    with open_store(db) as store:
        if everything is None:
            found = [store.get(memory_id, viewer) for memory_id in dict.fromkeys(memory_ids or ())]
            for memory in found:
                console.print(f"{memory.memory_id}  {shorten(memory.content)}", markup=False)
            question = f"Forget {_memories(len(found))} for good?"
        else:
            _refuse_unowned(everything, viewer)
            owner = viewer.user_id if everything is Scope.USER else viewer.session_id
            question = (
                f"Forget every memory of {everything.value} {owner!r} for good, with tasks and episodes?"
            )
            found = []
        if not yes and not _is_confirmed(question):
            print("nothing was forgotten")
            raise typer.Exit(1)
        if everything is None:
            count = sum(store.forget(memory.memory_id, viewer) for memory in found)
        else:
            count = store.forget_all(viewer, scope=everything)
        _forget_in_indexes(store)
    print(f"forgot {_memories(count)}")


def _is_confirmed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort as stop:
        if isinstance(stop.__context__, EOFError):
            raise ValueError("--yes must be given where nobody can be asked, got the end of input") from stop
        raise


def _refuse_unowned(scope: Scope, viewer: Viewer) -> None:
    """Before anybody is asked."""
    if scope is Scope.GLOBAL:
        raise ValueError("--all must be user or session, got global: forget global memories one by one")
    if scope is Scope.USER and viewer.user_id is None:
        raise ValueError("--user must be given with --all user, got none")
    if scope is Scope.SESSION and viewer.session_id is None:
        raise ValueError("--session must be given with --all session, got none")


def _forget_in_indexes(store: MemoryStore) -> None:
    """Words and vectors of what was forgotten leave the disk now, not at the next search."""
    if index_folder(store).is_dir():
        with open_indexes(store) as recall:
            for index in recall.projections:
                index.catch_up(store)


def maintain_store(db: DbOption = None, json: JsonOption = False) -> None:
    """Archive what is past its last age step and delete what expired thirty days ago, whosever it is.

    Constraints, pinned and read-only memories stay. `salience chat --memory-db` does so at its start.
    """
    with open_store(db) as store:
        report = maintain(store, system_clock())
        if report.deleted_ids:
            _forget_in_indexes(store)
    if json:
        print_json({"archived": report.archived_ids, "deleted": report.deleted_ids})
        return
    print(f"archived {_memories(len(report.archived_ids))}, deleted {_memories(len(report.deleted_ids))}")


def _memories(count: int) -> str:
    return "1 memory" if count == 1 else f"{count} memories"
