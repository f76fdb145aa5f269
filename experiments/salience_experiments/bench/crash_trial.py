"""Kill writers at random points, reopen the store, and compare it with what they said they had written."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import salience_memory
from salience_experiments.bench import crash_writer
from salience_experiments.bench.crash_writer import FINGERPRINT, ExpectedRows, embed_fixed
from salience_memory import MemoryStore

__all__ = ["CrashReport", "run_crash_trial"]

OWNERS = ("ann", "bob")
"""Two writers at a time, each of rows of its own."""

_MAX_STEPS = 12
_MAX_DELAY_S = 0.004
"""After a random step was acknowledged the kill comes this much later at most: within the next steps."""

CheckStore = Callable[[MemoryStore], list[str]]
"""What else must hold of the reopened store; returns what does not."""


@dataclass
class CrashReport:
    """What a trial found. `faults` names every row that is not as acknowledged."""

    kills: int = 0
    acknowledged: int = 0
    unacknowledged_found: int = 0
    """Writes that were complete in the file though the writer died before it could say so."""
    faults: list[str] = field(default_factory=list)


def run_crash_trial(path: Path, *, kills: int, seed: int = 0, check: CheckStore | None = None) -> CrashReport:
    """Kill writers with SIGKILL `kills` times, and look at the store after every round of two.

    Args:
        path: The store's file; it grows from round to round.
        kills: How many writers are killed.
        seed: Of what they write and when they are killed.
        check: Asked of each reopened store as well, such as whether indexes equal rows.
    """
    report = CrashReport()
    rng = random.Random(seed)
    expected = {owner: ExpectedRows(seed, owner) for owner in OWNERS}
    with _writer_process() as process:
        # After a fault nobody knows what the next round should find.
        while report.kills < kills and not report.faults:
            acknowledged = _run_round(process, path, expected, rng, seed)
            report.kills += len(OWNERS)
            with MemoryStore(path) as store:
                for owner, steps in acknowledged.items():
                    report.acknowledged += steps
                    for _ in range(steps):
                        expected[owner].advance()
                    _compare(store, expected[owner], report)
                report.faults += [
                    finding.message for finding in store.find_faults() if finding.kind != "alike_weights"
                ]
                report.faults += check(store) if check is not None else []
    return report


@contextmanager
def _writer_process() -> Iterator[subprocess.Popen[str]]:
    room = Path(salience_memory.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(room)}
    with subprocess.Popen(
        [sys.executable, crash_writer.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _run_round(
    process: subprocess.Popen[str],
    path: Path,
    expected: dict[str, ExpectedRows],
    rng: random.Random,
    seed: int,
) -> dict[str, int]:
    """Let the writers write, kill each at its moment; returns how many steps each had acknowledged."""
    assert process.stdin is not None
    assert process.stdout is not None
    starts = {owner: rows.step for owner, rows in expected.items()}
    print(json.dumps({"path": str(path), "seed": seed, "owners": starts}), file=process.stdin, flush=True)
    alive: dict[str, int] = {}
    acknowledged: dict[str, int] = dict.fromkeys(OWNERS, 0)
    doomed_after = {owner: rng.randint(0, _MAX_STEPS) for owner in OWNERS}
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
                time.sleep(rng.random() * _MAX_DELAY_S)
                os.kill(alive[owner], signal.SIGKILL)
                del alive[owner]
        if alive or process.poll() is not None:
            raise ProcessLookupError
    except ProcessLookupError as error:
        raise RuntimeError("a writer ended before it was killed; its error stands above") from error
    finally:
        for left in alive.values():
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    return acknowledged


def _compare(store: MemoryStore, expected: ExpectedRows, report: CrashReport) -> None:
    """The rows must be those of the last acknowledged step, or of the one after it, whole."""
    found = _rows(store, expected.owner)
    if found != expected.rows:
        last = dict(expected.rows)
        expected.advance()
        if found != expected.rows:
            wrong = {key for key in last.keys() | found.keys() if last.get(key) != found.get(key)}
            report.faults.append(f"{expected.owner} after step {expected.step - 2}: {sorted(wrong)[:5]}")
        else:
            report.unacknowledged_found += 1


def _rows(store: MemoryStore, owner: str) -> dict[str, tuple[str, int, bool]]:
    vectors = {
        memory_id: vector
        for batch in store.iter_vectors(FINGERPRINT)
        for memory_id, vector in zip(batch.memory_ids, batch.vectors, strict=True)
    }
    rows: dict[str, tuple[str, int, bool]] = {}
    for row in store.iter_rows():
        if row.user_id == owner:
            vector = vectors.get(row.memory_id)
            is_right = vector is not None and np.array_equal(vector, embed_fixed(row.content))
            content = row.content if vector is None or is_right else "another content's vector"
            rows[row.memory_id] = (content, row.version, vector is not None)
    return rows
