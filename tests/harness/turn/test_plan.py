"""Step 4: what each block asks for, by its own weight alone, and which rules bind."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from salience import (
    ConstraintContradiction,
    Harness,
    Memory,
    MemoryAccess,
    Session,
    Steering,
    SteeringMethod,
    StoredMemory,
    Turn,
)
from salience_models import Phase

Prepare = Callable[..., Turn]


def constraint(name: str, rule: dict, **fields) -> Memory:
    return Memory(f"Rule {name}.", type="constraint", memory_id=name, rule=rule, **fields)


def test_each_block_asks_by_its_weight_and_a_neutral_one_for_nothing(harness: Harness, ferry: Memory):
    bridge = Memory("The bridge is blue.", weight=0.5, memory_id="bridge")
    museum = Memory("The museum opens at ten.", weight=0.6, memory_id="museum")
    turn = harness.session().prepare("When?", [ferry, bridge, museum])
    plan = turn.request.plan
    asked = dict(zip([span.name for span in plan.spans], plan.asks, strict=True))
    assert asked == {"ferry": pytest.approx(0.16), "museum": pytest.approx(0.04), "bridge": 0.0}
    assert [(s.name, s.start, s.end) for s in plan.spans] == [(s.name, s.start, s.end) for s in turn.blocks]
    assert plan.question_start == turn.question.start


def test_what_a_block_asks_for_does_not_hang_on_its_neighbours(harness: Harness, ferry: Memory):
    strong = Memory("The museum opens at ten.", weight=0.99, memory_id="museum")
    for others in ([], [strong]):
        plan = harness.session().prepare("When?", [ferry, *others]).request.plan
        asked = dict(zip([span.name for span in plan.spans], plan.asks, strict=True))
        assert asked["ferry"] == pytest.approx(0.16)


@pytest.mark.parametrize("method", ["share_control", "logit_bias"])
def test_trust_freshness_and_recalls_probability_shrink_what_a_block_asks_for(
    ann: Session,
    memory: MemoryAccess,
    declare: Callable[..., StoredMemory],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
):
    stored = declare("The ferry leaves at seven.", semantic_weight=0.9, trust=0.5)
    hit = SimpleNamespace(memory=stored, score=0.7, probability=0.25, has_conflict=False, breakdown=None)
    monkeypatch.setattr(memory, "recall", lambda *_, **__: [hit])
    steering = Steering(method=SteeringMethod(method), share=0.2, strength=1.0)
    given = stored.model_copy(update={"memory_id": "given", "freshness": 0.5})
    plan = ann.prepare("When?", [given], steering=steering).request.plan
    asked = dict(zip([span.name for span in plan.spans], plan.asks, strict=True))
    for name, weight in (("given", 0.5 + 0.4 * 0.5 * 0.5), (stored.memory_id, 0.5 + 0.4 * 0.5 * 0.25)):
        by_share, by_bias = 0.2 * (2 * weight - 1), np.log(weight / (1 - weight))
        assert asked[name] == pytest.approx(by_bias if method == "logit_bias" else by_share)


def test_one_messages_steering_overrides_the_sessions(harness: Harness, ferry: Memory):
    session = harness.session()
    both = Steering(method=SteeringMethod.LOGIT_BIAS, depth=(0.0, 1.0), phase=Phase.BOTH)
    assert session.prepare("When?", [ferry], steering=both).request.plan.layers == (0, 1)
    assert session.prepare("When?", [ferry]).request.plan.layers == (1,)
    assert not session.prepare("When?", [ferry], steering="none").request.plan.is_steering
    assert not harness.session(steering="none").prepare("When?", [ferry]).request.plan.is_steering


def test_neutral_memories_are_measured_and_steer_nothing(prepare: Prepare):
    plan = prepare(memories=[Memory("The ferry leaves.", weight=0.5, memory_id="ferry")]).request.plan
    assert [span.name for span in plan.spans] == ["ferry"]
    assert not plan.is_steering


def test_rules_that_cannot_be_kept_are_refused_by_the_memorys_name(prepare: Prepare):
    with pytest.raises(ValueError, match=r"^rule of memory 'odd': json_schema.not cannot be enforced"):
        prepare(memories=[constraint("odd", {"json_schema": {"not": {}}})])
    pair = [constraint("a", {"allow_values": ["yes"]}), constraint("b", {"forbid_phrases": ["YES"]})]
    with pytest.raises(ConstraintContradiction, match=r"\['a', 'b'\] must leave a value"):
        prepare(memories=pair)


def test_a_rule_binds_no_longer_than_it_is_valid(prepare: Prepare):
    ended = constraint("ended", {"allow_values": ["yes"]}, valid_until=1)
    live = constraint("live", {"allow_values": ["yes"]}, valid_until=2**62)
    for memories, bound in (([ended], set()), ([live], {"live"})):
        binding = prepare(memories=memories).request.constraint
        rules = () if binding is None else binding.rules
        assert {rule.rule_id for rule in rules} - {"protocol"} == bound
