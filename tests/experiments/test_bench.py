import copy
import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from salience_experiments.bench import attention, cli, experiment
from salience_experiments.bench.attention import Shape
from salience_experiments.bench.experiment import naive_answer
from salience_experiments.bench.measure import (
    Bar,
    BenchResult,
    Row,
    Timing,
    alternate,
    geometric_mean,
    measure_peak_bytes,
    time_in_turn,
    write_json,
)
from salience_experiments.bench.whole_model import ModelCase, compare_models
from salience_experiments.spec import ArmCell
from salience_experiments.task_factory import build_task
from salience_experiments.trial_batches import PreparedTrial
from salience_experiments.weight_sources import WeightSource
from salience_memory import TextRecall
from salience_models import BiasPlan, LanguageModel, Request, TokenSpan, answer_with_draft, score

TINY = Shape("4 heads on 2, width 16", 4, 2, 16)


def made_up_row(name, ratio, *, keys=4096, queries=4096, owner="ours", error=1.0, allowed=2.0):
    case = {"keys": keys, "queries": queries, "owner": owner}
    return Row(name, "peer", case, Timing((ratio,), (1.0,)), error, 1.0, allowed)


def made_up_rows(**ratios):
    defaults = {
        "native": 1.0,
        "native, bias per head": 1.0,
        "native, mass of last rows, 8 blocks": 1.2,
        "eager, dense mask": 6.0,
        "decode, bias": 1.0,
    }
    return [made_up_row(name, ratio) for name, ratio in (defaults | ratios).items()]


def bars_by_name(rows, peak_bytes=None):
    found = attention.operator_bars(rows, peak_bytes or {4096: 100, 16384: 400})
    return {bar.name: bar for bar in found}


def test_turns_alternate_and_the_first_one_changes():
    order = []
    ours, peer = alternate(lambda: order.append("o") or 1, lambda: order.append("p") or 2, 3)
    assert "".join(order) == "oppoop"
    assert (ours, peer) == ([1, 1, 1], [2, 2, 2])


def test_timing_holds_one_sample_a_repeat_of_both():
    calls = []
    timing = time_in_turn(lambda: calls.append("o"), lambda: calls.append("p"), 4, min_sample_s=0.0)
    assert len(timing.ours_s) == len(timing.peer_s) == 4
    assert calls.count("o") == 5  # one that is not counted


def test_ratio_is_the_median_over_neighbours_and_not_of_medians():
    timing = Timing((1.0, 20.0, 3.0), (1.0, 10.0, 6.0))
    assert timing.ratio == 1.0
    assert (timing.ours_median_s, timing.peer_median_s) == (3.0, 6.0)


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one():
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 1.1, 1.21]) == pytest.approx(1.1)
    with pytest.raises(ValueError, match="values must hold at least one ratio"):
        geometric_mean([])


def test_peak_bytes_counts_what_is_held_at_once():
    def hold_two_then_one():
        first, second = torch.empty(1000, 250), torch.empty(1000, 250)
        del first, second
        return torch.empty(1000, 250)

    assert measure_peak_bytes(hold_two_then_one) == 2_000_000


def test_bars_say_pass_or_fail_on_either_side_and_a_nan_fails():
    assert str(Bar("speed", 1.05, 1.05)) == "PASS  speed: 1.05 (≤ 1.05)"
    assert str(Bar("speed", 1.06, 1.05)).startswith("FAIL")
    assert str(Bar("gain", 4.9, 5, is_floor=True)) == "FAIL  gain: 4.9 (≥ 5)"
    assert Bar("gain", 5.0, 5, is_floor=True).is_met
    assert not Bar("speed", float("nan"), 1.0).is_met


def test_bars_of_good_operators_are_all_met():
    assert all(bar.is_met for bar in bars_by_name(made_up_rows()).values())


