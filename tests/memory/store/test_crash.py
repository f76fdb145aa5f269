"""Writers are killed at random points; the reopened store is held against what they said they had written.

This file is also the writer. Run as a script it needs the memory room alone, no torch; it reads a line of
JSON a round, `{"path", "owners"}`, and forks a writer for each owner, so that only the first round pays for
the imports:

    pid <owner> <process id>        the writer lives
    ack <owner> <step>              the write of that step returned
    dead                            all writers of the round are gone

What a writer does at a step follows from seed, owner and step alone: whoever watches can tell what must be in
the store.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import salience_memory
from salience_memory import Memory, MemoryRecall, MemoryStore, MemoryType, Scope, Viewer

SEED = 3
OWNERS = ("ann", "bob")
"""Two writers at a time, each of rows of its own."""

MAX_STEPS = 12
MAX_DELAY_S = 0.004
"""After a random step was acknowledged the kill comes this much later at most: within the next steps."""

FINGERPRINT = "fixed/8/l2/0"


def test_nothing_acknowledged_is_lost_and_nothing_is_half_written_when_writers_are_killed(tmp_path, scale):
    rng, path = random.Random(SEED), tmp_path / "memories.db"
    expected = {owner: ExpectedRows(owner) for owner in OWNERS}
    n_acknowledged = 0
    with writer_process() as process:
        for _ in range(10 * scale):
            acknowledged = run_round(process, path, expected, rng)
            with MemoryStore(path) as store:
                for owner, rows in expected.items():
                    n_acknowledged += acknowledged[owner]
                    for _ in range(acknowledged[owner]):
                        rows.advance()
                    found = read_rows(store, owner)
                    # What was complete in the file before the writer could say so may be there, whole.
                    if found != rows.rows:
                        rows.advance()
                    assert found == rows.rows, f"{owner} at step {rows.step}"
                assert [fault for fault in store.find_faults() if fault.kind != "alike_weights"] == []
                # The folder stays, so that each round catches up from what the round before left.
                with MemoryRecall(store, fingerprint=FINGERPRINT, folder=tmp_path / "index") as recall:
                    recall.sync()
                    assert not any(projection.find_differences(store) for projection in recall.projections)
    assert n_acknowledged > 20 * scale


def embed_fixed(content):
    """A vector [8] that depends on the content alone."""
    return np.random.default_rng(zlib.crc32(content.encode())).standard_normal(8).astype(np.float32)


@dataclass
class ExpectedRows:
    """What one writer's rows must be after each step, by id: content, version, whether there is a vector."""

    owner: str
    step: int = 0
    rows: dict[str, tuple[str, int, bool]] = field(default_factory=dict)

    def plan(self):
        """The writes of the next step, one transaction: (kind, memory id, content).

        `replace` supersedes by key, `doubt` changes trust alone.
        """
        rng = random.Random(f"{SEED}/{self.owner}/{self.step}")
        name = f"{self.owner}-{self.step}"
        live = sorted(memory_id for memory_id in self.rows if "-slot" not in memory_id)
        kinds = ["declare", "replace", "update", "doubt", "forget", "mixed"]
        [kind] = rng.choices(kinds, [4, 2, 2, 1, 1, 2])
        text = f"{name} says {'so ' * rng.randint(1, 300)}"
        if kind == "replace":
            return [(kind, f"{self.owner}-slot{rng.randrange(4)}", text)]
        if kind == "mixed" and len(live) > 3:
            first, second = rng.sample(live, 2)
            more = [("declare", f"{name}-{number}", f"{text}{number}") for number in range(5)]
            return [("update", first, text), ("forget", second, ""), *more]
        if kind in ("update", "doubt", "forget") and live:
            return [(kind, rng.choice(live), text)]
        return [("declare", f"{name}-{number}", f"{text}{number}") for number in range(rng.randint(1, 8))]

    def advance(self):
        """Take the next step as done."""
        for kind, memory_id, text in self.plan():
            content, version, has_vector = self.rows.get(memory_id, ("", 0, False))
            if kind == "forget":
                del self.rows[memory_id]
            elif kind == "doubt":
                self.rows[memory_id] = (content, version + 1, has_vector)
            else:
                self.rows[memory_id] = (text, version + 1, kind != "update")
        self.step += 1


