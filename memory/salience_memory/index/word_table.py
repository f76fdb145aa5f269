"""The words of each row, hashed and in memory: what rows share with a query is counted without their file."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WordTable"]

_FIRST_CAPACITY = 64
_HASH_BITS = 0x7FFF_FFFF
"""Words of one hash count as one, which once in some ten thousand queries proposes a row that shares less."""


class WordTable:
    """Rows in the order they were put, as a `Roster` numbers them."""

    def __init__(self) -> None:
        self._n_rows = self._n_words = 0
        self._ends = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._hashes = np.zeros(_FIRST_CAPACITY, dtype=np.int32)

    def put(self, words: Collection[str]) -> None:
        """Append a row."""
        end = self._n_words + len(words)
        if end > len(self._hashes):
            self._hashes = _grown(self._hashes, end)
        if self._n_rows == len(self._ends):
            self._ends = _grown(self._ends, self._n_rows + 1)
        self._hashes[self._n_words : end] = [_hash(word) for word in words]
        self._ends[self._n_rows] = end
        self._n_rows, self._n_words = self._n_rows + 1, end

    def erase(self, row: int) -> None:
        """Overwrite a row's words, which nothing shares then."""
        start, end = self._bounds(np.array([row]))
        self._hashes[start[0] : end[0]] = -1

    def compact(self, kept: NDArray[np.int64]) -> None:
        """Keep some rows only, in this order, which numbers them anew."""
        places, lengths = self._places(kept)
        self._hashes, self._ends = self._hashes[places], np.cumsum(lengths)
        self._n_rows, self._n_words = len(kept), len(places)

    def sum_shared(self, weights: Mapping[str, float], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """For each of some rows, the weights of its words, summed; a word without one weighs nothing.

        Rounded to 9 decimals, so that rows that share the same words tie in whatever order they stand.
        """
        hashed = dict(sorted((_hash(word), weight) for word, weight in weights.items()))
        known = np.array([*hashed, _HASH_BITS + 1], dtype=np.int64)
        of_known = np.array([*hashed.values(), 0.0])
        places, lengths = self._places(rows)
        found = self._hashes[places]
        at = np.searchsorted(known, np.maximum(found, 0))
        shared = np.where(known[at] == found, of_known[at], 0.0)
        numbers = np.repeat(np.arange(len(rows)), lengths)
        sums = np.bincount(numbers, weights=shared, minlength=len(rows)).astype(np.float64)
        return np.round(sums, 9)

    def _bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.where(rows > 0, self._ends[rows - 1], 0), self._ends[rows]

    def _places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the words of some rows stand, one row after another, and how many each has."""
        starts, ends = self._bounds(rows)
        lengths = ends - starts
        firsts = np.cumsum(lengths) - lengths
        return np.arange(int(lengths.sum())) + np.repeat(starts - firsts, lengths), lengths


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The same with room for `size`; zeros beyond, so that what is erased is nowhere else."""
    grown = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def _hash(word: str) -> int:
    return hash(word) & _HASH_BITS
