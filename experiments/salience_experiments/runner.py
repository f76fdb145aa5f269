"""Run a spec: every item at every position under every arm, appended trial by trial, resumable."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from salience.turn import Parts
from salience_experiments.arms import Arm, ArmName, build_arm
from salience_experiments.errors import SpecError, TrialsError
from salience_experiments.manifests import load_manifest
from salience_experiments.run_manifest import ManifestWriter, finish_manifest
from salience_experiments.spec import ArmCell, ExperimentSpec
from salience_experiments.task_factory import build_task
from salience_experiments.tasks.base import Item, Task
from salience_experiments.told_memories import ToldMemories
from salience_experiments.trial_batches import PreparedTrial, TrialOutcome, prepare_trial, run_trials
from salience_experiments.trials import LOG_PATTERN, Shard, Trial, TrialKey, TrialLog, log_path
from salience_experiments.weight_sources import WeightSource, block_probabilities, block_weights
from salience_memory import TextRecall
from salience_memory.vectors import Embed
from salience_models import LanguageModel, PromptTooLong

__all__ = ["RunOptions", "run_directory", "run_spec"]

DEV_EVERY = 5
"""Items whose index is a multiple of this are the development slice."""
_DRAWN_TOGETHER = 8
"""Items whose drawn answers are decoded in one batch, as a step costs little more for many rows."""


@dataclass(frozen=True)
class RunOptions:
    """How to run, as opposed to what: nothing here may change a result."""

    results_dir: Path
    data_dir: Path | None = None
    run_id: str | None = None
    shard: Shard | None = None
    limit: int | None = None
    """Only the first `limit` items: a dry run, as the manifest and the report say."""


def run_directory(spec: ExperimentSpec, options: RunOptions) -> Path:
    """Where a spec's run lives."""
    return options.results_dir / spec.name / (options.run_id or spec.sha256()[:12])


def split_of(item: Item) -> str:
    """The slice that settings are tuned on is "dev"; what is reported is "test"."""
    return "dev" if item.index % DEV_EVERY == 0 else "test"


def run_spec(
    spec: ExperimentSpec,
    options: RunOptions,
    load: Callable[[], LanguageModel],
    recall: TextRecall,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    embed: Embed | None = None,
) -> Path:
    """Run what is missing of a spec; returns the run's directory.

    The run's id is the start of the spec's hash, so the same command goes on where a killed run
    stopped, and a changed spec starts a new run.

    Args:
        load: Loads the model; called only if trials are missing.
        recall: Ranks blocks for weights by recall.
        embed: What stores compare meanings by, of items that are told facts; None: by words alone.
        on_progress: Told (trials done, trials in all) after each item.

    Raises:
        SpecError, DataError, ModelsError: Before anything is written, except for a prompt over the context
            window (`PromptTooLong`), of which the manifest tells, but no trial has run.
        TrialsError: The directory holds another spec's run, another process writes to it, or it cannot be
            written.
    """
    task = build_task(spec.task.name, spec.task.params, spec.positions, spec.seed, options.data_dir)
    arms = [(cell, build_arm(cell.arm, cell.params)) for cell in spec.cells()]
    items = {position: task.items(position) for position in spec.positions}
    chosen = _split_indices(spec, items[spec.positions[0]])
    limit = options.limit if options.limit is not None and options.limit < len(chosen) else None
    indices = _part(chosen[:limit], options.shard)
    _check_rules(spec, task, arms, items[spec.positions[0]][chosen[0]])
    run_dir = run_directory(spec, options)
    keys = {
        TrialKey(items[position][index].item_id, position, cell.label)
        for index in indices
        for position in spec.positions
        for cell, _ in arms
    }
    _check_run_dir(run_dir, spec, options.shard)
    # A model that does not load leaves no new run behind; a run that another process writes loads none.
    lm = None if log_path(run_dir, options.shard).exists() else load()
    with _open_log(run_dir, options.shard) as log:
        if keys and keys <= log.done:
            finish_manifest(run_dir, options.shard, spec, keys)
            on_progress(len(keys), len(keys))
            return run_dir
        lm = lm or load()
        writer = ManifestWriter(run_dir, options.shard, spec, lm, keys, limit)
        writer.write("running")
        on_progress(len(keys & log.done), len(keys))
        try:
            with ToldMemories(embed) as told, _terminate_as_interrupt():
                experiment = _Experiment(spec, task, items, arms, lm, recall, log, told)
                experiment.check_prompts(indices)
                for together in experiment.split(indices):
                    experiment.run_items(together)
                    on_progress(len(keys & log.done), len(keys))
        except KeyboardInterrupt:
            writer.write("interrupted", "stopped by the user")
            raise
        except BaseException as error:
            writer.write("failed", f"{type(error).__name__}: {error}")
            raise
        writer.write("complete")
    return run_dir


