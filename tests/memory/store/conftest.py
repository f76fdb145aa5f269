from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from salience_memory import Memory, MemoryStore, MemoryType, Provenance, Scope

Remember = Callable[..., Memory]

START_NS = 1_700_000_000_000_000_000


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.ns = START_NS

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memories.db"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[MemoryStore]:
    with MemoryStore(path, clock=clock) as opened:
        yield opened


@pytest.fixture
def remember() -> Remember:
    """`remember(content, user="ann", **fields)`: a memory of that user; with `session`, of that session."""

    def make(content: str, user: str | None = "ann", session: str | None = None, **fields) -> Memory:
        scope = Scope.SESSION if session else Scope.USER if user else Scope.GLOBAL
        kind = MemoryType(fields.pop("type", MemoryType.SEMANTIC))
        if kind in (MemoryType.EXTERNAL, MemoryType.TOOL_RESULT):
            fields.setdefault("provenance", Provenance(source_id="test"))
        return Memory(content=content, type=kind, scope=scope, user_id=user, session_id=session, **fields)

    return make
