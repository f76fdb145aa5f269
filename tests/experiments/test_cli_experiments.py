"""The commands of this room as a user meets them: `run`, `report`, `power`, `merge`, `parity`."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from salience.cli import main
from salience_experiments import cli, spec
from salience_experiments.manifests import load_manifest
from salience_experiments.runner import RunOptions, run_directory
from salience_experiments.spec import ExperimentSpec
from salience_experiments.trials import TrialLog, read_trials
from salience_models.errors import DownloadFailed

ROOT = Path(__file__).parents[2]
ABLATIONS = ROOT / "experiments" / "ablations"
ROOMS = ("harness", "models", "memory", "kernels", "experiments")
MakeSpec = Callable[..., ExperimentSpec]
WriteSpec = Callable[..., Path]


@pytest.fixture
def write_spec(make_spec: MakeSpec, tmp_path: Path) -> WriteSpec:
    """`write_spec(**fields)`: a spec in `ablations/`, beside which `results/` will lie."""

    def write(**fields: Any) -> Path:
        path = tmp_path / "ablations" / "spec.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(make_spec().model_dump(mode="json") | fields, sort_keys=False))
        return path

    return write


@pytest.fixture(autouse=True)
def _no_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str, cache_dir: Path | None = None) -> Path:
        raise DownloadFailed(f"{name} was asked for")

    monkeypatch.setattr("salience_models.pull", pull)


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; returns its one sentence."""
    capsys.readouterr()
    assert main(list(arguments)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error.removeprefix("error: ").strip()


def results(spec: Path) -> Path:
    return spec.parent.parent / "results"


def test_run_then_report_from_the_files_alone(write_spec: WriteSpec, capsys: pytest.CaptureFixture[str]):
    spec = write_spec()
    assert main(["run", str(spec)]) == 0
    out, err = capsys.readouterr()
    assert ("12/12" in out, err) == (True, "")
    run_dir = Path(next(line for line in out.splitlines() if line.startswith(str(results(spec)))))
    assert f"salience report {run_dir}" in out
    assert len(read_trials(run_dir)) == 12
    assert main(["report", str(spec)]) == 0
    text = (run_dir / "report" / "report.md").read_text()
    assert "oracle (upper bound)" in text
    assert (run_dir / "report" / "report.html").is_file()
    assert main(["report", str(run_dir), "--out", str(spec.parent.parent / "elsewhere")]) == 0
    assert (spec.parent.parent / "elsewhere" / "report.md").read_text() == text
    assert main(["power", str(spec), "--pilot", str(run_dir)]) == 0
    assert "pilot n=2" in capsys.readouterr().out


def test_shards_run_apart_and_merge(
    write_spec: WriteSpec, make_spec: MakeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    spec = write_spec(positions=["first"])
    for index in (1, 2):
        arguments = ["run", str(spec), "--shard", f"{index}/2", "--results", str(tmp_path / str(index))]
        assert main([*arguments, "--run-id", "part"]) == 0
    parts = [str(tmp_path / str(index) / "small" / "part") for index in (1, 2)]
    assert main(["merge", *parts, "--out", str(tmp_path / "merged")]) == 0
    assert "4 trials" in capsys.readouterr().out
    assert load_manifest(tmp_path / "merged" / "manifest.json").status == "complete"
    assert main(["report", str(tmp_path / "merged")]) == 0
    assert "another" not in fail(capsys, "merge", *parts, "--out", str(tmp_path / "merged"))


def test_limit_runs_the_first_items(write_spec: WriteSpec, make_spec: MakeSpec):
    spec = write_spec()
    assert main(["run", str(spec), "--limit", "1", "--run-id", "dry"]) == 0
    trials = read_trials(results(spec) / "small" / "dry")
    assert {trial.params["item_index"] for trial in trials} == {0}
    assert len(trials) == 6


def test_power_needs_no_run(write_spec: WriteSpec, capsys: pytest.CaptureFixture[str]):
    assert main(["power", str(write_spec())]) == 0
    out = capsys.readouterr().out
    assert "logit_bias[oracle] vs none" in out
    assert "n needed" in out


def test_parity_holds_on_the_published_predictions(data_dir: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["parity", "--data", str(data_dir)]) == 0
    assert "all 26 cells with a published figure match it" in capsys.readouterr().out


def test_parity_without_data_says_where_to_obtain_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SALIENCE_DATA", raising=False)
    assert "SALIENCE_DATA" in fail(capsys, "parity")
    assert "obtain it from https://" in fail(capsys, "parity", "--data", str(tmp_path))


def test_the_embedder_is_pulled_only_when_an_arm_weighs_by_recall(
    write_spec: WriteSpec, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", str(write_spec()), "--limit", "1"]) == 0
    spec = write_spec(arms=[{"arm": "none"}, {"arm": "logit_bias"}])
    assert fail(capsys, "run", str(spec)) == "all-minilm-l6-v2 was asked for"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nmae": "x"}, "nmae is not a field of a spec"),
        ({"task": {"nmae": "kv"}}, "task.nmae is not a field of a spec"),
        ({"arms": [{"arm": "none"}, {"arm": "logit_bias", "parms": {}}]}, "arms.1.parms is not a field"),
        ({"arms": [{"arm": "none"}, {"arm": "logitbias"}]}, "arm must be one of none, reorder, repeat"),
        (
            {"arms": [{"arm": "none"}, {"arm": "logit_bias", "params": {"strenght": 2}}]},
            "arm 'logit_bias': params.strenght is not one of its parameters",
        ),
        ({"arms": [{"arm": "none"}, {"arm": "nowhere:Arm"}]}, "arm 'nowhere:Arm' cannot be imported"),
        (
            {"task": {"name": "kvs"}},
            "task.name must be one of kv, qa, qa_oracle, synthwiki, facts, documents, neutral, conversation, "
            "constraint or package.module:Class, got 'kvs'",
        ),
        (
            {"task": {"name": "kv", "params": {"n_kyes": 3}}},
            "task.params.n_kyes is not a parameter of task 'kv'; it takes file, n_items, n_keys, seed",
        ),
        ({"task": {"name": "kv", "params": {"n_keys": 3}}}, "task.params.n_items is missing"),
        (
            {"task": {"name": "kv", "params": {"n_keys": "many", "n_items": 2}}},
            "task.params.n_keys: Input should be a valid integer",
        ),
        ({"task": {"name": "qa"}}, "task.params.file must name the data file of task 'qa', got none"),
        ({"task": {"name": "qa", "params": {"file": "no.jsonl"}}}, "no.jsonl is missing"),
        ({"positions": ["frist"]}, "position must be first, middle, last"),
        ({"weighting": {"weight": 1.0}}, "weighting.weight: Input should be less than or equal to 0.99"),
        ({"model": {"source": "bundled:smolm2"}}, "(did you mean bundled:smollm2-135m-instruct?)"),
        ({"model": {"source": "./no/such/folder"}}, "got './no/such/folder' (nothing there)"),
        ({"model": {"source": "nobody/nothing"}}, "while the hub cannot be reached, got no snapshot of it"),
        ({"model": {"source": "x", "dtype": "int3"}}, "dtype must be auto, float32, bfloat16, float16"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    write_spec: WriteSpec, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], message: str
):
    spec = write_spec(**fields)
    assert message in fail(capsys, "run", str(spec))
    assert not results(spec).exists()


def test_a_prompt_over_the_window_stops_the_run_before_any_trial(
    write_spec: WriteSpec, capsys: pytest.CaptureFixture[str]
):
    spec = write_spec(task={"name": "kv", "params": {"n_keys": 40, "n_items": 2}})
    assert "over the context window of 2048; 12 trials of this run are too long" in fail(
        capsys, "run", str(spec)
    )
    (manifest,) = results(spec).glob("small/*/manifest.json")
    assert json.loads(manifest.read_text())["status"] == "failed"
    assert read_trials(manifest.parent) == []


def test_damaged_data_is_named(write_spec: WriteSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(bytes.fromhex("1f8b0800000000000003ab56"))
    spec = write_spec(task={"name": "qa", "params": {"file": str(torn)}})
    assert f"{torn} cannot be read" in fail(capsys, "run", str(spec))
    assert not results(spec).exists()


def test_paths_that_lead_nowhere_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    nowhere = str(tmp_path / "nowhere")
    missing = f"spec {nowhere}.yaml must be a file or one of constraint, "
    assert missing in fail(capsys, "run", f"{nowhere}.yaml")
    assert f"spec {nowhere}.yaml must be a file" in fail(capsys, "report", f"{nowhere}.yaml")
    assert f"{nowhere} must hold manifest.json and trials.jsonl" in fail(capsys, "report", nowhere)
    assert f"{nowhere} must hold manifest.json" in fail(
        capsys, "merge", nowhere, "--out", str(tmp_path / "o")
    )
    assert not (tmp_path / "o").exists()


def test_results_that_cannot_be_written_are_refused(
    write_spec: WriteSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    spec = write_spec()
    (tmp_path / "file").write_text("")
    error = fail(capsys, "run", str(spec), "--results", str(tmp_path / "file" / "below"))
    assert f"must be a folder that can be written, got {tmp_path / 'file'} in its way" in error
    assert "must be a folder that can be written" in fail(
        capsys, "run", str(spec), "--results", "/proc/below"
    )


def test_a_run_that_another_process_writes_is_refused(
    write_spec: WriteSpec, make_spec: MakeSpec, capsys: pytest.CaptureFixture[str]
):
    spec = write_spec()
    with TrialLog(run_directory(make_spec(), RunOptions(results(spec)))):
        assert "is being written by another process" in fail(capsys, "run", str(spec))


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_a_shard_must_be_one_of_its_count(
    write_spec: WriteSpec, capsys: pytest.CaptureFixture[str], shard: str
):
    assert f"--shard must be i/n with 1 <= i <= n, got '{shard}'" in fail(
        capsys, "run", str(write_spec()), "--shard", shard
    )


def test_shipped_specs_are_listed_and_found_by_name_wherever_one_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {path.stem for path in ABLATIONS.glob("*.yaml")} == set(lines)
    assert "key-value retrieval, 10 keys" in lines["kv_10"]
    assert main(["power", "kv_10"]) == 0
    assert "share_control" in capsys.readouterr().out
    assert "spec kv_1O must be a file or one of constraint, " in fail(capsys, "run", "kv_1O")
    assert main(["run"]) == 2


def test_an_installed_wheel_finds_its_specs_and_keeps_results_out_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, target in build["force-include"].items():
        shutil.copytree(ROOT / source, tmp_path / target)
    for module in (cli, spec):
        monkeypatch.setattr(module, "__file__", str(tmp_path / "salience_experiments" / "module.py"))
    found = cli.find_spec("kv_10")
    assert found == tmp_path / "salience_experiments" / "ablations" / "kv_10.yaml"
    assert spec.load_spec(found).name == "kv_10"
    assert cli.default_results(found) == Path("results")


def test_help_and_lists_come_without_a_models_libraries():
    code = """
import sys, typer
from salience_experiments.cli import add_commands
app = typer.Typer()
add_commands(app)
for words in (["--help"], ["run", "--help"], ["run", "--list"]):
    app(words, standalone_mode=False)
assert not {"torch", "scipy", "matplotlib", "transformers"} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / room) for room in ROOMS)}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)