def _split_indices(spec: ExperimentSpec, items: Sequence[Item]) -> list[int]:
    chosen = [i for i, item in enumerate(items) if spec.split in ("all", split_of(item))]
    if not chosen:
        raise SpecError(
            f"split {spec.split!r} must hold at least one item, got none of the task's {len(items)}"
        )
    return chosen


def _check_rules(spec: ExperimentSpec, task: Task, arms: Sequence[tuple[ArmCell, Arm]], item: Item) -> None:
    """Refuse arms and settings that do not fit the task's items, which are all of one kind."""
    if item.draw is not None and spec.max_new_tokens == 0:
        raise SpecError(f"max_new_tokens must be at least 1 where task {task.name!r} draws answers, got 0")
    for cell, arm in arms:
        if arm.needs_rule and (item.rule is None or item.draw is None):
            raise SpecError(f"arm {cell.label!r} needs a task whose answers a rule binds, got {task.name!r}")
        if arm.edits_prompt and spec.render == "product":
            raise SpecError(f"arm {cell.label!r} edits the published prompt: render must be 'published'")
        if item.told and spec.render != "product":
            raise SpecError(f"task {task.name!r} tells its facts to a store: render must be 'product'")


def _part(indices: list[int], shard: Shard | None) -> list[int]:
    if shard is None:
        return indices
    return [i for n, i in enumerate(indices) if n % shard.count == shard.index - 1]


def _check_run_dir(run_dir: Path, spec: ExperimentSpec, shard: Shard | None) -> None:
    """Refuse a folder that cannot be written, or that holds another spec's run or other shards."""
    existing = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise TrialsError(f"{run_dir} must be a folder that can be written, got {existing} in its way")
    for path in sorted(run_dir.glob("manifest*.json")):
        if load_manifest(path).spec_sha256 != spec.sha256():
            raise TrialsError(
                f"{run_dir} holds a run of another version of spec {spec.name!r}; choose another run id"
            )
    counts = {
        int(match[2]) for path in run_dir.glob("*") if (match := LOG_PATTERN.match(path.name)) and match[2]
    }
    if shard is not None and counts - {shard.count}:
        raise TrialsError(f"{run_dir} is split into {max(counts)} shards, got a part of {shard.count}")