def read_rows(store, owner):
    """The store's rows of one writer, in the form of `ExpectedRows.rows`."""
    vectors = {
        memory_id: vector
        for batch in store.iter_vectors(FINGERPRINT)
        for memory_id, vector in zip(batch.memory_ids, batch.vectors, strict=True)
    }
    rows = {}
    for row in store.iter_rows():
        if row.user_id == owner:
            vector = vectors.get(row.memory_id)
            is_right = vector is None or np.array_equal(vector, embed_fixed(row.content))
            content = row.content if is_right else "another content's vector"
            rows[row.memory_id] = (content, row.version, vector is not None)
    return rows


@contextmanager
def writer_process():
    environment = {**os.environ, "PYTHONPATH": str(Path(salience_memory.__file__).parents[1])}
    command = [sys.executable, __file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.stdin.close()


def run_round(process, path, expected, rng):
    """Let the writers write, kill each at its moment; returns how many steps each had acknowledged."""
    owners = {owner: rows.step for owner, rows in expected.items()}
    print(json.dumps({"path": str(path), "owners": owners}), file=process.stdin, flush=True)
    alive, acknowledged = {}, dict.fromkeys(OWNERS, 0)
    doomed_after = {owner: rng.randint(0, MAX_STEPS) for owner in OWNERS}
    try:
        for line in process.stdout:
            word, *rest = line.split()
            if word == "dead":
                break
            owner = rest[0]
            if word == "pid":
                alive[owner] = int(rest[1])
            else:
                acknowledged[owner] += 1
            if owner in alive and acknowledged[owner] >= doomed_after[owner]:
                time.sleep(rng.random() * MAX_DELAY_S)
                os.kill(alive.pop(owner), signal.SIGKILL)
        assert not alive, "a writer ended before it was killed; its error stands above"
        assert process.poll() is None, "the writers' process ended; its error stands above"
    finally:
        for left in alive.values():
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    return acknowledged


def write_for_ever(path, expected):
    with MemoryStore(path) as store:
        viewer = Viewer(user_id=expected.owner)
        while True:
            writes, step = expected.plan(), expected.step
            with store.transaction() if len(writes) > 1 else nullcontext():
                for kind, memory_id, text in writes:
                    if kind == "forget":
                        store.forget(memory_id, viewer)
                    elif kind == "update":
                        store.update(memory_id, viewer, changes={"content": text}, reason="edit")
                    elif kind == "doubt":
                        store.update(memory_id, viewer, changes={"trust": step % 997 / 1_000}, reason="doubt")
                    else:
                        is_constraint = kind == "declare" and step % 3 == 0
                        memory = Memory(
                            content=text,
                            memory_id=memory_id,
                            type=MemoryType.CONSTRAINT if is_constraint else MemoryType.SEMANTIC,
                            scope=Scope.USER,
                            user_id=expected.owner,
                            key=memory_id if kind == "replace" else None,
                        )
                        store.declare(
                            [memory],
                            vectors=embed_fixed(text)[None],
                            fingerprint=FINGERPRINT,
                            supersede=kind == "replace",
                        )
            os.write(1, f"ack {expected.owner} {step}\n".encode())
            expected.advance()


def main():
    """Fork writers, round by round, and wait until each is killed."""
    for line in sys.stdin:
        given = json.loads(line)
        children = []
        for owner, start in given["owners"].items():
            expected = ExpectedRows(owner)
            while expected.step < start:
                expected.advance()
            child = os.fork()
            if child == 0:
                try:
                    write_for_ever(Path(given["path"]), expected)
                finally:
                    os._exit(1)  # an exception was printed; never back into the parent's loop
            children.append(child)
            os.write(1, f"pid {owner} {child}\n".encode())
        for child in children:
            os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
