"""What the `memory` commands share: options, the store they open, and how memories are shown.

Nothing here imports the models room, so that `salience memory list` is there at once.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from salience.config import load_settings
from salience.errors import MemoryFileInvalid
from salience.memory_access import DEFAULT_EMBEDDER, index_folder, open_store
from salience_memory import Memory, MemoryStore, Scope, StoredMemory, Viewer, from_ns

if TYPE_CHECKING:
    from salience_memory.memory_recall import MemoryRecall

__all__ = [
    "DEFAULT_EMBEDDER",
    "DEFAULT_WEIGHT",
    "DbOption",
    "EmbedderOption",
    "JsonOption",
    "NoEmbedOption",
    "SessionOption",
    "UserOption",
    "index_folder",
    "line_of",
    "open_indexes",
    "open_recall",
    "open_store",
    "print_json",
    "read_json",
    "scope_of",
    "shorten",
    "show_memories",
    "show_time",
    "viewer_of",
    "weight",
    "whose",
]

DEFAULT_WEIGHT = 0.9
"""Of what is declared on the command line, as for `chat --memory`."""

DbOption = Annotated[
    Path | None,
    typer.Option("--db", help="The store's file [SALIENCE_MEMORY]; default in the user's data folder."),
]
UserOption = Annotated[
    str | None, typer.Option("--user", "-u", help="Whose memories; without it, none that are a user's.")
]
SessionOption = Annotated[
    str | None, typer.Option("--session", "-s", help="Which session's; without it, none that are one's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
EmbedderOption = Annotated[str, typer.Option(help="bundled:NAME, folder or hub id of a sentence embedder.")]
NoEmbedOption = Annotated[bool, typer.Option("--no-embed", help="By words alone, without a model.")]


def viewer_of(user: str | None, session: str | None) -> Viewer:
    """On whose behalf a command runs."""
    return Viewer(user_id=user, session_id=session)


def scope_of(user: str | None, session: str | None) -> Scope:
    """The narrowest scope that the options name."""
    return Scope.SESSION if session else Scope.USER if user else Scope.GLOBAL


def open_recall(store: MemoryStore, embedder: str | None) -> "MemoryRecall":
    """Recall over the store, its indexes beside the file; without an embedder by words alone."""
    from salience_memory.memory_recall import MemoryRecall

    folder = index_folder(store)
    if embedder is None:
        return MemoryRecall(store, folder=folder)
    from salience_memory import Embedder

    if embedder.startswith("bundled:"):
        from salience_models import pull

        name = embedder.removeprefix("bundled:")
        model = Embedder(pull(name, load_settings().cache_dir), name=name)
    else:
        folder_or_id = Path(embedder).expanduser()
        model = Embedder(folder_or_id if folder_or_id.is_dir() else embedder)
    from salience_models.weights.quiet import quiet_transformers

    with Console(stderr=True).status(f"loading {embedder}"), quiet_transformers():
        return MemoryRecall(store, embed=model, fingerprint=model.fingerprint, folder=folder)


def open_indexes(store: MemoryStore) -> "MemoryRecall":
    """Recall without an embedder and with every index on disk, to compare or to mend them."""
    from salience_memory.memory_recall import MemoryRecall

    held = store.fingerprints()
    fingerprint = max(held, key=lambda name: held[name]) if held else None
    return MemoryRecall(store, fingerprint=fingerprint, folder=index_folder(store))


def read_json(text: str, option: str) -> Any:
    """JSON given on the command line, or in a file whose path was given.

    Raises:
        ValueError: Neither.
    """
    file = Path(text).expanduser()
    is_file = not text.lstrip().startswith(("{", "[", '"')) and len(text) < 4096 and file.is_file()
    try:
        return json.loads(file.read_text(encoding="utf-8") if is_file else text)
    except UnicodeDecodeError as error:
        raise MemoryFileInvalid(f"{option} file {file} must be UTF-8 text") from error
    except ValueError as error:
        raise ValueError(
            f"{option} must be JSON or a file of JSON, got {shorten(text)!r}: {error}"
        ) from error


def print_json(found: Any) -> None:
    """As JSON on standard output, Unicode as it is."""
    print(json.dumps(found, ensure_ascii=False, indent=2))


def shorten(text: str, width: int = 60) -> str:
    """A text on one line, cut to `width` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def show_time(ns: int, offset_min: int = 0) -> str:
    """ISO 8601 to the second, in UTC or at an offset from it."""
    return from_ns(ns, offset_min).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def show_memories(console: Console, memories: Sequence[StoredMemory], title: str | None = None) -> None:
    """One row a memory: id, type, whose, effective weight, key and content."""
    table = Table(title=title, title_justify="left")
    table.add_column("id", no_wrap=True)
    for name in ("type", "whose"):
        table.add_column(name)
    table.add_column("weight", justify="right")
    table.add_column("memory", ratio=1)
    for memory in memories:
        table.add_row(memory.memory_id, memory.type.value, whose(memory), weight(memory), line_of(memory))
    console.print(table)


def whose(memory: Memory) -> Text:
    """The scope and its owner."""
    owners = [owner for owner in (memory.user_id, memory.session_id) if owner]
    return Text(" ".join(owners) or "everybody")


def weight(memory: Memory) -> str:
    """The declared weight, and what trust and freshness leave of it."""
    declared, left = f"{memory.semantic_weight:.2f}", f"{memory.effective_weight:.2f}"
    return declared if declared == left else f"{declared} → {left}"


def line_of(memory: Memory) -> Text:
    """Key and content on a line."""
    key = " ".join((memory.key or "").split())
    shown = key if len(key) <= 40 else f"…{key[-39:]}"  # of a breadcrumb, the end tells most
    text = Text(f"{shown}: " if key else "", style="dim")
    return text.append(shorten(memory.content, 100), style="not dim")
