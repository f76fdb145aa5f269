"""Finds, checks and reads public data files, which lie in the user's folder and are never downloaded."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from salience_experiments.data_catalogue import KNOWN_FILES
from salience_experiments.errors import DataFileChanged, DataFileMissing, DataFormatError


def data_file(name: str, data_dir: Path, *, allow_changed: bool = False) -> Path:
    """Return the path of a known file, checked against its published sha256.

    Args:
        name: Path inside the data folder, such as "litm/kv-retrieval-75_keys.jsonl.gz".
        data_dir: The user's data folder.
        allow_changed: Take the file whatever its sha256, such as a newer release of it.

    Raises:
        ValueError: No known file has that name.
        DataFileMissing: It is not there; the message says where to obtain it.
        DataFileChanged: Its sha256 is another one.
    """
    if name not in KNOWN_FILES:
        raise ValueError(f"name must be one of {', '.join(KNOWN_FILES)}, got {name!r}")
    known = KNOWN_FILES[name]
    path = data_dir / name
    if not path.is_file():
        raise DataFileMissing(
            f"{path} is missing: obtain it from {known.url} ({known.licence}) and put it there"
        )
    if not allow_changed and (found := file_sha256(path)) != known.sha256:
        raise DataFileChanged(
            f"{path} must have sha256 {known.sha256}, got {found}: obtain it from {known.url}, "
            "or allow a changed file"
        )
    return path


def find_data_file(source: str, data_dir: Path | None, *, allow_changed: bool = False) -> Path:
    """Return the path that a spec means by `source`: a known file's name, or the path of any other file.

    A relative path is taken from the data folder, or without one from the working directory. A file that is
    not known is not checked.

    Raises:
        DataFileMissing: Nothing is there, or a known file is named and no data folder is given.
        DataFileChanged: A known file has another sha256.
    """
    if source in KNOWN_FILES:
        if data_dir is None:
            known = KNOWN_FILES[source]
            raise DataFileMissing(
                f"{source} lies in the data folder, and none is given: obtain it from {known.url} "
                f"({known.licence}), and name the folder with --data or SALIENCE_DATA"
            )
        return data_file(source, data_dir, allow_changed=allow_changed)
    path = (data_dir or Path()) / source
    if not path.is_file():
        raise DataFileMissing(f"{path} is missing: give a file's path, or one of {', '.join(KNOWN_FILES)}")
    return path


def file_sha256(path: Path) -> str:
    """Return the file's sha256 in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json_lines(path: Path, n_rows: int | None = None) -> list[dict[str, Any]]:
    """Return the first `n_rows` objects of a `.jsonl` or `.jsonl.gz` file; none returns all.

    Raises:
        DataFileMissing: The file is not there.
        DataFormatError: A line is not a JSON object, or there are fewer rows than asked for, or none.
    """
    if n_rows is not None and n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, got {n_rows}")
    if not path.is_file():
        raise DataFileMissing(f"{path} is missing")
    rows = list(islice(_json_objects(path), n_rows))
    if not rows or (n_rows is not None and len(rows) < n_rows):
        raise DataFormatError(f"{path} must hold at least {n_rows or 1} rows, got {len(rows)}")
    return rows


def _json_objects(path: Path) -> Iterator[dict[str, Any]]:
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataFormatError(f"{path} line {number} must be JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataFormatError(f"{path} line {number} must be a JSON object, got {type(row).__name__}")
            yield row
