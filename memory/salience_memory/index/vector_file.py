"""The file of the vector projection: a hash, a header in JSON, and columns as they lie in memory."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import ProjectionInvalid
from salience_memory.index.projection import write_sealed
from salience_memory.index.roster import Facet, Owner, RosterState
from salience_memory.records import MemoryType
from salience_memory.scopes import Scope

__all__ = ["read_vector_file", "write_vector_file"]

_FORMAT = "salience-vectors-1"
_LENGTH_BYTES = 8
_HASH_BYTES = 32
_COLUMNS = (("seqs", "<i8"), ("owner_places", "<i4"), ("facet_places", "<i4"), ("valid_until", "<i8"))


def write_vector_file(
    path: Path, fingerprint: str, applied_seq: int, roster: RosterState, vectors: NDArray[np.float32]
) -> None:
    """Write rows and their vectors [record, embed] in place of the file at `path`."""
    fields = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "applied_seq": applied_seq,
        "shape": list(vectors.shape),
        "ids": roster.ids,
        "owners": [list(owner) for owner in roster.owners],
        "facets": [[facet.type.value, list(facet.tags)] for facet in roster.facets],
    }
    header = json.dumps(fields).encode()

    def parts() -> Iterator[bytes | memoryview]:
        yield len(header).to_bytes(_LENGTH_BYTES, "little")
        yield header
        for name, kind in _COLUMNS:
            yield np.ascontiguousarray(getattr(roster, name), dtype=kind).tobytes()
        yield np.ascontiguousarray(vectors, dtype="<f4").reshape(-1).view(np.uint8).data

    write_sealed(path, parts)


def read_vector_file(path: Path) -> tuple[int, str, RosterState, NDArray[np.float32]]:
    """`applied_seq`, fingerprint, rows and vectors.

    Raises:
        ProjectionInvalid: There is no file, or not every byte of it is what was written.
    """
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise ProjectionInvalid(f"{path} cannot be read: {error.strerror}") from error
    sealed = data.data[_HASH_BYTES:]
    if len(data) < _HASH_BYTES + _LENGTH_BYTES or hashlib.sha256(sealed).digest() != bytes(
        data[:_HASH_BYTES]
    ):
        raise ProjectionInvalid(
            f"{path} must hold the bytes that were written, got others: it is torn or altered"
        )
    length = int.from_bytes(sealed[:_LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(bytes(sealed[_LENGTH_BYTES : _LENGTH_BYTES + length]))
    if header.get("format") != _FORMAT:
        raise ProjectionInvalid(f"{path} must be of format {_FORMAT}, got {header.get('format')!r}")
    offset = _HASH_BYTES + _LENGTH_BYTES + length
    columns: dict[str, Any] = {}
    for name, kind in _COLUMNS:
        columns[name], offset = _column(data, offset, len(header["ids"]), kind)
    rows, width = header["shape"]
    vectors, _ = _column(data, offset, rows * width, "<f4")
    roster = RosterState(
        ids=header["ids"],
        owners=[Owner(Scope(scope), *rest) for scope, *rest in header["owners"]],
        facets=[Facet(MemoryType(kind), tuple(tags)) for kind, tags in header["facets"]],
        **columns,
    )
    return header["applied_seq"], header["fingerprint"], roster, vectors.reshape(rows, width)


def _column(data: NDArray[np.uint8], offset: int, count: int, kind: str) -> tuple[NDArray[Any], int]:
    end = offset + count * np.dtype(kind).itemsize
    # Copied: in the file a column lies wherever the header ends.
    return data[offset:end].copy().view(kind), end
