"""FAISS if it is installed, and a bounded cache of embedded texts."""

import importlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import EmbeddingMismatch, MissingExtra

__all__ = ["Embed", "EmbeddingCache", "check_vectors", "import_faiss"]

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to unit vectors: float32 [record, embed]."""

_OVERHEAD_BYTES = 200
"""What one entry costs beside its text and its vector."""


def import_faiss() -> Any:
    """The module `faiss`.

    Raises:
        MissingExtra: It is not installed; the message names the extras that bring it.
    """
    try:
        return importlib.import_module("faiss")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "FAISS is not installed: pip install 'salience[cpu]', or 'salience[gpu]' beside an NVIDIA driver"
        ) from error


class EmbeddingCache:
    """Wraps an `embed` function; keeps the vectors of the texts used last, up to `cache_bytes`.

    A text's vector is computed once for as long as it stays, so equal texts get bit-identical vectors
    whatever they are batched with.
    """

    def __init__(self, embed: Embed, *, cache_bytes: int = 64 * 2**20) -> None:
        """Wrap `embed`; a `cache_bytes` of 0 keeps nothing between calls."""
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {cache_bytes}")
        self._embed = embed
        self._limit_bytes = cache_bytes
        self._vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self.used_bytes = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts, computing those not yet known in one call.

        Returns:
            float32 [record, embed].

        Raises:
            EmbeddingMismatch: the wrapped function broke its contract.
        """
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        vectors = check_vectors(self._embed(missing), len(missing)) if missing else ()
        fresh = dict(zip(missing, vectors, strict=True))
        rows: list[NDArray[np.float32]] = []
        for text in texts:
            if text not in fresh:
                self._vectors.move_to_end(text)
            rows.append(fresh[text] if text in fresh else self._vectors[text])
        for text, vector in fresh.items():
            self._vectors[text] = vector.copy()
            self.used_bytes += _cost_bytes(text, vector)
            while self.used_bytes > self._limit_bytes:
                self.used_bytes -= _cost_bytes(*self._vectors.popitem(last=False))
        if len({len(row) for row in rows}) > 1:
            raise EmbeddingMismatch("embed must return vectors of one length, got another than before")
        return np.stack(rows)


def _cost_bytes(text: str, vector: NDArray[np.float32]) -> int:
    return len(text.encode()) + vector.nbytes + _OVERHEAD_BYTES


def check_vectors(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """What an `embed` function returned for `count` texts, as float32 [record, embed].

    Raises:
        EmbeddingMismatch: Another shape, or a value that is not finite.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != count:
        raise EmbeddingMismatch(f"embed must return shape [{count}, embed], got {list(vectors.shape)}")
    if not np.isfinite(vectors).all():
        raise EmbeddingMismatch("embed must return finite vectors, got NaN or infinity")
    return vectors
