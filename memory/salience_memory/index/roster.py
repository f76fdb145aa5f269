"""Which rows an index holds, whose they are and until when: columns, filtered before anything is ranked."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from salience_memory.records import MemoryState, MemoryType
from salience_memory.scopes import Scope, Viewer
from salience_memory.store.rows import ProjectionRow

__all__ = [
    "FOR_EVER_NS",
    "Facet",
    "Owner",
    "Roster",
    "RosterEntry",
    "RosterState",
    "RowFilter",
    "entry_of",
    "visible_owners",
]

FOR_EVER_NS = 2**63 - 1
"""What `valid_until` is for a row that never expires."""

_FIRST_CAPACITY = 64


class Owner(NamedTuple):
    """Whose a row is, and whether it lies in the archive: rows of different owners never meet in a search."""

    scope: Scope
    user_id: str | None
    session_id: str | None
    is_archived: bool


class Facet(NamedTuple):
    """What filters ask of a row beside its owner; most rows share theirs with many others."""

    type: MemoryType
    tags: tuple[str, ...]


class RosterEntry(NamedTuple):
    """One row."""

    memory_id: str
    seq: int
    owner: Owner
    facet: Facet
    valid_until: int | None


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What a search may return: of these types (none: any), with all of these tags, valid at `now_ns`."""

    viewer: Viewer
    now_ns: int
    types: tuple[MemoryType, ...] = ()
    tags: tuple[str, ...] = ()
    include_archived: bool = False


def entry_of(row: ProjectionRow) -> RosterEntry:
    """What a roster holds of a store's row."""
    owner = Owner(row.scope, row.user_id, row.session_id, row.state is MemoryState.ARCHIVED)
    return RosterEntry(
        row.memory_id, row.seq, owner, Facet(row.type, tuple(sorted(set(row.tags)))), row.valid_until
    )


def visible_owners(viewer: Viewer, include_archived: bool) -> list[Owner]:
    """Every owner whose rows the viewer may see."""
    user, session = viewer.user_id, viewer.session_id
    keys = [
        (Scope.GLOBAL, None, None),
        (Scope.USER, user, None),
        (Scope.SESSION, None, session),
        (Scope.SESSION, user, session),
    ]
    seen = [key for key in dict.fromkeys(keys) if viewer.can_see(*key)]
    return [
        Owner(*key, archived)
        for archived in ((False, True) if include_archived else (False,))
        for key in seen
    ]


class RosterState(NamedTuple):
    """A roster without holes, as files hold it: owners and facets once each, and where rows find theirs."""

    ids: list[str]
    seqs: NDArray[np.int64]
    owners: list[Owner]
    owner_places: NDArray[np.int32]
    facets: list[Facet]
    facet_places: NDArray[np.int32]
    valid_until: NDArray[np.int64]


