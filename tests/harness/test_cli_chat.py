"""`salience chat`: a question that cannot be answered does not end it, and with a store it remembers."""

import json
import re
from pathlib import Path
from uuid import UUID

import pytest
from rich.console import Console

from salience.cli import main
from salience_memory import Memory, MemoryStore, RegistrarQueue, Role, Utterance, Viewer


@pytest.fixture
def model(tiny_checkpoint: Path) -> list[str]:
    return ["--model", str(tiny_checkpoint), "--device", "cpu", "--max-new-tokens", "3"]


def talk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lines: list[str], *arguments: str
) -> str:
    """What `chat` prints while these lines are typed."""
    typed = iter([*lines, ""])
    monkeypatch.setattr(Console, "input", lambda self, prompt: next(typed))
    capsys.readouterr()
    assert main(["chat", *arguments]) == 0
    return capsys.readouterr().out


def test_a_question_over_the_window_does_not_end_the_talk(
    capsys: pytest.CaptureFixture[str], model: list[str], monkeypatch: pytest.MonkeyPatch
):
    out = talk(capsys, monkeypatch, ["long " * 2000, "short?"], *model)
    assert re.search(r"error: the prompt has .* over the context window of 2048", out)
    assert out.count("none, 0 layers") == 1


def test_with_a_store_it_recalls_and_remembers(
    capsys: pytest.CaptureFixture[str], model: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    file = tmp_path / "template.json"
    section = {"name": "facts", "accepts": {"types": ["semantic"]}, "priority": 1, "max_tokens": 400}
    file.write_text(json.dumps({"name": "tiny", "memories_note": "Data:", "sections": [section]}))
    where = [
        "--memory-db",
        str(tmp_path / "memory.db"),
        "--user",
        "ann",
        "--no-embed",
        "--judge",
        "--template",
        str(file),
    ]
    told = talk(capsys, monkeypatch, ["I work at Acme."], *where, *model)
    assert "declared: The user works at Acme." in told
    asked = talk(capsys, monkeypatch, ["Who works at Acme?"], *where, *model)
    assert re.search(r"[\d.]+% of attention \(unbiased [\d.]+%\)  The user works at Acme\.", asked)
    assert "not been verified" in asked
    other = talk(capsys, monkeypatch, ["Who works at Acme?"], *where, "--user", "bob", *model)
    assert "The user works" not in other


def test_a_session_without_a_name_ends_with_the_talk(
    capsys: pytest.CaptureFixture[str], model: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    ann, path = Viewer(user_id="ann", session_id="5" * 32), tmp_path / "memory.db"
    monkeypatch.setattr("salience.cli.chat.uuid4", lambda: UUID(hex="5" * 32))
    with MemoryStore(path) as store:
        for scope in ("user", "session"):
            owner = {"user_id": "ann", "session_id": "5" * 32 if scope == "session" else None}
            store.declare(
                [Memory(memory_id=scope, content=f"Of the {scope}", type="semantic", scope=scope, **owner)]
            )
    where = ["--memory-db", str(path), "--user", "ann", "--no-embed", *model]
    for named, left in ((["--session", "5" * 32], {"user", "session"}), ([], {"user"})):
        talk(capsys, monkeypatch, [], *where, *named)
        with MemoryStore(path) as store:
            assert {memory.memory_id for memory in store.list(ann)} == left


def test_a_user_needs_a_store(capsys: pytest.CaptureFixture[str], model: list[str]):
    assert main(["chat", "What?", "--user", "ann", *model]) == 1
    assert "error: --memory-db must be given with --user, --session and --judge" in capsys.readouterr().err


def test_what_a_crash_left_unsettled_is_settled_at_the_next_start(
    capsys: pytest.CaptureFixture[str], model: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class Broken:
        def observe(self, *arguments, **options):
            raise RuntimeError("gone")

    ann, path = Viewer(user_id="ann", session_id="s1"), tmp_path / "memory.db"
    with MemoryStore(path) as store, RegistrarQueue(Broken(), store) as queue:  # type: ignore[arg-type]
        queue.submit(Utterance(role=Role.USER, text="I work at Acme."), ann)
    talk(capsys, monkeypatch, [], "--memory-db", str(path), "--no-embed", *model)
    with MemoryStore(path) as store:
        assert [memory.content for memory in store.list(ann)] == ["The user works at Acme."]
