from pathlib import Path

import pytest

from salience_models.errors import ModelsError, RevisionNotFound, SourceNotFound
from salience_models.weights.sources import SourceKind, parse_source


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m", "all-minilm-l6-v2"])
def test_bundled_name_is_recognised(name: str) -> None:
    source = parse_source(f"bundled:{name}")
    assert (source.kind, source.name, source.path) == (SourceKind.BUNDLED, name, None)


def test_misspelt_bundled_name_lists_the_known_ones_and_the_likeliest() -> None:
    with pytest.raises(SourceNotFound) as caught:
        parse_source("bundled:smolm2")
    message = str(caught.value)
    assert "bundled:gemma-3-270m, bundled:all-minilm-l6-v2" in message
    assert "did you mean bundled:smollm2-135m-instruct?" in message


def test_bundled_name_without_its_prefix_is_not_sent_to_the_hub() -> None:
    with pytest.raises(SourceNotFound, match=r"did you mean bundled:gemma-3-270m\?"):
        parse_source("gemma-3-270m")


@pytest.mark.parametrize(
    "text", ["gpt2", "HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B", "a.b/c_d-1.5"]
)
def test_hub_id_keeps_its_revision(text: str) -> None:
    source = parse_source(text, "abc123")
    assert (source.kind, source.name, source.revision) == (SourceKind.HUB, text, "abc123")


def test_existing_folder_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    source = parse_source("owner/name")
    assert source.kind is SourceKind.FOLDER
    assert source.path == (tmp_path / "owner" / "name").resolve()


def test_gguf_file_is_recognised_by_its_suffix(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_K_M.GGUF"
    file.write_bytes(b"GGUF")
    assert parse_source(file).kind is SourceKind.GGUF
    assert parse_source(str(file)).path == file.resolve()


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_source("~/models").path == (tmp_path / "models").resolve()


@pytest.mark.parametrize(
    "text",
    ["./missing", "/missing/model", "~/missing", "a/b/c", "missing/", "missing.gguf", "owner/missing.gguf"],
)
def test_path_that_leads_nowhere_is_never_a_hub_id(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFound, match="source must be an existing"):
        parse_source(text)


@pytest.mark.parametrize(
    "text", ["", "bundle:smollm2", "https://huggingface.co/gpt2", "a b", "owner/na..me", "-x"]
)
def test_text_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(SourceNotFound, match="source must be"):
        parse_source(text)


def test_other_file_is_refused_by_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(SourceNotFound, match="another kind of file"):
        parse_source(file)


def test_revision_belongs_to_hub_ids_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="revision must be None unless source is a hub id, got 'main'"):
        parse_source(tmp_path, "main")


def test_error_tree_hangs_together() -> None:
    assert issubclass(RevisionNotFound, SourceNotFound)
    assert issubclass(SourceNotFound, ModelsError)
