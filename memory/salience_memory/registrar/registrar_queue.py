"""The registrar's queue: turns are acknowledged once they are durable, and settled in order on a thread."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, cast

from pydantic import JsonValue

from salience_memory.clock import Clock, system_clock
from salience_memory.errors import VersionConflict
from salience_memory.registrar.outcomes import OutcomeKind, RegistrarOutcome
from salience_memory.registrar.registrar import LOOK_BACK_TURNS, Registrar
from salience_memory.registrar.utterances import Role, Utterance
from salience_memory.scopes import Viewer
from salience_memory.store import AuditEvent, Episode, MemoryStore, StoredEpisode

__all__ = ["ACCEPTED_EVENT", "SETTLED_EVENT", "RegistrarQueue"]

ACCEPTED_EVENT = "registrar.accepted"
"""Kind of the audit event that an acknowledged turn leaves."""

SETTLED_EVENT = "registrar.settled"
"""Kind of the audit event that a settled turn leaves: outcomes by kind."""

_PAGE = 1000
_ATTEMPTS = 5
_PIECE_CHARS = 128
"""The audit log takes names of at most so many characters."""

_KINDS_MADE = (OutcomeKind.DECLARED, OutcomeKind.UPDATED, OutcomeKind.MERGED)

_Job = tuple[int, Utterance, Viewer, tuple[Utterance, ...], tuple[str, ...], Future[list[RegistrarOutcome]]]


class RegistrarQueue:
    """Takes turns at once and lets a registrar observe them on one thread, in the order they came.

    `submit` returns when the turn stands in the episodic log, so a crash after it loses nothing: the next
    queue on the file settles what was left by `replay`. One thread settles everything, so per key too the
    order is that of speaking; across processes, and for turns that are replayed late, the store refuses a
    value older than the one it holds. A turn that is settled twice changes nothing the second time.
    """

    def __init__(self, registrar: Registrar, store: MemoryStore, *, clock: Clock = system_clock) -> None:
        """Start the thread; `close` ends it."""
        self._registrar = registrar
        self._store = store
        self._clock = clock
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="registrar", daemon=True)
        self._thread.start()

    def submit(
        self, turn: Utterance, viewer: Viewer, turns: Sequence[Utterance] = (), *, known: Sequence[str] = ()
    ) -> "Future[list[RegistrarOutcome]]":
        """Write a turn to the episodic log and queue it.

        Args:
            turn: What was said, by whomever; only a user's words are settled.
            viewer: Whose; it must name the session.
            turns: The turns before, as for `Registrar.observe`.
            known: As for `Registrar.observe`.

        Returns:
            The outcomes to come. An exception of the registrar comes out of it; the turn then stays in the
            log, and is tried again by `replay`.

        Raises:
            ValueError: The viewer names no session, or the queue is closed.
        """
        if viewer.session_id is None:
            raise ValueError("viewer must name a session_id to log what was said, got None")
        ns = self._clock() if turn.ns is None else turn.ns
        turn = turn.model_copy(update={"ns": ns})
        episode = Episode(
            session_id=viewer.session_id,
            user_id=viewer.user_id,
            role=turn.role.value,
            text=turn.text,
            ns=ns,
        )
        # The viewer in the alphabet of the audit log.
        facts = {"session": _pack(viewer.session_id), "user": _pack(viewer.user_id)}
        # One lock around log and queue: what stands earlier in the log is settled earlier.
        with self._lock:
            if self._is_closed:
                raise ValueError("the queue must be open to submit a turn, got a closed one")
            with self._store.transaction(durable=False):
                episode_id = self._store.append_episode(episode)
                if turn.role is Role.USER:
                    self._store.append_event(ACCEPTED_EVENT, str(episode_id), facts)
            return self._enqueue(episode_id, turn, viewer, turns[-LOOK_BACK_TURNS:], known)

    def replay(self) -> "list[Future[list[RegistrarOutcome]]]":
        """Queue every turn that was acknowledged and never settled, in order; call it once after a start.

        The turns before are read from the log. System prompts are not in it: a copy of one can't be told.
        """
        settled = {event.request_id for event in self._events(SETTLED_EVENT)}
        futures: list[Future[list[RegistrarOutcome]]] = []
        with self._lock:
            for event in self._events(ACCEPTED_EVENT):
                if event.request_id in settled:
                    continue
                user, session = _unpack(event.facts["user"]), _unpack(event.facts["session"])
                viewer = Viewer(user_id=user, session_id=session)
                before, episode = self._find(int(event.request_id), viewer)
                if episode is None:  # forgotten since: there is nothing to settle
                    self._settle_event(event.request_id, [])
                    continue
                turns = [_turn_of(earlier) for earlier in before]
                futures.append(self._enqueue(episode.episode_id, _turn_of(episode), viewer, turns, ()))
        return futures

    def flush(self) -> None:
        """Wait until everything queued is settled."""
        self._jobs.join()

    def close(self) -> None:
        """Settle what is queued and end the thread. Closing twice is allowed."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(
        self,
        episode_id: int,
        turn: Utterance,
        viewer: Viewer,
        turns: Sequence[Utterance],
        known: Sequence[str],
    ) -> "Future[list[RegistrarOutcome]]":
        future: Future[list[RegistrarOutcome]] = Future()
        self._jobs.put((episode_id, turn, viewer, tuple(turns), tuple(known), future))
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            episode_id, turn, viewer, turns, known, future = job
            try:
                future.set_result(self._settle(episode_id, turn, viewer, turns, known))
            except Exception as error:  # the edge of the thread: whoever waits for the outcome gets it
                future.set_exception(error)
            finally:
                self._jobs.task_done()
        self._jobs.task_done()

    def _settle(
        self,
        episode_id: int,
        turn: Utterance,
        viewer: Viewer,
        turns: Sequence[Utterance],
        known: Sequence[str],
    ) -> list[RegistrarOutcome]:
        source_id = f"episode:{episode_id}"
        for left in range(_ATTEMPTS - 1, -1, -1):
            try:
                outcomes = self._registrar.observe(turn, viewer, turns, known=known, source_id=source_id)
                break
            except VersionConflict:  # another process changed the memory in between: look again
                if not left:
                    raise
        else:
            raise AssertionError("the last attempt returns or raises")
        made = [found.memory.memory_id for found in outcomes if found.memory and found.kind in _KINDS_MADE]
        if made:
            self._store.link_episode(episode_id, made)
        if turn.role is Role.USER:
            self._settle_event(str(episode_id), outcomes)
        return outcomes

    def _settle_event(self, request_id: str, outcomes: Sequence[RegistrarOutcome]) -> None:
        kinds: list[JsonValue] = [f"{outcome.trigger.value}.{outcome.kind.value}" for outcome in outcomes]
        self._store.append_event(SETTLED_EVENT, request_id, {"outcomes": kinds})

    def _events(self, kind: str) -> list[AuditEvent]:
        found: list[AuditEvent] = []
        while page := self._store.events(kind=kind, after=found[-1].event_id if found else 0, limit=_PAGE):
            found += page
        return found

    def _find(self, episode_id: int, viewer: Viewer) -> tuple[list[StoredEpisode], StoredEpisode | None]:
        """An episode and the few before it; None where it is gone."""
        assert viewer.session_id is not None  # submit refuses others
        limit = _PAGE
        while True:
            log = self._store.episodes(viewer, viewer.session_id, limit=limit)
            place = next((i for i, episode in enumerate(log) if episode.episode_id == episode_id), None)
            if place is not None:
                return log[max(0, place - LOOK_BACK_TURNS) : place], log[place]
            if len(log) < limit:
                return [], None
            limit *= 4


def _turn_of(episode: StoredEpisode) -> Utterance:
    # What came of a turn is linked to it, so it is no record of what an answer was given.
    return Utterance(role=Role(episode.role), text=episode.text, ns=episode.ns)


def _pack(name: str | None) -> JsonValue:
    """A name in UTF-8 as hexadecimal, cut in pieces."""
    if name is None:
        return None
    text = name.encode().hex()
    return [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]


def _unpack(pieces: JsonValue) -> str | None:
    return None if pieces is None else bytes.fromhex("".join(cast("list[str]", pieces))).decode()
