"""The memory store: one SQLite file that is the only truth about what is remembered."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from salience_memory.clock import Clock, system_clock
from salience_memory.store.changing import MemoryChanging
from salience_memory.store.database import Database
from salience_memory.store.declaring import MemoryDeclaring
from salience_memory.store.episodes import EpisodeLog
from salience_memory.store.events import AuditLog
from salience_memory.store.forgetting import MemoryForgetting
from salience_memory.store.hot_rows import HotRows
from salience_memory.store.restoring import MemoryRestoring
from salience_memory.store.row_checks import RowChecks
from salience_memory.store.store_part import CheckRule, Decay
from salience_memory.store.tasks import TaskStates

__all__ = ["MemoryStore"]


class MemoryStore(
    MemoryDeclaring,
    MemoryChanging,
    MemoryForgetting,
    MemoryRestoring,
    RowChecks,
    EpisodeLog,
    TaskStates,
    AuditLog,
):
    """Memories, their versions and vectors, episodes, task states and audit events in one file.

    Several processes may have the file open, and threads may share a store; each write is one transaction.
    Every change of a memory gets a `seq` larger than all before, whichever process made it. What is read
    is what is in the file now, not what was when it was read last.

    Methods: `declare`, `update`, `rollback`, `verify`, `touch`, `archive`, `unarchive`, `forget`,
    `forget_all`, `end_session`; `get`, `get_many`, `list`, `history`, `count`; for indexes `latest_seq`,
    `changes_since`, `iter_rows`, `rows_past`, `rows_of`, `put_vectors`, `iter_vectors`, `vectors_of`,
    `missing_vectors`, `fingerprints`, `drop_vectors`; `append_episode`, `link_episode`, `episodes`;
    `set_task`, `task`, `tasks`; `append_event`, `events`; `iter_records`, `restore`; `find_faults`, `mend`;
    `transaction`, `close`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock = system_clock,
        cache_bytes: int = 100 * 2**20,
        check_rule: CheckRule | None = None,
        decay: Decay | None = None,
        busy_timeout_s: float = 30.0,
    ) -> None:
        """Open a store, or create one where there is no file. What is not ours is refused and left as it is.

        Args:
            path: The file; SQLite keeps `-wal` and `-shm` beside it. Not on a network file system.
            clock: What time it is; nothing here asks the machine.
            cache_bytes: How much the memories read last may take.
            check_rule: Raises ValueError for a constraint's rule that cannot be enforced.
            decay: Freshness of a memory at a moment, such as `decay.compute_freshness`; default, always 1.
            busy_timeout_s: How long to wait for another process's transaction.

        Raises:
            StoreForeign: The file is something else.
            StoreTooNew: A later Salience wrote it.
            StoreCorrupt: It is damaged.
            StoreBusy: Another process keeps it locked.
            StoreUnavailable: It cannot be opened or created.
        """
        cache = HotRows(cache_bytes)
        database = Database(Path(path), busy_timeout_s=busy_timeout_s, on_rollback=cache.clear)
        super().__init__(database, clock=clock, cache=cache, check_rule=check_rule, decay=decay)

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Generator[None]:
        """Commit all writes of the block together, or, on an exception, none: many at the cost of one.

        Other processes' writes wait until the block ends, so ask no model inside. A call that fails takes
        back its own writes alone if its exception is caught inside the block.

        Args:
            durable: Outlast a power cut, too. Without, the block outlasts only the death of the process, and
                constraints and forgetting are refused in it.
        """
        with self._database.writing(durable=durable):
            yield

    def close(self) -> None:
        """Close the file. Closing twice is allowed; using a closed store is not."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
