"""Runs: equal to the naive loop trial by trial, paired, sharded, and refused in one sentence."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from salience.turn import Parts
from salience_experiments.arms import build_arm
from salience_experiments.errors import RunLocked, SpecError, TrialsError
from salience_experiments.manifests import load_manifest, merge_runs, read_run
from salience_experiments.runner import RunOptions, run_directory, run_spec
from salience_experiments.spec import ExperimentSpec
from salience_experiments.task_factory import build_task
from salience_experiments.tasks import Task
from salience_experiments.trial_batches import PreparedTrial, prepare_trial, run_trials
from salience_experiments.trials import Shard, Trial, TrialKey, TrialLog, read_trials
from salience_experiments.weight_sources import block_weights
from salience_memory import TextRecall
from salience_models import LanguageModel, PromptTooLong

MakeSpec = Callable[..., ExperimentSpec]

SCOPES = ["all", "after_block", "question", "last"]
EVERY_DEPTH = [[0.0, 1.0]]
ARMS: list[dict[str, Any]] = [
    {"arm": "none"},
    *({"arm": edit} for edit in ("reorder", "repeat", "marker", "query_aware", "top_only")),
    {"arm": "logit_bias", "params": {"query_scope": SCOPES, "depth": EVERY_DEPTH}},
    {"arm": "logit_bias", "weights": ["wrong", "all", "random"], "params": {"strength": [2.0]}},
    {"arm": "logit_bias", "weights": "oracle", "params": {"phase": ["prefill", "decode"]}},
    {
        "arm": "logit_bias",
        "weights": "all",
        "params": {"length_normalised": True, "heads": [[[0, 1], [1, 2]]]},
    },
    {"arm": "target_share", "weights": "oracle", "params": {"query_scope": SCOPES, "only_raise": False}},
    {"arm": "target_share_paper", "weights": "oracle", "params": {"query_scope": SCOPES}},
    {"arm": "share_control", "weights": "oracle", "params": {"query_scope": SCOPES, "depth": EVERY_DEPTH}},
    {"arm": "share_control", "weights": "all"},
]


def run(
    spec: ExperimentSpec, options: RunOptions, lm: LanguageModel, recall: TextRecall, **changes: Any
) -> list[Trial]:
    return read_trials(run_spec(spec, dataclasses.replace(options, **changes), lambda: lm, recall))


def task_of(spec: ExperimentSpec) -> Task:
    return build_task(spec.task.name, spec.task.params, spec.positions, spec.seed, None)


def prepare(spec: ExperimentSpec, lm: LanguageModel, recall: TextRecall) -> dict[TrialKey, PreparedTrial]:
    """Every trial of a spec, from its parts and without the runner."""
    task = task_of(spec)
    prepared = {}
    for cell in spec.cells():
        arm = build_arm(cell.arm, cell.params)
        for position in spec.positions:
            for item in task.items(position):
                weights = block_weights(
                    cell.weights, item, weight=0.88, top_k=1, seed=spec.seed, recall=recall
                )
                key = TrialKey(item.item_id, position, cell.label)
                prepared[key] = prepare_trial(Parts(lm), task, item, cell, arm, weights)
    return prepared


def naive_answer(lm: LanguageModel, trial: PreparedTrial, max_new_tokens: int) -> list[int]:
    """Greedy tokens, one trial at a time, after a prefill of the whole prompt."""
    state = lm.prefill([trial.request], new_tokens=max_new_tokens)
    answer: list[int] = []
    while len(answer) < max_new_tokens and (token := int(state.logits.argmax())) not in lm.info.eos_token_ids:
        answer.append(token)
        lm.decode(state, [token])
    return answer


def naive_logprob(lm: LanguageModel, trial: PreparedTrial) -> float:
    """Mean log-probability of the gold answer, fed token by token after a prefill of the whole prompt."""
    state = lm.prefill([trial.request], new_tokens=len(trial.draft))
    total = 0.0
    for token in trial.draft:
        total += float(state.logits[0].double().log_softmax(-1)[token])
        lm.decode(state, [token])
    return total / len(trial.draft)


def assert_naive(spec: ExperimentSpec, lm: LanguageModel, recall: TextRecall, trials: list[Trial]) -> None:
    """The runner may end an answer where its score is settled; all else is the naive loop's."""
    task, prepared = task_of(spec), prepare(spec, lm, recall)
    assert {trial.key for trial in trials} == set(prepared)
    for trial in trials:
        naive = prepared[trial.key]
        answer = lm.tokenizer.decode(naive_answer(lm, naive, 5), skip_special_tokens=True)
        is_cut = task.is_settled(naive.item, trial.answer)
        assert answer.startswith(trial.answer) if is_cut else answer == trial.answer, trial.key
        assert trial.metric == task.score(naive.item, answer), trial.key
        assert trial.gold_logprob == pytest.approx(naive_logprob(lm, naive), abs=1e-4), trial.key
        assert trial.prompt_tokens == len(naive.request.token_ids)