class Roster:
    """Rows in the order they were put, one number each; a dropped row leaves a hole until `compact`."""

    def __init__(self) -> None:
        self._size = 0
        self._ids: list[str] = []
        self._row_of: dict[str, int] = {}
        self._seqs = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._owners = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._facets = np.zeros(_FIRST_CAPACITY, dtype=np.int32)
        self._valid_until = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._owner_numbers: dict[Owner, int] = {}
        self._facet_numbers: dict[Facet, int] = {}
        self._facets_with: dict[str, set[int]] = {}

    def __len__(self) -> int:
        """How many rows there are, holes left out."""
        return len(self._row_of)

    @property
    def size(self) -> int:
        """How many row numbers are taken, holes included."""
        return self._size

    @property
    def seqs(self) -> NDArray[np.int64]:
        """The `seq` of each row number; a hole keeps the one it had."""
        return self._seqs[: self._size]

    def id_of(self, row: int) -> str:
        """The memory in a row; the empty text for a hole."""
        return self._ids[row]

    def row_of(self, memory_id: str) -> int | None:
        """The row of a memory, if it is here."""
        return self._row_of.get(memory_id)

    def rows(self) -> NDArray[np.int64]:
        """Every row that is no hole, in order."""
        return np.fromiter(self._row_of.values(), dtype=np.int64, count=len(self._row_of))

    def newest(self, count: int) -> dict[str, int]:
        """The `seq`s of the rows put last, by memory."""
        rows = self.rows()[-count:].tolist()
        return {self._ids[row]: int(self._seqs[row]) for row in rows}

    def put(self, memory_id: str, seq: int, owner: Owner, facet: Facet, valid_until: int | None) -> int:
        """Append a row and return its number; the memory must not be here."""
        if memory_id in self._row_of:
            raise ValueError(f"memory_id must be new to the roster, got {memory_id!r}")
        if self._size == len(self._seqs):
            capacity = 2 * len(self._seqs)
            self._seqs = np.resize(self._seqs, capacity)
            self._owners = np.resize(self._owners, capacity)
            self._facets = np.resize(self._facets, capacity)
            self._valid_until = np.resize(self._valid_until, capacity)
        row = self._size
        self._seqs[row] = seq
        self._owners[row] = self._owner_numbers.setdefault(owner, len(self._owner_numbers))
        self._facets[row] = self._number_of_facet(facet)
        self._valid_until[row] = FOR_EVER_NS if valid_until is None else valid_until
        self._ids.append(memory_id)
        self._row_of[memory_id] = row
        self._size += 1
        return row

    def drop(self, memory_id: str) -> int | None:
        """Make a hole of a memory's row; returns its number, None if the memory is not here."""
        row = self._row_of.pop(memory_id, None)
        if row is not None:
            self._ids[row] = ""
            self._owners[row] = -1
            self._valid_until[row] = 0
        return row

    def select(self, wanted: RowFilter) -> NDArray[np.bool_]:
        """For each row number whether a search may return it; never a hole."""
        owners = self._owners[: self._size]
        mask = np.zeros(self._size, dtype=np.bool_)
        for number in self._numbers_of(wanted):
            mask |= owners == number
        mask &= self._valid_until[: self._size] > wanted.now_ns
        if wanted.types or wanted.tags:
            mask &= self._facets_allowed(wanted)[self._facets[: self._size]]
        return mask

    def keep_allowed(self, rows: NDArray[np.int64], wanted: RowFilter) -> NDArray[np.int64]:
        """Those of some rows that a search may return, in their order; the rest is not looked at."""
        owners, mask = self._owners[rows], np.zeros(len(rows), dtype=np.bool_)
        for number in self._numbers_of(wanted):
            mask |= owners == number
        mask &= self._valid_until[rows] > wanted.now_ns
        if wanted.types or wanted.tags:
            mask &= self._facets_allowed(wanted)[self._facets[rows]]
        return rows[mask]

    def rows_of_seqs(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows with those `seq`s, in their order; a `seq` that no row has is left out.

        Rows must have been put in the order of their `seq`.
        """
        places = np.searchsorted(self.seqs, seqs)
        is_known = places < self._size
        is_known[is_known] = self.seqs[places[is_known]] == seqs[is_known]
        rows = places[is_known].astype(np.int64)
        return rows[self._owners[rows] >= 0]

    @property
    def is_sparse(self) -> bool:
        """Whether more than a quarter are holes, so that `compact` is worth it."""
        return self._size - len(self) > max(_FIRST_CAPACITY, self._size // 4)

    def compact(self) -> NDArray[np.int64]:
        """Close the holes; returns the old number of each row, in the new order."""
        kept, state = self.rows(), self.as_state()
        self.__init__()
        self.extend(state)
        return kept

    def as_state(self) -> "RosterState":
        """Everything but the holes."""
        rows = self.rows()
        owners, owner_places = np.unique(self._owners[rows], return_inverse=True)
        facets, facet_places = np.unique(self._facets[rows], return_inverse=True)
        # Numbers are handed out in order, so a dict's n-th key is number n.
        all_owners, all_facets = list(self._owner_numbers), list(self._facet_numbers)
        return RosterState(
            list(self._row_of),
            self._seqs[rows],
            [all_owners[number] for number in owners],
            owner_places.astype(np.int32),
            [all_facets[number] for number in facets],
            facet_places.astype(np.int32),
            self._valid_until[rows],
        )

    def extend(self, state: "RosterState") -> None:
        """Append what `as_state` returned; none of its memories may be here."""
        owners: list[int] = state.owner_places.tolist()
        facets: list[int] = state.facet_places.tolist()
        columns = zip(state.ids, state.seqs.tolist(), owners, facets, state.valid_until.tolist(), strict=True)
        for memory_id, seq, owner, facet, valid_until in columns:
            self.put(memory_id, seq, state.owners[owner], state.facets[facet], valid_until)

    def _numbers_of(self, wanted: RowFilter) -> list[int]:
        owners = visible_owners(wanted.viewer, wanted.include_archived)
        return [self._owner_numbers[owner] for owner in owners if owner in self._owner_numbers]

    def _facets_allowed(self, wanted: RowFilter) -> NDArray[np.bool_]:
        """For each facet number whether it passes."""
        allowed: set[int] | None = None
        if wanted.types:
            of_types = (self._facets_with.get(f"type={kind.value}", set[int]()) for kind in wanted.types)
            allowed = set[int]().union(*of_types)
        for tag in wanted.tags:
            tagged = self._facets_with.get(f"tag={tag}", set[int]())
            allowed = tagged if allowed is None else allowed & tagged
        mask = np.zeros(len(self._facet_numbers), dtype=np.bool_)
        mask[list(allowed or ())] = True
        return mask

    def _number_of_facet(self, facet: Facet) -> int:
        number = self._facet_numbers.get(facet)
        if number is None:
            number = self._facet_numbers[facet] = len(self._facet_numbers)
            for label in (f"type={facet.type.value}", *(f"tag={tag}" for tag in facet.tags)):
                self._facets_with.setdefault(label, set()).add(number)
        return number
