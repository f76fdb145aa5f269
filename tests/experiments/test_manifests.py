import pytest

from salience_experiments.errors import TrialsError
from salience_experiments.manifests import (
    Manifest,
    hash_prompts,
    load_manifest,
    merge_runs,
    read_run,
    write_manifest,
)
from salience_experiments.trials import Shard, Trial, TrialLog


def make_manifest(**changes):
    fields = {
        "spec_name": "needle_depth",
        "spec_sha256": "ab",
        "spec": {"seed": 1},
        "commit": "1234567",
        "dirty": False,
        "versions": {"torch": "2.13"},
        "device": "cpu",
        "threads": 2,
        "model": {"source": "tiny", "dtype": "float32"},
        "impls": ("reference",),
        "status": "complete",
        "started": "2025-01-01T00:00:00Z",
        "finished": "2025-01-01T01:00:00Z",
        "n_expected": 2,
    }
    return Manifest.model_validate(fields | changes)


def write_run(run_dir, items, shard=None, **changes):
    with TrialLog(run_dir, shard) as log:
        for item in items:
            log.append(
                Trial(
                    item=item,
                    position="first",
                    arm="none",
                    params={},
                    prompt_sha256=item,
                    prompt_tokens=1,
                    impl="reference",
                    wall_s=0.1,
                )
            )
    if shard is not None:
        changes = {"shards": shard.count, "shard": shard.index} | changes
    write_manifest(run_dir, make_manifest(**changes), shard)


def test_a_manifest_reads_back_and_leaves_no_partial_file(tmp_path):
    path = write_manifest(tmp_path, make_manifest())
    assert load_manifest(path) == make_manifest()
    write_manifest(tmp_path, make_manifest(status="failed", error="boom"))
    assert load_manifest(path).error == "boom"
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]


def test_a_failed_write_keeps_the_old_manifest(tmp_path, monkeypatch):
    path = write_manifest(tmp_path, make_manifest())

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("salience_experiments.durable_files.write_all", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_manifest(tmp_path, make_manifest(status="failed"))
    assert load_manifest(path).status == "complete"
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]


def test_what_is_no_manifest_is_refused(tmp_path):
    with pytest.raises(TrialsError, match="is missing"):
        load_manifest(tmp_path / "manifest.json")
    (tmp_path / "manifest.json").write_text('{"spec_name": "x"}')
    with pytest.raises(TrialsError, match="is not a manifest"):
        load_manifest(tmp_path / "manifest.json")
    with pytest.raises(TrialsError, match=r"must hold manifest.json and trials.jsonl"):
        read_run(tmp_path)


def test_prompt_hash_ignores_order_and_repeats():
    assert hash_prompts(["b", "a", "a"]) == hash_prompts(["a", "b"])
    assert hash_prompts(["a"])[0] == 1


def test_a_whole_run_has_no_gaps(tmp_path):
    write_run(tmp_path, ["a", "b"])
    run = read_run(tmp_path)
    assert run.is_complete
    assert len(run.trials) == 2


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_an_unfinished_run_says_so(tmp_path, status):
    write_run(tmp_path, ["a"], status=status)
    assert read_run(tmp_path).gaps == (f"the run has status {status}", "1 of 2 trials are there")


def test_complete_shards_make_a_complete_run(tmp_path):
    write_run(tmp_path, ["a"], Shard(1, 2), n_expected=1)
    write_run(tmp_path, ["b"], Shard(2, 2), n_expected=1, device="cuda", finished="2025-01-01T02:00:00Z")
    run = read_run(tmp_path)
    assert run.is_complete
    assert (run.manifest.n_trials, run.manifest.n_expected, run.manifest.prompt_count) == (2, 2, 2)
    assert (run.manifest.device, run.manifest.finished) == ("cpu + cuda", "2025-01-01T02:00:00Z")


def test_a_missing_shard_is_named(tmp_path):
    write_run(tmp_path, ["a"], Shard(1, 3), n_expected=1)
    assert read_run(tmp_path).gaps == ("shards 2, 3 of 3 are missing",)


def test_a_run_begun_whole_may_finish_in_shards(tmp_path):
    write_run(tmp_path, ["a"], status="interrupted")
    write_run(tmp_path, [], Shard(1, 2), n_expected=1)
    write_run(tmp_path, ["b"], Shard(2, 2), n_expected=1)
    assert read_run(tmp_path).is_complete


@pytest.mark.parametrize(
    "changes", [{"spec_sha256": "cd"}, {"commit": "7654321"}, {"model": {"source": "other"}}]
)
def test_shards_of_different_runs_do_not_join(tmp_path, changes):
    write_run(tmp_path, ["a"], Shard(1, 2))
    write_run(tmp_path, ["b"], Shard(2, 2), **changes)
    with pytest.raises(TrialsError, match="joins runs whose"):
        read_run(tmp_path)


def test_directories_merge_into_one_run(tmp_path):
    write_run(tmp_path / "x", ["b"], Shard(2, 2), n_expected=1)
    write_run(tmp_path / "y", ["a"], Shard(1, 2), n_expected=1)
    merged = merge_runs([tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    assert merged.is_complete
    assert [trial.item for trial in read_run(tmp_path / "out").trials] == ["a", "b"]
    assert read_run(tmp_path / "out").manifest.status == "complete"
    with pytest.raises(TrialsError, match="already holds a trial log"):
        merge_runs([tmp_path / "x"], tmp_path / "out")


def test_overlapping_directories_do_not_merge(tmp_path):
    write_run(tmp_path / "x", ["a"], Shard(1, 2))
    write_run(tmp_path / "y", ["a"], Shard(2, 2))
    with pytest.raises(TrialsError, match="is in both"):
        merge_runs([tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_torn_line_and_failed_trials_leave_gaps(tmp_path):
    write_run(tmp_path, ["a", "b"])
    log = tmp_path / "trials.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"error":null', b'"error":"boom"', 1) + b'{"item"')
    assert read_run(tmp_path).gaps == ("trials.jsonl ends in a torn line", "1 trials failed")
