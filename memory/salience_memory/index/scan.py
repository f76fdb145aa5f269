"""Approximate scans over all vectors that never return a row outside a mask, and say how wrong they can be.

A scan is given the rows a search may return and gives back some of them with a *ceiling*: no allowed row it
left out is more similar to the query than that. With it the caller proves its exact ranking complete, or
asks for every row that may reach a given similarity. The two scans differ in what their FAISS index can do;
the contract is the same.

`SelectorScan` (CPU) holds 8-bit codes and hands FAISS the mask. `UnmaskedScan` (GPU) is for indexes that
ignore `IDSelector` silently, have no `remove_ids` and return at most 2,048 rows, as those of faiss-gpu do:
it searches everything and drops what the mask does not allow.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from salience_memory.errors import MissingExtra
from salience_memory.vectors import import_faiss

__all__ = ["Scan", "SelectorScan", "UnmaskedScan", "gpu_scan"]

_SEGMENT_ROWS = 131_072
"""Rows that one thread searches at a time; a bound on what growing copies."""

_ALL_FROM_EACH = 512
"""Up to so many rows may all come from one segment without a second search."""

_CODE_LIMIT = 127
_HEADROOM = 1.25
"""How far beyond the largest component seen the codes reach, so that new vectors seldom re-encode the old."""

_ROUNDING = 1e-5
"""What summing 32-bit products may add to an error bound, for unit vectors of up to some thousand figures."""

_GPU_MAX_K = 2048
_HALF_ERROR = 2.0**-9
"""Bounds the error of a product of unit vectors that are both held in 16 bits."""


class Scan(Protocol):
    """Vectors by row number, searched under a mask. Whoever owns one also owns the exact vectors."""

    def fit(self, vectors: NDArray[np.float32]) -> None:
        """Replace everything by `vectors` [record, embed]."""
        ...

    def append(self, vectors: NDArray[np.float32]) -> bool:
        """Add rows at the end; False if they do not fit the codes, and `fit` must be called with all."""
        ...

    def erase(self, rows: NDArray[np.int64]) -> bool:
        """Overwrite rows with zeros; False if the index cannot, and `fit` must be called with all."""
        ...

    def nearest(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], count: int
    ) -> tuple[NDArray[np.int64], float]:
        """Up to `count` allowed rows near the query, and the ceiling: -inf if they are all there is."""
        ...

    def reaching(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], similarity: float
    ) -> NDArray[np.int64]:
        """At least every allowed row whose similarity is that or more, and none that is not allowed."""
        ...


class SelectorScan:
    """One byte a component, in segments that as many threads search as FAISS may use."""

    def __init__(self, dimension: int) -> None:
        self._faiss = import_faiss()
        self._dimension = dimension
        self._segments: list[Any] = []
        self._scale = 1.0
        self._error = 0.0
        self._longest = 0.0
        threads = self._faiss.omp_get_max_threads()
        self._pool = ThreadPoolExecutor(threads, "scan") if threads > 1 else None

    def fit(self, vectors: NDArray[np.float32]) -> None:
        self._segments = []
        self._error = self._longest = 0.0
        largest = float(np.abs(vectors).max(initial=0.0)) or 1.0
        self._scale = _CODE_LIMIT / (largest * _HEADROOM)
        self._add(vectors)

    def append(self, vectors: NDArray[np.float32]) -> bool:
        if not self._segments or float(np.abs(vectors).max(initial=0.0)) * self._scale > _CODE_LIMIT:
            return False
        self._add(vectors)
        return True

    def erase(self, rows: NDArray[np.int64]) -> bool:
        for row in rows.tolist():
            index = self._segments[row // _SEGMENT_ROWS]
            codes = self._faiss.rev_swig_ptr(index.codes.data(), index.codes.size())
            place = row % _SEGMENT_ROWS * self._dimension
            codes[place : place + self._dimension] = _CODE_LIMIT + 1  # zero, as codes hold it
        return True

    def nearest(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], count: int
    ) -> tuple[NDArray[np.int64], float]:
        codes, scale, slack = self._encoded(query)
        # Many are asked for as a margin, which one segment need not fill: its own last says what it left out.
        each = max(min(count, _ALL_FROM_EACH), count // 2)

        def search(index: Any, selector: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            params = self._faiss.SearchParameters(sel=selector)
            products, rows = index.search(codes, min(each, index.ntotal), params=params)
            return products[0], rows[0]

        found = self._over_segments(search, allowed)
        lasts = [part[0][-1] for part in found if len(part[1]) == each and part[1][-1] >= 0]
        products = np.concatenate([part[0] for part in found])
        rows = np.concatenate([np.where(part[1] < 0, -1, part[1] + start) for part, start in _starts(found)])
        products, rows = products[rows >= 0], rows[rows >= 0]
        if len(rows) > count:
            best = np.argpartition(-products, count - 1)[:count]
            products, rows = products[best], rows[best]
            lasts.append(products.min())
        if not lasts:
            return rows, -math.inf
        return rows, float(max(lasts)) / scale + slack

    def reaching(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], similarity: float
    ) -> NDArray[np.int64]:
        codes, scale, slack = self._encoded(query)
        radius = (similarity - slack) * scale

        def search(index: Any, selector: Any) -> NDArray[np.int64]:
            params = self._faiss.SearchParameters(sel=selector)
            return index.range_search(codes, radius, params=params)[2]

        found = self._over_segments(search, allowed)
        return np.concatenate([rows + start for rows, start in _starts(found)])

    def _add(self, vectors: NDArray[np.float32]) -> None:
        start = 0
        while start < len(vectors):
            if not self._segments or self._segments[-1].ntotal == _SEGMENT_ROWS:
                kind = self._faiss.ScalarQuantizer.QT_8bit_direct_signed
                inner_product = self._faiss.METRIC_INNER_PRODUCT
                self._segments.append(self._faiss.IndexScalarQuantizer(self._dimension, kind, inner_product))
            index = self._segments[-1]
            part = vectors[start : start + _SEGMENT_ROWS - index.ntotal]
            codes = np.rint(part * self._scale)
            residual = np.linalg.norm(part - codes / self._scale, axis=1)
            self._error = max(self._error, float(residual.max()))
            self._longest = max(self._longest, float(np.linalg.norm(part, axis=1).max()))
            index.add(np.ascontiguousarray(codes, dtype=np.float32))
            start += len(part)

    def _encoded(self, query: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, float]:
        """The query as FAISS will round it, what products must be divided by, and how far off they may be."""
        scale = _CODE_LIMIT / (float(np.abs(query).max()) or 1.0)
        codes = np.rint(query * scale).astype(np.float32)
        residual = float(np.linalg.norm(query - codes / scale))
        # By Cauchy and Schwarz, for the rounding of the vectors and that of the query.
        slack = self._error * float(np.linalg.norm(query)) + (self._longest + self._error) * residual
        return codes[None], scale * self._scale, slack * (1.0 + _ROUNDING) + _ROUNDING

    def _over_segments(self, search: Callable[[Any, Any], Any], allowed: NDArray[np.bool_]) -> list[Any]:
        def search_segment(number: int) -> Any:
            mask = allowed[number * _SEGMENT_ROWS : (number + 1) * _SEGMENT_ROWS]
            if mask.all():
                return search(self._segments[number], None)
            bits = np.packbits(mask, bitorder="little")
            return search(self._segments[number], self._faiss.IDSelectorBitmap(bits))

        numbers = range(len(self._segments))
        return list(self._pool.map(search_segment, numbers) if self._pool else map(search_segment, numbers))


class UnmaskedScan:
    """Searches everything and drops what is not allowed: for any index that can add, reset and search."""

    def __init__(self, index: Any, error: float) -> None:
        """Wrap an empty inner-product index.

        Args:
            index: A FAISS index with `add`, `reset`, `search` and `ntotal`.
            error: How far a similarity of unit vectors may be off in it.
        """
        self._index = index
        self._error = error

    def fit(self, vectors: NDArray[np.float32]) -> None:
        self._index.reset()
        self.append(vectors)

    def append(self, vectors: NDArray[np.float32]) -> bool:
        self._index.add(np.ascontiguousarray(vectors))
        return True

    def erase(self, rows: NDArray[np.int64]) -> bool:
        return not len(rows)

    def nearest(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], count: int
    ) -> tuple[NDArray[np.int64], float]:
        # As much as the index can give: most of it may not be allowed.
        similarities, found = self._index.search(query[None], min(_GPU_MAX_K, self._index.ntotal))
        rows = found[0][found[0] >= 0]
        ceiling = -math.inf
        if len(rows) < self._index.ntotal:
            ceiling = float(similarities[0].min()) + self._error * float(np.linalg.norm(query)) + _ROUNDING
        return rows[allowed[rows]], ceiling

    def reaching(
        self, query: NDArray[np.float32], allowed: NDArray[np.bool_], similarity: float
    ) -> NDArray[np.int64]:
        # Such an index has no search by radius either; all that is allowed surely holds all that reaches.
        return np.flatnonzero(allowed)


def gpu_scan(dimension: int) -> UnmaskedScan:
    """Half-precision vectors on the first CUDA device.

    Raises:
        MissingExtra: FAISS was built without GPU support or finds no device.
    """
    faiss = import_faiss()
    count_gpus: Callable[[], int] = getattr(faiss, "get_num_gpus", lambda: 0)
    if not hasattr(faiss, "GpuIndexFlatIP") or count_gpus() < 1:
        raise MissingExtra("device 'cuda' needs faiss-gpu and a CUDA device: pip install 'salience[gpu]'")
    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    return UnmaskedScan(faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), dimension, config), _HALF_ERROR)


def _starts(parts: Sequence[Any]) -> list[tuple[Any, int]]:
    """What each segment gave, with the segment's first row."""
    return [(part, number * _SEGMENT_ROWS) for number, part in enumerate(parts)]
