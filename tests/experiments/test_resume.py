"""Runs that were killed or interrupted: no trial is lost, none is there twice, the manifest is true."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from salience.cli import main
from salience_experiments import provenance, run_manifest
from salience_experiments.errors import TrialsError
from salience_experiments.manifests import Manifest, load_manifest, read_run
from salience_experiments.runner import RunOptions, run_directory, run_spec
from salience_experiments.spec import ExperimentSpec
from salience_experiments.trials import Trial, TrialLog, read_log, read_trials
from salience_memory import TextRecall
from salience_models import LanguageModel

MakeSpec = Callable[..., ExperimentSpec]

ROOMS = [
    str(Path(__file__).resolve().parents[2] / room)
    for room in ("harness", "models", "memory", "kernels", "experiments")
]

KILLER = """
import os, signal, sys
from salience.cli import main
from salience_experiments import run_manifest, trials

command, points = sys.argv[1:4], sys.argv[4:]
write_all, write_manifest = trials.write_all, run_manifest.write_manifest

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def write_and_die(where, count):
    left = int(count)
    def write(fd, line):
        nonlocal left
        left -= 1
        if left == 0:
            write_all(fd, line[: {"before": 0, "within": len(line) // 2, "after": len(line)}[where]])
            die()
        write_all(fd, line)
    trials.write_all = write

def finish_and_die(run_dir, manifest, shard=None):
    if manifest.status == "complete":
        die()
    write_manifest(run_dir, manifest, shard)

for point in points:
    child = os.fork()
    if child == 0:
        where, _, count = point.partition(":")
        if where == "end":
            run_manifest.write_manifest = finish_and_die
        else:
            write_and_die(where, count)
        os._exit(main(command))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs the command once for each point, each time in a process that SIGKILLs itself there."""


BEGIN = f"""
import signal, sys
sys.path[:0] = {ROOMS!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
"""


def in_subprocess(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_spec(folder: Path, spec: ExperimentSpec) -> Path:
    path = folder / "ablations" / "spec.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False))
    return path


def assert_same(found: Sequence[Trial], expected: Sequence[Trial]) -> None:
    """Equal but for the time and the rounding of batches that a kill cut otherwise."""
    measured = {"wall_s": 0.0, "gold_logprob": None, "receipt": None}
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.model_copy(update=measured) == theirs.model_copy(update=measured)
        assert ours.gold_logprob == pytest.approx(theirs.gold_logprob, abs=1e-5)
        for name in ("shares", "unbiased"):
            assert ours.receipt[name] == pytest.approx(theirs.receipt[name], abs=1e-5)


def test_killed_at_any_point_the_same_command_ends_with_every_trial_once(
    make_spec: MakeSpec, tiny_lm: LanguageModel, recall: TextRecall, tmp_path: Path
):
    points = ["before:1", "within:3", "after:1", "within:1", "before:2", "end"]
    spec = make_spec()
    path = write_spec(tmp_path, spec)
    killed = in_subprocess(KILLER, "run", str(path), "--limit=2", *points)
    out, err = killed.communicate(timeout=240)
    assert out.split() == ["-9"] * len(points), err
    run_dir = run_directory(spec, RunOptions(tmp_path / "results"))
    before = load_manifest(run_dir / "manifest.json")
    assert before.status == "running"
    assert main(["run", str(path), "--limit=2"]) == 0
    run = read_run(run_dir)
    assert run.is_complete
    assert (run.manifest.status, run.manifest.n_trials, run.manifest.n_expected) == ("complete", 12, 12)
    assert (run.manifest.started, run.manifest.error) == (before.started, None)
    assert Counter(trial.key for trial in run.trials).most_common(1)[0][1] == 1
    undisturbed = run_spec(spec, RunOptions(tmp_path / "undisturbed"), lambda: tiny_lm, recall)
    whole = load_manifest(undisturbed / "manifest.json")
    assert_same(run.trials, read_trials(undisturbed))
    # not the device, which names the threads: the killed runs had one
    for name in ("n_trials", "prompt_count", "prompts_sha256", "impls", "versions", "commit"):
        assert getattr(run.manifest, name) == getattr(whole, name)


def test_ctrl_c_ends_a_run_between_two_trials(make_spec: MakeSpec, qa_file: Path, tmp_path: Path):
    arms = [
        {"arm": "none"},
        {"arm": "logit_bias", "weights": "oracle", "params": {"strength": [1.0, 2.0, 3.0]}},
    ]
    task = {"name": "kv", "params": {"n_keys": 4, "n_items": 100}}
    spec = make_spec(arms=arms, task=task)
    code = "from salience.cli import main; sys.exit(main(sys.argv[1:]))"
    process = in_subprocess(code, "run", str(write_spec(tmp_path, spec)))
    run_dir = run_directory(spec, RunOptions(tmp_path / "results"))
    while not (run_dir / "trials.jsonl").exists() or not (run_dir / "trials.jsonl").read_bytes():
        assert has_not_ended(process), process.communicate()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "stopped by Ctrl-C")
    manifest, log = load_manifest(run_dir / "manifest.json"), read_log(run_dir / "trials.jsonl")
    assert (manifest.status, manifest.error) == ("interrupted", "stopped by the user")
    assert manifest.n_trials == len(log.trials)
    assert 0 < manifest.n_trials < manifest.n_expected == 1200
    assert log.torn_bytes == 0


def has_not_ended(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(timeout=0.02)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_a_terminated_run_is_interrupted_and_goes_on(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    def terminate(done: int, total: int) -> None:
        if done == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    spec, before = make_spec(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_spec(spec, options, lambda: tiny_lm, recall, terminate)
    assert signal.getsignal(signal.SIGTERM) is before
    manifest = load_manifest(run_directory(spec, options) / "manifest.json")
    assert (manifest.status, manifest.n_trials) == ("interrupted", 6)
    seen: list[tuple[int, int]] = []
    run_spec(spec, options, lambda: tiny_lm, recall, lambda done, total: seen.append((done, total)))
    assert seen == [(6, 12), (6, 12), (12, 12)]
    assert read_run(run_directory(spec, options)).is_complete


def test_a_complete_run_loads_no_model_again(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec, loads = make_spec(positions=["first"]), []

    def load() -> LanguageModel:
        loads.append(1)
        return tiny_lm

    run_spec(spec, options, load, recall)
    log = run_directory(spec, options) / "trials.jsonl"
    written = log.read_bytes()
    run_spec(spec, options, load, recall)
    assert (len(loads), log.read_bytes()) == (1, written)


def test_a_partial_run_asked_for_less_than_it_has_stays_as_it_is(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec()
    stop_after(8, spec, options, tiny_lm, recall)
    before = manifest_of(spec, options)
    run_spec(spec, dataclasses.replace(options, limit=1), lambda: tiny_lm, recall)
    assert manifest_of(spec, options) == before
    assert (before.status, before.n_trials, before.n_expected) == ("failed", 8, 12)


def test_a_contrast_added_later_reaches_the_manifest_of_a_complete_run(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec(positions=["first"])
    run_spec(spec, options, lambda: tiny_lm, recall)
    before = manifest_of(spec, options)
    later = make_spec(positions=["first"], contrasts=[["logit_bias[oracle]", "none"]])
    run_spec(later, options, lambda: tiny_lm, recall)
    after = manifest_of(spec, options)
    assert after.spec["contrasts"] == [["logit_bias[oracle]", "none"]]
    assert after.model_copy(update={"spec": before.spec}) == before


def test_another_model_may_not_go_on_with_a_run(
    make_spec: MakeSpec, options: RunOptions, tiny_lm: LanguageModel, recall: TextRecall
):
    spec = make_spec()
    stop_after(3, spec, options, tiny_lm, recall)
    info = dataclasses.replace(tiny_lm.info, weights_sha256="other")
    other = LanguageModel(tiny_lm.model, tiny_lm.tokenizer, info)
    with pytest.raises(
        TrialsError, match="must go on with the model it began with, got weights_sha256 'other'"
    ):
        run_spec(spec, options, lambda: other, recall)
    assert manifest_of(spec, options).n_trials == 3


def test_a_run_that_went_on_names_all_that_had_a_part(
    make_spec: MakeSpec,
    options: RunOptions,
    tiny_lm: LanguageModel,
    recall: TextRecall,
    monkeypatch: pytest.MonkeyPatch,
):
    spec = make_spec()
    with monkeypatch.context() as patch:
        patch.setattr(run_manifest, "describe_commit", lambda: ("aaa", True))
        patch.setattr(run_manifest, "describe_device", lambda device: "first device")
        patch.setattr(run_manifest, "describe_versions", lambda: {"torch": "1"})
        stop_after(3, spec, options, tiny_lm, recall)
    monkeypatch.setattr(run_manifest, "describe_commit", lambda: ("bbb", False))
    monkeypatch.setattr(run_manifest, "describe_versions", lambda: {"torch": "2"})
    run_spec(spec, options, lambda: tiny_lm, recall)
    manifest = manifest_of(spec, options)
    assert (manifest.commit, manifest.dirty, manifest.versions) == ("aaa + bbb", True, {"torch": "1 + 2"})
    assert manifest.device == f"first device + {provenance.describe_device(tiny_lm.device)}"


def manifest_of(spec: ExperimentSpec, options: RunOptions) -> Manifest:
    return load_manifest(run_directory(spec, options) / "manifest.json")


def stop_after(
    n_trials: int, spec: ExperimentSpec, options: RunOptions, lm: LanguageModel, recall: TextRecall
) -> None:
    """A run whose disk fills up after `n_trials`."""
    append, left = TrialLog.append, n_trials

    def append_or_fail(log: TrialLog, trial: Trial) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        append(log, trial)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialLog, "append", append_or_fail)
        with pytest.raises(OSError, match="No space left"):
            run_spec(spec, options, lambda: lm, recall)
