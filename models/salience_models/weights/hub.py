"""Folders that hold a model: fetched from the Hugging Face hub, or given; checked before any load."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download

from salience_models.errors import RevisionNotFound, SourceNotFound, UnknownArchitecture, WeightsUnreadable
from salience_models.weights.model_info import weight_files
from salience_models.weights.quiet import quiet_transformers
from salience_models.weights.sources import ModelSource

_TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def fetch_hub(source: ModelSource, *, with_weights: bool = True) -> tuple[Path, str]:
    """Download what is missing of a hub repository into the hub's own cache.

    Offline, a snapshot that is already there is used. Files of other formats in the repository stay there.

    Returns:
        The snapshot's folder and its commit.

    Raises:
        RevisionNotFound: The repository has no such revision.
        SourceNotFound: No such repository, no access, or offline without a snapshot.
    """
    if not with_weights:
        folder = _download(source, _TEXT_FILES)
        return folder, folder.name
    folder = _download(source, [*_TEXT_FILES, "model*.safetensors"])
    if not weight_files(folder):
        folder = _download(source, [*_TEXT_FILES, "pytorch_model*.bin"])
    return folder, folder.name


def _download(source: ModelSource, patterns: list[str]) -> Path:
    try:
        with quiet_transformers():
            return Path(snapshot_download(source.name, revision=source.revision, allow_patterns=patterns))
    except hub_errors.RevisionNotFoundError as error:
        raise RevisionNotFound(
            f"revision must be a branch, tag or commit of {source.name}, got {source.revision!r}"
        ) from error
    except hub_errors.GatedRepoError as error:
        raise SourceNotFound(
            f"source must be accessible, got the gated repository {source.name} "
            "(accept its terms on the hub, then run `hf auth login`)"
        ) from error
    except hub_errors.RepositoryNotFoundError as error:
        raise SourceNotFound(
            f"source must be a folder, a .gguf file or a repository on the hub, got {source.name!r} "
            "(no such folder or repository, or a private one)"
        ) from error
    except (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled, ConnectionError) as error:
        raise SourceNotFound(
            f"source {source.name!r} at revision {source.revision or 'main'} must be in the local hub cache "
            "while the hub cannot be reached, got no snapshot of it"
        ) from error
    except hub_errors.HfHubHTTPError as error:
        raise SourceNotFound(f"source {source.name!r} must be readable on the hub, got: {error}") from error


def check_folder(folder: Path, *, with_weights: bool = True) -> None:
    """Refuse a folder that lacks a file the load would need.

    Raises:
        SourceNotFound: Naming what is missing.
        WeightsUnreadable: config.json is not JSON.
        UnknownArchitecture: config.json names no model type.
    """
    if not (folder / "config.json").is_file():
        raise SourceNotFound(f"model folder must hold config.json, got {folder} without it")
    model_type = read_config(folder).get("model_type")
    if not isinstance(model_type, str):
        raise UnknownArchitecture(f"config.json of {folder} must name a model_type, got {model_type!r}")
    weights = weight_files(folder) if with_weights else []
    if with_weights and not weights:
        raise SourceNotFound(
            f"model folder must hold model*.safetensors or pytorch_model*.bin, got {folder} without either"
        )
    missing = [path.name for path in weights if not path.is_file()]
    if missing:
        raise SourceNotFound(f"model folder must hold {', '.join(missing)}, got {folder} without")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise SourceNotFound(
            f"model folder must hold a tokenizer ({', '.join(_TOKENIZER_FILES)}), got {folder} without one"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it lies there, before transformers interprets it."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise WeightsUnreadable(f"config.json of {folder} must be JSON, got {error}") from error
    if not isinstance(config, dict):
        raise WeightsUnreadable(f"config.json of {folder} must be an object, got {type(config).__name__}")
    return config
