import numpy as np
import pytest

from salience_experiments.power import count_items, format_power, power_for_spec
from salience_experiments.report.analysis import summarise
from salience_experiments.spec import PowerSpec
from salience_experiments.trials import Trial

SPEC = {"arms": [{"arm": "none"}, {"arm": "logit_bias", "params": {"strength": [1.0, 2.0]}}]}


def make_pilot(n=60):
    rng = np.random.default_rng(0)
    trials = []
    for index in range(n):
        for position in ("first", "middle", "last"):
            hit = rng.random() < 0.6
            for arm, flips in (
                ("none", 0.0),
                ("logit_bias[strength=1]", 0.2),
                ("logit_bias[strength=2]", 0.3),
            ):
                metric = float(hit != (rng.random() < flips))
                trials.append(
                    Trial(
                        item=str(index),
                        position=position,
                        arm=arm,
                        params={"split": "dev", "item_index": index, "question": str(index)},
                        prompt_sha256="",
                        prompt_tokens=1,
                        metric=metric,
                        gold_logprob=float(rng.normal(-3, 1)),
                        impl="reference",
                        wall_s=0.1,
                    )
                )
    return trials


def test_a_spec_without_a_pilot_uses_its_assumptions_and_says_so():
    spec = SPEC | {"power": {"effect": 0.1, "discordance": 0.3}}
    needs = power_for_spec(spec)
    assert {(need.arm, need.baseline) for need in needs} == {
        ("logit_bias[strength=1]", "none"),
        ("logit_bias[strength=2]", "none"),
    }
    assert {need.spread.source for need in needs} == {"assumed"}
    text = format_power(needs)
    assert "logit_bias[strength=1] vs none" in text
    assert "discordance 0.3" in text
    assert str(needs[0].size.n) in text


def test_a_pilot_replaces_the_assumptions():
    needs = power_for_spec(SPEC, make_pilot())
    rates = {need.arm: need.spread.amount for need in needs if need.spread.kind == "discordance"}
    assert rates["logit_bias[strength=1]"] == pytest.approx(0.2, abs=0.1)
    assert rates["logit_bias[strength=2]"] == pytest.approx(0.3, abs=0.1)
    assert {need.spread.source for need in needs} == {"pilot n=60"}
    assert {(need.measure, need.scope) for need in needs} == {
        *(("metric", scope) for scope in ("all", "first", "middle", "last", "U")),
        *(("gold_logprob", scope) for scope in ("all", "first", "middle", "last")),
    }


def test_arms_that_the_pilot_lacks_keep_the_assumptions():
    trials = [trial for trial in make_pilot(20) if trial.arm != "logit_bias[strength=2]"]
    sources = {(need.arm, need.spread.source) for need in power_for_spec(SPEC, trials)}
    assert sources == {("logit_bias[strength=1]", "pilot n=20"), ("logit_bias[strength=2]", "assumed")}


def test_alpha_is_the_strictest_of_the_reports_own_families():
    trials = make_pilot()
    summary = summarise(SPEC, trials, "dev", seed=0)
    tables = [table for measure in summary.measures for table in measure.contrasts.values()]
    in_report = {(c.measure, c.scope): 0.05 / len(table) for table in tables for c in table}
    planned = {(need.measure, need.scope): need.alpha for need in power_for_spec(SPEC, trials)}
    assert planned == in_report
    assert planned["metric", "middle"] == pytest.approx(0.05 / 6)
    assert planned["metric", "all"] == pytest.approx(0.05 / 2)


@pytest.mark.parametrize("fields", [{"metric": "gold_logprob"}, {"max_new_tokens": 0}])
def test_accuracy_is_not_planned_for_where_none_will_be_judged(fields):
    needs = power_for_spec(SPEC | fields)
    assert {need.measure for need in needs} == {"gold_logprob"}
    assert "accuracy" not in format_power(needs)


def test_the_n_of_the_spec_stands_beside_the_n_needed():
    task = {"name": "kv", "params": {"n_keys": 10, "n_items": 63}}
    counts = {split: count_items({"task": task, "split": split}) for split in ("test", "all", "dev")}
    assert counts == {"test": 50, "all": 50, "dev": 13}
    assert count_items({"task": {"name": "qa", "params": {"file": "x"}}}) is None
    head, first, *_ = format_power(power_for_spec(SPEC | {"task": task, "split": "test"})).splitlines()
    assert "n in spec" in head
    assert first.split()[-2] == "50"


def test_a_pilot_without_spread_cannot_tell_an_n():
    trials = [t.model_copy(update={"metric": 1.0, "gold_logprob": -1.0}) for t in make_pilot(5)]
    needs = power_for_spec(SPEC, trials)
    assert {need.size for need in needs} == {None}
    assert format_power(needs).count("cannot tell (no spread)") == len(needs)


def test_the_specs_own_defaults_are_the_assumptions():
    needs = power_for_spec(SPEC)
    assert {need.effect for need in needs if need.measure == "metric"} == {PowerSpec().effect}
    assert {n.spread.amount for n in needs if n.measure == "gold_logprob"} == {PowerSpec().sd_nats}
