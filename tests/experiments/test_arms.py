"""Arms: what each makes of weights, and what is refused by name."""

from pathlib import Path

import pytest

from salience.turn import Parts, Steps
from salience_experiments.arms import Arm, EditArm, Setting, SteeringArm, build_arm
from salience_experiments.errors import SpecError
from salience_experiments.prompt_edits import PromptEdit
from salience_experiments.spec import ArmCell
from salience_experiments.tasks.documents import DocumentsRecord, DocumentsTask
from salience_experiments.trial_batches import PreparedTrial, prepare_trial
from salience_experiments.weight_sources import WeightSource
from salience_models import LanguageModel, SteeringMethod

TASK = DocumentsTask((DocumentsRecord(0, "Who is it?", ("Ann",), "It is Ann.", ("It is Bob.",)),))
ITEM = TASK.items("first")[0]
WEIGHTS = {"gold": 0.88}


def prepare(tiny_lm: LanguageModel, name: str, **params: object) -> PreparedTrial:
    """A trial of the published prompt under an arm."""
    cell = ArmCell(name, name, WeightSource.ORACLE, params)
    weights = {} if name == "none" else WEIGHTS
    return prepare_trial(Parts(tiny_lm), TASK, ITEM, cell, build_arm(name, params), weights)


def test_the_baseline_shows_the_item_as_it_is_and_steers_nothing(tiny_lm: LanguageModel):
    trial = prepare(tiny_lm, "none")
    assert [message.content for message in trial.turn.rendered.messages][1].count("Ann.") == 1
    assert not trial.request.plan.is_steering
    assert [span.name for span in trial.request.plan.spans] == ["gold", "d0"]
    assert trial.request.plan.question_start == trial.turn.question.start


@pytest.mark.parametrize("edit", list(PromptEdit))
def test_a_prompt_edit_replaces_the_render_step_and_steers_nothing(tiny_lm: LanguageModel, edit: str):
    setting = Setting(TASK, ITEM, WEIGHTS, is_published=True)
    arm = build_arm(edit, {})
    assert isinstance(arm, EditArm)
    edited = arm.edit(Steps(), setting)
    assert [name for name, step in vars(edited).items() if step is not getattr(Steps(), name)] == ["render"]
    trial = prepare(tiny_lm, edit)
    assert trial.turn.rendered.messages != prepare(tiny_lm, "none").turn.rendered.messages
    assert not trial.request.plan.is_steering


def test_a_prompt_edit_has_no_place_beside_the_products_own_prompt():
    with pytest.raises(SpecError, match="need a spec with render 'published'"):
        build_arm("reorder", {}).edit(Steps(), Setting(TASK, ITEM, WEIGHTS, is_published=False))


@pytest.mark.parametrize("method", list(SteeringMethod)[1:])
def test_a_steering_arm_replaces_the_plan_alone_and_asks_for_what_the_spec_says(
    tiny_lm: LanguageModel, method: str
):
    params = {"query_scope": "all", "depth": (0.0, 1.0), "strength": 2.0, "share": 0.3}
    arm = build_arm(method, params)
    assert isinstance(arm, SteeringArm)
    trial = prepare(tiny_lm, method, **params)
    assert trial.turn.rendered.messages == prepare(tiny_lm, "none").turn.rendered.messages
    gold, other = trial.request.plan.asks
    assert trial.request.plan.method == method
    assert other == 0.0
    if method == SteeringMethod.LOGIT_BIAS:
        assert gold == pytest.approx(2.0 * 1.99243, abs=1e-4)
    else:  # beside a published prompt, the share is that of a block of the spec's own weight
        assert gold == pytest.approx(0.3)


def test_the_default_arm_does_what_the_harness_does_when_nothing_is_said(tiny_lm: LanguageModel):
    trial = prepare_trial(
        Parts(tiny_lm),
        TASK,
        ITEM,
        ArmCell("default", "default", WeightSource.RECALL, {}),
        build_arm("default", {}),
        {},
        {"gold": 0.75, "d0": 0.0},
    )
    gold, other = trial.request.plan.asks
    assert gold == pytest.approx(0.2 * 2 * 0.4 * 0.75)  # share * (2w - 1), w = .5 + (.9 - .5) * .75
    assert other == 0.0
    assert "[MEMORY_CONTEXT]" in trial.turn.rendered.messages[0].content
    assert trial.request.constraint is not None


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