def test_mean_bar_takes_the_geometric_mean_and_worst_bar_the_worst():
    rows = [*made_up_rows(native=1.10), made_up_row("native", 0.99, keys=1024)]
    bars = bars_by_name(rows)
    mean = bars["native: mean ratio to plain attention"]
    assert mean.value == pytest.approx((1.10 * 0.99) ** 0.5)
    assert mean.is_met
    assert not bars["native: worst ratio to plain attention"].is_met


def test_eager_bar_compares_at_4096_keys_and_is_left_out_without_them():
    bar = bars_by_name(made_up_rows(native=1.04))["native: times faster than eager, 4096 keys, worst"]
    assert bar.value == pytest.approx(6.0 / 1.04)
    assert bar.is_met
    small = [replace(row, case={**row.case, "keys": 1024}) for row in made_up_rows()]
    assert not any("eager" in name for name in bars_by_name(small))


def test_quadratic_memory_and_errors_of_ours_miss_their_bars_but_those_of_stock_do_not():
    rows = [*made_up_rows(), made_up_row("SDPA, dense mask", 2.0, owner="stock", error=9.0)]
    bars = bars_by_name(rows, {1024: 1, 4096: 16})
    missed = [name for name, bar in bars.items() if not bar.is_met]
    assert missed == ["native: growth of memory from 1024 to 4096 keys"]
    wrong = bars_by_name([*rows, made_up_row("chunked", 1.0, error=2.1)])
    assert not wrong["ours: worst error over what the reference's allows"].is_met


@pytest.fixture(scope="module")
def operator_rows():
    return attention.measure_operators([12, 20], 1, shapes=[TINY], min_sample_s=0.0)


def test_every_operator_is_measured_at_every_size_and_decode_at_the_largest(operator_rows):
    cells = {(row.name, row.case["dtype"], row.case["keys"]) for row in operator_rows}
    assert len(cells) == len(operator_rows) == 2 * (2 * 12 + 4)
    decode = [row for row in operator_rows if row.name.startswith("decode")]
    assert {(row.case["queries"], row.case["keys"]) for row in decode} == {(1, 20)}
    assert next(row.peer for row in decode if row.name == "decode, bias") == "decode, no bias"


def test_our_operators_err_no_more_than_the_reference_allows(operator_rows):
    excess = {row.name: row.error / row.allowed_error for row in operator_rows if row.case["owner"] == "ours"}
    assert max(excess.values()) <= 1.0, excess


def test_stock_operators_compute_the_same_bias(operator_rows):
    stock = [row for row in operator_rows if row.case["owner"] == "stock"]
    assert {row.name for row in stock} == {
        "SDPA, dense mask",
        "SDPA, position_bias",
        "eager, dense mask",
        "decode, SDPA with a mask",
    }
    assert all(row.error < (1e-5 if row.case["dtype"] == "float32" else 0.1) for row in stock)


def test_memory_of_native_grows_with_the_keys_and_not_their_square():
    peak_bytes = attention.measure_memory(1024, TINY)
    assert 1.0 < peak_bytes[4096] / peak_bytes[1024] < 4.4


@pytest.mark.parametrize(("name", "steps"), [("llama", 3), ("gemma3", 0)])
def test_whole_model_rows_hold_each_phase_and_unbiased_logits_equal_stock(tiny_model, name, steps):
    stock = copy.deepcopy(tiny_model(name))
    stock.set_attn_implementation("sdpa")
    case = ModelCase("tiny", (5, 40), steps, 0.9)
    rows, bars = compare_models(case, LanguageModel(copy.deepcopy(stock)), stock, 2)
    phases = ["prefill", "decode", "prefill and decode", "decode step, biased"] if steps else ["prefill"]
    assert [row.name for row in rows] == [f"tiny: {phase}" for phase in phases]
    assert all(len(row.timing.ours_s) == len(row.timing.peer_s) == 2 for row in rows[:3])
    assert [bar.limit for bar in bars] == ([0.9, 1e-4, 1.02] if steps else [0.9, 1e-4])
    assert len(rows[-1].timing.ours_s) == (steps or 2)
    assert bars[1].is_met, bars[1]


