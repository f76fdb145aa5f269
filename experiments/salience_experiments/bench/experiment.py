"""`salience bench experiment`: the runner against the naive loop, in time and verdict by verdict."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from salience.turn import Parts
from salience_experiments.arms import build_arm
from salience_experiments.bench.measure import Bar, Row, Timing
from salience_experiments.runner import RunOptions, run_spec
from salience_experiments.spec import ArmSpec, ExperimentSpec, ModelSpec, TaskSpec
from salience_experiments.task_factory import build_task
from salience_experiments.trial_batches import PreparedTrial, prepare_trial
from salience_experiments.trials import TrialKey, read_trials
from salience_experiments.weight_sources import block_weights
from salience_memory import TextRecall
from salience_models import LanguageModel

__all__ = ["Comparison", "Difference", "compare_experiment", "experiment_bars", "experiment_row", "kv_spec"]

MIN_GAIN = 5.0


@dataclass(frozen=True)
class Answered:
    """What one trial came to: its text, and the task's metric for it."""

    answer: str
    metric: float | None


@dataclass(frozen=True)
class Difference:
    """A trial whose metric the runner and the naive loop do not agree on."""

    key: TrialKey
    ours: Answered
    naive: Answered


@dataclass(frozen=True)
class Comparison:
    """Seconds per item of both, and where they differ.

    `n_same_text` counts trials whose naive answer is the runner's or goes on from it: the runner stops
    where a gold answer that it verified as a draft ends.
    """

    timing: Timing
    n_trials: int
    n_same_text: int
    differences: tuple[Difference, ...]

    @property
    def gain(self) -> float:
        """Wall time of the naive loop over that of the runner."""
        return sum(self.timing.peer_s) / sum(self.timing.ours_s)


def kv_spec(n_items: int, source: str = "bundled:smollm2-135m-instruct", n_keys: int = 10) -> ExperimentSpec:
    """Key-value retrieval, six arms at three positions. Without receipts, since the naive loop makes none."""
    steering = {"depth": [(0.5, 1.0)], "query_scope": "question"}
    return ExperimentSpec(
        name="bench_kv",
        model=ModelSpec(source=source, device="cpu", dtype="float32"),
        task=TaskSpec(name="kv", params={"n_items": n_items, "n_keys": n_keys}),
        arms=(
            ArmSpec(arm="none"),
            ArmSpec(arm="marker"),
            ArmSpec(arm="repeat"),
            ArmSpec(arm="logit_bias", params={"strength": [0.5, 1.0], **steering}),
            ArmSpec(arm="share_control", params=steering),
        ),
        max_new_tokens=100,
        receipts=False,
    )


def naive_answer(lm: LanguageModel, trial: PreparedTrial, max_new_tokens: int) -> tuple[int, ...]:
    """Greedy tokens after a full prefill of the trial's prompt under its plan, batch 1, token by token.

    Ends at `max_new_tokens` or before an end token.
    """
    state = lm.prefill([trial.request], new_tokens=max_new_tokens)
    answer: list[int] = []
    while len(answer) < max_new_tokens:
        token = int(state.logits[0].argmax())
        if token in lm.info.eos_token_ids:
            break
        answer.append(token)
        if len(answer) < max_new_tokens:
            lm.decode(state, [token])
    return tuple(answer)


class _NaiveLoop:
    """The same items, arms and weights as the runner's, one trial after the other."""

    def __init__(self, spec: ExperimentSpec, lm: LanguageModel, recall: TextRecall) -> None:
        self._spec, self._lm, self._recall = spec, lm, recall
        self._task = build_task(spec.task.name, spec.task.params, spec.positions, spec.seed, None)
        self._items = {position: self._task.items(position) for position in spec.positions}
        self._arms = [(cell, build_arm(cell.arm, cell.params)) for cell in spec.cells()]

    def run_item(self, index: int) -> dict[TrialKey, Answered]:
        """Every trial of an item."""
        spec, found = self._spec, {}
        limit = self._task.max_new_tokens if spec.max_new_tokens is None else spec.max_new_tokens
        for position in spec.positions:
            item = self._items[position][index]
            for cell, arm in self._arms:
                weights = block_weights(
                    cell.weights,
                    item,
                    weight=spec.weighting.weight,
                    top_k=spec.weighting.top_k,
                    seed=spec.seed,
                    recall=self._recall,
                )
                trial = prepare_trial(Parts(self._lm), self._task, item, cell, arm, weights)
                tokens = naive_answer(self._lm, trial, limit)
                answer = self._lm.tokenizer.decode(list(tokens), skip_special_tokens=True)
                assert isinstance(answer, str)
                key = TrialKey(item.item_id, position, cell.label)
                found[key] = Answered(answer, self._task.score(item, answer))
        return found


def compare_experiment(
    spec: ExperimentSpec,
    lm: LanguageModel,
    recall: TextRecall,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Run `spec` both ways in turn: after each item of the runner's, the naive loop does the same one.

    The runner's time holds everything but the model's loading: its manifest, its log and their fsyncs too.
    """
    naive = _NaiveLoop(spec, lm, recall)
    verdicts: dict[TrialKey, Answered] = {}
    ours_s: list[float] = []
    naive_s: list[float] = []
    resumed = time.perf_counter()

    def after_item(done: int, total: int) -> None:
        nonlocal resumed
        if not done:  # the run has only begun
            return
        paused = time.perf_counter()
        ours_s.append(paused - resumed)
        verdicts.update(naive.run_item(len(naive_s)))
        naive_s.append(time.perf_counter() - paused)
        say(f"{done} of {total} trials; {sum(naive_s) / sum(ours_s):.1f} times faster so far")
        resumed = time.perf_counter()

    with TemporaryDirectory() as folder:
        run_dir = run_spec(spec, RunOptions(Path(folder)), lambda: lm, recall, on_progress=after_item)
        ours_s[-1] += time.perf_counter() - resumed
        trials = {trial.key: trial for trial in read_trials(run_dir)}
    assert trials.keys() == verdicts.keys()
    differences = tuple(
        Difference(key, Answered(trial.answer or "", trial.metric), verdicts[key])
        for key, trial in trials.items()
        if trial.metric != verdicts[key].metric
    )
    return Comparison(
        Timing(tuple(ours_s), tuple(naive_s)),
        len(trials),
        sum(verdicts[key].answer.startswith(trial.answer or "") for key, trial in trials.items()),
        differences,
    )


def experiment_row(spec: ExperimentSpec, comparison: Comparison) -> Row:
    """The comparison as a benchmark's row: seconds per item."""
    case: dict[str, str | int] = {
        "model": spec.model.source,
        "items": len(comparison.timing.ours_s),
        "positions": len(spec.positions),
        "arms": len(spec.cells()),
        "trials": comparison.n_trials,
    }
    return Row(f"{spec.task.name}: runner, seconds an item", "naive loop", case, comparison.timing)


def experiment_bars(comparison: Comparison) -> list[Bar]:
    """Fast enough, and the same verdicts."""
    return [
        Bar("runner: times faster than the naive loop, wall time", comparison.gain, MIN_GAIN, is_floor=True),
        Bar("trials whose verdict differs from the naive loop's", len(comparison.differences), 0),
    ]
