import numpy as np
import pytest

from salience_experiments.errors import TrialsError, UnequalSets
from salience_experiments.pairing import (
    arm_names,
    contrast_pairs,
    edits_prompt,
    pair_trials,
    position_order,
    scopes_by_table,
    select_split,
)
from salience_experiments.trials import Trial

POSITIONS = ("first", "middle", "last")


def make_trial(item, position, arm, metric=1.0, **changes):
    fields = {
        "item": item,
        "position": position,
        "arm": arm,
        "params": {"split": "test", "item_index": int(item), "question": f"q{item}", "weights": "recall"},
        "prompt_sha256": f"{item}-{position}",
        "prompt_tokens": 9,
        "metric": metric,
        "impl": "reference",
        "wall_s": 0.1,
    }
    return Trial.model_validate(fields | changes)


def make_set(arms=("none", "steer"), n=4):
    return [make_trial(str(i), p, arm) for arm in arms for p in POSITIONS for i in range(n)]


def test_pairs_line_up_by_item_and_position_whatever_the_order():
    trials = [
        make_trial(str(i), p, arm, metric=i + 10 * place + (0.5 if arm == "steer" else 0))
        for arm in ("steer", "none")
        for place, p in enumerate(POSITIONS)
        for i in range(12)
    ]
    rng = np.random.default_rng(0)
    shuffled = [trials[i] for i in rng.permutation(len(trials))]
    pair = pair_trials(shuffled, "steer", "none")
    assert pair.items == tuple(str(i) for i in range(12))
    assert pair.positions == POSITIONS
    np.testing.assert_array_equal(pair.arm_values - pair.baseline_values, 0.5)
    np.testing.assert_array_equal(pair.baseline_values[:, 1], np.arange(12) + 10)
    assert pair.has_same_prompts


def test_u_is_the_ends_mean_minus_the_middle():
    level = {"first": 0.8, "middle": 0.2, "last": 0.6}
    trials = [make_trial("1", p, arm, metric=level[p]) for arm in ("none", "steer") for p in POSITIONS]
    ours, theirs = pair_trials(trials, "steer", "none").u_values()
    np.testing.assert_allclose([*ours, *theirs], 0.5)


def test_u_without_a_middle_is_refused():
    trials = [trial for trial in make_set() if trial.position != "middle"]
    with pytest.raises(UnequalSets, match=r"missing \['middle'\]"):
        pair_trials(trials, "steer", "none").u_values()


def test_a_missing_trial_names_arm_and_item():
    trials = [t for t in make_set() if (t.arm, t.item, t.position) != ("steer", "2", "last")]
    with pytest.raises(UnequalSets, match="arm 'steer' lacks items that arm 'none' holds: 2 at last"):
        pair_trials(trials, "steer", "none")


def test_an_item_missing_at_one_position_in_both_arms_is_refused():
    trials = [t for t in make_set() if (t.item, t.position) != ("2", "last")]
    with pytest.raises(UnequalSets, match="2 at last"):
        pair_trials(trials, "steer", "none")


def test_a_failed_trial_is_refused():
    trials = [*make_set(n=2), *(make_trial("2", p, "none") for p in POSITIONS)]
    trials += [make_trial("2", p, "steer", metric=None, error="out of memory") for p in POSITIONS]
    with pytest.raises(UnequalSets, match="arm 'steer' has failed trials for items 2"):
        pair_trials(trials, "steer", "none")


def test_a_missing_value_is_refused():
    trials = [t.model_copy(update={"metric": None}) if t.key[:1] == ("3",) else t for t in make_set()]
    with pytest.raises(UnequalSets, match="has no metric for items 3"):
        pair_trials(trials, "steer", "none")
    with pytest.raises(UnequalSets, match="has no gold_logprob for items 0, 1, 2, 3"):
        pair_trials(trials, "steer", "none", "gold_logprob")


def test_an_absent_arm_and_a_changed_question_are_refused():
    with pytest.raises(UnequalSets, match="arm 'other' has no trials"):
        pair_trials(make_set(), "other", "none")
    trials = make_set(n=1)
    trials[0] = trials[0].model_copy(update={"params": trials[0].params | {"question": "another"}})
    with pytest.raises(UnequalSets, match="asks another question for item 0"):
        pair_trials(trials, "steer", "none")


def test_prompts_may_differ_only_where_an_arm_edits_them():
    trials = make_set()
    trials[-1] = trials[-1].model_copy(update={"prompt_sha256": "x"})
    with pytest.raises(UnequalSets, match=r"arm 'steer' saw other prompts than arm 'none'.*3 at last"):
        pair_trials(trials, "steer", "none")
    assert not pair_trials(trials, "steer", "none", may_edit=True).has_same_prompts
    assert pair_trials(make_set(), "steer", "none", may_edit=True).has_same_prompts
    assert [edits_prompt(arm) for arm in ("reorder", "mine.arms:Mine", "logit_bias", "none")] == [
        *(True, True),
        *(False, False),
    ]


def test_contrasts_default_to_every_arm_against_the_baseline():
    assert contrast_pairs({}, ["none", "a", "b[x=1]"]) == [("a", "none"), ("b[x=1]", "none")]
    assert contrast_pairs({"baseline": "a"}, ["none", "a"]) == [("none", "a")]


def test_contrasts_name_cells_exactly():
    labels = ["none", "steer[strength=1]", "steer[strength=2]"]
    spec = {"contrasts": [["steer[strength=2]", "steer[strength=1]"]]}
    assert contrast_pairs(spec, labels) == [("steer[strength=2]", "steer[strength=1]")]
    with pytest.raises(TrialsError, match=r"contrasts must name arms .*, got 'steer'"):
        contrast_pairs({"contrasts": [["steer", "none"]]}, labels)


def test_every_cell_of_a_grid_knows_its_arm():
    arms = [{"arm": "none"}, {"arm": "logit_bias", "params": {"strength": [1.0, 2.0]}}]
    assert arm_names({"arms": [*arms, {"arm": "share_control", "label": "mine"}]}) == {
        "none": "none",
        "logit_bias[strength=1]": "logit_bias",
        "logit_bias[strength=2]": "logit_bias",
        "mine": "share_control",
    }
    with pytest.raises(TrialsError, match="arms must be those of a spec"):
        arm_names({"arms": [{"weights": "recall"}]})


def test_a_table_of_contrasts_has_its_own_scopes():
    assert scopes_by_table(POSITIONS, with_u=True) == {
        "pooled": ("all",),
        "by_position": POSITIONS,
        "u": ("U",),
    }
    assert "u" not in scopes_by_table(POSITIONS, with_u=False)
    assert "u" not in scopes_by_table(("first", "last"), with_u=True)


def test_positions_run_from_start_to_end():
    assert position_order(["last", "first", "middle"]) == POSITIONS
    assert position_order(["100%", "0%", "50%"]) == ("0%", "50%", "100%")


def test_a_trial_without_a_split_belongs_nowhere():
    with pytest.raises(TrialsError, match="must carry split"):
        select_split([make_trial("1", "first", "none", params={})], "test")
