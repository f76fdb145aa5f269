"""`salience bench compliance`: prompts alike every time, and answers that never leave the rules."""

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from salience.rule_pack import read_rules
from salience_experiments.bench import cli, compliance
from salience_experiments.bench.compliance import (
    ATTACKS,
    GOALS,
    build_prompts,
    compliance_bars,
    measure_compliance,
)
from salience_models import LanguageModel, find_violations


def test_five_hundred_prompts_are_the_same_every_time_and_mix_goals_and_attacks():
    prompts = build_prompts(500)
    assert build_prompts(500) == prompts
    assert build_prompts(500, seed=1) != prompts
    assert len({prompt.text for prompt in prompts}) == 500
    assert set(Counter(prompt.attack for prompt in prompts)) == set(ATTACKS)
    assert min(Counter(prompt.attack for prompt in prompts).values()) >= 15
    assert set(Counter(prompt.goal for prompt in prompts)) == set(GOALS)
    with pytest.raises(ValueError, match="count must be at most 1368, got 5000"):
        build_prompts(5000)


def test_every_goal_breaks_the_pack_as_it_stands():
    rules = read_rules("compliance", "pack")
    for goals in GOALS.values():
        assert all(find_violations(goal, rules) for goal in goals)


def test_forty_answers_of_a_random_model_keep_the_rules(tiny_lm: LanguageModel):
    arms = measure_compliance(tiny_lm, build_prompts(32), n_verdicts=8, n_free=2, max_new_tokens=8, batch=40)
    text, verdict, *free = arms
    assert (text.n_answers, verdict.n_answers) == (32, 8)
    assert text.n_violating == verdict.n_violating == 0
    assert sum(text.finish_reasons.values()) == 32
    assert text.n_overruled > 0  # a random model wants bytes that are no text
    assert [arm.n_answers for arm in free] == [2, 2]
    assert not any(arm.is_masked for arm in free)
    assert free[1].n_violating + free[1].n_incomplete == 2  # no random text is a verdict


def test_bars_ask_for_no_violation_under_masks_and_for_some_without():
    arm = compliance.ComplianceArm("a", True, 9, 90, 0, {}, 0, {"stop": 9}, {}, 3, 1.0)
    broken = compliance.ComplianceArm("b", True, 9, 90, 1, {"rate": 1}, 0, {"stop": 9}, {}, 3, 1.0)
    free = compliance.ComplianceArm("c", False, 9, 90, 4, {"rate": 4}, 0, {"stop": 9}, {}, 0, 1.0)
    tame = compliance.ComplianceArm("d", False, 9, 90, 0, {}, 0, {"stop": 9}, {}, 0, 1.0)
    assert [bar.is_met for bar in compliance_bars([arm, free])] == [True, True]
    assert [bar.is_met for bar in compliance_bars([broken, tame])] == [False, False]


def test_the_command_prints_counts_and_writes_json(tmp_path: Path, tiny_checkpoint: Path):
    path = tmp_path / "compliance.json"
    sizes = ["--prompts", "2", "--verdicts", "1", "--free", "1", "--max-new-tokens", "4"]
    run = CliRunner().invoke(
        cli.bench_commands, ["compliance", *sizes, "--model", str(tiny_checkpoint), "--json", str(path)]
    )
    assert run.exit_code == 0, run.output
    assert "free text: violating answers of 2: 0" in run.output
    written = json.loads(path.read_text())
    assert [arm["n_answers"] for arm in written["facts"]["arms"]] == [2, 1, 1, 1]


@pytest.mark.model
def test_smollm2_keeps_the_rules_under_attack(scale: int):
    lm = LanguageModel.load("bundled:smollm2-135m-instruct", device="cpu")
    prompts = build_prompts(2 * scale)
    arms = measure_compliance(lm, prompts, n_verdicts=scale, n_free=0, max_new_tokens=8 + 4 * scale)
    assert [arm.n_answers for arm in arms] == [2 * scale, scale, 0, 0]
    assert arms[0].n_violating == arms[1].n_violating == 0
    assert set(arms[0].finish_reasons) <= {"stop", "length"}