@cache
def byte_tokenizer():
    """One token a byte, which is the tiny models' whole vocabulary."""
    alphabet = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(alphabet, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.fixture
def lm(tiny_model):
    return LanguageModel(copy.deepcopy(tiny_model("llama")), byte_tokenizer())


def make_trial(plan, draft, length=60):
    task = build_task("kv", {"n_items": 1, "n_keys": 2}, ("first",), 0, None)
    tokens = tuple(3 + (7 * i) % 250 for i in range(length))
    cell = ArmCell("arm", "none", WeightSource.RECALL, {})
    turn = SimpleNamespace(request=Request(tokens, plan))
    return PreparedTrial(task.items("first")[0], cell, {}, turn, tuple(draft), "")


PLANS = {
    "none": BiasPlan(),
    "biased": BiasPlan(spans=(TokenSpan(name="b", start=10, end=30, bias_nats=3.0),), question_start=40),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_naive_answer_is_the_drafted_one_after_the_draft_fails(lm, plan):
    naive = naive_answer(lm, make_trial(plan, ()), 12)
    wrong = (*naive[:4], (naive[4] + 1) % 256, 5)
    trial = make_trial(plan, wrong)
    prefix = lm.prefill([Request(trial.request.token_ids)]).rows()[0]
    [drafted] = answer_with_draft(lm, [trial.request], [wrong], 12, prefix=prefix)
    assert drafted.draft.n_agreed == 4
    assert drafted.token_ids == naive


def test_naive_answer_goes_on_where_a_verified_draft_ends(lm):
    naive = naive_answer(lm, make_trial(PLANS["biased"], ()), 12)
    request = make_trial(PLANS["biased"], ()).request
    [drafted] = answer_with_draft(lm, [request], [naive[:4]], 12)
    assert drafted.token_ids == naive[:4]


def test_naive_answer_stops_before_an_end_token_and_at_the_limit(lm):
    trial = make_trial(BiasPlan(), ())
    whole = naive_answer(lm, trial, 12)
    assert naive_answer(lm, trial, 5) == whole[:5]
    assert naive_answer(lm, trial, 0) == ()
    lm.info = replace(lm.info, eos_token_ids=(whole[3],))
    assert naive_answer(lm, trial, 12) == whole[: whole.index(whole[3])]


def test_a_bias_changes_what_follows_the_naive_answers_prompt(lm):
    biased, plain = (make_trial(plan, ()).request for plan in (PLANS["biased"], PLANS["none"]))
    [first], [second] = (score(lm, [request], [[9, 9]]) for request in (biased, plain))
    assert first.logprobs != second.logprobs


@pytest.fixture
def tiny_spec():
    return experiment.kv_spec(2, "tiny", n_keys=2).model_copy(update={"max_new_tokens": 6})


def test_runner_and_naive_loop_agree_on_every_trial_of_six_arms(lm, tiny_spec):
    told = []
    compared = experiment.compare_experiment(tiny_spec, lm, TextRecall(), told.append)
    assert compared.n_trials == 2 * 3 * 6
    assert compared.differences == ()
    assert compared.n_same_text == compared.n_trials
    assert len(compared.timing.ours_s) == len(compared.timing.peer_s) == len(told) == 2
    row = experiment.experiment_row(tiny_spec, compared)
    assert (row.case["arms"], row.case["trials"]) == (6, 36)


def test_a_naive_verdict_that_differs_is_reported_with_both_answers(lm, tiny_spec, monkeypatch):
    monkeypatch.setattr(experiment, "naive_answer", lambda lm, trial, limit: trial.draft)
    spec = tiny_spec.model_copy(update={"positions": ("first",), "arms": tiny_spec.arms[:1]})
    compared = experiment.compare_experiment(spec, lm, TextRecall())
    assert [found.key.arm for found in compared.differences] == ["none", "none"]
    assert [(found.ours.metric, found.naive.metric) for found in compared.differences] == [(0.0, 1.0)] * 2
    assert compared.n_same_text == 0
    assert not experiment.experiment_bars(compared)[1].is_met


def test_gain_is_the_ratio_of_whole_wall_times():
    compared = experiment.Comparison(Timing((1.0, 3.0), (4.0, 20.0)), 36, 36, ())
    assert [bar.is_met for bar in experiment.experiment_bars(compared)] == [True, True]
    assert compared.gain == 6.0


def test_json_holds_versions_device_raw_times_and_bars(tmp_path):
    row = made_up_row("native", 1.5)
    path = tmp_path / "new" / "bench.json"
    write_json(path, BenchResult("attention", {"repeats": 1}, (row,), (Bar("b", 2.0, 1.0),), {"x": 1}))
    fields = json.loads(path.read_text())
    assert {"torch", "transformers", "python"} <= fields["versions"].keys()
    assert fields["device"].startswith("cpu")
    assert fields["threads"] >= 1
    assert fields["rows"][0]["timing"] == {"ours_s": [1.5], "peer_s": [1.0]}
    assert fields["rows"][0]["ratio"] == fields["rows"][0]["ours_median_s"] == 1.5
    assert fields["bars"] == [{"name": "b", "value": 2.0, "limit": 1.0, "is_floor": False, "is_met": False}]
    assert fields["has_passed"] is False


def run_attention(monkeypatch, *options):
    monkeypatch.setattr(cli, "measure_operators", lambda sizes, repeats, say: operator_like_rows(sizes))
    monkeypatch.setattr(cli, "measure_memory", lambda keys: {keys: 1, 4 * keys: 4})
    return CliRunner().invoke(cli.bench_commands, ["attention", "--kernels-only", *options])


def operator_like_rows(sizes):
    rows = [made_up_row(row.name, row.timing.ratio, keys=size) for row in made_up_rows() for size in sizes]
    return [replace(row, case={**row.case, "shape": "tiny", "dtype": "float32"}) for row in rows]


def test_command_prints_ratios_and_bars_and_writes_json(monkeypatch, tmp_path):
    path = tmp_path / "attention.json"
    result = run_attention(monkeypatch, "--sizes", "4096, 1024", "--json", str(path), "--check")
    assert result.exit_code == 0, result.output
    assert "tiny, float32" in result.output
    assert "PASS  native: mean ratio to plain attention: 1 (≤ 1.05)" in result.output
    fields = json.loads(path.read_text())
    assert fields["settings"] == {"sizes": [1024, 4096], "repeats": 9, "model_repeats": 0}
    assert fields["facts"] == {"native_peak_bytes_by_keys": {"4096": 1, "16384": 4}}


def test_command_fails_only_when_it_is_asked_to_check(monkeypatch):
    monkeypatch.setattr(cli, "operator_bars", lambda rows, peak_bytes: [Bar("speed", 2.0, 1.0)])
    assert run_attention(monkeypatch).exit_code == 0
    checked = run_attention(monkeypatch, "--check")
    assert checked.exit_code == 1
    assert "FAIL  speed: 2 (≤ 1)" in checked.output


def test_sizes_that_are_no_numbers_are_wrong_usage(monkeypatch):
    assert run_attention(monkeypatch, "--sizes", "1k").exit_code == 2


def test_experiment_command_reports_the_verdicts_and_writes_json(lm, monkeypatch, tmp_path):
    spec = experiment.kv_spec(1, "tiny", n_keys=2).model_copy(
        update={"max_new_tokens": 2, "positions": ("last",)}
    )
    monkeypatch.setattr(cli, "kv_spec", lambda items: spec)
    monkeypatch.setattr(cli.LanguageModel, "load", lambda *_, **__: lm)
    path = tmp_path / "experiment.json"
    result = CliRunner().invoke(cli.bench_commands, ["experiment", "--items", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "6 of 6 answers are the naive loop's" in result.output
    fields = json.loads(path.read_text())
    assert fields["facts"]["differences"] == []
    assert fields["settings"]["spec"]["task"]["name"] == "kv"
