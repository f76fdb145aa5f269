import os
import signal
import subprocess
import sys
import threading

import pytest

from salience_memory import MemoryStore, Registrar, RegistrarQueue, Utterance, VersionConflict, Viewer

from .conftest import ANN

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Gate:
    """A registrar that waits at a gate before it observes."""

    def __init__(self, registrar):
        self._registrar = registrar
        self.open = threading.Event()

    def observe(self, *arguments, **options):
        assert self.open.wait(20)
        return self._registrar.observe(*arguments, **options)


class Broken:
    def observe(self, *arguments, **options):
        raise RuntimeError("the model is gone")


def user(text, ns=None):
    return Utterance(role="user", text=text, ns=ns)


def contents(store, viewer=ANN):
    return [memory.content for memory in store.list(viewer)]


@pytest.fixture
def registrar(store, clock):
    return Registrar(store, clock=clock)


def test_turns_are_settled_in_the_order_they_came(store, clock, registrar):
    with RegistrarQueue(registrar, store, clock=clock) as queue:
        for number in range(30):
            clock.advance()
            queue.submit(user(f"I work at Firm {number}."), ANN)
        queue.flush()
        assert contents(store) == ["The user works at Firm 29."]
    (memory,) = store.list(ANN)
    assert memory.version == 30
    assert [e.text for e in store.episodes(ANN, "s1")][-1] == "I work at Firm 29."


def test_what_is_acknowledged_is_in_the_log_before_it_is_settled(store, clock, registrar):
    gate = Gate(registrar)
    with RegistrarQueue(gate, store, clock=clock) as queue:
        future = queue.submit(user("I work at Bosch."), ANN)
        assert not future.done()
        assert [episode.text for episode in store.episodes(ANN, "s1")] == ["I work at Bosch."]
        gate.open.set()
        (outcome,) = future.result(20)
        queue.flush()
    assert store.episodes(ANN, "s1")[0].memory_ids == (outcome.memory.memory_id,)


def test_a_crash_loses_nothing_acknowledged(tmp_path, clock):
    names = [Viewer(user_id="ann", session_id="s1"), Viewer(session_id="会话 " + "x" * 100)]
    with MemoryStore(tmp_path / "crash.db", clock=clock) as store:
        broken = RegistrarQueue(Broken(), store, clock=clock)
        for viewer in names:
            clock.advance()
            broken.submit(Utterance(role="user", text="I tried the Malbec."), viewer)
            broken.submit(Utterance(role="assistant", text="And?"), viewer)
            future = broken.submit(user("I don't like it."), viewer)
            with pytest.raises(RuntimeError, match="the model is gone"):
                future.result(20)
        broken.close()
        assert store.count() == 0
    with MemoryStore(tmp_path / "crash.db", clock=clock) as store:
        clock.advance()
        with RegistrarQueue(Registrar(store, clock=clock), store, clock=clock) as queue:
            assert len(queue.replay()) == 4
            queue.flush()
            assert [contents(store, viewer) for viewer in names] == [["The user dislikes Malbec."]] * 2
            assert queue.replay() == []


KILLED = """
import os, signal, sys, threading
from salience_memory import MemoryStore, RegistrarQueue, Utterance, Viewer

class Stuck:
    def observe(self, *arguments, **options):
        threading.Event().wait()

store = MemoryStore(sys.argv[1], clock=lambda: 1_700_000_000_000_000_000)
queue = RegistrarQueue(Stuck(), store, clock=lambda: 1_700_000_000_000_000_000)
for number in range(5):
    said = Utterance(role="user", text=f"I like dish {number}.")
    queue.submit(said, Viewer(user_id="ann", session_id="s1"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing_acknowledged(tmp_path, clock):
    path = tmp_path / "killed.db"
    run = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env=ENVIRONMENT)
    assert run.returncode == -signal.SIGKILL
    with (
        MemoryStore(path, clock=clock) as store,
        RegistrarQueue(Registrar(store, clock=clock), store, clock=clock) as queue,
    ):
        assert len(queue.replay()) == 5
        queue.flush()
        assert contents(store) == [f"The user likes dish {number}." for number in range(5)]


def test_a_change_by_another_process_is_looked_at_again(store, clock, registrar):
    class Racing:
        tries = 0

        def observe(self, *arguments, **options):
            self.tries += 1
            if self.tries < 3:
                raise VersionConflict("changed meanwhile")
            return registrar.observe(*arguments, **options)

    class Losing:
        def observe(self, *arguments, **options):
            raise VersionConflict("changed meanwhile")

    with RegistrarQueue(Racing(), store, clock=clock) as queue:
        assert len(queue.submit(user("I like tea."), ANN).result(20)) == 1
    with (
        RegistrarQueue(Losing(), store, clock=clock) as queue,
        pytest.raises(VersionConflict, match="changed meanwhile"),
    ):
        queue.submit(user("I like tea."), ANN).result(20)


def test_a_replayed_turn_does_not_overwrite_what_was_said_later(store, clock, registrar):
    broken = RegistrarQueue(Broken(), store, clock=clock)
    broken.submit(user("I work at Siemens."), ANN)
    broken.close()
    clock.advance()
    registrar.observe(user("I work at Bosch."), ANN)
    with RegistrarQueue(registrar, store, clock=clock) as queue:
        (future,) = queue.replay()
        assert future.result(20)[0].reason == "what is known was said later"
    assert contents(store) == ["The user works at Bosch."]


def test_a_turn_forgotten_before_the_replay_stays_forgotten(store, clock, registrar):
    broken = RegistrarQueue(Broken(), store, clock=clock)
    broken.submit(user("I work at Siemens."), ANN)
    broken.close()
    store.forget_all(ANN, scope="user")
    with RegistrarQueue(registrar, store, clock=clock) as queue:
        assert queue.replay() == []
        assert queue.replay() == []
    assert store.count() == 0


def test_what_was_said_is_not_in_the_audit_log(store, clock, registrar):
    with RegistrarQueue(registrar, store, clock=clock) as queue:
        queue.submit(user("I work at Bosch."), ANN)
    (event,) = store.events(kind="registrar.settled")
    assert event.facts == {"outcomes": ["entity.declared"]}
    assert "Bosch" not in str(store.events())


def test_a_turn_without_a_session_or_after_the_end_is_refused(store, clock, registrar):
    queue = RegistrarQueue(registrar, store, clock=clock)
    with pytest.raises(ValueError, match="session_id"):
        queue.submit(user("I like tea."), Viewer(user_id="ann"))
    queue.close()
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.submit(user("I like tea."), ANN)
    assert store.episodes(ANN, "s1") == []


def test_turns_of_several_threads_are_each_settled_once(store, clock, registrar):
    with RegistrarQueue(registrar, store, clock=clock) as queue:
        threads = [
            threading.Thread(target=queue.submit, args=(user(f"I like dish {number % 4}."), ANN))
            for number in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(contents(store)) == [f"The user likes dish {number}." for number in range(4)]
    assert len(store.events(kind="registrar.settled")) == 12
