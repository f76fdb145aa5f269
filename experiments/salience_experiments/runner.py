"""Run a spec: every item at every position under every arm, appended trial by trial, resumable."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from salience_memory import TextRecall
from salience_models import LanguageModel

from salience_experiments.arms import Arm, build_arm
from salience_experiments.errors import TrialsError
from salience_experiments.manifests import Manifest, hash_prompts, load_manifest, manifest_path, write_manifest
from salience_experiments.provenance import describe_commit, describe_device, describe_model, describe_versions
from salience_experiments.spec import ArmCell, ExperimentSpec
from salience_experiments.task_factory import build_task
from salience_experiments.tasks.base import Item, Task
from salience_experiments.trial_batches import Outcome, PreparedTrial, SharedPrefix, prepare_trial, run_trials
from salience_experiments.trials import Shard, Trial, TrialKey, TrialLog, read_trials
from salience_experiments.weight_sources import WeightSource, block_weights

__all__ = ["RunOptions", "run_directory", "run_spec"]

DEV_EVERY = 5
"""Items whose index is a multiple of this are the development slice."""


@dataclass(frozen=True)
class RunOptions:
    """How to run, as opposed to what: nothing here may change a result."""

    results_dir: Path
    data_dir: Path | None = None
    run_id: str | None = None
    shard: Shard | None = None
    limit: int | None = None
    """Only the first `limit` items (a dry run; the manifest says so by its count)."""


def run_directory(spec: ExperimentSpec, options: RunOptions) -> Path:
    """Where a spec's run lives."""
    return options.results_dir / spec.name / (options.run_id or spec.sha256()[:12])


def split_of(item: Item) -> str:
    """"dev" for the slice that settings are tuned on, "test" for what is reported."""
    return "dev" if item.index % DEV_EVERY == 0 else "test"


