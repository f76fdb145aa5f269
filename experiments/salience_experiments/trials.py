"""A run's files: `trials.jsonl` (one trial a line, appended and fsynced) and `manifest.json`.

A run directory holds `manifest.json` and `trials.jsonl`, or, for a run split by item,
`manifest.<i>of<n>.json` and `trials.<i>of<n>.jsonl` with i in 1..n. A trial is acknowledged once
`TrialLog.append` returns: from then on a killed process cannot lose it, and reopening the log cannot double
it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from salience_experiments.durable_files import sync_directory, write_all, write_atomically
from salience_experiments.errors import RunLocked, TrialsError

LOG_PATTERN = re.compile(r"^trials(?:\.(\d+)of(\d+))?\.jsonl$")


class TrialKey(NamedTuple):
    """What makes a trial unique within a run."""

    item: str
    position: str
    arm: str


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`; index runs from 1 to count."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"shard index must be in 1..{self.count}, got {self.index}")


class Trial(BaseModel):
    """One item under one arm at one gold position.

    `params` carries `split` (dev or test), `item_index`, `question` (the cluster of the statistics) and
    `weights` (where semantic weights came from), besides the arm's own settings, and `answer_tokens` where
    the answer was drawn. `gold_logprob` is in nats. `value` is a drawn answer's mean log-probability in the
    model's own distribution, in nats per token.
    `wall_s` is an even share of the time of the trial's batch, which holds other arms too: it adds up over a
    run, and says nothing of one arm.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: str = Field(min_length=1)
    position: str = Field(min_length=1)
    arm: str = Field(min_length=1)
    params: dict[str, Any]
    prompt_sha256: str
    prompt_tokens: int = Field(ge=0)
    answer: str | None = None
    metric: FiniteFloat | None = None
    value: FiniteFloat | None = None
    gold_logprob: FiniteFloat | None = None
    receipt: dict[str, Any] | None = None
    impl: str
    wall_s: float = Field(ge=0, allow_inf_nan=False)
    error: str | None = None

    @property
    def key(self) -> TrialKey:
        return TrialKey(self.item, self.position, self.arm)


@dataclass(frozen=True)
class LogContent:
    """The whole lines of one log; `torn_bytes` counts an unfinished last line that was left out."""

    trials: tuple[Trial, ...]
    torn_bytes: int
    whole_bytes: int


def log_path(run_dir: Path, shard: Shard | None = None) -> Path:
    """Where a run, or one shard of it, appends its trials."""
    return run_dir / ("trials.jsonl" if shard is None else f"trials.{shard.index}of{shard.count}.jsonl")


def list_logs(run_dir: Path) -> list[Path]:
    """Every trial log of a run directory, `trials.jsonl` first, then shards in order.

    Raises:
        TrialsError: Shard logs with different shard counts lie side by side.
    """
    found: list[tuple[int, int, Path]] = []
    for path in run_dir.iterdir() if run_dir.is_dir() else ():
        if match := LOG_PATTERN.match(path.name):
            found.append((int(match[2] or 0), int(match[1] or 0), path))
    counts = {count for count, _, _ in found if count}
    if len(counts) > 1:
        raise TrialsError(f"{run_dir} mixes shard counts {sorted(counts)}; merge needs one")
    return [path for _, _, path in sorted(found)]


def read_log(path: Path) -> LogContent:
    """Read one log without changing it.

    A last line without a newline, or that is not JSON, was never acknowledged: it is left out and counted.

    Raises:
        TrialsError: An earlier line is damaged, a line does not have a trial's keys, or a key comes twice.
    """
    data = path.read_bytes()
    lines = data.split(b"\n")
    tail = lines.pop()
    trials: list[Trial] = []
    seen: set[TrialKey] = set()
    torn_bytes = len(tail)
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
        except ValueError as error:
            if number == len(lines) and not tail:
                torn_bytes = len(line) + 1
                break
            raise TrialsError(f"{path}:{number} is not JSON: {error}") from error
        try:
            trial = Trial.model_validate(fields)
        except ValidationError as error:
            raise TrialsError(f"{path}:{number} is not a trial: {error}") from error
        if trial.key in seen:
            raise TrialsError(f"{path}:{number} repeats trial {_describe(trial.key)}")
        seen.add(trial.key)
        trials.append(trial)
    return LogContent(tuple(trials), torn_bytes, len(data) - torn_bytes)


