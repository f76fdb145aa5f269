"""What a model source means (bundled name, hub id, folder or GGUF file); hub repositories and folders.

A string that looks like a path is never sent to the hub, so a misspelt folder cannot become a download.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download

from salience_models.errors import RevisionNotFound, SourceNotFound, UnknownArchitecture, WeightsUnreadable
from salience_models.weights.bundled_catalog import BUNDLED_MODELS, BUNDLED_PREFIX, find_bundled
from salience_models.weights.model_info import weight_files
from salience_models.weights.quiet import quiet_transformers

_TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


class SourceKind(StrEnum):
    """Where a model comes from."""

    BUNDLED = "bundled"
    HUB = "hub"
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True)
class ModelSource:
    """A parsed source.

    Attributes:
        text: The source as given.
        name: The bundled model's bare name or the hub id; the file or folder name otherwise.
        path: The folder or GGUF file; None for bundled and hub models.
        revision: Branch, tag or commit of a hub id; None means its main branch.
    """

    kind: SourceKind
    text: str
    name: str
    path: Path | None = None
    revision: str | None = None


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FORMS = f"{BUNDLED_PREFIX}NAME, a hub id (owner/name), a folder or a .gguf file"


def parse_source(source: str | Path, revision: str | None = None) -> ModelSource:
    """Decide what `source` is, without touching the network.

    Args:
        source: `bundled:NAME`, `owner/name` on the hub, a folder, or a `.gguf` file; `~` is expanded. A
            folder that exists wins over a hub id of the same spelling.
        revision: Branch, tag or commit; for hub ids only.

    Raises:
        SourceNotFound: Nothing lies there, or the text is none of the four forms.
        ValueError: A revision for something that is not a hub id.
    """
    text = str(source)
    path = Path(text).expanduser()
    is_gguf = path.suffix.lower() == ".gguf"
    looks_like_path = (
        text.startswith(("/", "./", "../", "~", "."))
        or text.endswith(("/", ".safetensors", ".bin", ".json"))
        or "\\" in text
        or text.count("/") > 1
    )
    if text.startswith(BUNDLED_PREFIX):
        parsed = ModelSource(SourceKind.BUNDLED, text, find_bundled(text).name)
    elif text and path.is_dir():
        parsed = ModelSource(SourceKind.FOLDER, text, path.resolve().name, path.resolve())
    elif is_gguf and path.is_file():
        parsed = ModelSource(SourceKind.GGUF, text, path.name, path.resolve())
    elif is_gguf or path.exists() or looks_like_path:
        expected = "an existing .gguf file" if is_gguf else "an existing folder or .gguf file"
        found = "another kind of file" if path.is_file() else "nothing there"
        raise SourceNotFound(f"source must be {expected}, got {text!r} ({found})")
    elif text in BUNDLED_MODELS:
        raise SourceNotFound(f"source must be {_FORMS}, got {text!r} (did you mean {BUNDLED_PREFIX}{text}?)")
    elif not _HUB_ID.fullmatch(text) or ".." in text or "--" in text:
        raise SourceNotFound(f"source must be {_FORMS}, got {text!r}")
    else:
        parsed = ModelSource(SourceKind.HUB, text, text, revision=revision)
    if revision is not None and parsed.kind is not SourceKind.HUB:
        raise ValueError(f"revision must be None unless source is a hub id, got {revision!r} for {source}")
    return parsed


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
