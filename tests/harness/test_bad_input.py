"""What a new user gets wrong at the command line: one clear sentence, exit code 1, nothing half-written."""

import json
from pathlib import Path

import pytest

from salience import Memory
from salience.cli import main
from salience_models import BiasPlan, TextSpan
from salience_models.steering.bias_plan import TokenSpan
from salience_models.text.messages import sort_spans


def fail(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; returns its one sentence."""
    capfd.readouterr()
    assert main(list(arguments)) == 1
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error.removeprefix("error: ").strip()


@pytest.fixture
def model(tiny_checkpoint: Path) -> list[str]:
    return ["--model", str(tiny_checkpoint), "--device", "cpu", "--no-memory"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("bundled:smolm2", "got bundled:smolm2 (did you mean bundled:smollm2-135m-instruct?)"),
        ("bundled:all-minilm-l6-v2", "source must be a language model, got the embedder"),
        ("smollm2-135m-instruct", "(did you mean bundled:smollm2-135m-instruct?)"),
        ("./no/such/folder", "got './no/such/folder' (nothing there)"),
        ("no-such.gguf", "source must be an existing .gguf file, got 'no-such.gguf' (nothing there)"),
        ("nobody/nothing", "source 'nobody/nothing' at revision main must be in the local hub cache"),
        ("two words", "source must be bundled:NAME, a hub id (owner/name), a folder or a .gguf file, got"),
        ("", "source must be an existing folder or .gguf file, got ''"),
    ],
)
def test_an_unknown_model_is_named(capfd: pytest.CaptureFixture[str], source: str, message: str):
    assert message in fail(capfd, "chat", "What?", "--model", source)
    assert message in fail(capfd, "explain", "What?", "--given", "A fact.", "--model", source)


def test_a_folder_that_holds_no_model_says_what_it_lacks(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    assert "model folder must hold config.json" in fail(capfd, "chat", "What?", "--model", str(tmp_path))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--device", "gpu", "device must be"),
        ("--dtype", "int8", "dtype must be auto, float32, bfloat16, float16, got 'int8'"),
        ("--strength", "99", "Input should be less than"),
        ("--temperature", "200", "temperature: Input should be less than or equal to 100, got '200.0'"),
    ],
)
def test_an_option_out_of_bounds_is_named(
    capfd: pytest.CaptureFixture[str], model: list[str], option: str, value: str, message: str
):
    arguments = model if option != "--device" else model[:2]
    assert message in fail(capfd, "chat", "What?", *arguments, option, value)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("text::1.0", "semantic_weight must be in [0.5, 0.99], got 1.0: a weight of 1 means infinite odds"),
        ("text::0.4", "semantic_weight must be in [0.5, 0.99], got 0.4"),
        ("text::nan", "semantic_weight must be in [0.5, 0.99], got nan"),
        ("std::vector", '--given must be "text" or "text::weight"'),
        ("", "content must hold text, got ''"),
        (" ::0.9", "content must hold text, got ' '"),
    ],
)
def test_a_memory_that_its_contract_refuses_is_named_before_the_model_loads(
    capfd: pytest.CaptureFixture[str], memory: str, message: str
):
    assert fail(capfd, "chat", "What?", "--given", memory, "--model", "./nowhere").startswith(message)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            [{"content": "a"}, {"content": "b", "semantic_weight": 1.0}],
            "1.semantic_weight: semantic_weight must",
        ),
        ([{"content": "  "}], "0.content: content must hold text, got '  '"),
        ([{"contnet": "a"}], "0.content is missing; 0.contnet is not a known field"),
        ([{"content": "a", "type": "fact"}], "0.type: Input should be 'constraint', 'context'"),
        ({"content": "a"}, "Input should be a valid array, got \"{'content': 'a'}\""),
    ],
)
def test_a_memory_file_says_which_memory_is_wrong(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, declared: object, message: str
):
    file = tmp_path / "memories.json"
    file.write_text(json.dumps(declared))
    error = fail(capfd, "chat", "What?", "--given-file", str(file), "--model", "./nowhere")
    assert error.startswith(f"memory file {file}: {message}")


def test_a_memory_file_that_cannot_be_read_is_named(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "memories.json"
    ask = ["chat", "What?", "--model", "./nowhere", "--given-file"]
    assert fail(capfd, *ask, str(file)) == f"memory file {file} does not exist"
    assert fail(capfd, *ask, str(tmp_path)) == f"memory file {tmp_path} cannot be read: Is a directory"
    assert "cannot be read: Not a directory" in fail(capfd, *ask, "/dev/null/memories.json")
    file.write_text("not json")
    assert f"memory file {file}: Invalid JSON" in fail(capfd, *ask, str(file))


def test_the_same_memory_twice_is_refused(capfd: pytest.CaptureFixture[str], model: list[str]):
    twice = ["--given", "A fact.", "--given", "A fact.::0.6"]
    for command in ("chat", "explain"):
        error = fail(capfd, command, "What?", *twice, *model)
        assert error.startswith("memories must have different ids, got 'm-")
        assert error.endswith("twice, for 'A fact.'")


def test_a_blank_question_is_refused(capfd: pytest.CaptureFixture[str], model: list[str]):
    for command in ("chat", "explain"):
        error = fail(capfd, command, " ", "--given", "A fact.", *model)
        assert error == "message must hold text, got a blank one"


def test_explain_needs_a_memory(capfd: pytest.CaptureFixture[str], model: list[str]):
    assert "explain needs at least one --given" in fail(capfd, "explain", "What?", *model)


def test_a_prompt_over_the_window_says_by_how_much(capfd: pytest.CaptureFixture[str], model: list[str]):
    for arguments in (["chat", "long " * 2000], ["explain", "long " * 2000]):
        error = fail(capfd, *arguments, "--given", "A fact.", *model, "--max-new-tokens", "8")
        assert error.startswith("the prompt has ")
        assert error.endswith("over the context window of 2048")


def test_an_answer_over_the_window_says_by_how_much(capfd: pytest.CaptureFixture[str], model: list[str]):
    error = fail(capfd, "chat", "What?", *model, "--max-new-tokens", "3000")
    assert "tokens and 3000 more are asked for, which is" in error


def test_a_block_that_the_template_drops_is_named(
    capfd: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path
):
    folder = tmp_path / "no-user"
    folder.mkdir()
    for file in tiny_checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}>")
    ask = ["chat", "What?", "--given", "A fact.", "--model", str(folder), "--device", "cpu", "--no-memory"]
    assert "must come out of the chat template as it is, got a template that drops it" in fail(capfd, *ask)


def test_a_cache_that_cannot_be_written_is_named(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file" / "cache", Path("/proc/cache")):
        monkeypatch.setenv("SALIENCE_CACHE", str(cache))
        for command in (
            ["models", "pull", "gemma-3-270m"],
            ["chat", "What?", "--model", "bundled:gemma-3-270m"],
        ):
            assert f"cache_dir must be a writable folder with room to spare, got {cache}" in fail(
                capfd, *command
            )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_overlapping_blocks_are_refused_by_name():
    with pytest.raises(ValueError, match=r"spans must not overlap, got 'a' \[0, 4\) and 'b' \[3, 6\)"):
        sort_spans([TextSpan("b", 3, 6), TextSpan("a", 0, 4)], 10)
    spans = (TokenSpan(name="a", start=0, end=4), TokenSpan(name="b", start=3, end=6))
    with pytest.raises(
        ValueError, match=r"must be in order and not overlap, got 'a' \[0, 4\) and 'b' \[3, 6\)"
    ):
        BiasPlan(spans=spans)


def test_a_weight_of_one_is_refused_at_declaration():
    with pytest.raises(ValueError, match="a weight of 1 means infinite odds"):
        Memory(content="A fact.", semantic_weight=1.0)