def read_trials(run_dir: Path) -> list[Trial]:
    """The trials of a run, all shards merged, in the order (item_index, item, position, arm) whatever the
    shard.

    Raises:
        TrialsError: No log is there, a log is damaged, or two logs hold the same trial.
    """
    logs = list_logs(run_dir)
    if not logs:
        raise TrialsError(f"{run_dir} holds no trials.jsonl")
    return merge_trials((str(path), read_log(path).trials) for path in logs)


def merge_trials(sources: Iterable[tuple[str, Sequence[Trial]]]) -> list[Trial]:
    """Join named sets of trials into one sorted list, refusing a trial that two of them hold."""
    owner: dict[TrialKey, str] = {}
    merged: list[Trial] = []
    for name, trials in sources:
        for trial in trials:
            if trial.key in owner:
                raise TrialsError(f"{_describe(trial.key)} is in both {owner[trial.key]} and {name}")
            owner[trial.key] = name
            merged.append(trial)

    def rank(trial: Trial) -> tuple[int, str, str, str]:
        index = trial.params.get("item_index")
        return index if isinstance(index, int) else -1, trial.item, trial.position, trial.arm

    return sorted(merged, key=rank)


class TrialLog:
    """The append-only log of one process of a run; a context manager.

    Opening locks the log against a second process, cuts off a torn last line (`torn_bytes` says how much) and
    loads `done`, the keys that any log of the directory already holds. With `retry_failed`, this log's trials
    that carry an error are dropped first (`n_retried`), so that they run again.

    Raises:
        RunLocked: Another process has this log open.
        TrialsError: The log is damaged before its last line.
    """

    def __init__(self, run_dir: Path, shard: Shard | None = None, *, retry_failed: bool = False) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = log_path(run_dir, shard)
        self.torn_bytes = 0
        self.n_retried = 0
        self.done: set[TrialKey] = set()
        self._fd = -1
        self._lock = FileLock(f"{self.path}.lock", thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise RunLocked(
                f"{self.path} is being written by another process; wait for it or stop it"
            ) from error
        try:
            self._recover(run_dir, retry_failed)
        except BaseException:
            self.close()
            raise

    def append(self, trial: Trial) -> None:
        """Write one line and force it to disk; when this returns, the trial survives a kill.

        Raises:
            TrialsError: The key is already logged, the log is closed, or `params`/`receipt` hold what JSON
                cannot.
            OSError: The disk refused; the log is left without the partial line.
        """
        if self._fd < 0:
            raise TrialsError(f"{self.path} is closed")
        if trial.key in self.done:
            raise TrialsError(f"{_describe(trial.key)} is already logged in {self.path.parent}")
        line = encode_line(trial)
        try:
            write_all(self._fd, line)
            os.fsync(self._fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)
        self.done.add(trial.key)

    def close(self) -> None:
        """Close the file and give the lock back; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _recover(self, run_dir: Path, retry_failed: bool) -> None:
        content = read_log(self.path) if self.path.exists() else LogContent((), 0, 0)
        kept = [trial for trial in content.trials if not (retry_failed and trial.error is not None)]
        self.torn_bytes = content.torn_bytes
        self.n_retried = len(content.trials) - len(kept)
        if self.n_retried:
            write_atomically(self.path, b"".join(encode_line(trial) for trial in kept))
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if self.torn_bytes and not self.n_retried:
            os.ftruncate(self._fd, content.whole_bytes)
        os.fsync(self._fd)
        sync_directory(run_dir)
        self._size = os.fstat(self._fd).st_size
        others = [(str(path), read_log(path).trials) for path in list_logs(run_dir) if path != self.path]
        self.done = {trial.key for trial in merge_trials([(str(self.path), kept), *others])}


def encode_line(trial: Trial) -> bytes:
    """A trial as one ASCII JSON line, newline included, keys in the order of the schema."""
    try:
        text = json.dumps(trial.model_dump(), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TrialsError(f"{_describe(trial.key)} does not fit JSON: {error}") from error
    return text.encode("ascii") + b"\n"


def _describe(key: TrialKey) -> str:
    return f"trial (item {key.item!r}, position {key.position!r}, arm {key.arm!r})"
