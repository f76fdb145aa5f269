"""The dialogues a harness has open, one for each viewer's session; the least recently used are closed."""

import threading
from collections import OrderedDict

from salience.conversation import Conversation

__all__ = ["Conversations"]

_MAX_OPEN = 256


class Conversations:
    """Finds the dialogue that a message belongs to. Threads may share it."""

    def __init__(self, max_open: int = _MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[tuple[object, ...], Conversation] = OrderedDict()
        self._lock = threading.Lock()

    def resume(self, fresh: Conversation) -> Conversation:
        """`fresh` with the dialogue so far of its viewer's session; as it is where the viewer names none."""
        if fresh.viewer.session_id is None:
            return fresh
        # A dialogue keeps its store alive, so that no other store gets its id.
        key = (fresh.viewer.user_id, fresh.viewer.session_id, id(fresh.store))
        with self._lock:
            known = self._open.pop(key, None)
            if known is not None:
                fresh.take_over(known)
            self._open[key] = fresh
            while len(self._open) > self._max_open:
                self._open.popitem(last=False)
        return fresh
