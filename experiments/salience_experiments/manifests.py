"""A run's manifest: what was run, with what, and how far it came; and the joining of shards' manifests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from salience_experiments.durable_files import write_atomically
from salience_experiments.errors import TrialsError
from salience_experiments.trials import (
    Shard,
    Trial,
    encode_line,
    list_logs,
    log_path,
    merge_trials,
    read_log,
)

Status = Literal["running", "complete", "failed", "interrupted"]


class Manifest(BaseModel):
    """The header of a run.

    `started` and `finished` are ISO 8601 UTC texts that the caller passes in; `shards` is how many parts
    the run was split into (1 if not split) and `shard` which of them this is, counted from 1. `n_trials`
    counts the trials logged so far, `n_expected` those asked for: the spec's, or those of its first `limit`
    items; `limit` is None where it cut nothing off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    spec_name: str = Field(min_length=1)
    spec_sha256: str
    spec: dict[str, Any]
    commit: str
    dirty: bool
    versions: dict[str, str]
    device: str
    threads: int = Field(ge=1)
    model: dict[str, Any]
    impls: tuple[str, ...] = ()
    prompt_count: int = Field(default=0, ge=0)
    prompts_sha256: str = ""
    status: Status
    started: str
    finished: str | None = None
    shards: int = Field(default=1, ge=1)
    shard: int | None = Field(default=None, ge=1)
    n_trials: int = Field(default=0, ge=0)
    n_expected: int | None = Field(default=None, ge=0)
    limit: int | None = Field(default=None, ge=1)
    error: str | None = None


@dataclass(frozen=True)
class Run:
    """A run read back: one manifest, all shards' trials, and the reasons (if any) why it is not whole."""

    path: Path
    manifest: Manifest
    trials: tuple[Trial, ...]
    gaps: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        return not self.gaps


def hash_prompts(prompt_sha256s: Iterable[str]) -> tuple[int, str]:
    """How many different prompts there are, and one hash over their sorted hashes, whatever the order."""
    unique = sorted(set(prompt_sha256s))
    return len(unique), hashlib.sha256("\n".join(unique).encode()).hexdigest()


def manifest_path(run_dir: Path, shard: Shard | None = None) -> Path:
    """Where a run, or one shard of it, keeps its manifest."""
    return run_dir / ("manifest.json" if shard is None else f"manifest.{shard.index}of{shard.count}.json")


