"""`salience chat`: a talk that goes on after errors, its slash commands, and what it remembers."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from salience.cli import main
from salience.cli.chat import describe_cut
from salience_memory import Memory, MemoryStore, RegistrarQueue, Role, Utterance, Viewer
from salience_models.constraints import ConstraintEvent, EventKind


@pytest.fixture
def model(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("SALIENCE_MEMORY", str(tmp_path / "memory.db"))
    monkeypatch.setenv("COLUMNS", "200")
    return ["--model", str(tiny_checkpoint), "--device", "cpu", "--max-new-tokens", "3", "--no-embed"]


@pytest.fixture
def talk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """What `chat` prints on standard output and on standard error while these lines are typed."""

    def chat(lines: list[str], *arguments: str) -> tuple[str, str]:
        typed = iter(lines)

        def type_line(console: Console, prompt: str) -> str:
            for line in typed:
                return line
            raise EOFError

        monkeypatch.setattr(Console, "input", type_line)
        capsys.readouterr()
        assert main(["chat", *arguments]) == 0
        return capsys.readouterr()

    return chat


def test_a_talk_ends_at_exit_or_at_the_end_of_input_and_an_empty_line_is_nothing(talk, model):
    out, _ = talk(["first?", " ", "second?", "/exit", "third?"], *model, "--no-memory", "--json")
    first, second = map(json.loads, out.splitlines())
    assert "Ctrl-D leaves" in talk([], *model, "--no-memory")[1]
    # Without a store the talk goes on all the same: the second answer has the first exchange before it.
    assert (first["memories"], second["memories"]) == ([], [])
    assert first["request_id"] != second["request_id"]


def test_a_question_over_the_window_does_not_end_the_talk(talk, model):
    out, err = talk(["long " * 2000, "short?"], *model, "--no-memory", "--json")
    assert re.search(r"error: the prompt has .* over the context window of 2048", err)
    assert len(out.splitlines()) == 1


def test_with_a_user_it_recalls_remembers_and_forgets(talk, model, tmp_path):
    _, err = talk(["I work at Acme."], "--user", "ann", "--judge", "--verbose", *model)
    assert "declared: The user works at Acme." in err
    out, err = talk(["Who works at Acme?", "/why", "/memory"], "--user", "ann", *model)
    assert "not been verified" in err
    assert "shown to the model (1):" in out
    assert re.search(r"m-\w+  The user works at Acme\.", out)
    assert re.search(r"recalled: it bears on the message with probability [01]\.\d\d", out)
    assert re.search(r"weight 0\.\d\d asked for [\d.]+%, got [\d.]+% of attention \([\d.]+% unbiased\)", out)
    memory_id = re.findall(r"m-\w+", out)[-1]
    typed = ["/forget", f"/forget {memory_id}", "/memory", f"/forget {memory_id}"]
    out, err = talk(typed, "--user", "ann", *model)
    assert "error: /forget must be followed by a memory's id" in err
    assert f"forgot {memory_id}" in out
    assert "nothing is remembered yet" in out
    assert f"error: memory_id must name a memory of this session's, got '{memory_id}'" in err
    assert "nothing is remembered yet" in talk(["/memory"], "--user", "bob", *model)[0]


def test_without_a_user_nothing_outlives_the_talk(talk, model):
    talk(["I work at Acme."], *model)
    assert "nothing is remembered yet" in talk(["/memory"], *model)[0]


def test_why_says_what_was_left_out(talk, model, tmp_path):
    file = tmp_path / "template.json"
    section = {"name": "rules", "accepts": {"types": ["task"]}, "priority": 1, "max_tokens": 400}
    file.write_text(json.dumps({"name": "tiny", "sections": [section]}))
    out, _ = talk(["/why", "What?", "/why"], *model, "--no-memory", "-g", "A fact.", "--template", str(file))
    assert "nothing was answered yet" in out
    assert "no memory was shown to the model" in out
    assert re.search(r"left out:\n  m-\w+ was left out: ", out)


def test_a_rule_that_cut_the_answer_is_said_in_words():
    def answer(*events: ConstraintEvent, finish_reason: str = "content_filter") -> Any:
        generation = SimpleNamespace(rule_ids=("rates",), constraint_events=events)
        return SimpleNamespace(finish_reason=finish_reason, turn=SimpleNamespace(generation=generation))

    ended = ConstraintEvent(EventKind.CONTENT_FILTER, ("rates",))
    broken = ConstraintEvent(EventKind.VIOLATION, ("rates",))
    told = "the answer ends here because of rates: nothing that could follow is allowed"
    assert describe_cut(answer(ended)) == told
    assert describe_cut(answer(broken)) == "the answer broke rates and was held back"
    assert describe_cut(answer(finish_reason="stop")) is None


def test_an_unknown_slash_command_is_named_and_the_others_listed(talk, model):
    out, _ = talk(["/hlep", "/help"], *model, "--no-memory")
    assert "there is no command /hlep; there are:" in out
    for command in ("/help", "/memory", "/why", "/forget", "/exit"):
        assert out.count(f"  {command} ") == 2


def test_neither_memories_nor_answers_send_a_terminal_their_escapes(talk, model):
    evil = "red \x1b[31m wiped \x9b2J"
    out, err = talk(["What?", "/why", "/memory"], *model, "-g", evil, "--verbose")
    assert r"red \x1b[31m wiped \x9b2J" in out
    assert not set(out + err) & {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n"}


def test_a_session_without_a_name_ends_with_the_talk(talk, model, monkeypatch, tmp_path):
    ann, path = Viewer(user_id="ann", session_id="5" * 32), tmp_path / "memory.db"
    monkeypatch.setattr("salience.harness.uuid4", lambda: UUID(hex="5" * 32))
    with MemoryStore(path) as store:
        for scope in ("user", "session"):
            owner = {"user_id": "ann", "session_id": "5" * 32 if scope == "session" else None}
            store.declare(
                [Memory(memory_id=scope, content=f"Of the {scope}", type="semantic", scope=scope, **owner)]
            )
    for named, left in ((["--session", "5" * 32], {"user", "session"}), ([], {"user"})):
        talk([], "--user", "ann", *model, *named)
        with MemoryStore(path) as store:
            assert {memory.memory_id for memory in store.list(ann)} == left


def test_no_memory_stands_alone(capsys: pytest.CaptureFixture[str], model: list[str]):
    assert main(["chat", "What?", "--user", "ann", "--no-memory", *model]) == 1
    assert "error: --no-memory must stand without --memory, --user" in capsys.readouterr().err


def test_what_a_crash_left_unsettled_is_settled_at_the_next_message(talk, model, tmp_path):
    class Broken:
        def observe(self, *arguments, **options):
            raise RuntimeError("gone")

    ann, path = Viewer(user_id="ann", session_id="s1"), tmp_path / "memory.db"
    with MemoryStore(path) as store, RegistrarQueue(Broken(), store) as queue:  # type: ignore[arg-type]
        queue.submit(Utterance(role=Role.USER, text="I work at Acme."), ann)
    talk(["Hello"], *model)
    with MemoryStore(path) as store:
        assert [memory.content for memory in store.list(ann)] == ["The user works at Acme."]
