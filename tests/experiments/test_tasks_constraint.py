"""The constraint task and its arms: what is asked, what counts as kept, and what a run of them records."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from salience.turn import Parts
from salience_experiments.arms import build_arm
from salience_experiments.errors import SpecError
from salience_experiments.power import power_for_spec
from salience_experiments.report import build_report
from salience_experiments.runner import RunOptions, run_spec
from salience_experiments.spec import ArmCell, ExperimentSpec, load_spec
from salience_experiments.task_factory import build_task
from salience_experiments.tasks import (
    QUESTION_SPAN,
    ConstraintTask,
    Layout,
    constraint_generated,
    plain_layout,
)
from salience_experiments.tasks.constraint import RIDDLES, UNPLACED, WORDS
from salience_experiments.trial_batches import prepare_trial
from salience_experiments.trials import Trial, read_trials
from salience_experiments.weight_sources import WeightSource
from salience_memory import TextRecall
from salience_models import LanguageModel, Sampling, generate
from salience_models.constraints import Rule, TokenConstraint
from salience_models.constraints.bans import contains_banned
from salience_models.constraints.token_sequence_ban import TokenSequenceBan

MakeSpec = Callable[..., ExperimentSpec]
SPECS = Path(__file__).parents[2] / "experiments" / "ablations"
ARMS = ["none", "prompt_rule", "token_sequence_ban", "constraint_mask"]
LETTERS = "etaoi"


@pytest.fixture
def task() -> ConstraintTask:
    return constraint_generated()


@pytest.fixture
def spec(make_spec: MakeSpec) -> ExperimentSpec:
    return make_spec(
        task={"name": "constraint", "params": {"n_items": 3}},
        positions=[UNPLACED],
        arms=[{"arm": arm} for arm in ARMS],
        metric="rule_kept",
        max_new_tokens=12,
        receipts=False,
    )


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ban single letters, which a random model would otherwise write."""
    monkeypatch.setattr("salience_experiments.tasks.constraint.WORDS", tuple(LETTERS))
    monkeypatch.setattr(
        "salience_experiments.tasks.constraint.RIDDLES", {letter: f"{letter}?" for letter in LETTERS}
    )


def run(spec: ExperimentSpec, options: RunOptions, lm: LanguageModel, recall: TextRecall) -> list[Trial]:
    return read_trials(run_spec(spec, options, lambda: lm, recall))


def test_every_word_is_asked_for_in_ten_ways_and_banned_from_all_answers(task: ConstraintTask):
    items = task.items(UNPLACED)
    assert len(items) == len({item.item_id for item in items}) == len({item.question for item in items}) == 80
    assert [item.index for item in items] == list(range(80))
    for word in WORDS:
        mine = [item for item in items if item.item_id.endswith(f"/{word}")]
        assert len(mine) == 10
        riddles = [item for item in mine if RIDDLES[word] in item.question]
        assert len(riddles) == 2
        assert not any(contains_banned(item.question, WORDS) for item in riddles)
        assert all(word in item.question for item in mine if item not in riddles)
    assert {item.rule["forbid_phrases"] for item in items if item.rule is not None} == {WORDS}
    assert items[4].question == "Write two sentences about an espresso."


def test_chosen_kinds_of_request_keep_their_names_and_seeds(task: ConstraintTask):
    chosen = constraint_generated(kinds=(4, 3)).items(UNPLACED)
    every = task.items(UNPLACED)
    assert [item.index for item in chosen] == list(range(16))
    for ours, theirs in zip(chosen, (*every[32:40], *every[24:32]), strict=True):
        assert dataclasses.replace(ours, index=theirs.index) == theirs


def test_seed_of_an_item_is_its_own_and_depends_on_the_specs_seed(task: ConstraintTask):
    def seeds(other: ConstraintTask) -> list[int]:
        return [item.draw.seed for item in other.items(UNPLACED) if item.draw is not None]

    assert len(set(seeds(task))) == 80
    assert seeds(task) == seeds(constraint_generated())
    assert seeds(constraint_generated(n_items=8)) == seeds(task)[:8]
    assert not set(seeds(task)) & set(seeds(constraint_generated(seed=1)))


