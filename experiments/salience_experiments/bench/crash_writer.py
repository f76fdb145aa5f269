"""Writes to a store until it is killed, telling each write once it is acknowledged.

Run as a script it needs the memory room alone, no torch. It reads a line of JSON a round, `{"path", "seed",
"start", "owners"}`, and forks a writer for each owner, so that only the first round pays for the imports:

    pid <owner> <process id>        the writer lives
    ack <owner> <step>              the write of that step returned
    dead                            all writers of the round are gone

What a writer does at a step follows from seed, owner and step alone: whoever watches can tell what must be
in the store.
"""

import contextlib
import json
import os
import random
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from salience_memory import Memory, MemoryStore, MemoryType, Scope, Viewer

__all__ = ["FINGERPRINT", "ExpectedRows", "embed_fixed"]

FINGERPRINT = "fixed/8/l2/0"


def embed_fixed(content: str) -> NDArray[np.float32]:
    """A vector [8] that depends on the content alone."""
    return np.random.default_rng(zlib.crc32(content.encode())).standard_normal(8).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Write:
    """One write: `declare`, `replace` (supersede by key), `update`, `doubt` (new trust alone) or `forget`."""

    kind: str
    memory_id: str
    content: str = ""


@dataclass
class ExpectedRows:
    """What one writer's rows must be after each step, by id: content, version, whether there is a vector."""

    seed: int
    owner: str
    step: int = 0
    rows: dict[str, tuple[str, int, bool]] = field(default_factory=dict)

    def plan(self) -> list[_Write]:
        """The writes of the next step, which are one transaction."""
        rng = random.Random(f"{self.seed}/{self.owner}/{self.step}")
        name = f"{self.owner}-{self.step}"
        live = sorted(memory_id for memory_id in self.rows if "-slot" not in memory_id)
        kind = rng.choices(["declare", "replace", "update", "doubt", "forget", "mixed"], [4, 2, 2, 1, 1, 2])[
            0
        ]
        text = f"{name} says {'so ' * rng.randint(1, 300)}"
        if kind == "replace":
            return [_Write(kind, f"{self.owner}-slot{rng.randrange(4)}", text)]
        if kind == "mixed" and len(live) > 3:
            first, second = rng.sample(live, 2)
            more = [_Write("declare", f"{name}-{number}", f"{text}{number}") for number in range(5)]
            return [_Write("update", first, text), _Write("forget", second), *more]
        if kind in ("update", "doubt", "forget") and live:
            return [_Write(kind, rng.choice(live), text)]
        count = rng.randint(1, 8)
        return [_Write("declare", f"{name}-{number}", f"{text}{number}") for number in range(count)]

    def advance(self) -> None:
        """Take the next step as done."""
        for write in self.plan():
            content, version, has_vector = self.rows.get(write.memory_id, ("", 0, False))
            if write.kind == "forget":
                del self.rows[write.memory_id]
            elif write.kind == "doubt":
                self.rows[write.memory_id] = (content, version + 1, has_vector)
            else:
                is_embedded = write.kind != "update"
                self.rows[write.memory_id] = (write.content, version + 1, is_embedded)
        self.step += 1


def _perform(store: MemoryStore, owner: str, step: int, write: _Write) -> None:
    viewer = Viewer(user_id=owner)
    if write.kind == "forget":
        store.forget(write.memory_id, viewer)
    elif write.kind == "update":
        store.update(write.memory_id, viewer, changes={"content": write.content}, reason="edit")
    elif write.kind == "doubt":
        store.update(write.memory_id, viewer, changes={"trust": step % 997 / 1_000}, reason="doubt")
    else:
        is_constraint = write.kind == "declare" and step % 3 == 0
        memory = Memory(
            content=write.content,
            memory_id=write.memory_id,
            type=MemoryType.CONSTRAINT if is_constraint else MemoryType.SEMANTIC,
            scope=Scope.USER,
            user_id=owner,
            key=write.memory_id if write.kind == "replace" else None,
        )
        vectors = embed_fixed(write.content)[None]
        store.declare([memory], vectors=vectors, fingerprint=FINGERPRINT, supersede=write.kind == "replace")


def _write_for_ever(path: Path, expected: ExpectedRows) -> None:
    with MemoryStore(path) as store:
        while True:
            writes = expected.plan()
            with store.transaction() if len(writes) > 1 else contextlib.nullcontext():
                for write in writes:
                    _perform(store, expected.owner, expected.step, write)
            os.write(1, f"ack {expected.owner} {expected.step}\n".encode())
            expected.advance()


def main() -> None:
    """Fork writers, round by round, and wait until each is killed."""
    for line in sys.stdin:
        given: dict[str, Any] = json.loads(line)
        children: list[int] = []
        for owner, start in given["owners"].items():
            expected = ExpectedRows(given["seed"], owner)
            while expected.step < start:
                expected.advance()
            child = os.fork()
            if child == 0:
                try:
                    _write_for_ever(Path(given["path"]), expected)
                finally:
                    os._exit(1)  # an exception was printed; never back into the parent's loop
            children.append(child)
            os.write(1, f"pid {owner} {child}\n".encode())
        for child in children:
            os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
