"""Arms: what each makes of weights, and what is refused by name."""

from pathlib import Path

import pytest

from salience_experiments.arms import Arm, EditArm, SteeringArm, build_arm
from salience_experiments.errors import SpecError
from salience_experiments.prompt_edits import PromptEdit, resolve_prompt_edit
from salience_experiments.tasks import Block, Item, plain_layout
from salience_models import SteeringMethod, TokenSpan, plan_from_weights

ITEM = Item("i", 0, "q?", (Block("a", "A"), Block("gold", "G", is_gold=True)), ("g",), " g", "last")
SPANS = (TokenSpan("a", 2, 5), TokenSpan("gold", 6, 9))
WEIGHTS = {"gold": 0.88}


def test_the_baseline_shows_the_item_as_it_is_and_steers_nothing():
    arm = build_arm("none", {})
    assert arm.layout(ITEM, WEIGHTS) == plain_layout(ITEM)
    plan = arm.plan(SPANS, WEIGHTS, 4, 10)
    assert not plan.is_steering
    assert [(span.name, span.start, span.end) for span in plan.spans] == [("a", 2, 5), ("gold", 6, 9)]
    assert plan.question_start == 10


@pytest.mark.parametrize("edit", list(PromptEdit))
def test_a_prompt_edit_lays_out_by_weight_and_steers_nothing(edit: str):
    arm = build_arm(edit, {})
    assert isinstance(arm, EditArm)
    assert arm.layout(ITEM, WEIGHTS) == resolve_prompt_edit(edit)(ITEM, WEIGHTS)
    assert not arm.plan(SPANS, WEIGHTS, 4, 10).is_steering


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_a_steering_arm_compiles_the_harness_plan_and_edits_nothing(method: str):
    params = {"query_scope": "all", "depth": (0.0, 1.0), "strength": 2.0, "share": 0.3}
    arm = build_arm(method, params)
    assert isinstance(arm, SteeringArm)
    assert arm.layout(ITEM, WEIGHTS) == plain_layout(ITEM)
    plan = arm.plan(SPANS, WEIGHTS, 4, 10)
    assert plan == plan_from_weights(SPANS, WEIGHTS, arm.steering, 4, 10)
    assert plan.method == method
    assert [ask > 0 for ask in plan.asks] == [False, True]
    assert not arm.plan(SPANS, {}, 4, 10).is_steering


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        (
            "lgoit_bias",
            {},
            r"arm must be one of none, reorder, .*share_control or package\.module:Class, got 'lgoit_bias'",
        ),
        ("logit_bias", {"strenght": 1}, r"arm 'logit_bias': params\.strenght is not one of its parameters"),
        ("logit_bias", {"strength": 11}, r"params\.strength: .* less than or equal to 10, got 11"),
        ("logit_bias", {"depth": (0.5,)}, r"arm 'logit_bias': params\.depth"),
        ("logit_bias", {"query_scope": "rows"}, r"params\.query_scope: .*, got 'rows'"),
        ("logit_bias", {"method": "x"}, r"arm 'logit_bias' does not take these params"),
        ("reorder", {"x": 1}, r"arm 'reorder' takes no params, got x"),
        ("none", {"x": 1}, r"arm 'none' takes no params, got x"),
        (
            "no_such_module:Arm",
            {},
            r"'no_such_module:Arm' cannot be imported: No module named 'no_such_module'",
        ),
        ("pathlib:Nope", {}, r"'pathlib:Nope' cannot be imported: .*'Nope'"),
        (":Arm", {}, r"':Arm' cannot be imported: Empty module name"),
        ("pathlib:Path", {}, r"'pathlib:Path' must be a subclass of salience_experiments\.arms\.Arm"),
    ],
)
def test_an_unknown_arm_or_param_is_refused_by_name(name: str, params: dict[str, object], message: str):
    with pytest.raises(SpecError, match=message):
        build_arm(name, params)


def test_an_arm_of_ones_own_is_imported_and_gets_its_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "arms_of_my_own.py").write_text(
        "from salience_experiments.arms import Arm\n"
        "class Mine(Arm):\n"
        "    def __init__(self, size):\n"
        "        self.size = size\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arm = build_arm("arms_of_my_own:Mine", {"size": 3})
    assert isinstance(arm, Arm)
    assert arm.size == 3  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match=r"'arms_of_my_own:Mine' does not take these params: .*'sise'"):
        build_arm("arms_of_my_own:Mine", {"sise": 3})
