"""`Harness.load`: everything is wired in one place; the public names; the README's lines on a real model."""

import inspect
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import salience
from salience import Harness, Memory, MemoryStore, Sampling, Steering, TemplateInvalid, Viewer
from salience.config import DEFAULT_MODEL
from salience_memory.decay import DAY_NS

QUESTION = "When does the ferry leave?"


@pytest.fixture
def load(tiny_checkpoint: Path, tmp_path: Path, clock: Any) -> Any:
    """`load(**options)`: the tiny model with a memory that words recall."""

    def load(**options: Any) -> Harness:
        given = {"memory": tmp_path / "ann.db", "embedder": None, "clock": clock, "device": "cpu"}
        return Harness.load(str(tiny_checkpoint), **(given | options))

    return load


def named_in(annotation: Any) -> set[type]:
    """The classes of ours that an annotation names."""
    if isinstance(annotation, type) and annotation.__module__.startswith("salience"):
        return {annotation}
    return set().union(*map(named_in, typing.get_args(annotation)))


def test_every_class_that_a_public_signature_names_is_exported():
    exported = {getattr(salience, name) for name in salience.__all__}
    missing: set[str] = set()
    for thing in [salience.Harness, salience.Session]:
        for name, method in inspect.getmembers(thing, inspect.isroutine):
            if (name.startswith("_") and name != "__init__") or not hasattr(method, "__annotations__"):
                continue
            module = inspect.getmodule(method)
            names = (
                vars(module) | vars(salience) | {name: getattr(salience, name) for name in salience.__all__}
            )
            hints = typing.get_type_hints(method, names | {"Embed": Any})
            missing |= {
                f"{thing.__name__}.{name}: {named.__name__}"
                for hint in hints.values()
                for named in named_in(hint)
                if named not in exported
            }
    assert missing == set()


def test_every_exported_name_is_there():
    namespace: dict[str, Any] = {}
    exec("from salience import *", namespace)
    assert set(salience.__all__) <= set(namespace)
    assert all(
        issubclass(namespace[n], Exception) for n in ("HarnessError", "ModelsError", "MemoryRoomError")
    )


def test_the_rooms_readme_tells_the_defaults():
    readme = (Path(__file__).resolve().parents[2] / "harness" / "README.md").read_text(encoding="utf-8")
    default = Steering()
    assert f"- `{default.method}`, the default:" in readme
    assert f"(`share`, {default.share})" in readme
    assert f"`max_total_share` ({default.max_total_share})" in readme
    assert f"Default model: `{DEFAULT_MODEL}`" in readme


def test_a_loaded_harness_remembers_from_one_opening_to_the_next(load: Any, short: Sampling):
    with load() as harness:
        session = harness.session(user="ann")
        session.remember("The ferry leaves at seven.", weight=0.9)
        session.chat("I work at Acme.", sampling=short)
    with load() as harness:
        answer = harness.session(user="ann").ask(QUESTION, sampling=short)
        assert "The ferry leaves at seven." in [found.memory.content for found in answer.shown]
        assert json.dumps(answer.to_dict())
        assert any(
            "Acme" in found.content for found in harness.session(user="ann").recall("Who works at Acme?")
        )


def test_a_rule_that_cannot_be_enforced_is_refused_before_it_is_stored(load: Any, short: Sampling):
    with load() as harness:
        session = harness.session(user="ann")
        with pytest.raises(ValueError, match=r"json_schema\.not cannot be enforced"):
            session.remember("Odd.", type="constraint", rule={"json_schema": {"not": {}}})
        session.chat("Hello", sampling=short)