def write_manifest(run_dir: Path, manifest: Manifest, shard: Shard | None = None) -> Path:
    """Replace the manifest atomically: a reader sees the old one or the new one, whole."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = manifest_path(run_dir, shard)
    try:
        text = json.dumps(manifest.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"
    except ValueError as error:
        raise TrialsError(f"{path} does not fit JSON: {error}") from error
    write_atomically(path, text.encode())
    return path


def load_manifest(path: Path) -> Manifest:
    """Read one manifest file.

    Raises:
        TrialsError: It is missing, not JSON, or lacks a manifest's keys.
    """
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise TrialsError(f"{path} is missing") from error
    except ValidationError as error:
        raise TrialsError(f"{path} is not a manifest: {error}") from error


def read_run(run_dir: Path) -> Run:
    """Read a run directory, joining its shards.

    Raises:
        TrialsError: A file is missing or damaged, logs overlap, or shards come from different specs or
            commits.
    """
    logs = list_logs(run_dir)
    paths = sorted(run_dir.glob("manifest*.json")) if run_dir.is_dir() else []
    if not logs or not paths:
        raise TrialsError(
            f"{run_dir} must hold manifest.json and trials.jsonl, got {len(paths)} and {len(logs)}"
        )
    contents = [(str(path), read_log(path)) for path in logs]
    trials = merge_trials((name, content.trials) for name, content in contents)
    torn = [f"{Path(name).name} ends in a torn line" for name, content in contents if content.torn_bytes]
    return _join(run_dir, [load_manifest(path) for path in paths], trials, torn)


def merge_runs(run_dirs: Sequence[Path], out_dir: Path) -> Run:
    """Write the shards of several directories as one run (`manifest.json`, `trials.jsonl`) into a new
    directory.

    Raises:
        TrialsError: `out_dir` already holds a log, trials overlap, or the runs do not belong together.
    """
    if not run_dirs:
        raise ValueError("run_dirs must name at least one directory, got none")
    if list_logs(out_dir):
        raise TrialsError(f"{out_dir} already holds a trial log; merge into a new directory")
    runs = [read_run(path) for path in run_dirs]
    trials = merge_trials((str(run.path), run.trials) for run in runs)
    torn = [gap for run in runs for gap in run.gaps if "torn" in gap]
    shard_manifests = [
        load_manifest(path) for run in runs for path in sorted(run.path.glob("manifest*.json"))
    ]
    joined = _join(out_dir, shard_manifests, trials, torn)
    out_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(log_path(out_dir), b"".join(encode_line(trial) for trial in joined.trials))
    write_manifest(out_dir, joined.manifest)
    return joined


def _join(run_dir: Path, manifests: Sequence[Manifest], trials: Sequence[Trial], torn: Sequence[str]) -> Run:
    """One manifest for all parts; complete only if every part is there and complete.

    A run begun whole and finished in shards keeps its first manifest: the shards' then count.
    """
    for other in manifests[1:]:
        for name in ("spec_name", "spec_sha256", "commit"):
            _check_equal(run_dir, name, getattr(manifests[0], name), getattr(other, name))
        for name in ("source", "revision", "dtype", "quantization", "weights_sha256"):
            _check_equal(run_dir, f"model {name}", manifests[0].model.get(name), other.model.get(name))
    manifests = [manifest for manifest in manifests if manifest.shard is not None] or manifests
    first = manifests[0]
    if len({manifest.shards for manifest in manifests}) > 1:
        raise TrialsError(f"{run_dir} joins runs split differently: {[m.shards for m in manifests]} shards")
    gaps: list[str] = []
    for manifest in manifests:
        part = "the run" if manifest.shard is None else f"shard {manifest.shard} of {manifest.shards}"
        if manifest.status != "complete":
            gaps.append(f"{part} has status {manifest.status}")
    present = {manifest.shard for manifest in manifests if manifest.shard is not None}
    if present and (missing := sorted(set(range(1, first.shards + 1)) - present)):
        gaps.append(f"shards {', '.join(map(str, missing))} of {first.shards} are missing")
    gaps += torn
    expected = [manifest.n_expected for manifest in manifests]
    n_expected = None if None in expected else sum(count for count in expected if count is not None)
    if n_expected is not None and len(trials) < n_expected:
        gaps.append(f"{len(trials)} of {n_expected} trials are there")
    failed = sum(trial.error is not None for trial in trials)
    if failed:
        gaps.append(f"{failed} trials failed")
    if len(manifests) == 1 and first.shard is None:
        return Run(run_dir, first, tuple(trials), tuple(gaps))
    count, prompts = hash_prompts(trial.prompt_sha256 for trial in trials)
    ends = [manifest.finished for manifest in manifests]
    versions: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.versions.items():
            versions.setdefault(name, set()).add(version)
    worst = max((manifest.status for manifest in manifests), key=_SEVERITY.index)
    merged = first.model_copy(
        update={
            "dirty": any(manifest.dirty for manifest in manifests),
            "versions": {name: " + ".join(sorted(seen)) for name, seen in sorted(versions.items())},
            "device": " + ".join(sorted({manifest.device for manifest in manifests})),
            "impls": tuple(sorted({impl for manifest in manifests for impl in manifest.impls})),
            "prompt_count": count,
            "prompts_sha256": prompts,
            "status": "interrupted" if worst == "complete" and gaps else worst,
            "started": min(manifest.started for manifest in manifests),
            "finished": None if None in ends else max(end for end in ends if end is not None),
            "shard": None,
            "n_trials": len(trials),
            "n_expected": n_expected,
            "limit": min((m.limit for m in manifests if m.limit is not None), default=None),
            "error": "; ".join(m.error for m in manifests if m.error) or None,
        }
    )
    return Run(run_dir, merged, tuple(trials), tuple(gaps))


_SEVERITY: tuple[Status, ...] = ("complete", "running", "interrupted", "failed")


def _check_equal(run_dir: Path, name: str, mine: object, theirs: object) -> None:
    if mine != theirs:
        raise TrialsError(f"{run_dir} joins runs whose {name} differs: {mine!r} and {theirs!r}")
