"""Random operations in random scopes beside a plain model of what may be recalled.

`RecallWitness` does to a store what it is told and remembers it in a dict. Every recall is held against
that: nothing outside its scope, past its validity, archived, changed or deleted is returned, and no row
that shares a word with the query and may be shown is left out. Tests drive it by hypothesis, `salience
bench recall --property-recalls` by chance.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from salience_memory import Memory, MemoryState, MemoryStore, MemoryType, Scope, Viewer, tokenize
from salience_memory.memory_recall import MemoryRecall

__all__ = [
    "OWNERS",
    "TAGS",
    "TYPES",
    "VIEWERS",
    "WORDS",
    "RecallWitness",
    "act_at_random",
    "check_recalls",
    "embed_words",
]

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

_DIMENSION = 8
_SHOWN = 200
"""More than there ever are, so that everything that is about a query must come."""
_MAX_ROWS = 40
_RECALLS_EACH = 40
_SECOND_NS = 10**9


def embed_words(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors made of the texts' tokens: cheap, and the same in every process."""
    vectors = np.zeros((len(texts), _DIMENSION), dtype=np.float32)
    for row, text in enumerate(texts):
        for token in tokenize(text):
            digest = hashlib.sha256(token.encode()).digest()
            vectors[row, digest[0] % _DIMENSION] += 1.0 if digest[1] % 2 else -1.0
        vectors[row, 0] += 0.25  # so that none is zero
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass(frozen=True)
class _Row:
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
        self.now_ns = 1_800_000_000 * _SECOND_NS
        self.rows: dict[str, _Row] = {}
        self.n_declared = 0
        self.n_recalls = 0
        self.store = MemoryStore(folder / "memories.db", clock=lambda: self.now_ns)
        self.recall = self._open()

    def _open(self) -> MemoryRecall:
        return MemoryRecall(
            self.store,
            embed=embed_words,
            fingerprint="words/8",
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
        until = None if lifetime_s is None else self.now_ns + lifetime_s * _SECOND_NS
        tags = () if tag is None else (TAGS[tag],)
        row = self.rows[memory_id] = _Row(content, OWNERS[owner], TYPES[kind], tags, until)
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
        vectors = embed_words([content]) if has_vector else None
        self.store.declare([memory], vectors=vectors, fingerprint="words/8" if has_vector else None)

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
        self.now_ns += seconds * _SECOND_NS

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
            query, who, top_k=_SHOWN, types=kinds, tags=tags, include_archived=archived
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


def act_at_random(witness: RecallWitness, draw: Random, recalls_each: int) -> None:
    """One random change, then some recalls."""
    words = draw.choices(WORDS, k=draw.randint(0, 3))
    pick = draw.randrange(1000)
    if len(witness.rows) < _MAX_ROWS and draw.random() < 0.55:
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
    for _ in range(recalls_each):
        asked = draw.choices(WORDS, k=draw.randint(0, 3))
        kind, tag = draw.choice((None, None, 0, 1)), draw.choice((None, None, 0))
        witness.ask(draw.randrange(len(VIEWERS)), asked, draw.random() < 0.2, kind, tag)


def check_recalls(count: int, say: Callable[[str], None], seed: int = 0) -> int:
    """At least `count` recalls among random changes, each checked; returns how many.

    Raises:
        AssertionError: One of them returned what it must not, or left out what it must return.
    """
    draw = Random(seed)
    with TemporaryDirectory() as folder:
        witness = RecallWitness(Path(folder))
        try:
            while witness.n_recalls < count:
                act_at_random(witness, draw, _RECALLS_EACH)
                say(f"{witness.n_recalls:,} of {count:,} recalls among random changes")
            witness.compare()
        finally:
            witness.close()
    return witness.n_recalls
