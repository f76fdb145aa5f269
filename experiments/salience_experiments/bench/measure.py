"""How a bench measures, ours and the peer in turn so that noise hits both; and what it finds."""

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from salience_experiments.durable_files import write_atomically
from salience_experiments.provenance import describe_commit, describe_device, describe_versions

__all__ = [
    "Bar",
    "BenchResult",
    "Row",
    "Timing",
    "alternate",
    "build_table",
    "geometric_mean",
    "measure_peak_bytes",
    "print_bars",
    "ratio_table",
    "seconds_table",
    "time_in_turn",
    "write_json",
]

MIN_SAMPLE_S = 0.01
"""A sample repeats its call until the peer takes about this long: below, clock and caches decide."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Timing:
    """Seconds per call; `ours_s[i]` and `peer_s[i]` were measured one right after the other."""

    ours_s: tuple[float, ...]
    peer_s: tuple[float, ...]

    @property
    def ours_median_s(self) -> float:
        return statistics.median(self.ours_s)

    @property
    def peer_median_s(self) -> float:
        return statistics.median(self.peer_s)

    @property
    def ratio(self) -> float:
        """Median over the neighbouring samples of ours / peer: below 1 is faster than the peer.

        A slow spell of the machine covers both neighbours and cancels; in a ratio of medians it does not.
        """
        return statistics.median(ours / peer for ours, peer in zip(self.ours_s, self.peer_s, strict=True))


def alternate(
    ours: Callable[[], _Result], peer: Callable[[], _Result], repeats: int
) -> tuple[list[_Result], list[_Result]]:
    """What `ours` and `peer` return, called in turn; who goes first changes at every repeat."""
    ours_results: list[_Result] = []
    peer_results: list[_Result] = []
    for repeat in range(repeats):
        turns = [(ours, ours_results), (peer, peer_results)]
        for call, results in turns if repeat % 2 == 0 else reversed(turns):
            results.append(call())
    return ours_results, peer_results


def time_in_turn(
    ours: Callable[[], object], peer: Callable[[], object], repeats: int, min_sample_s: float = MIN_SAMPLE_S
) -> Timing:
    """Time two functions against each other, after one call of each that is not counted."""
    ours()
    peer()
    calls = max(1, math.ceil(min_sample_s / max(_seconds_per_call(peer, 1), 1e-9)))
    ours_s, peer_s = alternate(
        lambda: _seconds_per_call(ours, calls), lambda: _seconds_per_call(peer, calls), repeats
    )
    return Timing(tuple(ours_s), tuple(peer_s))


def _seconds_per_call(call: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios: 2 and 0.5 make 1."""
    if not values:
        raise ValueError("values must hold at least one ratio, got none")
    return math.exp(sum(math.log(value) for value in values) / len(values))


def measure_peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that `call` held at once beyond what was there before, on the CPU.

    Counts every allocation through torch, those inside fused kernels included, and so neither moves with the
    machine's load nor hides under an earlier peak of the process, as its resident size would.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with _silent_profiler(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_bytes())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def _silent_profiler() -> Iterator[None]:
    """The profiler's C++ logger greets on file descriptor 2, whatever Python's stderr is."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@dataclass(frozen=True)
class Row:
    """One thing measured against its peer. `case` says where, such as shape, dtype and keys.

    `error` is the largest absolute difference from the truth, `reference_error` that of the plain
    reference at the same dtype, `allowed_error` what ours may have.
    """

    name: str
    peer: str
    case: dict[str, str | int]
    timing: Timing
    error: float | None = None
    reference_error: float | None = None
    allowed_error: float | None = None

    def as_fields(self) -> dict[str, Any]:
        """Everything, ratio and medians included, as JSON can hold it."""
        timing = self.timing
        medians = {"ours_median_s": timing.ours_median_s, "peer_median_s": timing.peer_median_s}
        return {**asdict(self), "ratio": timing.ratio, **medians}


@dataclass(frozen=True)
class Bar:
    """A limit to reach: `value` at most `limit`, or at least where `is_floor`."""

    name: str
    value: float
    limit: float
    is_floor: bool = False

    @property
    def is_met(self) -> bool:
        """Never for a value that is not a number."""
        return self.value >= self.limit if self.is_floor else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.is_floor else "≤"
        return f"{'PASS' if self.is_met else 'FAIL'}  {self.name}: {self.value:.3g} ({sign} {self.limit:g})"


@dataclass(frozen=True)
class BenchResult:
    """One benchmark's outcome; `facts` are figures that are neither a ratio nor a bar."""

    bench: str
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        return all(bar.is_met for bar in self.bars)


def write_json(path: Path, result: BenchResult) -> None:
    """Write the result with what it depends on: commit, versions, device and threads."""
    commit, dirty = describe_commit()
    fields = {
        "bench": result.bench,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "versions": describe_versions(),
        "device": describe_device(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "settings": result.settings,
        "rows": [row.as_fields() for row in result.rows],
        "facts": result.facts,
        "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in result.bars],
        "has_passed": result.has_passed,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(fields, indent=1).encode() + b"\n")


def ratio_table(title: str, rows: Sequence[Row], column: str) -> Table:
    """Ratios by name (down) and by the case's field `column` (across), with each name's worst error."""
    columns, lines = list(dict.fromkeys(row.case[column] for row in rows)), []
    for name in dict.fromkeys(row.name for row in rows):
        mine = [row for row in rows if row.name == name]
        ratios = {row.case[column]: f"{row.timing.ratio:.3f}" for row in mine}
        errors = [row.error for row in mine if row.error is not None]
        allowed = [row.reference_error for row in mine if row.reference_error is not None]
        worst = (f"{max(known):.1e}" if known else "–" for known in (errors, allowed))
        lines.append((name, *(ratios.get(value, "–") for value in columns), *worst))
    figures = (*(f"{value} {column}" for value in columns), "error", "reference's")
    return build_table(("time over the peer's",), figures, lines, title)


def seconds_table(rows: Sequence[Row]) -> Table:
    """Median seconds of ours and of the peer, and the ratio."""
    lines = [
        (row.name, row.peer, f"{t.ours_median_s:.3g}", f"{t.peer_median_s:.3g}", f"{t.ratio:.3f}")
        for row in rows
        for t in [row.timing]
    ]
    return build_table(("measured", "peer"), ("ours s", "peer s", "ratio"), lines)


def build_table(
    names: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> Table:
    """A table of ready text: the columns `names` stand to the left, the columns `figures` to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in names:
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def print_bars(console: Console, bars: Sequence[Bar]) -> None:
    """One PASS or FAIL line a bar."""
    for bar in bars:
        console.print(str(bar), style="green" if bar.is_met else "bold red", markup=False, soft_wrap=True)
