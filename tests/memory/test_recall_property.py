"""No record outside its scope, past its validity, archived or deleted is recalled, whatever was done.

`RecallWitness` does to a store what it is told and remembers it in a dict, a plain model of what may be
recalled. Every recall is held against that: nothing that must not be shown is returned, and no row is left
out that may be shown and shares a word with the query. Hypothesis drives it, and chance.
"""

import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from salience_memory import (
    Memory,
    MemoryRecall,
    MemoryState,
    MemoryStore,
    MemoryType,
    Scope,
    Viewer,
    tokenize,
)

OWNERS: tuple[tuple[Scope, str | None, str | None], ...] = (
    (Scope.GLOBAL, None, None),
    (Scope.USER, "ann", None),
    (Scope.USER, "ben", None),
    (Scope.SESSION, None, "s1"),
    (Scope.SESSION, None, "s2"),
    (Scope.SESSION, "ann", "s1"),
    (Scope.SESSION, "ben", "s1"),
)
VIEWERS = tuple(
    Viewer(user_id=user, session_id=session)
    for user in (None, "ann", "ben")
    for session in (None, "s1", "s2")
)
WORDS = ("river", "violin", "invoice", "退款", "政策", "v1.2-rc", "NEAR(", '"', "*")
TYPES = (MemoryType.CONTEXT, MemoryType.CONSTRAINT, MemoryType.SEMANTIC)
TAGS = ("topic:a", "topic:b")

SHOWN = 200
"""More than there ever are, so that everything that is about a query must come."""
MAX_ROWS = 40
RECALLS_EACH = 10
SECOND_NS = 10**9


