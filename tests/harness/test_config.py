"""Settings come from the environment alone."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from salience.config import Settings, load_settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SALIENCE_CACHE", "SALIENCE_DATA", "SALIENCE_MEMORY"):
        monkeypatch.delenv(variable, raising=False)


def test_without_variables_nothing_is_set():
    assert load_settings() == Settings(cache_dir=None, data_dir=None)


def test_variables_name_the_folders_and_a_tilde_is_the_users_home(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SALIENCE_CACHE", "~/cache")
    monkeypatch.setenv("SALIENCE_DATA", "data")
    assert load_settings() == Settings(cache_dir=Path.home() / "cache", data_dir=Path("data"))


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SALIENCE_CACHE", "")
    assert load_settings().cache_dir is None


def test_settings_are_frozen_and_refuse_what_they_do_not_know():
    with pytest.raises(ValidationError):
        Settings.model_validate({"cahce_dir": "x"})
    with pytest.raises(ValidationError):
        Settings().cache_dir = Path()  # type: ignore[misc]