def run_spec(
    spec: ExperimentSpec,
    options: RunOptions,
    load: Callable[[], LanguageModel],
    recall: TextRecall,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Run what is missing of a spec; returns the run's directory.

    The run's id is the start of the spec's hash, so the same command goes on where a killed run
    stopped, and a changed spec starts a new run.

    Args:
        load: Loads the model; called only if trials are missing.
        recall: Ranks blocks for weights by recall.
        on_progress: Told (trials done, trials in all) after each item.

    Raises:
        SpecError, DataError: Before anything is written.
        TrialsError: The directory holds another spec's run, or another process writes to it.
    """
    task = build_task(spec.task.name, spec.task.params, spec.positions, spec.seed, options.data_dir)
    arms = [(cell, build_arm(cell.arm, cell.params)) for cell in spec.cells()]
    items = {position: task.items(position) for position in spec.positions}
    indices = _item_indices(spec, items[spec.positions[0]], options)
    run_dir = run_directory(spec, options)
    total = len(indices) * len(spec.positions) * len(arms)
    _check_same_spec(run_dir, spec, options.shard)
    with TrialLog(run_dir, options.shard, retry_failed=True) as log:
        keys = {
            TrialKey(items[position][index].item_id, position, cell.label)
            for index in indices
            for position in spec.positions
            for cell, _ in arms
        }
        missing = keys - log.done
        if not missing:
            _mark_complete(run_dir, options.shard)
            on_progress(total, total)
            return run_dir
        lm = load()
        writer = _ManifestWriter(run_dir, spec, options, lm, total)
        writer.write("running")
        try:
            experiment = _Experiment(spec, task, items, arms, lm, recall, log)
            with _terminate_as_interrupt():
                for index in indices:
                    experiment.run_item(index)
                    on_progress(len(keys & log.done), total)
        except KeyboardInterrupt:
            writer.write("interrupted", "stopped by the user")
            raise
        except BaseException as error:
            writer.write("failed", f"{type(error).__name__}: {error}")
            raise
        writer.write("complete")
    return run_dir


def _item_indices(spec: ExperimentSpec, items: Sequence[Item], options: RunOptions) -> list[int]:
    chosen = [i for i, item in enumerate(items) if spec.split in ("all", split_of(item))]
    chosen = chosen[: options.limit]
    if options.shard is not None:
        chosen = [i for n, i in enumerate(chosen) if n % options.shard.count == options.shard.index - 1]
    return chosen


def _check_same_spec(run_dir: Path, spec: ExperimentSpec, shard: Shard | None) -> None:
    path = manifest_path(run_dir, shard)
    if path.exists() and load_manifest(path).spec_sha256 != spec.sha256():
        raise TrialsError(f"{run_dir} holds a run of another version of spec {spec.name!r}; choose another run id")


def _mark_complete(run_dir: Path, shard: Shard | None) -> None:
    """Finish the manifest of a run that was killed between its last trial and its end."""
    manifest = load_manifest(manifest_path(run_dir, shard))
    if manifest.status != "complete":
        trials = read_trials(run_dir)
        update = {"status": "complete", "error": None, "finished": _now(), "n_trials": len(trials)}
        write_manifest(run_dir, manifest.model_copy(update=update), shard)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Within, SIGTERM ends the run as Ctrl-C does: between two trials, with the manifest written."""
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


class _Experiment:
    """The state of one run in one process."""

    def __init__(
        self,
        spec: ExperimentSpec,
        task: Task,
        items: dict[str, Sequence[Item]],
        arms: Sequence[tuple[ArmCell, Arm]],
        lm: LanguageModel,
        recall: TextRecall,
        log: TrialLog,
    ) -> None:
        self._spec, self._task, self._items, self._arms = spec, task, items, arms
        self._lm, self._recall, self._log = lm, recall, log
        wanted = spec.max_new_tokens
        self._max_new_tokens = task.max_new_tokens if wanted is None else wanted

    def run_item(self, index: int) -> None:
        """All positions, the gold block last first: the blocks before it are then shared by the others."""
        shared = SharedPrefix()
        for position in reversed(self._spec.positions):
            item = self._items[position][index]
            todo = [
                (cell, arm)
                for cell, arm in self._arms
                if TrialKey(item.item_id, position, cell.label) not in self._log.done
            ]
            if not todo:
                continue
            trials = self._prepare(item, todo)
            for outcome in run_trials(
                self._lm,
                trials,
                shared,
                max_new_tokens=self._max_new_tokens,
                with_mass=self._spec.receipts,
                batch_columns=self._spec.batch_columns,
            ):
                self._log.append(self._trial(outcome, position))

    def _prepare(self, item: Item, arms: Sequence[tuple[ArmCell, Arm]]) -> list[PreparedTrial]:
        weights: dict[WeightSource, dict[str, float]] = {}
        prepared = []
        for cell, arm in arms:
            if cell.weights not in weights:
                weights[cell.weights] = block_weights(
                    cell.weights,
                    item,
                    weight=self._spec.weighting.weight,
                    top_k=self._spec.weighting.top_k,
                    seed=self._spec.seed,
                    recall=self._recall,
                )
            prepared.append(prepare_trial(self._lm, self._task, item, cell, arm, weights[cell.weights]))
        return prepared

    def _trial(self, outcome: Outcome, position: str) -> Trial:
        trial, item = outcome.trial, outcome.trial.item
        receipt = outcome.score.receipt
        params = {
            **{name: list(v) if isinstance(v, tuple) else v for name, v in trial.cell.params.items()},
            "split": split_of(item),
            "item_index": item.index,
            "question": item.question,
            "weights": "none" if trial.cell.label == self._spec.baseline else str(trial.cell.weights),
            "weighted_blocks": sorted(trial.weights),
            "hit_gold": any(block.is_gold for block in item.blocks if block.name in trial.weights),
        }
        return Trial(
            item=item.item_id,
            position=position,
            arm=trial.cell.label,
            params=params,
            prompt_sha256=trial.prompt_sha256,
            prompt_tokens=len(trial.request.token_ids),
            answer=outcome.answer,
            metric=None if outcome.answer is None else self._task.score(item, outcome.answer),
            gold_logprob=outcome.score.mean_logprob,
            receipt=_brief_receipt(receipt.summary(), item, trial.weights) if self._spec.receipts else None,
            impl="+".join(receipt.impls),
            wall_s=outcome.wall_s,
        )


def _brief_receipt(summary: dict[str, object], item: Item, weights: dict[str, float]) -> dict[str, object]:
    """A receipt with the masses of the gold and the weighted blocks only: others would swell the log."""
    kept = {block.name for block in item.blocks if block.is_gold} | set(weights)
    for name in ("shares", "unbiased"):
        masses = summary[name]
        assert isinstance(masses, dict)
        summary[name] = {block: mass for block, mass in masses.items() if block in kept}
    layers = summary.pop("layers")
    assert isinstance(layers, list)
    return summary | {"first_layer": layers[0] if layers else None, "n_layers": len(layers)}


class _ManifestWriter:
    """Writes the manifest at the start, at the end, and never in between."""

    def __init__(
        self, run_dir: Path, spec: ExperimentSpec, options: RunOptions, lm: LanguageModel, total: int
    ) -> None:
        self._run_dir, self._options = run_dir, options
        commit, dirty = describe_commit()
        path = manifest_path(run_dir, options.shard)
        started = load_manifest(path).started if path.exists() else _now()
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
            started=started,
            shards=options.shard.count if options.shard else 1,
            shard=options.shard.index if options.shard else None,
            n_expected=total,
        )

    def write(self, status: str, error: str | None = None) -> None:
        trials = read_trials(self._run_dir)
        count, digest = hash_prompts(trial.prompt_sha256 for trial in trials)
        update = {
            "status": status,
            "error": error,
            "finished": None if status == "running" else _now(),
            "n_trials": len(trials),
            "impls": tuple(sorted({trial.impl for trial in trials})),
            "prompt_count": count,
            "prompts_sha256": digest,
        }
        write_manifest(self._run_dir, self._manifest.model_copy(update=update), self._options.shard)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
