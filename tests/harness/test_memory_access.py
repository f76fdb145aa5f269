"""`MemoryAccess`: whoever opens a store, it is wired the same way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from salience import Memory, MemoryAccess, MemoryStore, StoreUnavailable, Viewer
from salience.memory_access import memory_path, open_store
from salience_memory import Role, Utterance
from salience_memory.decay import DAY_NS

ANN = Viewer(user_id="ann", session_id="one")


class CountingEmbedder:
    """Unit vectors of length 4; counts the texts it is given."""

    fingerprint = "counting"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Any) -> np.ndarray:
        self.texts += list(texts)
        return np.tile(np.full(4, 0.5, np.float32), (len(texts), 1))


def facts(content: str = "The ferry leaves at seven.", **fields: Any) -> Memory:
    return Memory(content, **({"type": "semantic", "scope": "user", "user_id": "ann"} | fields))


def test_a_rule_that_cannot_be_enforced_is_refused_when_it_is_declared(memory: MemoryAccess):
    odd = facts("Odd.", type="constraint", rule={"json_schema": {"not": {}}})
    with pytest.raises(ValueError, match=r"json_schema\.not cannot be enforced"):
        memory.store.declare([odd])
    assert memory.store.list(ANN) == []


def test_a_store_opened_by_hand_is_as_safe(tmp_path: Path):
    with MemoryStore(tmp_path / "memory.db") as store, pytest.raises(ValueError, match="cannot be enforced"):
        store.declare([facts("Odd.", type="constraint", rule={"json_schema": {"not": {}}})])


def test_memories_fade_whoever_opens_the_store(memory: MemoryAccess, clock: Any, tmp_path: Path):
    memory.store.declare([facts(type="episodic")])
    clock.ns += 20 * DAY_NS
    (faded,) = memory.store.list(ANN)
    assert faded.freshness == 0.5
    with MemoryStore(memory.store.path, clock=clock) as by_hand:
        assert by_hand.list(ANN)[0].freshness == 0.5


def test_recall_and_registrar_share_the_embedder(tmp_path: Path, clock: Callable[[], int]):
    embed = CountingEmbedder()
    with MemoryAccess.open(tmp_path / "memory.db", embedder=embed, clock=clock) as access:
        access.store.declare([facts()])
        access.recall("When does the ferry leave?", ANN)
        searched = len(embed.texts)
        assert searched >= 2
        for said in ("I like hot tea.", "I like warm tea."):
            access.registrar.submit(Utterance(role=Role.USER, text=said), ANN).result()
        assert len(embed.texts) > searched  # what is known is searched for paraphrases of what is said


def test_recall_sees_what_was_committed_a_moment_ago(memory: MemoryAccess):
    assert memory.recall("ferry", ANN) == []
    memory.store.declare([facts()])
    (found,) = memory.recall("When does the ferry leave?", ANN)
    assert (found.content, 0.0 < found.probability < 1.0) == ("The ferry leaves at seven.", True)
    assert memory.recall(" ", ANN) == []


def test_the_judge_is_made_when_the_registrar_is(tmp_path: Path, clock: Callable[[], int]):
    made: list[str] = []

    def make() -> Callable[[str], bool]:
        made.append("judge")
        return lambda question: True

    with MemoryAccess.open(tmp_path / "memory.db", embedder=None, clock=clock, judge=make) as access:
        assert made == []
        access.registrar.flush()
        assert made == ["judge"]


def test_closing_twice_is_allowed_and_ends_the_store(tmp_path: Path):
    access = MemoryAccess.open(tmp_path / "memory.db", embedder=None)
    access.registrar.flush()
    access.recall("ferry", ANN)
    access.close()
    access.close()
    with pytest.raises(Exception, match="closed"):
        access.store.list(ANN)


def test_a_store_that_is_not_there_is_made_only_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StoreUnavailable, match="there is no memory store at"):
        open_store(tmp_path / "none.db")
    monkeypatch.setenv("SALIENCE_MEMORY", str(tmp_path / "named.db"))
    assert memory_path() == tmp_path / "named.db"
    assert memory_path(tmp_path / "other.db") == tmp_path / "other.db"
    with open_store(create=True) as store:
        assert store.path == tmp_path / "named.db"
