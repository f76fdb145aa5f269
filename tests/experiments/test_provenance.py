"""Where a result comes from: commit and dirty flag, versions, device, model."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import torch

from salience_experiments import provenance
from salience_experiments.provenance import (
    describe_commit,
    describe_device,
    describe_model,
    describe_versions,
)
from salience_models import LanguageModel


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own that holds the room's package, with one commit."""
    module = tmp_path / "experiments" / "salience_experiments" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    (tmp_path / "experiments" / "results").mkdir()
    (tmp_path / "experiments" / "results" / "kept.txt").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(module))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "x")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_clean_checkout_is_named_by_its_commit(checkout: Path):
    assert describe_commit() == (git(checkout, "rev-parse", "HEAD"), False)


def test_a_changed_or_new_file_makes_it_dirty(checkout: Path):
    (checkout / "new.py").write_text("")
    assert describe_commit()[1]
    (checkout / "new.py").unlink()
    (checkout / "experiments" / "salience_experiments" / "provenance.py").write_text("changed")
    assert describe_commit()[1]


def test_results_of_a_run_do_not_make_it_dirty(checkout: Path):
    (checkout / "experiments" / "results" / "trials.jsonl").write_text("{}")
    assert not describe_commit()[1]


def test_outside_a_checkout_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_commit() == ("unknown", True)


def test_another_projects_checkout_is_not_ours(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere = checkout / "site-packages"
    elsewhere.mkdir()
    (checkout / "experiments").rename(checkout / "other")
    monkeypatch.setattr(provenance, "__file__", str(elsewhere / "provenance.py"))
    assert describe_commit() == ("unknown", True)


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert describe_commit() == ("unknown", True)


def test_versions_are_those_installed():
    versions = describe_versions()
    assert versions["torch"] == metadata.version("torch")
    assert {"python", "transformers", "numpy"} <= set(versions)


def test_the_device_tells_its_threads():
    assert describe_device(torch.device("cpu")).endswith(f"{torch.get_num_threads()} threads)")


def test_the_model_is_told_without_a_path_of_its_own(tiny_lm: LanguageModel):
    described = describe_model(tiny_lm)
    assert described["architecture"] == "llama"
    assert described["dtype"] == "float32"
    assert described["weights_sha256"] == tiny_lm.info.weights_sha256
    assert "path" not in described
