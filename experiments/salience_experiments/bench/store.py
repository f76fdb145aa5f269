"""The store: how many declares a second several processes make durable together."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

import salience_memory
from salience_experiments.bench import rate_writer
from salience_experiments.bench.measure import Bar, build_table
from salience_memory import MemoryStore

__all__ = ["DeclareRate", "measure_rates", "rates_table", "store_bars"]

PROCESSES = 4
_GROUPS = (64, 1)
"""Declares to a commit: many, as when a document is read in, and one, as when a user says something."""

_SINGLE_SHARE = 8
"""Single commits are slower, so fewer are measured."""


@dataclass(frozen=True)
class DeclareRate:
    """Declares of four processes on one file, vectors given."""

    group: int
    synchronous: str
    """`full`: outlasts a power cut; `normal`: outlasts the death of the process."""
    declares: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.declares / self.seconds


def measure_rates(folder: Path, declares: int, say: Callable[[str], None]) -> list[DeclareRate]:
    """Time each way of committing on a file of its own; each process makes `declares` of them in groups.

    Raises:
        RuntimeError: A writer failed, or the file does not hold what was declared.
    """
    rates: list[DeclareRate] = []
    for group in _GROUPS:
        for synchronous in ("normal", "full"):
            say(f"{PROCESSES} processes, {group} to a commit, synchronous={synchronous.upper()}")
            count = declares if group > 1 else max(1, declares // _SINGLE_SHARE)
            path = folder / f"rate-{group}-{synchronous}.db"
            seconds = _time_writers(path, count, group, synchronous)
            with MemoryStore(path) as store:
                if (found := store.count()) != count * PROCESSES:
                    raise RuntimeError(f"the store must hold {count * PROCESSES} memories, got {found}")
            rates.append(DeclareRate(group, synchronous, count * PROCESSES, seconds))
    return rates


def store_bars(rates: list[DeclareRate]) -> list[Bar]:
    """The group commit of the store's default durability."""
    (grouped,) = [rate for rate in rates if rate.group > 1 and rate.synchronous == "full"]
    name = f"declares/s from {PROCESSES} processes, {grouped.group} to a commit, synchronous=FULL"
    return [Bar(name, grouped.per_second, 1_800, is_floor=True)]


def rates_table(rates: Sequence[DeclareRate]) -> Table:
    """Declares a second by how they are committed."""
    rows = [
        (str(rate.group), rate.synchronous.upper(), str(rate.declares), f"{rate.per_second:,.0f}")
        for rate in rates
    ]
    return build_table((), ("declares to a commit", "synchronous", "declares", "declares/s"), rows)


def _time_writers(path: Path, count: int, group: int, synchronous: str) -> float:
    MemoryStore(path).close()
    environment = {**os.environ, "PYTHONPATH": str(Path(salience_memory.__file__).parents[1])}
    writers = [
        subprocess.Popen(
            [
                sys.executable,
                rate_writer.__file__,
                path,
                f"user-{number}",
                str(count),
                str(group),
                synchronous,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(PROCESSES)
    ]
    try:
        for writer in writers:
            _expect(writer, "ready")
        started = time.perf_counter()
        for writer in writers:
            assert writer.stdin is not None
            print("go", file=writer.stdin, flush=True)
        for writer in writers:
            _expect(writer, "done")
        return time.perf_counter() - started
    finally:
        for writer in writers:
            writer.kill()  # of one that has ended, nothing
            writer.communicate()


def _expect(writer: subprocess.Popen[str], word: str) -> None:
    assert writer.stdout is not None
    if (line := writer.stdout.readline().strip()) != word:
        raise RuntimeError(f"a writer must say {word!r}, got {line!r}; its error stands above")
