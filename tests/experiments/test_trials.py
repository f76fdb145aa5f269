import json
import os
import signal
import subprocess
import sys

import pytest
from pydantic import ValidationError

from salience_experiments.errors import RunLocked, TrialsError
from salience_experiments.trials import Shard, Trial, TrialKey, TrialLog, log_path, read_log, read_trials

KEYS = [
    *("item", "position", "arm", "params", "prompt_sha256", "prompt_tokens", "answer", "metric", "value"),
    *("gold_logprob", "receipt", "impl", "wall_s", "error"),
]
WRITER = """
import sys
from pathlib import Path
from salience_experiments.trials import Trial, TrialLog

with TrialLog(Path(sys.argv[1])) as log:
    for index in range(100_000):
        log.append(Trial(item=f"i{index}", position="first", arm="none", params={"pad": "x" * 2000},
                         prompt_sha256="", prompt_tokens=1, impl="reference", wall_s=0.1))
        print(index, flush=True)
"""


def make_trial(item="a", position="first", arm="none", **changes):
    fields = {
        "item": item,
        "position": position,
        "arm": arm,
        "params": {"split": "test", "item_index": 0, "question": "q", "weights": "recall"},
        "prompt_sha256": "ab",
        "prompt_tokens": 9,
        "impl": "reference",
        "wall_s": 0.1,
    }
    return Trial.model_validate(fields | changes)


def write_log(run_dir, items, shard=None):
    with TrialLog(run_dir, shard) as log:
        for item in items:
            log.append(make_trial(item))


def test_a_line_has_exactly_the_contracts_keys_and_reads_back(tmp_path):
    trial = make_trial(answer="naïve \u2028 ↯", metric=1.0, gold_logprob=-2.5, receipt={"mass": [0.1, None]})
    with TrialLog(tmp_path) as log:
        log.append(trial)
    line = (tmp_path / "trials.jsonl").read_text(encoding="ascii")
    assert list(json.loads(line)) == KEYS
    assert line.count("\n") == 1
    assert read_trials(tmp_path) == [trial]


def test_a_duplicate_is_refused_in_one_session_and_in_the_next(tmp_path):
    with TrialLog(tmp_path) as log:
        log.append(make_trial())
        with pytest.raises(TrialsError, match="already logged"):
            log.append(make_trial(answer="another"))
    with TrialLog(tmp_path) as log, pytest.raises(TrialsError, match="already logged"):
        log.append(make_trial())
    assert len(read_trials(tmp_path)) == 1


def test_resuming_knows_what_is_done(tmp_path):
    write_log(tmp_path, ["a", "b"])
    with TrialLog(tmp_path) as log:
        assert log.done == {TrialKey("a", "first", "none"), TrialKey("b", "first", "none")}
        assert log.torn_bytes == 0
        log.append(make_trial("c"))
    assert [trial.item for trial in read_trials(tmp_path)] == ["a", "b", "c"]


@pytest.mark.parametrize("tail", [b'{"item": "c", "posi', b'{"item": "c"\n', b"\0\0\0\0\n", b"\xff\xfe"])
def test_a_torn_last_line_is_cut_off_and_reported(tmp_path, tail):
    write_log(tmp_path, ["a", "b"])
    whole = log_path(tmp_path).read_bytes()
    log_path(tmp_path).write_bytes(whole + tail)
    assert read_log(log_path(tmp_path)).torn_bytes == len(tail)
    with TrialLog(tmp_path) as log:
        assert log.torn_bytes == len(tail)
        assert log_path(tmp_path).read_bytes() == whole
        log.append(make_trial("c"))
    assert [trial.item for trial in read_trials(tmp_path)] == ["a", "b", "c"]


