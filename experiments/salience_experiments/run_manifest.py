"""What a run writes about itself: as it starts, as it ends, and as it goes on after a kill."""

import json
from collections.abc import Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from salience_experiments.errors import TrialsError
from salience_experiments.manifests import (
    Manifest,
    Status,
    hash_prompts,
    load_manifest,
    manifest_path,
    write_manifest,
)
from salience_experiments.provenance import (
    describe_commit,
    describe_device,
    describe_model,
    describe_versions,
)
from salience_experiments.spec import ExperimentSpec
from salience_experiments.trials import Shard, Trial, TrialKey, list_logs, read_trials
from salience_models import LanguageModel

__all__ = ["ManifestWriter", "finish_manifest"]


class ManifestWriter:
    """Writes the manifest of one process of a run at its start and at its end, never in between.

    A run that goes on keeps its start, and names every commit, device and version that had a part in it.

    Args:
        keys: The trials that this process answers for; the manifest counts these alone.
        limit: How many items were left, if some were cut off.

    Raises:
        TrialsError: Trials are there, and another model or dtype made them.
    """

    def __init__(
        self,
        run_dir: Path,
        shard: Shard | None,
        spec: ExperimentSpec,
        lm: LanguageModel,
        keys: Set[TrialKey],
        limit: int | None = None,
    ) -> None:
        self._run_dir, self._shard, self._keys = run_dir, shard, keys
        commit, dirty = describe_commit()
        path = manifest_path(run_dir, shard)
        self._manifest = Manifest(
            spec_name=spec.name,
            spec_sha256=spec.sha256(),
            spec=json.loads(spec.model_dump_json()),
            commit=commit,
            dirty=dirty,
            versions=describe_versions(),
            device=describe_device(lm.device),
            threads=torch.get_num_threads(),
            model=describe_model(lm),
            status="running",
            started=_now(),
            shards=shard.count if shard else 1,
            shard=shard.index if shard else None,
            n_expected=len(keys),
            limit=limit,
        )
        if path.exists() and _logged(run_dir, keys):
            self._manifest = _continue(path, load_manifest(path), self._manifest)

    def write(self, status: Status, error: str | None = None) -> None:
        """Replace the manifest by one with this status and the figures of what is logged so far."""
        update = _outcome(status, error, _logged(self._run_dir, self._keys))
        write_manifest(self._run_dir, self._manifest.model_copy(update=update), self._shard)


def finish_manifest(run_dir: Path, shard: Shard | None, spec: ExperimentSpec, keys: Set[TrialKey]) -> None:
    """Bring the manifest of a run that lacks no trial up to date.

    A run that was killed between its last trial and its end is complete; one that answers for other trials
    than `keys` (the whole, now asked for a part) is as complete as before. The spec may have gained a
    contrast.
    """
    path = manifest_path(run_dir, shard)
    if not path.exists():
        return
    manifest = load_manifest(path)
    update: dict[str, Any] = {"spec": json.loads(spec.model_dump_json())}
    if manifest.status != "complete" and manifest.n_expected == len(keys):
        update |= _outcome("complete", None, _logged(run_dir, keys))
    write_manifest(run_dir, manifest.model_copy(update=update), shard)


def _logged(run_dir: Path, keys: Set[TrialKey]) -> list[Trial]:
    return [trial for trial in read_trials(run_dir) if trial.key in keys] if list_logs(run_dir) else []


def _outcome(status: Status, error: str | None, trials: list[Trial]) -> dict[str, Any]:
    count, digest = hash_prompts(trial.prompt_sha256 for trial in trials)
    return {
        "status": status,
        "error": error,
        "finished": None if status == "running" else _now(),
        "n_trials": len(trials),
        "impls": tuple(sorted({trial.impl for trial in trials})),
        "prompt_count": count,
        "prompts_sha256": digest,
    }


def _continue(path: Path, old: Manifest, new: Manifest) -> Manifest:
    for name in ("weights_sha256", "dtype", "quantization"):
        before, now = old.model.get(name), new.model.get(name)
        if before != now:
            raise TrialsError(
                f"{path} must go on with the model it began with, got {name} {now!r} after {before!r}; "
                "choose another run id"
            )
    update = {
        "started": old.started,
        "commit": _both(old.commit, new.commit),
        "dirty": old.dirty or new.dirty,
        "device": _both(old.device, new.device),
        "versions": {name: _both(old.versions.get(name, v), v) for name, v in new.versions.items()},
    }
    return new.model_copy(update=update)


def _both(old: str, new: str) -> str:
    return " + ".join(dict.fromkeys([*old.split(" + "), new]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
