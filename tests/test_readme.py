"""The README's snippets and commands do what the page says. They run in its order, on the models it names."""

import re
import shlex
from pathlib import Path

import pytest

from salience.cli import main

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line.removeprefix("$ salience "), comments=True)
    for kind, block in BLOCKS
    if kind == "console"
    for line in block.splitlines()
    if line.startswith("$ salience ")
]
SAYS = {
    "memory add": "version 1",
    "chat Where do I live?": "Lisbon",
    "chat When does the ferry leave?": "seven",
    "explain": "nats/token",
    "constrain": "all 1 rules are kept",
    "doctor": "native",
}
"""What each command's output holds."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the reader's own memory is touched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALIENCE_MEMORY", str(tmp_path / "memory.db"))
    return tmp_path


@pytest.mark.model
def test_the_quickstart_answers_remembers_and_recalls(capsys: pytest.CaptureFixture[str]):
    (code,) = [block for kind, block in BLOCKS if kind == "python"]
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    shown = capsys.readouterr().out
    assert "seven" in shown.lower()
    assert "share_control" in shown
    assert "peanuts" in shown.splitlines()[-1]


@pytest.mark.model
def test_each_command_does_what_stands_beside_it(capsys: pytest.CaptureFixture[str]):
    assert len(COMMANDS) == len(SAYS)
    for arguments, (start, said) in zip(COMMANDS, SAYS.items(), strict=True):
        assert " ".join(arguments).startswith(start)
        assert main(arguments) == 0, arguments
        shown = capsys.readouterr()
        assert said in shown.out + shown.err, (arguments, shown.out)
        if start == "constrain":
            assert "badger" not in shown.out.splitlines()[0].lower()
