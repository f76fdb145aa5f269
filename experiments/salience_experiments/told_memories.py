"""Stores that were told what an item's user said in an earlier session, by the product's own registrar."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from salience.memory_access import MemoryAccess
from salience_experiments.tasks.base import Item
from salience_experiments.trial_batches import ASKING, NOW_NS
from salience_memory import Role, Utterance, Viewer
from salience_memory.vectors import Embed

__all__ = ["ToldMemories"]

_DAY_NS = 86_400 * 10**9


class ToldMemories:
    """One store for each conversation that items begin with, in a folder that goes with this object."""

    def __init__(self, embed: Embed | None) -> None:
        self._embed = embed
        self._open = ExitStack()
        self._known: dict[tuple[str, ...], MemoryAccess] = {}

    def of(self, item: Item) -> MemoryAccess | None:
        """The memory of the item's user; None where nothing was told."""
        if not item.told:
            return None
        if item.told not in self._known:
            folder = Path(self._open.enter_context(TemporaryDirectory()))
            told_ns = NOW_NS - _DAY_NS
            access = MemoryAccess.open(folder / "told.db", embedder=self._embed, clock=lambda: NOW_NS)
            self._open.enter_context(access)
            before: list[Utterance] = []
            for number, text in enumerate(item.told, start=1):
                said = Utterance(role=Role.USER, text=text, ns=told_ns + number, number=number)
                viewer = Viewer(user_id=ASKING.user_id, session_id="telling")
                access.registrar.submit(said, viewer, tuple(before)).result()
                before.append(said)
            self._known[item.told] = access
        return self._known[item.told]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