def _open_log(run_dir: Path, shard: Shard | None) -> TrialLog:
    try:
        return TrialLog(run_dir, shard, retry_failed=True)
    except OSError as error:
        raise TrialsError(
            f"{run_dir} must be a folder that can be written, got: {error.strerror or error}"
        ) from error


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
        told: ToldMemories,
    ) -> None:
        self._spec, self._task, self._items, self._arms = spec, task, items, arms
        self._lm, self._recall, self._log = lm, recall, log
        self._told = told
        wanted = spec.max_new_tokens
        self._max_new_tokens = task.max_new_tokens if wanted is None else wanted

    def check_prompts(self, indices: Sequence[int]) -> None:
        """Lay out and encode every prompt that is still to be run, before the model answers the first.

        Raises:
            PromptTooLong: A prompt and its answer are over the context window; names the longest.
        """
        overruns = [
            overrun
            for index in indices
            for position in self._spec.positions
            for overrun in self._overruns(*self._todo(index, position), position)
        ]
        if overruns:
            over, description = max(overruns)
            window = self._lm.info.context_window
            raise PromptTooLong(
                f"{description}, which is {over} over the context window of {window}; "
                f"{len(overruns)} trials of this run are too long"
            )

    def split(self, indices: Sequence[int]) -> Iterator[Sequence[int]]:
        """The items in the parts that `run_items` is to be given: one each, but of drawn answers several."""
        items = self._items[self._spec.positions[0]]
        size = 1 if not indices or items[indices[0]].draw is None else _DRAWN_TOGETHER
        for start in range(0, len(indices), size):
            yield indices[start : start + size]

    def run_items(self, indices: Sequence[int]) -> None:
        """All positions, the gold block last first: the blocks before it are then shared by the others."""
        groups = []
        for index in indices:
            for position in reversed(self._spec.positions):
                item, todo = self._todo(index, position)
                if todo:
                    groups.append(self._prepare(item, todo))
        if not groups:
            return
        outcomes = run_trials(
            self._lm,
            self._task,
            groups,
            max_new_tokens=self._max_new_tokens,
            with_mass=self._spec.receipts,
            batch_columns=self._spec.batch_columns,
        )
        for outcome in outcomes:
            self._log.append(self._trial(outcome))

    def _todo(self, index: int, position: str) -> tuple[Item, list[tuple[ArmCell, Arm]]]:
        """The item, and the arms under which it has no trial yet."""
        item = self._items[position][index]
        done = self._log.done
        arms = [pair for pair in self._arms if TrialKey(item.item_id, position, pair[0].label) not in done]
        return item, arms

    def _overruns(
        self, item: Item, arms: Sequence[tuple[ArmCell, Arm]], position: str
    ) -> Iterator[tuple[int, str]]:
        """Tokens over the context window, with a description, of each trial that is too long."""
        for trial in self._prepare(item, arms):
            n_tokens = len(trial.request.token_ids)
            answer = max(self._max_new_tokens, len(trial.draft))
            over = n_tokens + answer - self._lm.info.context_window
            if over > 0:
                yield (
                    over,
                    f"item {item.item_id!r} at {position!r} under arm {trial.cell.label!r} has a prompt of "
                    f"{n_tokens} tokens and {answer} for its answer",
                )

    def _prepare(self, item: Item, arms: Sequence[tuple[ArmCell, Arm]]) -> list[PreparedTrial]:
        """Each arm's trial; every weight source is asked once."""
        weights: dict[WeightSource, dict[str, float]] = {}
        probabilities: dict[WeightSource, dict[str, float]] = {}
        parts = Parts(self._lm, self._told.of(item))
        prepared = []
        for cell, arm in arms:
            is_none = cell.arm == ArmName.NONE
            source = WeightSource.RECALL if is_none else cell.weights
            if self._spec.render == "product":
                if source not in probabilities:
                    probabilities[source] = block_probabilities(
                        source, item, seed=self._spec.seed, recall=self._recall
                    )
                likely = probabilities[source]
                found = {} if is_none else {name: p for name, p in likely.items() if p > 0.5}
                prepared.append(prepare_trial(parts, self._task, item, cell, arm, found, likely))
                continue
            if not is_none and source not in weights:
                weights[source] = block_weights(
                    source,
                    item,
                    weight=self._spec.weighting.weight,
                    top_k=self._spec.weighting.top_k,
                    seed=self._spec.seed,
                    recall=self._recall,
                )
            chosen = {} if is_none else weights[source]
            prepared.append(prepare_trial(parts, self._task, item, cell, arm, chosen))
        return prepared

    def _trial(self, outcome: TrialOutcome) -> Trial:
        trial, item = outcome.trial, outcome.trial.item
        receipt = outcome.receipt
        params = {
            **{name: list(v) if isinstance(v, tuple) else v for name, v in trial.cell.params.items()},
            "split": split_of(item),
            "item_index": item.index,
            "question": item.question,
            "weights": "none",
        }
        if outcome.answer_tokens is not None:
            params["answer_tokens"] = outcome.answer_tokens
        if trial.cell.arm != ArmName.NONE and item.blocks:
            params |= {
                "weights": str(trial.cell.weights),
                "weighted_blocks": sorted(trial.weights),
                "hit_gold": any(block.is_gold for block in item.blocks if block.name in trial.weights),
            }
        return Trial(
            item=item.item_id,
            position=item.position,
            arm=trial.cell.label,
            params=params,
            prompt_sha256=trial.prompt_sha256,
            prompt_tokens=len(trial.request.token_ids),
            answer=outcome.answer,
            metric=None if outcome.answer is None else self._task.score(item, outcome.answer),
            value=outcome.answer_logprob,
            gold_logprob=outcome.gold_logprob,
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
