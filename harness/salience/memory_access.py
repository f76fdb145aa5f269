"""The one place where a store is opened and wired: rule check, decay, embedder, recall, registrar, clock.

What is heavy comes when it is first needed, so that `salience memory list` is there at once.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from salience.config import default_memory_db, load_settings
from salience_memory.clock import Clock, system_clock
from salience_memory.errors import StoreUnavailable

if TYPE_CHECKING:
    from salience_memory import DecayPolicy, MemoryRecall, MemoryStore, RecalledMemory, Viewer
    from salience_memory.registrar import Judge
    from salience_memory.registrar.registrar_queue import RegistrarQueue
    from salience_memory.vectors import Embed

__all__ = ["DEFAULT_EMBEDDER", "MemoryAccess", "index_folder", "memory_path", "open_indexes", "open_store"]

DEFAULT_EMBEDDER = "bundled:all-minilm-l6-v2"


def memory_path(path: Path | str | None = None) -> Path:
    """The store's file: the one named, else that of `SALIENCE_MEMORY`, else the user's own."""
    return Path(path).expanduser() if path else load_settings().memory_db or default_memory_db()


def open_store(
    path: Path | str | None = None,
    *,
    create: bool = False,
    clock: Clock = system_clock,
    policy: "DecayPolicy | None" = None,
) -> "MemoryStore":
    """The store as every command and every harness opens it: rules are checked, and memories fade.

    Raises:
        StoreUnavailable: There is no such file, and it is not to be created.
    """
    from salience_memory import MemoryStore
    from salience_memory.decay import compute_freshness

    where = memory_path(path)
    if not create and not where.exists():
        raise StoreUnavailable(
            f"there is no memory store at {where}: 'salience memory add' or 'ingest' makes one"
        )

    def check(rule: Mapping[str, JsonValue]) -> None:
        from salience.turn.rule_binding import check_rule  # brings in torch, so only where there is a rule

        check_rule(rule)

    return MemoryStore(
        where,
        clock=clock,
        check_rule=check,
        decay=lambda memory, now_ns: compute_freshness(memory, now_ns, policy),
    )


def index_folder(store: "MemoryStore") -> Path:
    """Where a store's indexes lie: beside its file."""
    return store.path.with_name(f"{store.path.name}.index")


def open_indexes(store: "MemoryStore") -> "MemoryRecall":
    """Recall without an embedder and with every index on disk, to compare or to mend them."""
    from salience_memory import MemoryRecall

    held = store.fingerprints()
    fingerprint = max(held, key=lambda name: held[name]) if held else None
    return MemoryRecall(store, fingerprint=fingerprint, folder=index_folder(store))


class MemoryAccess:
    """An open store, its recall and its registrar. Threads may share it; `close` ends what it began."""

    def __init__(
        self,
        store: "MemoryStore",
        *,
        embedder: "str | Embed | None" = DEFAULT_EMBEDDER,
        clock: Clock = system_clock,
        policy: "DecayPolicy | None" = None,
        judge: "Callable[[], Judge] | None" = None,
    ) -> None:
        """Wire a store; recall and registrar start when they are first needed.

        Args:
            store: Closed with this.
            embedder: `bundled:NAME`, a folder or a hub id of a sentence-transformers model; a function from
                texts to unit vectors; None searches by words alone.
            clock: What time it is, for all of them.
            policy: How memories age; default, the shipped one.
            judge: Makes what says whether a sentence that no rule takes is worth keeping.
        """
        self.store = store
        self.clock = clock
        self.policy = policy
        self._embedder = embedder
        self._judge = judge
        self._open = ExitStack()
        self._open.callback(store.close)

    @classmethod
    def open(cls, path: Path | str | None = None, *, create: bool = True, **options: Any) -> "MemoryAccess":
        """Open a file by its path; options as for the class.

        Raises:
            StoreUnavailable, StoreForeign, StoreTooNew, StoreCorrupt, StoreBusy: It cannot be opened.
        """
        clock, policy = options.get("clock", system_clock), options.get("policy")
        return cls(open_store(path, create=create, clock=clock, policy=policy), **options)

    @cached_property
    def embed(self) -> "Embed | None":
        """Texts to unit vectors; loaded at its first text."""
        if self._embedder is None or not isinstance(self._embedder, str):
            return self._embedder
        from salience_memory import Embedder

        if not self._embedder.startswith("bundled:"):
            folder_or_id = Path(self._embedder).expanduser()
            return Embedder(folder_or_id if folder_or_id.is_dir() else self._embedder)
        from salience_models import pull

        name = self._embedder.removeprefix("bundled:")
        return Embedder(pull(name, load_settings().cache_dir), name=name)

    @cached_property
    def searcher(self) -> "MemoryRecall":
        """Search of the store, its indexes beside the file."""
        from salience_memory import MemoryRecall

        fingerprint = None
        if self.embed is not None:
            from salience_models.weights.quiet import quiet_transformers

            with quiet_transformers():  # the fingerprint loads the model, with a bar of its own
                fingerprint = getattr(self.embed, "fingerprint", None) or "caller's own"
        return self._open.enter_context(
            MemoryRecall(
                self.store,
                embed=self.embed,
                fingerprint=fingerprint,
                folder=index_folder(self.store),
                clock=self.clock,
                policy=self.policy,
            )
        )

    @cached_property
    def registrar(self) -> "RegistrarQueue":
        """What notices facts in what users say; what a crash left unsettled is settled first."""
        from salience_memory.registrar.registrar import Registrar
        from salience_memory.registrar.registrar_queue import RegistrarQueue

        noticing = Registrar(
            self.store,
            judge=None if self._judge is None else self._judge(),
            embed=self.embed,
            policy=self.policy,
            clock=self.clock,
        )
        registrar = self._open.enter_context(RegistrarQueue(noticing, self.store, clock=self.clock))
        registrar.replay()
        return registrar

    def recall(
        self, query: str, viewer: "Viewer", *, top_k: int = 5, now_ns: int | None = None
    ) -> "list[RecalledMemory]":
        """The memories a query is about, every committed change seen and embedded before."""
        if query.strip():
            self.searcher.sync()
        return self.searcher.recall(query, viewer, top_k=top_k, now_ns=now_ns)

    def maintain(self) -> None:
        """Archive what is too old, delete what is long past its end."""
        from salience_memory import maintain

        maintain(self.store, self.clock(), self.policy)

    def close(self) -> None:
        """End the registrar once it has settled, keep the indexes, close the file. Twice is allowed."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
