from pathlib import Path

import pytest
from huggingface_hub import errors as hub_errors

from salience_models.errors import RevisionNotFound, SourceNotFound
from salience_models.weights import sources
from salience_models.weights.loader import load_model


def refuse_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(sources, "snapshot_download", fail)


def http_error(kind: type[hub_errors.HfHubHTTPError]) -> hub_errors.HfHubHTTPError:
    error = kind.__new__(kind)
    Exception.__init__(error, "refused by the hub")
    return error


def test_wrong_revision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_with(monkeypatch, http_error(hub_errors.RevisionNotFoundError))
    with pytest.raises(RevisionNotFound, match="revision must be a branch, tag or commit of o/m, got 'v9'"):
        load_model("o/m", revision="v9", device="cpu")


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (hub_errors.RepositoryNotFoundError, "no such folder or repository"),
        (hub_errors.GatedRepoError, "hf auth login"),
        (hub_errors.HfHubHTTPError, "refused by the hub"),
    ],
)
def test_repository_out_of_reach_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: type[hub_errors.HfHubHTTPError], hint: str
) -> None:
    refuse_with(monkeypatch, http_error(kind))
    with pytest.raises(SourceNotFound, match=hint):
        load_model("owner/model", device="cpu")


def test_offline_hub_without_a_snapshot_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceNotFound, match="'owner/model' at revision main must be in the local hub cache"):
        load_model("owner/model", device="cpu")