def embed(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors [record, 8] by chance, the same for the same text."""
    draws = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(8) for text in texts]
    vectors = np.array(draws, dtype=np.float32).reshape(-1, 8)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass(frozen=True)
class Row:
    content: str
    owner: tuple[Scope, str | None, str | None]
    type: MemoryType
    tags: tuple[str, ...]
    valid_until: int | None
    is_archived: bool = False

    @property
    def viewer(self) -> Viewer:
        return Viewer(user_id=self.owner[1], session_id=self.owner[2])


class RecallWitness:
    """A store, its recall, and what both should know. Ids are `m0`, `m1`, … in the order of declaration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ns = 1_800_000_000 * SECOND_NS
        self.rows: dict[str, Row] = {}
        self.n_declared = 0
        self.n_recalls = 0
        self.store = MemoryStore(folder / "memories.db", clock=lambda: self.now_ns)
        self.recall = self._open()

    def _open(self) -> MemoryRecall:
        return MemoryRecall(
            self.store,
            embed=embed,
            fingerprint="chance/8",
            folder=self.folder / "index",
            clock=lambda: self.now_ns,
        )

    def declare(
        self,
        owner: int,
        words: Sequence[str],
        kind: int,
        tag: int | None,
        lifetime_s: int | None,
        has_vector: bool,
    ) -> None:
        memory_id, content = f"m{self.n_declared}", " ".join((f"row{self.n_declared}", *words))
        self.n_declared += 1
        until = None if lifetime_s is None else self.now_ns + lifetime_s * SECOND_NS
        tags = () if tag is None else (TAGS[tag],)
        row = self.rows[memory_id] = Row(content, OWNERS[owner], TYPES[kind], tags, until)
        scope, user, session = row.owner
        memory = Memory(
            memory_id=memory_id,
            content=content,
            type=row.type,
            scope=scope,
            user_id=user,
            session_id=session,
            tags=tags,
            valid_until=until,
        )
        vectors = embed([content]) if has_vector else None
        self.store.declare([memory], vectors=vectors, fingerprint="chance/8" if has_vector else None)

    def update(self, pick: int, words: Sequence[str]) -> None:
        if memory_id := self._pick(pick):
            row = self.rows[memory_id]
            content = " ".join((f"new{memory_id}", *words))
            self.store.update(memory_id, row.viewer, reason="changed", changes={"content": content})
            self.rows[memory_id] = replace(row, content=content)

    def archive(self, pick: int, is_archived: bool) -> None:
        if memory_id := self._pick(pick):
            row = self.rows[memory_id]
            (self.store.archive if is_archived else self.store.unarchive)(memory_id, row.viewer)
            self.rows[memory_id] = replace(row, is_archived=is_archived)

    def forget(self, pick: int) -> None:
        if memory_id := self._pick(pick):
            self.store.forget(memory_id, self.rows.pop(memory_id).viewer)

    def forget_user(self, user: str) -> None:
        self.store.forget_all(Viewer(user_id=user), scope=Scope.USER)
        self.rows = {key: row for key, row in self.rows.items() if row.owner != (Scope.USER, user, None)}

    def end_session(self, session: str) -> None:
        self.store.end_session(session)
        self.rows = {
            key: row for key, row in self.rows.items() if row.owner != (Scope.SESSION, None, session)
        }

    def advance(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS

    def sync(self) -> None:
        self.recall.sync()

    def reopen(self, torn_bytes: int | None = None) -> None:
        """Close and open the recall, its vector file cut to some bytes meanwhile if asked."""
        self.recall.close()
        path = self.folder / "index" / "vectors.bin"
        if torn_bytes is not None and path.exists():
            path.write_bytes(path.read_bytes()[:torn_bytes])
        self.recall = self._open()

    def ask(
        self, viewer: int, words: Sequence[str], archived: bool, kind: int | None, tag: int | None
    ) -> None:
        """Recall, and raise AssertionError for anything that should not be there, or should."""
        query, who = " ".join(words), VIEWERS[viewer]
        kinds = () if kind is None else (TYPES[kind],)
        tags = () if tag is None else (TAGS[tag],)
        found = self.recall.recall(
            query, who, top_k=SHOWN, types=kinds, tags=tags, include_archived=archived
        )
        self.n_recalls += 1
        ids = [result.memory.memory_id for result in found]
        assert len(set(ids)) == len(ids), f"a memory was recalled twice: {ids}"
        assert not found or query.strip(), "a blank query recalled something"
        allowed = {
            memory_id: row
            for memory_id, row in self.rows.items()
            if who.can_see(*row.owner)
            and (row.valid_until is None or row.valid_until > self.now_ns)
            and (archived or not row.is_archived)
            and (not kinds or row.type in kinds)
            and set(tags) <= set(row.tags)
        }
        for result in found:
            memory = result.memory
            assert memory.memory_id in allowed, (
                f"{memory.memory_id} must not be recalled for {who}: {query!r}"
            )
            assert memory.content == allowed[memory.memory_id].content, f"{memory.memory_id} is outdated"
            assert (memory.state is MemoryState.ARCHIVED) == allowed[memory.memory_id].is_archived
        scores = [result.score for result in found]
        assert scores == sorted(scores, reverse=True), "memories came out of order"
        asked = set(tokenize(query))
        missed = {key for key, row in allowed.items() if asked & set(tokenize(row.content))} - set(ids)
        assert not missed, f"{sorted(missed)} must be recalled for {who}: {query!r}"

    def compare(self) -> None:
        """Hold the indexes against the rows."""
        self.recall.sync()
        for projection in self.recall.projections:
            differing = projection.find_differences(self.store)
            assert not differing, f"{type(projection).__name__} differs from the rows in {differing}"
            assert projection.applied_seq == self.store.latest_seq()

    def close(self) -> None:
        self.recall.close()
        self.store.close()

    def _pick(self, number: int) -> str | None:
        return list(self.rows)[number % len(self.rows)] if self.rows else None


def act_at_random(witness: RecallWitness, draw: Random) -> None:
    """One random change, then some recalls."""
    words = draw.choices(WORDS, k=draw.randint(0, 3))
    pick = draw.randrange(1000)
    if len(witness.rows) < MAX_ROWS and draw.random() < 0.55:
        lifetime_s = draw.choice((None, None, 1, 30))
        owner, kind = draw.randrange(len(OWNERS)), draw.randrange(len(TYPES))
        witness.declare(owner, words, kind, draw.choice((None, 0, 1)), lifetime_s, draw.random() < 0.5)
    else:
        change = draw.randrange(10)
        if change < 2:
            witness.update(pick, words)
        elif change < 4:
            witness.archive(pick, draw.random() < 0.6)
        elif change < 6:
            witness.forget(pick)
        elif change == 6:
            witness.advance(draw.choice((1, 10, 60)))
        elif change == 7:
            witness.sync()
        elif change == 8:
            witness.end_session(draw.choice(("s1", "s2")))
        else:
            witness.forget_user(draw.choice(("ann", "ben")))
    for _ in range(RECALLS_EACH):
        asked = draw.choices(WORDS, k=draw.randint(0, 3))
        kind, tag = draw.choice((None, None, 0, 1)), draw.choice((None, None, 0))
        witness.ask(draw.randrange(len(VIEWERS)), asked, draw.random() < 0.2, kind, tag)


WORD_LISTS = st.lists(st.sampled_from(WORDS), max_size=3)
KINDS, TAG_NUMBERS = (st.none() | st.integers(0, len(options) - 1) for options in (TYPES, TAGS))
PICKS = st.integers(0, 99)


class RecallMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.witness = RecallWitness(Path(self.folder.name))

    @rule(
        owner=st.integers(0, len(OWNERS) - 1),
        words=WORD_LISTS,
        kind=st.integers(0, len(TYPES) - 1),
        tag=TAG_NUMBERS,
        lifetime_s=st.none() | st.integers(1, 60),
        has_vector=st.booleans(),
    )
    def declare(self, owner, words, kind, tag, lifetime_s, has_vector):
        self.witness.declare(owner, words, kind, tag, lifetime_s, has_vector)

    @rule(pick=PICKS, words=WORD_LISTS)
    def update(self, pick, words):
        self.witness.update(pick, words)

    @rule(pick=PICKS, is_archived=st.booleans())
    def archive(self, pick, is_archived):
        self.witness.archive(pick, is_archived)

    @rule(pick=PICKS)
    def forget(self, pick):
        self.witness.forget(pick)

    @rule(user=st.sampled_from(("ann", "ben")))
    def forget_user(self, user):
        self.witness.forget_user(user)

    @rule(session=st.sampled_from(("s1", "s2")))
    def end_session(self, session):
        self.witness.end_session(session)

    @rule(seconds=st.integers(1, 60))
    def advance(self, seconds):
        self.witness.advance(seconds)

    @rule()
    def sync(self):
        self.witness.sync()

    @rule(torn_bytes=st.none() | st.integers(0, 2000))
    def reopen(self, torn_bytes):
        self.witness.reopen(torn_bytes)

    @rule(
        viewer=st.integers(0, len(VIEWERS) - 1),
        words=WORD_LISTS,
        archived=st.booleans(),
        kind=KINDS,
        tag=TAG_NUMBERS,
    )
    def ask(self, viewer, words, archived, kind, tag):
        self.witness.ask(viewer, words, archived, kind, tag)

    @invariant()
    def everybody_finds_their_own_only(self):
        for viewer in range(len(VIEWERS)):
            self.witness.ask(viewer, ("river", "退款"), False, None, None)

    def teardown(self):
        self.witness.compare()
        self.witness.close()
        self.folder.cleanup()


RecallMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestRecall = RecallMachine.TestCase


def test_recalls_among_random_changes_return_what_they_may_and_all_of_it(tmp_path, scale):
    draw, witness = Random(0), RecallWitness(tmp_path)
    while witness.n_recalls < 1_500 * scale:
        act_at_random(witness, draw)
    witness.compare()
    witness.close()
