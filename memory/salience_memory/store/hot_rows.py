"""Parsed memories that were read last, bounded by bytes."""

from collections import OrderedDict

from salience_memory.records import Memory

__all__ = ["HotRows"]

_OVERHEAD_BYTES = 2_000
"""What one parsed memory costs beside its text: its objects, its entry, its key."""


class HotRows:
    """Memories by id and version. A version never changes, so an entry is right or, once superseded, unused.

    The store asks its rows for the current version at every read: a change by another process is never
    hidden, the cache only spares the parsing.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Keep up to `limit_bytes`; 0 keeps nothing."""
        if limit_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {limit_bytes}")
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[str, tuple[int, Memory, int]] = OrderedDict()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, memory_id: str, version: int) -> Memory | None:
        """The memory, if that very version is here."""
        entry = self._entries.get(memory_id)
        if entry is None or entry[0] != version:
            return None
        self._entries.move_to_end(memory_id)
        return entry[1]

    def keep(self, memory: Memory, version: int, text_bytes: int) -> None:
        """Put a memory in place of any other version of it; the longest unread ones make room."""
        self.drop(memory.memory_id)
        cost = text_bytes + _OVERHEAD_BYTES
        self._entries[memory.memory_id] = (version, memory, cost)
        self.used_bytes += cost
        while self.used_bytes > self._limit_bytes:
            _, (_, _, freed) = self._entries.popitem(last=False)
            self.used_bytes -= freed

    def drop(self, memory_id: str) -> None:
        """Forget a memory if it is here."""
        if entry := self._entries.pop(memory_id, None):
            self.used_bytes -= entry[2]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.used_bytes = 0
