"""Read the key-value section of a GGUF file: architecture, tokenizer, chat template; no tensors.

The `gguf` package reads the same in 10 s for a vocabulary of 262,144 (it maps every string to an array).

Source: GGUF specification, versions 2 and 3, little-endian.
"""

import struct
from pathlib import Path
from typing import IO, Any

from salience_models.errors import WeightsUnreadable

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of `path` with their values; arrays as lists.

    Raises:
        WeightsUnreadable: Not a GGUF file, of another version, torn, or one part of several.
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise WeightsUnreadable(f"{path.name} must start with b'GGUF', got {magic!r}")
        try:
            version, _, count = _unpack(file, "IQQ")
            if version not in (2, 3):
                raise WeightsUnreadable(
                    f"{path.name} must be GGUF 2 or 3, little-endian, got version {version}"
                )
            metadata = dict(_read_pair(file) for _ in range(count))
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise WeightsUnreadable(f"{path.name} must be a whole GGUF file, got {error!r}") from error
    if metadata.get("split.count", 1) > 1:
        raise WeightsUnreadable(
            f"{path.name} must be the whole model, got one part of {metadata['split.count']} "
            "(join them with llama.cpp's gguf-split --merge)"
        )
    return metadata


def _read_pair(file: IO[bytes]) -> tuple[str, Any]:
    key = _read_string(file)
    (kind,) = _unpack(file, "I")
    return key, _read_value(file, kind)


def _read_value(file: IO[bytes], kind: int) -> Any:
    if kind == _STRING:
        return _read_string(file)
    if kind != _ARRAY:
        return _unpack(file, _SCALARS[kind])[0]
    item_kind, length = _unpack(file, "IQ")
    if item_kind in _SCALARS:
        return list(_unpack(file, f"{length}{_SCALARS[item_kind]}"))
    return [_read_value(file, item_kind) for _ in range(length)]


def _read_string(file: IO[bytes]) -> str:
    (length,) = _unpack(file, "Q")
    return _read_bytes(file, length).decode("utf-8")


def _unpack(file: IO[bytes], fields: str) -> tuple[Any, ...]:
    layout = struct.Struct("<" + fields)
    return layout.unpack(_read_bytes(file, layout.size))


def _read_bytes(file: IO[bytes], count: int) -> bytes:
    if count > 1 << 30:
        raise struct.error(f"a field of {count} bytes")
    data = file.read(count)
    if len(data) < count:
        raise struct.error(f"{len(data)} bytes where {count} should follow")
    return data
