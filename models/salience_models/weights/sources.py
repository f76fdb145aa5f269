"""What a model source string means: a bundled name, a hub id, a folder or a GGUF file.

A string that looks like a path is never sent to the hub, so a misspelt folder cannot become a download.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from salience_models.errors import SourceNotFound
from salience_models.weights.bundled_catalog import BUNDLED_MODELS, BUNDLED_PREFIX, find_bundled


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
    parsed = _parse(str(source), revision)
    if revision is not None and parsed.kind is not SourceKind.HUB:
        raise ValueError(f"revision must be None unless source is a hub id, got {revision!r} for {source}")
    return parsed


def _parse(text: str, revision: str | None) -> ModelSource:
    if text.startswith(BUNDLED_PREFIX):
        return ModelSource(SourceKind.BUNDLED, text, find_bundled(text).name)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return ModelSource(SourceKind.FOLDER, text, path.resolve().name, path.resolve())
    is_gguf = path.suffix.lower() == ".gguf"
    if is_gguf and path.is_file():
        return ModelSource(SourceKind.GGUF, text, path.name, path.resolve())
    if is_gguf or path.exists() or _looks_like_path(text):
        expected = "an existing .gguf file" if is_gguf else "an existing folder or .gguf file"
        found = "another kind of file" if path.is_file() else "nothing there"
        raise SourceNotFound(f"source must be {expected}, got {text!r} ({found})")
    if text in BUNDLED_MODELS:
        raise SourceNotFound(f"source must be {_FORMS}, got {text!r} (did you mean {BUNDLED_PREFIX}{text}?)")
    if not _HUB_ID.fullmatch(text) or ".." in text or "--" in text:
        raise SourceNotFound(f"source must be {_FORMS}, got {text!r}")
    return ModelSource(SourceKind.HUB, text, text, revision=revision)


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith(("/", "./", "../", "~", "."))
        or text.endswith(("/", ".safetensors", ".bin", ".json"))
        or "\\" in text
        or text.count("/") > 1
    )