def test_a_whole_last_line_without_its_newline_was_never_acknowledged(tmp_path):
    write_log(tmp_path, ["a", "b"])
    log_path(tmp_path).write_bytes(log_path(tmp_path).read_bytes()[:-1])
    with TrialLog(tmp_path) as log:
        assert {key.item for key in log.done} == {"a"}
        log.append(make_trial("b"))
    assert [trial.item for trial in read_trials(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("damage", "message"), [(b"{oops}\n", "1 is not JSON"), (b'{"item": "z"}\n', "1 is not a trial")]
)
def test_damage_before_the_last_line_is_an_error_and_gives_the_lock_back(tmp_path, damage, message):
    write_log(tmp_path, ["a"])
    path = log_path(tmp_path)
    good = path.read_bytes()
    path.write_bytes(damage + good)
    with pytest.raises(TrialsError, match=message):
        TrialLog(tmp_path)
    path.write_bytes(good + good)
    with pytest.raises(TrialsError, match="2 repeats trial"):
        TrialLog(tmp_path)
    path.write_bytes(good)
    TrialLog(tmp_path).close()


def test_failed_trials_run_again_only_when_asked(tmp_path):
    with TrialLog(tmp_path) as log:
        log.append(make_trial("a", error="out of memory"))
        log.append(make_trial("b"))
    with TrialLog(tmp_path) as log:
        assert len(log.done) == 2
    with TrialLog(tmp_path, retry_failed=True) as log:
        assert (log.n_retried, {key.item for key in log.done}) == (1, {"b"})
        log.append(make_trial("a", metric=1.0))
    assert [(trial.item, trial.error) for trial in read_trials(tmp_path)] == [("a", None), ("b", None)]


def test_a_second_writer_is_refused_but_another_shard_is_not(tmp_path):
    with TrialLog(tmp_path, Shard(1, 2)):
        with pytest.raises(RunLocked, match="being written by another process"):
            TrialLog(tmp_path, Shard(1, 2))
        TrialLog(tmp_path, Shard(2, 2)).close()


def test_another_process_is_refused_while_the_log_is_open(tmp_path):
    code = (
        "import sys, pathlib; from salience_experiments.trials import TrialLog; "
        "TrialLog(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with TrialLog(tmp_path):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert "RunLocked" in done.stderr


def test_shards_merge_in_item_order_and_share_what_is_done(tmp_path):
    write_log(tmp_path, ["b"])
    write_log(tmp_path, ["c"], Shard(1, 2))
    with TrialLog(tmp_path, Shard(2, 2)) as log:
        assert {key.item for key in log.done} == {"b", "c"}
        log.append(make_trial("a"))
    assert [trial.item for trial in read_trials(tmp_path)] == ["a", "b", "c"]


def test_overlapping_shards_are_refused_by_name(tmp_path):
    write_log(tmp_path / "one", ["a", "b"], Shard(1, 2))
    write_log(tmp_path, ["b", "c"], Shard(2, 2))
    (tmp_path / "one" / "trials.1of2.jsonl").rename(tmp_path / "trials.1of2.jsonl")
    with pytest.raises(TrialsError, match=r"item 'b'.*1of2.*2of2"):
        read_trials(tmp_path)


def test_mixed_shard_counts_are_refused(tmp_path):
    write_log(tmp_path, ["a"], Shard(1, 2))
    with pytest.raises(TrialsError, match="mixes shard counts"):
        TrialLog(tmp_path, Shard(1, 3))


@pytest.mark.parametrize(("index", "count"), [(0, 2), (3, 2)])
def test_a_shard_outside_its_count_is_refused(index, count):
    with pytest.raises(ValueError, match="shard index must be in"):
        Shard(index, count)


@pytest.mark.parametrize(
    "changes", [{"metric": float("nan")}, {"gold_logprob": float("-inf")}, {"wall_s": -1}, {"surplus": 1}]
)
def test_values_that_would_spoil_a_table_are_refused(changes):
    with pytest.raises(ValidationError):
        make_trial(**changes)


def test_params_that_json_cannot_hold_leave_the_log_untouched(tmp_path):
    with TrialLog(tmp_path) as log:
        with pytest.raises(TrialsError, match="does not fit JSON"):
            log.append(make_trial(params={"strength": float("nan")}))
        assert log_path(tmp_path).read_bytes() == b""
        log.append(make_trial())


def test_a_full_disk_leaves_no_partial_line(tmp_path, monkeypatch):
    with TrialLog(tmp_path) as log:
        log.append(make_trial("a"))
        whole = log_path(tmp_path).read_bytes()

        def write_half(fd, data):
            os.write(fd, data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("salience_experiments.trials.write_all", write_half)
            with pytest.raises(OSError, match="No space left"):
                log.append(make_trial("b"))
        assert log_path(tmp_path).read_bytes() == whole
        log.append(make_trial("b"))
    assert [trial.item for trial in read_trials(tmp_path)] == ["a", "b"]


def test_a_closed_log_refuses_to_append(tmp_path):
    log = TrialLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(TrialsError, match="is closed"):
        log.append(make_trial())


@pytest.mark.parametrize("n_acknowledged", [1, 40])
def test_kill_9_loses_no_acknowledged_line_and_doubles_none(tmp_path, n_acknowledged):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(n_acknowledged)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    writer.stdout.close()
    assert writer.wait(timeout=60) == -signal.SIGKILL
    with TrialLog(tmp_path) as log:
        assert {key.item for key in log.done} >= {f"i{index}" for index in acknowledged}
        log.append(make_trial("after"))
    items = [trial.item for trial in read_trials(tmp_path)]
    assert len(items) == len(set(items))
    assert len(acknowledged) + 1 <= len(items) <= len(acknowledged) + 2
