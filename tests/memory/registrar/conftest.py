import pytest

from salience_memory import MemoryStore, Registrar, Utterance, Viewer
from salience_memory.clock import DAY_NS

ANN = Viewer(user_id="ann", session_id="s1")


class Clock:
    """Moves on by a second whenever it is asked to."""

    def __init__(self):
        self.ns = 20_000 * DAY_NS

    def __call__(self):
        return self.ns

    def advance(self, ns=10**9):
        self.ns += ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with MemoryStore(tmp_path / "m.db", clock=clock) as opened:
        yield opened


@pytest.fixture
def say(store, clock):
    """`say(text, *turns, **options)`: outcomes of what Ann says, to a registrar without a judge."""

    def observe(text, *turns, viewer=ANN, registrar=None, number=None, **options):
        clock.advance()
        registrar = registrar or Registrar(store, clock=clock)
        return registrar.observe(Utterance(role="user", text=text, number=number), viewer, turns, **options)

    return observe