@pytest.mark.parametrize("batch_columns", [1, 16384])
def test_every_arm_and_scope_equals_the_naive_loop(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall, batch_columns: int
):
    positions = ["middle"] if batch_columns == 1 else ["first", "middle", "last"]
    task = {"name": "qa", "params": make_spec().task.params | {"n_items": 1}}
    spec = make_spec(arms=ARMS, task=task, positions=positions, batch_columns=batch_columns)
    trials = run(spec, options, tiny_lm, recall)
    assert len(trials) == len(spec.cells()) * len(positions)
    assert_naive(spec, tiny_lm, recall, trials)


def test_chat_prompts_equal_the_naive_loop(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall, tmp_path: Path
):
    file = tmp_path / "wiki.csv"
    people = ("Ann", "Ben", "Cleo")
    rows = [
        f"{name} was born in {name}ton and keeps bees.,Where was {name} born?,{name}ton" for name in people
    ]
    file.write_text("\n".join(["context,question,answer", *rows]) + "\n")
    task = {"name": "synthwiki", "params": {"file": str(file), "n_documents": 3, "n_items": 2}}
    arms = [{"arm": "none"}, {"arm": "repeat"}, {"arm": "share_control"}, {"arm": "logit_bias"}]
    spec = make_spec(task=task, arms=arms)
    trials = run(spec, options, tiny_lm, recall)
    assert_naive(spec, tiny_lm, recall, trials)
    assert {trial.metric for trial in trials} <= {0.0, 1.0}


@pytest.mark.parametrize("n_kept", [1, 3, 5])
def test_a_draft_that_the_model_agrees_with_is_not_decoded_again(
    make_spec: MakeSpec, tiny_lm: LanguageModel, recall: TextRecall, n_kept: int
):
    spec = make_spec(positions=["middle"])
    prepared = list(prepare(spec, tiny_lm, recall).values())
    own = [naive_answer(tiny_lm, trial, 5) for trial in prepared]
    wrong = [dataclasses.replace(t, draft=(*o[:n_kept], 7, 8)) for t, o in zip(prepared, own, strict=True)]
    right = [dataclasses.replace(t, draft=tuple(o[:n_kept])) for t, o in zip(prepared, own, strict=True)]
    for trials, expected in ((wrong, own), (right, [tokens[:n_kept] for tokens in own])):
        found = run_trials(
            tiny_lm, task_of(spec), [trials], max_new_tokens=5, with_mass=False, batch_columns=16384
        )
        answers = {outcome.trial.draft: outcome.answer for outcome in found}
        assert [answers[t.draft] for t in trials] == [tiny_lm.tokenizer.decode(tokens) for tokens in expected]