def test_memories_fade_and_old_ones_are_archived_when_it_opens(load: Any, clock: Any):
    with load() as harness:
        harness.session(user="ann").remember("The ferry was late.", type="episodic")
        clock.ns += 20 * DAY_NS
        (faded,) = harness.memory.store.list(Viewer(user_id="ann"))
        assert faded.freshness == 0.5
    clock.ns += 400 * DAY_NS
    with load() as harness:
        assert harness.memory.store.list(Viewer(user_id="ann")) == []
        assert len(harness.memory.store.list(Viewer(user_id="ann"), include_archived=True)) == 1


def test_recall_and_registrar_use_the_embedder_it_is_given(load: Any, short: Sampling):
    texts: list[str] = []

    def embed(given: Any) -> np.ndarray:
        texts.extend(given)
        return np.tile(np.full(4, 0.5, np.float32), (len(given), 1))

    with load(embedder=embed) as harness:
        session = harness.session(user="ann")
        session.remember("The ferry leaves at seven.")
        session.chat("I work at Acme.", sampling=short)
    assert any("ferry" in text for text in texts)
    assert any("Acme" in text for text in texts)


def test_a_store_opened_by_hand_works_and_is_closed_with_the_harness(load: Any, tmp_path: Path, clock: Any):
    store = MemoryStore(tmp_path / "own.db", clock=clock)
    with load(memory=store) as harness:
        harness.session(user="ann").remember("The ferry leaves at seven.")
        assert harness.session(user="ann").recall(QUESTION)
    with pytest.raises(Exception, match="closed"):
        store.list(Viewer(user_id="ann"))


def test_closing_twice_is_allowed_and_ends_the_sessions(load: Any, short: Sampling):
    harness = load()
    session = harness.session(user="ann")
    session.chat("I work at Acme.", sampling=short)
    harness.close()
    harness.close()
    assert session.is_closed
    with load() as again:
        assert len(again.memory.store.list(Viewer(user_id="ann"))) == 1


def test_without_a_memory_it_answers_from_what_it_is_given(tiny_checkpoint: Path, short: Sampling):
    with Harness.load(str(tiny_checkpoint), device="cpu", steering="none") as harness:
        answer = harness.ask(
            QUESTION, ["The ferry leaves at seven.", {"content": "x", "weight": 0.6}], sampling=short
        )
    assert (answer.receipt.method, len(answer.receipt.blocks)) == ("none", 2)


def test_a_template_that_is_not_there_is_refused_before_a_model_loads(tmp_path: Path):
    with pytest.raises(TemplateInvalid, match="template must be one of"):
        Harness.load("./nowhere", template="customer")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model
def test_facts_of_one_session_are_used_in_the_next(tmp_path: Path, clock: Any):
    sampling = Sampling(max_new_tokens=24)
    with Harness.load("bundled:smollm2-135m-instruct", memory=tmp_path / "memory.db", clock=clock) as harness:

        def say(message: str) -> salience.Answer:
            clock.ns += 10**9
            with harness.session(user="ann") as session:
                return session.chat(message, sampling=sampling)

        say("I work at Acme.")
        asked = say("Where do I work?")
        assert "Acme" in asked.shown[0].memory.content
        fact = asked.shown[0].memory.memory_id
        assert asked.receipt.shares()[fact] > asked.receipt.unbiased_shares()[fact] > 0.0
        say("No, I work at Globex.")
        corrected = say("Where do I work?")
        assert "Globex" in corrected.shown[0].memory.content
        assert "Acme" not in corrected.turn.prompt.text


@pytest.mark.model
def test_a_memory_is_answered_from_and_its_share_rises():
    harness = Harness.load("bundled:smollm2-135m-instruct")
    memories = [
        Memory("The ferry leaves at seven.", weight=0.9),
        Memory("The museum opens at ten.", weight=0.5),
    ]
    answer = harness.ask(QUESTION, memories)
    assert "seven" in answer.text.lower()
    ferry, museum = answer.receipt.blocks
    assert answer.receipt.shares()[ferry] > answer.receipt.unbiased_shares()[ferry]
    assert answer.receipt.shares()[ferry] > answer.receipt.shares()[museum]
