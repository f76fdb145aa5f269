"""The `salience` command: `chat`, `explain`, `models`, `doctor`, exit codes and Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from salience import Harness, Sampling, Session, Steering, SteeringMethod
from salience.cli import doctor, main, options
from salience.cli.options import read_given, steering_from
from salience.cli.terminal import visible
from salience_kernels import KeyBiasImpl
from salience_models import LanguageModel, Phase

ROOMS = [
    str(Path(__file__).resolve().parents[2] / room)
    for room in ("harness", "models", "memory", "kernels", "experiments")
]


@pytest.fixture
def model(tiny_checkpoint: Path) -> list[str]:
    return ["--model", str(tiny_checkpoint), "--device", "cpu", "--no-memory"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must succeed without a word on stderr; returns what it printed."""
    capsys.readouterr()
    assert main(list(arguments)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_piped_answer_is_the_answer_alone(
    capsys: pytest.CaptureFixture[str], model: list[str], tiny_lm: LanguageModel
):
    memories = ["--given", "The ferry leaves at seven.", "-g", "The museum opens at ten.::0.5"]
    steering = ["--steering", "share_control", "--strength", "0.25"]
    ask = ["chat", "When does the ferry leave?", *memories, *model, *steering, "--max-new-tokens", "6"]
    harness = Harness(tiny_lm, steering_from(SteeringMethod.SHARE_CONTROL, 0.25))
    given = read_given(["The ferry leaves at seven.", "The museum opens at ten.::0.5"], None)
    answer = harness.ask("When does the ferry leave?", given, sampling=Sampling(max_new_tokens=6))
    assert run(capsys, *ask) == visible(answer.text) + "\n"
    assert main([*ask, "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert out == visible(answer.text) + "\n"
    shares = re.findall(r"([\d.]+)% of attention \(unbiased ([\d.]+)%\)", err)
    assert [float(achieved) for achieved, _ in shares] == [
        pytest.approx(100 * share, abs=0.06) for share in answer.receipt.shares().values()
    ]
    assert f"share_control, {len(answer.receipt.layers)} layers, {', '.join(answer.receipt.impls)}" in err
    told = json.loads(run(capsys, *ask, "--json"))
    assert told | {"request_id": ""} == answer.to_dict() | {"request_id": ""}


def test_steering_can_be_none(capsys: pytest.CaptureFixture[str], model: list[str]):
    ask = ["chat", "What?", "-g", "A fact.", *model, "--max-new-tokens", "2", "--json"]
    (memory,) = json.loads(run(capsys, *ask, "--steering", "none"))["memories"]
    assert (memory["asked"], memory["weight"]) == (0.0, 0.9)
    assert memory["share"] == pytest.approx(memory["unbiased_share"])
    (memory,) = json.loads(run(capsys, *ask))["memories"]
    assert memory["asked"] == pytest.approx(0.16)


def test_chat_reads_memories_from_a_file(
    capsys: pytest.CaptureFixture[str], model: list[str], tmp_path: Path
):
    file = tmp_path / "memories.json"
    file.write_text(json.dumps([{"content": "A fact.", "semantic_weight": 0.8, "tags": ["a"]}]))
    ask = ["chat", "What?", "--given-file", str(file), *model, "--max-new-tokens", "2", "--json"]
    assert [memory["content"] for memory in json.loads(run(capsys, *ask))["memories"]] == ["A fact."]


def test_explain_shows_prompt_shares_and_influence(capsys: pytest.CaptureFixture[str], model: list[str]):
    memories = ["--given", "A fact.", "--given", "Another fact.::0.6"]
    steering = ["--steering", "share_control", "--strength", "0.25"]
    out = run(capsys, "explain", "What?", *memories, *model, *steering, "--max-new-tokens", "3")
    assert "- A fact.\n- Another fact.\n" in out
    assert out.count("nats/token") == 2
    assert "share 0.20" in out  # .25 is what a weight of 1 would ask for; this one is .9
    assert "Achieved share by" in out
    assert re.search(r"share_control on layers [\d–]+; ran \w", out)
    told = json.loads(run(capsys, "explain", "What?", *memories, *model, "--max-new-tokens", "3", "--json"))
    assert list(told["influence"]) == [memory["memory_id"] for memory in told["memories"]]
    assert all(memory["is_shown"] for memory in told["memories"])


def test_the_last_of_two_like_memories_is_coloured_in_its_own_place(
    capsys: pytest.CaptureFixture[str], model: list[str]
):
    out = run(capsys, "explain", "What fact?", "--given", "fact fact", "--given", "fact", *model)
    assert "- fact fact\n- fact\n" in out


def test_models_list_names_the_bundled_ones(capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "models", "list")
    for name in ("qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct", "gemma-3-270m", "all-minilm-l6-v2"):
        assert f"bundled:{name} " in out


def test_models_and_doctor_as_json_name_file_quantisation_and_dtype(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SALIENCE_CACHE", str(tmp_path))
    listed = {model["name"]: model for model in json.loads(run(capsys, "models", "list", "--json"))}
    qwen = listed["bundled:qwen2.5-coder-0.5b-instruct"]
    assert (qwen["file_quantization"], qwen["size_bytes"], qwen["path"]) == ("Q4_K_M", 491_400_064, None)
    assert listed["bundled:all-minilm-l6-v2"]["file_quantization"] is None
    found = json.loads(run(capsys, "doctor", "--json"))
    assert found["versions"]["torch"] == metadata.version("torch")
    assert set(found["attention"]) == {impl.value for impl in KeyBiasImpl}
    small = next(model for model in found["models"] if "smollm2" in model["name"])
    assert (small["file_quantization"], small["path"]) == ("Q4_1", None)
    assert small["computed_in"] in ("float32", "bfloat16")


def test_a_memory_may_carry_its_weight():
    plain, weighted, code = read_given(["A fact.", "B::0.7", "std::vector::0.6"], None)
    assert (plain.semantic_weight, plain.content) == (0.9, "A fact.")
    assert (weighted.semantic_weight, weighted.content) == (0.7, "B")
    assert code.content == "std::vector"


def test_strength_goes_to_what_the_method_takes():
    assert steering_from(None, None) == Steering()
    assert steering_from(SteeringMethod.LOGIT_BIAS, 2.0) == Steering(
        method=SteeringMethod.LOGIT_BIAS, strength=2.0
    )
    assert steering_from(SteeringMethod.TARGET_SHARE, 0.3) == Steering(
        method=SteeringMethod.TARGET_SHARE, share=0.3
    )
    assert steering_from(None, None, Phase.DECODE) == Steering(phase=Phase.DECODE)


def test_no_command_shows_help_and_wrong_usage_says_so(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "Usage: salience" in capsys.readouterr().out
    for arguments, message in (
        (["cht"], "No such command 'cht'"),
        (["chat", "--strength", "much"], "Invalid value for '--strength'"),
        (["chat", "--steering", "magic"], "Invalid value for '--steering'"),
        (["explain"], "Missing argument"),
        (["chat", "--nope"], "No such option"),
    ):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert message in err
        assert "Traceback" not in err
    assert main(["--help"]) == 0
    assert run(capsys, "--version").strip() == metadata.version("salience")
    assert main(["chat", "--help"]) == 0


def test_help_and_version_import_nothing_heavy():
    """`salience --help` is there at once: every command is built, none of what it needs is read."""
    code = (
        f"import sys; sys.path[:0] = {ROOMS!r}\n"
        "from salience.cli import main\n"
        "from salience.cli.main import build_app\n"
        "build_app()\n"
        "codes = [main(['--help']), main(['--version'])]\n"
        "import salience\n"
        "heavy = {'torch', 'transformers', 'faiss', 'scipy', 'matplotlib', 'numpy'}\n"
        "print(codes, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("chat", "explain", "constrain", "doctor", "models", "memory", "run", "report"):
        assert re.search(rf"^│ {command} ", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "[0, 0] []"


def test_ctrl_c_while_answering_ends_with_130(
    capsys: pytest.CaptureFixture[str], model: list[str], monkeypatch: pytest.MonkeyPatch
):
    def stream(*arguments: object, **keywords: object):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Session, "stream", stream)
    assert main(["chat", "What?", *model]) == 130
    assert capsys.readouterr().err.strip() == "stopped by Ctrl-C"


def test_ctrl_c_at_the_prompt_ends_with_130(model: list[str]):
    code = (
        f"import signal, sys; sys.path[:0] = {ROOMS!r}\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from salience.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "chat", *model],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    shown = b""
    while not shown.endswith(b"Ctrl-D leaves.\n"):
        byte = process.stderr.read(1)
        assert byte, (shown, process.communicate())
        shown += byte
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, b"stopped by Ctrl-C")


def test_doctor_tells_device_versions_and_implementations(capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "doctor")
    assert "device" in out
    assert metadata.version("torch") in out
    assert metadata.version("transformers") in out
    for impl in KeyBiasImpl:
        assert re.search(rf"\b{impl.value}\b", out)
    assert "chooses " in out
    assert re.search(r"bundled:smollm2-135m-instruct: a Q4_1 file, computed in (float32|bfloat16)", out)


def test_doctor_refuses_both_faiss(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    version = metadata.version

    def with_both(name: str) -> str:
        return "1.14" if name.startswith("faiss-") else version(name)

    monkeypatch.setattr(doctor.metadata, "version", with_both)
    assert main(["doctor"]) == 1
    assert "faiss-cpu and faiss-gpu are both installed" in capsys.readouterr().err


def test_doctor_says_what_recall_lacks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    version = metadata.version

    def without_faiss(name: str) -> str:
        if name.startswith("faiss-"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor.metadata, "version", without_faiss)
    assert "recall needs FAISS" in run(capsys, "doctor")


def test_settings_reach_the_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    seen = {}
    monkeypatch.setenv("SALIENCE_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "salience.harness.LanguageModel.load", lambda source, **keywords: seen.update(keywords, source=source)
    )
    options.load_harness("some/model", revision="v2", device="cpu", dtype="float32")
    assert (seen["source"], seen["revision"], seen["dtype"]) == ("some/model", "v2", "float32")
    assert seen["cache_dir"] == tmp_path


def test_input_that_ends_too_early_is_no_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def load(*arguments: object, **keywords: object) -> Harness:
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")

    monkeypatch.setattr(Harness, "load", load)
    assert main(["chat", "What?"]) == 1
    assert capsys.readouterr().err.strip() == "error: input ended too early"