def test_arms_that_edit_no_prompt_share_items_and_prompts(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    trials = run(make_spec(arms=ARMS[:7]), options, tiny_lm, recall)
    by_cell: dict[tuple[str, str], dict[str, str]] = {}
    for trial in trials:
        by_cell.setdefault((trial.item, trial.position), {})[trial.arm] = trial.prompt_sha256
    for hashes in by_cell.values():
        plain = {digest for arm, digest in hashes.items() if arm.startswith(("none", "logit_bias"))}
        assert len(plain) == 1
        assert hashes["marker"] not in plain
        assert hashes["repeat"] not in plain
    assert len({trial.prompt_sha256 for trial in trials if trial.arm == "none"}) == 6


def test_every_fifth_item_is_the_development_slice(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall, qa_file: Path
):
    fields = {
        "task": {"name": "qa", "params": {"file": str(qa_file)}},
        "arms": [{"arm": "none"}],
        "positions": ["first"],
        "max_new_tokens": 0,
        "receipts": False,
    }
    whole = run(make_spec(**fields), options, tiny_lm, recall)
    assert [(t.params["item_index"], t.params["split"]) for t in whole] == [
        (index, "dev" if index % 5 == 0 else "test") for index in range(6)
    ]
    dev = run(make_spec(**fields, split="dev"), options, tiny_lm, recall)
    assert [t.params["item_index"] for t in dev] == [0, 5]
    test = run(make_spec(**fields, split="test"), options, tiny_lm, recall)
    assert [t.params["item_index"] for t in test] == [1, 2, 3, 4]
    one = make_spec(
        **fields | {"task": make_spec().task.model_dump() | {"params": {"file": str(qa_file), "n_items": 1}}},
        split="test",
    )
    with pytest.raises(SpecError, match="split 'test' must hold at least one item, got none of the task's 1"):
        run(one, options, tiny_lm, recall)


def test_a_trial_tells_its_weights_receipt_and_kernel(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    arms = [{"arm": "none"}, {"arm": "share_control", "weights": ["oracle", "wrong"]}]
    trials = {t.arm: t for t in run(make_spec(arms=arms, positions=["middle"]), options, tiny_lm, recall)}
    none, oracle, wrong = (trials[arm] for arm in ("none", "share_control[oracle]", "share_control[wrong]"))
    assert none.params["weights"] == "none"
    assert "weighted_blocks" not in none.params
    assert (oracle.params["weights"], oracle.params["weighted_blocks"]) == ("oracle", ["gold"])
    assert (oracle.params["hit_gold"], wrong.params["hit_gold"]) == (True, False)
    assert oracle.receipt is not None
    assert oracle.receipt["shares"]["gold"] == pytest.approx(0.2, abs=0.01)
    assert oracle.receipt["unbiased"]["gold"] < 0.2
    assert (oracle.receipt["method"], oracle.receipt["first_layer"], oracle.receipt["n_layers"]) == (
        "share_control",
        1,
        1,
    )
    assert set(wrong.receipt["shares"]) == {"gold", *wrong.params["weighted_blocks"]}
    assert none.receipt["method"] == "none"
    assert all(trial.impl and trial.wall_s > 0 and trial.error is None for trial in trials.values())


def test_without_answer_tokens_only_the_log_probability_is_measured(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec(max_new_tokens=0, receipts=False)
    trials = run(spec, options, tiny_lm, recall)
    prepared = prepare(spec, tiny_lm, recall)
    for trial in trials:
        assert (trial.answer, trial.metric, trial.receipt) == (None, None, None)
        assert trial.gold_logprob == pytest.approx(naive_logprob(tiny_lm, prepared[trial.key]), abs=1e-4)


def test_closed_book_items_run_under_every_arm_that_can_apply(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    arms = [{"arm": name} for name in ("none", "reorder", "query_aware", "logit_bias", "share_control")]
    arms += [{"arm": "logit_bias", "weights": ["oracle", "wrong", "all", "random"]}]
    spec = make_spec(arms=arms, positions=["closed_book"])
    trials = run(spec, options, tiny_lm, recall)
    assert_naive(spec, tiny_lm, recall, trials)
    assert len({trial.prompt_sha256 for trial in trials}) == 2
    assert len({trial.answer for trial in trials if trial.item == trials[0].item}) == 1
    with pytest.raises(ValueError, match="item must have blocks to edit its prompt, got none"):
        run(make_spec(arms=[*arms, {"arm": "marker"}], positions=["closed_book"]), options, tiny_lm, recall)


def test_shards_join_to_the_whole_run(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall, tmp_path: Path
):
    spec = make_spec(task={"name": "qa", "params": make_spec().task.params | {"n_items": 4}})
    whole = [without_time(t) for t in run(spec, options, tiny_lm, recall)]
    for index in (1, 2, 3):
        run(spec, options, tiny_lm, recall, run_id="parts", shard=Shard(index, 3))
        run(spec, RunOptions(tmp_path / str(index)), tiny_lm, recall, shard=Shard(index, 3))
    joined = read_run(run_directory(spec, dataclasses.replace(options, run_id="parts")))
    assert [without_time(t) for t in joined.trials] == whole
    assert joined.is_complete
    assert joined.manifest.n_trials == 24
    apart = [run_directory(spec, RunOptions(tmp_path / str(index))) for index in (1, 2, 3)]
    assert [load_manifest(path / f"manifest.{i}of3.json").n_trials for i, path in enumerate(apart, 1)] == [
        12,
        6,
        6,
    ]
    merged = merge_runs(apart, tmp_path / "merged")
    assert merged.is_complete
    assert [without_time(t) for t in read_trials(tmp_path / "merged")] == whole


def test_a_shard_without_items_is_complete(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec(positions=["first"])
    for index in (1, 2, 3):
        run(spec, options, tiny_lm, recall, shard=Shard(index, 3))
    joined = read_run(run_directory(spec, options))
    assert joined.is_complete
    assert len(joined.trials) == 4


def test_another_split_into_shards_is_refused_and_breaks_nothing(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec(positions=["first"])
    run(spec, options, tiny_lm, recall, shard=Shard(1, 2))
    with pytest.raises(TrialsError, match="is split into 2 shards, got a part of 3"):
        run(spec, options, tiny_lm, recall, shard=Shard(1, 3))
    run(spec, options, tiny_lm, recall, shard=Shard(2, 2))
    assert read_run(run_directory(spec, options)).is_complete


def test_a_limited_run_goes_on_to_the_whole(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec()
    first = run(spec, options, tiny_lm, recall, limit=1)
    run_dir = run_directory(spec, options)
    assert {trial.params["item_index"] for trial in first} == {0}
    assert (load_manifest(run_dir / "manifest.json").n_expected, read_run(run_dir).is_complete) == (6, True)
    whole = run(spec, options, tiny_lm, recall)
    assert [t for t in whole if t.params["item_index"] == 0] == first
    assert load_manifest(run_dir / "manifest.json").n_trials == 12
    run(spec, options, tiny_lm, recall, limit=1)
    assert load_manifest(run_dir / "manifest.json").n_trials == 12


def test_a_changed_spec_is_another_run(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec, changed = make_spec(positions=["first"]), make_spec(positions=["first"], seed=1)
    assert run_directory(spec, options) != run_directory(changed, options)
    run(spec, options, tiny_lm, recall, run_id="mine")
    with pytest.raises(TrialsError, match="another version of spec 'small'; choose another run id"):
        run(changed, options, tiny_lm, recall, run_id="mine")
    with pytest.raises(TrialsError, match="another version of spec 'small'; choose another run id"):
        run(changed, options, tiny_lm, recall, run_id="mine", shard=Shard(1, 2))


def test_a_second_process_on_the_same_run_is_refused_before_it_loads(
    make_spec: MakeSpec, options: RunOptions, recall: TextRecall
):
    spec = make_spec()
    loaded = []
    with (
        TrialLog(run_directory(spec, options)),
        pytest.raises(RunLocked, match="is being written by another process"),
    ):
        run_spec(spec, options, lambda: loaded.append(1), recall)
    assert not loaded


def test_a_model_that_does_not_load_leaves_nothing_behind(
    make_spec: MakeSpec, options: RunOptions, recall: TextRecall
):
    def load() -> LanguageModel:
        raise OSError("no such model")

    with pytest.raises(OSError, match="no such model"):
        run_spec(make_spec(), options, load, recall)
    assert not options.results_dir.exists()


def test_prompts_over_the_window_stop_the_run_before_its_first_trial(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    def with_window(tokens: int) -> LanguageModel:
        info = dataclasses.replace(tiny_lm.info, context_window=tokens)
        return LanguageModel(tiny_lm.model, tiny_lm.tokenizer, info)

    spec = make_spec(arms=ARMS[:3])
    trials = prepare(spec, tiny_lm, recall).values()
    longest = max(len(t.request.token_ids) + max(5, len(t.draft)) for t in trials)
    message = r"under arm 'repeat' has a prompt of \d+ tokens and 5 for its answer, which is 2 over"
    with pytest.raises(PromptTooLong, match=message):
        run(spec, options, with_window(longest - 2), recall)
    manifest = load_manifest(run_directory(spec, options) / "manifest.json")
    assert (manifest.status, manifest.n_trials) == ("failed", 0)
    assert "2 over the context window" in str(manifest.error)
    assert read_trials(run_directory(spec, options)) == []
    assert len(run(spec, options, with_window(longest), recall)) == 18


def test_a_failure_is_told_by_the_manifest_and_retried(
    make_spec: MakeSpec,
    options: RunOptions,
    tiny_lm: LanguageModel,
    recall: TextRecall,
    monkeypatch: pytest.MonkeyPatch,
):
    spec = make_spec(positions=["first"])
    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "append", refuse)
        with pytest.raises(OSError, match="No space left on device"):
            run(spec, options, tiny_lm, recall)
    manifest = load_manifest(run_directory(spec, options) / "manifest.json")
    assert (manifest.status, manifest.error) == ("failed", "OSError: [Errno 28] No space left on device")
    assert len(run(spec, options, tiny_lm, recall)) == 4
    assert read_run(run_directory(spec, options)).is_complete


def refuse(log: TrialLog, trial: Trial) -> None:
    raise OSError(28, "No space left on device")


def test_a_users_own_arm_runs(
    make_spec: MakeSpec,
    options: RunOptions,
    tiny_lm: LanguageModel,
    recall: TextRecall,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "own_arms.py").write_text(
        "from dataclasses import replace\n"
        "from salience_experiments.arms import Arm, published\n"
        "from salience_experiments.tasks.base import Layout\n"
        "class Shortest(Arm):\n"
        "    def __init__(self, n_blocks):\n"
        "        self.n_blocks = n_blocks\n"
        "    def edit(self, steps, setting):\n"
        "        layout = Layout(tuple(b.name for b in setting.item.blocks)[: self.n_blocks])\n"
        "        return replace(steps, render=published(setting, layout))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arms = [{"arm": "none"}, {"arm": "own_arms:Shortest", "params": {"n_blocks": [1, 4]}}]
    trials = {t.arm: t for t in run(make_spec(arms=arms, positions=["first"]), options, tiny_lm, recall)}
    none, one, four = (
        trials[a] for a in ("none", "own_arms:Shortest[n_blocks=1]", "own_arms:Shortest[n_blocks=4]")
    )
    assert four.prompt_sha256 == none.prompt_sha256
    assert one.prompt_tokens < none.prompt_tokens
    assert one.params["n_blocks"] == 1


def without_time(trial: Trial) -> dict[str, Any]:
    return json.loads(trial.model_dump_json(exclude={"wall_s"}))