def test_rule_stands_after_the_request_where_the_layout_states_it(task: ConstraintTask):
    item = task.items(UNPLACED)[0]
    plain, stated = (task.render(item, Layout((), states_rule=states)) for states in (False, True))
    assert plain.chat
    assert plain.text == item.question
    assert stated.text.startswith(f"{item.question}\n\nRule: ")
    assert all(word in stated.text for word in WORDS)
    assert [span.name for span in stated.spans] == [QUESTION_SPAN]
    assert (stated.spans[0].start, stated.spans[0].end) == (0, len(stated.text))
    assert plain_layout(item) == Layout(())


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("A stocky animal with stripes.", 1.0),
        ("", 1.0),
        ("A bad germ.", 1.0),
        ("A badger.", 0.0),
        ("BADGERS dig.", 0.0),
        ("the Bádger", 0.0),
        ("two lighthousekeepers", 0.0),
    ],
)
def test_an_answer_keeps_the_rule_if_no_word_stands_in_it_anywhere(
    task: ConstraintTask, answer: str, kept: float
):
    item = task.items(UNPLACED)[0]
    assert task.score(item, answer) == kept
    assert task.is_settled(item, answer) is (kept == 0.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_items": 81}, r"n_items must be in 1\.\.80, got 81"),
        ({"n_items": 0}, r"n_items must be in 1\.\.80, got 0"),
        ({"n_items": 17, "kinds": [3, 4]}, r"n_items must be in 1\.\.16, got 17"),
        ({"kinds": [3, 10]}, r"kinds must be different numbers below 10, got \[3, 10\]"),
        ({"kinds": [3, 3]}, r"kinds must be different numbers below 10, got \[3, 3\]"),
        ({"kinds": []}, r"kinds must be different numbers below 10, got \[\]"),
        ({"temperature": -1.0}, r"temperature must be 0 or in \[0\.0001, 100\], got -1"),
        ({"file": "x.json"}, r"task\.params\.file is not a parameter of task 'constraint'; it takes n_items"),
        ({"words": 8}, r"task\.params\.words is not a parameter of task 'constraint'"),
    ],
)
def test_parameters_out_of_bounds_are_refused(params: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        build_task("constraint", params, (UNPLACED,), 0, None)


def test_positions_other_than_its_own_are_refused():
    with pytest.raises(SpecError, match=r"positions must be \['unplaced'\]"):
        build_task("constraint", {}, ("first",), 0, None)


def test_two_arms_mask_one_asks_and_the_baseline_does_neither(task: ConstraintTask, tiny_lm: LanguageModel):
    item = task.items(UNPLACED)[0]
    trials = {
        name: prepare_trial(
            Parts(tiny_lm), task, item, ArmCell(name, name, WeightSource.RECALL, {}), build_arm(name, {}), {}
        )
        for name in ARMS
    }
    made = {name: trial.request.constraint for name, trial in trials.items()}
    assert made["none"] is made["prompt_rule"] is None
    assert type(made["constraint_mask"]) is TokenConstraint
    assert type(made["token_sequence_ban"]) is TokenSequenceBan
    expected = (Rule(rule_id="rule", forbid_phrases=WORDS),)
    assert made["constraint_mask"].rules == made["token_sequence_ban"].rules == expected
    prompts = {name: trial.prompt_sha256 for name, trial in trials.items()}
    assert [name for name in ARMS if prompts[name] != prompts["none"]] == ["prompt_rule"]


@pytest.mark.parametrize("arm", ARMS[1:])
def test_arm_that_needs_a_rule_is_refused_on_a_task_without(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall, arm: str
):
    spec = make_spec(arms=[{"arm": "none"}, {"arm": arm}])
    with pytest.raises(SpecError, match=f"arm '{arm}' needs a task whose answers a rule binds, got 'qa'"):
        run(spec, options, tiny_lm, recall)
    assert not options.results_dir.exists()


def test_task_that_draws_answers_is_refused_without_answer_tokens(
    spec: ExperimentSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = spec.model_copy(update={"max_new_tokens": 0})
    with pytest.raises(SpecError, match="max_new_tokens must be at least 1 where task 'constraint'"):
        run(spec, options, tiny_lm, recall)


@pytest.mark.usefixtures("letters")
def test_run_draws_what_each_trial_alone_would_and_only_the_exact_mask_keeps_the_rule(
    spec: ExperimentSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    trials = run(spec, options, tiny_lm, recall)
    assert len(trials) == 12
    task = build_task("constraint", spec.task.params, spec.positions, spec.seed, None)
    items = {item.item_id: item for item in task.items(UNPLACED)}
    for cell in spec.cells():
        mine = [trial for trial in trials if trial.arm == cell.label]
        for trial in mine:
            item = items[trial.item]
            alone = prepare_trial(Parts(tiny_lm), task, item, cell, build_arm(cell.arm, {}), {})
            assert item.draw is not None
            sampling = Sampling(max_new_tokens=12, temperature=1.0, seed=item.draw.seed)
            (answer,) = generate(tiny_lm, [alone.request], sampling)
            assert trial.answer == answer.text
            assert trial.prompt_sha256 == alone.prompt_sha256
            assert trial.params["answer_tokens"] == len(answer.token_ids)
            assert trial.value == pytest.approx(sum(answer.raw_logprobs) / len(answer.raw_logprobs), abs=1e-4)
            assert trial.metric == float(not contains_banned(answer.text, tuple(LETTERS)))
            assert trial.gold_logprob is None
            assert "hit_gold" not in trial.params
        kept = {trial.metric for trial in mine}
        assert kept == {1.0} if cell.arm == "constraint_mask" else 0.0 in kept
    hashes = {arm: [t.prompt_sha256 for t in trials if t.arm == arm] for arm in ARMS}
    assert hashes["none"] == hashes["token_sequence_ban"] == hashes["constraint_mask"]
    assert not set(hashes["none"]) & set(hashes["prompt_rule"])


def test_run_that_was_cut_ends_with_the_trials_of_a_whole_one(
    spec: ExperimentSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    whole = run(spec, options, tiny_lm, recall)
    cut = dataclasses.replace(options, run_id="cut")
    run(spec, dataclasses.replace(cut, limit=2), tiny_lm, recall)
    resumed = run(spec, cut, tiny_lm, recall)
    assert [(t.key, t.answer, t.metric) for t in resumed] == [(t.key, t.answer, t.metric) for t in whole]


@pytest.mark.usefixtures("letters")
def test_report_names_the_measures_and_tells_length(
    spec: ExperimentSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    run_dir = run_spec(spec, options, lambda: tiny_lm, recall)
    paths = {path.name: path for path in build_report(run_dir)}
    text = paths["report.md"].read_text().replace("\\", "")
    assert "Change of the share of answers that keep the rule in points" in text
    assert "- constraint_mask against none: +" in text
    assert "gold unplaced" not in text
    assert "gold position" not in text
    assert "Not compared" not in text
    assert "Answer's log-probability without the rule (secondary)" in text
    assert "answer_logprob_difference.png" in paths
    assert "their mean length" in text
    assert "| edited |" in text


@pytest.mark.parametrize(("name", "n_items"), [("constraint", 64), ("constraint_facts", 16)])
def test_committed_specs_plan_for_their_metric_alone(name: str, n_items: int):
    spec = load_spec(SPECS / f"{name}.yaml")
    task = build_task(spec.task.name, spec.task.params, spec.positions, spec.seed, None)
    assert sum(item.index % 5 > 0 for item in task.items(UNPLACED)) == n_items
    assert [cell.label for cell in spec.cells()] == ARMS
    needs = power_for_spec(spec.model_dump(mode="json"))
    assert {need.measure for need in needs} == {"metric"}
    assert {need.n_items for need in needs} == {n_items}
