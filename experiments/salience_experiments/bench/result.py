"""What a benchmark found: rows, bars, and how both are shown and kept."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from salience_experiments.bench.measure import Timing
from salience_experiments.durable_files import write_atomically
from salience_experiments.provenance import describe_commit, describe_device, describe_versions

__all__ = ["Bar", "BenchResult", "Row", "print_bars", "ratio_table", "write_json"]


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
    columns = list(dict.fromkeys(row.case[column] for row in rows))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("time over the peer's")
    for heading in (*(f"{value} {column}" for value in columns), "error", "reference's"):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(row.name for row in rows):
        mine = [row for row in rows if row.name == name]
        ratios = {row.case[column]: f"{row.timing.ratio:.3f}" for row in mine}
        worst = [_worst(row.error for row in mine), _worst(row.reference_error for row in mine)]
        table.add_row(name, *(ratios.get(value, "–") for value in columns), *worst)
    return table


def _worst(errors: Iterable[float | None]) -> str:
    known = [error for error in errors if error is not None]
    return f"{max(known):.1e}" if known else "–"


def print_bars(console: Console, bars: Sequence[Bar]) -> None:
    """One PASS or FAIL line a bar."""
    for bar in bars:
        console.print(str(bar), style="green" if bar.is_met else "bold red", markup=False, soft_wrap=True)
