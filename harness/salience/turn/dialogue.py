"""The turns of one dialogue, and what was made of those that no longer fit the window.

With a store and a session they are the store's episodes, read anew for each message: what is forgotten there
is gone here, and so is the digest that told of it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from salience.context.history import CompactedHistory
from salience_memory.registrar.utterances import Role, Utterance
from salience_memory.scopes import Viewer
from salience_memory.store.logs import Episode
from salience_memory.store.memory_store import MemoryStore

__all__ = ["Dialogue"]


class Dialogue:
    """Whole exchanges, oldest first: a user's turn and its answer."""

    def __init__(self, store: MemoryStore | None, viewer: Viewer, max_turns: int) -> None:
        self._store = store if viewer.session_id is not None else None
        self._viewer = viewer
        self._max_turns = max_turns
        self._turns: tuple[Utterance, ...] = ()
        self._told: tuple[Utterance, ...] = ()
        self._digest = CompactedHistory()

    def turns(self) -> tuple[Utterance, ...]:
        """What was said so far. Where one half of an exchange was forgotten, the other is left out."""
        if self._store is None:
            return self._turns
        session = self._viewer.session_id or ""
        found = self._store.episodes(self._viewer, session, limit=self._max_turns)
        return _keep_whole_exchanges(
            [Utterance(role=Role(e.role), text=e.text, ns=e.ns, memory_ids=e.memory_ids) for e in found]
        )

    def compact(self, shorten: Callable[[CompactedHistory], CompactedHistory]) -> CompactedHistory:
        """The history as `shorten` leaves it; what it made of older turns is kept for the next message."""
        turns = self.turns()
        told = len(self._told)
        if turns[:told] != self._told:  # one that the digest tells of is no longer there
            told, self._digest = 0, CompactedHistory()
        before = CompactedHistory(turns[told:], self._digest.events, self._digest.summary, told)
        after = shorten(before)
        n_gone = len(turns) - len(after.turns)
        is_cut_at_the_front = after.turns == turns[n_gone:]
        self._told = turns[:n_gone] if is_cut_at_the_front else ()
        self._digest = CompactedHistory((), after.events, after.summary) if self._told else CompactedHistory()
        return after

    def append(self, asked: Utterance, answered: Utterance, *, is_asked_logged: bool = False) -> None:
        """Add an exchange.

        Args:
            asked: The user's turn.
            answered: The answer's, with the memories it repeats: forgetting one of them forgets the answer.
            is_asked_logged: Whether the store's log holds the user's turn already.
        """
        if self._store is None:
            self._turns = (*self._turns, asked, answered)[-self._max_turns :]
            return
        with self._store.transaction(durable=False):
            for turn in (answered,) if is_asked_logged else (asked, answered):
                self._store.append_episode(self._episode(turn))

    def _episode(self, turn: Utterance) -> Episode:
        assert self._viewer.session_id is not None
        assert turn.ns is not None
        return Episode(
            session_id=self._viewer.session_id,
            user_id=self._viewer.user_id,
            role=turn.role.value,
            text=turn.text,
            ns=turn.ns,
            memory_ids=turn.memory_ids,
        )


def _keep_whole_exchanges(turns: Sequence[Utterance]) -> tuple[Utterance, ...]:
    kept: list[Utterance] = []
    for asked, answered in pairwise(turns):
        if asked.role is Role.USER and answered.role is Role.ASSISTANT:
            kept += (asked, answered)
    return tuple(kept)
