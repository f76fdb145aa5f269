import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType

from salience_models.errors import CacheNotWritable, UnknownArchitecture, WeightsUnreadable
from salience_models.weights import gguf_cache
from salience_models.weights.cache_folder import default_cache_dir
from salience_models.weights.gguf_cache import convert_gguf, hash_file
from salience_models.weights.gguf_file import read_gguf
from salience_models.weights.gguf_tokenizer import derive_merges, eos_token_ids
from salience_models.weights.loader import LoadedModel, load_model

LETTERS = [chr(i) for i in range(33, 127)] + ["Ġ", "Ċ"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "ĊĊ", "ĠĠ", "Ġa", "12"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
WIDTH, LAYERS, HEADS = 32, 2, 2


def write_gguf(
    path: Path, *, architecture: str = "llama", eos: int = 0, left_out: str = "", split_count: int = 1
) -> Path:
    """A two-layer float32 Llama with random weights and a byte-level tokenizer of the SmolLM kind."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ċ Ċ", "Ġ Ġ", "Ġ a", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    if split_count > 1:
        writer.add_uint16("split.count", split_count)
    for name, shape in tensor_shapes().items():
        if name != left_out:
            values = np.random.default_rng(len(name)).normal(0, 0.1, shape)
            writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        "output.weight": (len(TOKENS), WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{i}.{name}.weight"] = (WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            shapes[f"blk.{i}.{name}.weight"] = (2 * WIDTH, WIDTH)
        shapes[f"blk.{i}.ffn_down.weight"] = (WIDTH, 2 * WIDTH)
        shapes[f"blk.{i}.attn_norm.weight"] = shapes[f"blk.{i}.ffn_norm.weight"] = (WIDTH,)
    return shapes


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def load(gguf_file: Path, tmp_path: Path) -> Callable[[], LoadedModel]:
    return lambda: load_model(gguf_file, device="cpu", cache_dir=tmp_path / "cache")


def test_gguf_file_loads_with_its_shape_template_and_hash(
    load: Callable[[], LoadedModel], gguf_file: Path
) -> None:
    loaded = load()
    info = loaded.info
    assert (info.n_layers, info.n_heads, info.head_dim, info.context_window) == (2, 2, 16, 64)
    assert info.weights_sha256 == hash_file(gguf_file)
    assert info.source == str(gguf_file)
    assert info.has_chat_template
    embedding = loaded.model.state_dict()["model.embed_tokens.weight"]
    written = np.random.default_rng(len("token_embd.weight")).normal(0, 0.1, (len(TOKENS), WIDTH))
    assert torch.equal(embedding, torch.tensor(written, dtype=torch.float32))


def test_second_load_reads_the_cache_and_gives_the_same_model(
    load: Callable[[], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load()
    monkeypatch.setattr(gguf_cache, "_convert", lambda *_: pytest.fail("converted again"))
    second = load()
    state = first.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in second.model.state_dict().items())
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    assert first.tokenizer.chat_template == second.tokenizer.chat_template == TEMPLATE


def test_conversion_and_load_are_silent(
    load: Callable[[], LoadedModel], capfd: pytest.CaptureFixture[str]
) -> None:
    load()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_end_of_turn_in_the_template_ends_generation_too(load: Callable[[], LoadedModel]) -> None:
    loaded = load()
    assert loaded.tokenizer.eos_token == "<|endoftext|>"
    assert loaded.info.eos_token_ids == (0, 2)


def test_eos_without_template_is_the_files_own() -> None:
    metadata = {"tokenizer.ggml.tokens": ["a", "<end_of_turn>"], "tokenizer.ggml.eos_token_id": 0}
    assert eos_token_ids(metadata) == [0]
    assert eos_token_ids(metadata | {"tokenizer.ggml.eot_token_id": 1}) == [0, 1]


def test_digits_stand_alone_and_blank_lines_before_them_stay_whole(load: Callable[[], LoadedModel]) -> None:
    tokenizer = load().tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("a\n\n12  3").input_ids) == [
        "a",
        "ĊĊ",
        "1",
        "2",
        "ĠĠ",
        "3",
    ]


def test_special_tokens_are_special_and_can_be_text(load: Callable[[], LoadedModel]) -> None:
    tokenizer = load().tokenizer
    assert tokenizer("<|im_end|>").input_ids == [2]
    assert 2 not in tokenizer("<|im_end|>", split_special_tokens=True).input_ids
    assert tokenizer.decode(tokenizer("<|im_start|>a a<|im_end|>").input_ids) == "<|im_start|>a a<|im_end|>"


def test_merges_follow_the_order_of_ids_longer_left_part_first() -> None:
    vocabulary = {token: i for i, token in enumerate(["a", "b", "ab", "aab", "aa"])}
    assert derive_merges(vocabulary) == [("a", "b"), ("aa", "b"), ("a", "ab"), ("a", "a")]


def test_torn_cache_is_written_again(load: Callable[[], LoadedModel], tmp_path: Path) -> None:
    folder = load().info.path
    assert folder is not None
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert load().info.path == folder
    assert weights.read_bytes() == whole


def test_process_killed_while_writing_leaves_nothing_that_loads(gguf_file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    killed = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from salience_models.weights import gguf_cache\n"
        "def convert(_, folder):\n"
        "    (folder / 'config.json').write_text('{}')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "gguf_cache._convert = convert\n"
        f"gguf_cache.convert_gguf(Path({str(gguf_file)!r}), Path({str(cache)!r}))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", killed], env=environment, check=False).returncode == -9
    assert [path.name for path in (cache / "gguf").iterdir() if path.suffix == ".partial"]
    assert load_model(gguf_file, device="cpu", cache_dir=cache).info.n_layers == 2
    assert not [path.name for path in (cache / "gguf").iterdir() if path.suffix == ".partial"]


def test_failed_conversion_leaves_no_folder(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_cache, "_convert", fail)
    with pytest.raises(CacheNotWritable, match="No space left on device"):
        convert_gguf(gguf_file, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache" / "gguf").iterdir()] == [".lock"]


def test_file_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "page.gguf"
    file.write_bytes(b"<html>404</html>")
    with pytest.raises(WeightsUnreadable, match=r"page\.gguf must start with b'GGUF', got b'<htm'"):
        convert_gguf(file, tmp_path / "cache")


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.999])
def test_torn_file_is_refused(gguf_file: Path, tmp_path: Path, share: float) -> None:
    content = gguf_file.read_bytes()
    gguf_file.write_bytes(content[: max(4, int(len(content) * share))])
    with pytest.raises(WeightsUnreadable, match=r"tiny\.gguf must be a whole GGUF file"):
        convert_gguf(gguf_file, tmp_path / "cache")


def test_missing_tensor_is_never_filled_with_noise(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "hole.gguf", left_out="blk.1.attn_q.weight")
    with pytest.raises(
        WeightsUnreadable, match=r"1 missing, first model\.layers\.1\.self_attn\.q_proj\.weight"
    ):
        convert_gguf(file, tmp_path / "cache")


def test_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "part.gguf", split_count=3)
    with pytest.raises(WeightsUnreadable, match="got one part of 3"):
        convert_gguf(file, tmp_path / "cache")


def test_architecture_unknown_to_transformers_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "odd.gguf", architecture="colossus")
    with pytest.raises(UnknownArchitecture, match=r"must be one of llama, qwen2, .*, got .colo"):
        convert_gguf(file, tmp_path / "cache")


def test_metadata_holds_every_kind_of_value(gguf_file: Path) -> None:
    metadata = read_gguf(gguf_file).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.rope.freq_base"] == 10_000.0
    assert metadata["tokenizer.ggml.tokens"] == TOKENS
    assert metadata["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]


BUNDLED_FACTS: dict[str, dict[str, Any]] = {
    "qwen2.5-coder-0.5b-instruct": {
        "architecture": "qwen2",
        "eos_token_ids": (151645, 151643),
        "has_chat_template": True,
        "context_window": 32768,
        "layer_windows": (None,) * 24,
        "n_heads": 14,
        "n_kv_heads": 2,
        "head_dim": 64,
    },
    "smollm2-135m-instruct": {
        "architecture": "llama",
        "eos_token_ids": (2,),
        "has_chat_template": True,
        "context_window": 8192,
        "layer_windows": (None,) * 30,
        "n_heads": 9,
        "n_kv_heads": 3,
        "head_dim": 64,
    },
    "gemma-3-270m": {
        "architecture": "gemma3_text",
        "eos_token_ids": (1,),
        "has_chat_template": False,
        "context_window": 32768,
        "layer_windows": ((512,) * 5 + (None,)) * 3,
        "n_heads": 4,
        "n_kv_heads": 1,
        "head_dim": 256,
    },
}


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(BUNDLED_FACTS))
def test_bundled_model_is_what_the_catalogue_says(name: str) -> None:
    info = load_model(f"bundled:{name}", device="cpu").info
    assert {field: getattr(info, field) for field in BUNDLED_FACTS[name]} == BUNDLED_FACTS[name]


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(BUNDLED_FACTS))
def test_bundled_tokenizer_gives_text_back(name: str) -> None:
    tokenizer = load_model(f"bundled:{name}", device="cpu").tokenizer
    for text in [
        "Hello, world!",
        "  two  spaces\n\n\n1. one\n\n12",
        "中文 and emoji 😀 e\u0301",
        "\t\ttabs",
        "x" * 300,
    ]:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == text


@pytest.mark.model
def test_smollm2_tokens_are_the_published_ones() -> None:
    tokenizer = load_model("bundled:smollm2-135m-instruct", device="cpu").tokenizer
    assert tokenizer("Hello world, 12").input_ids == [19556, 905, 28, 216, 33, 34]
    assert tokenizer("a\n\n1").input_ids == [81, 1116, 33]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")


@pytest.mark.model
def test_gemma_starts_with_bos_and_knows_its_control_tokens() -> None:
    tokenizer = load_model("bundled:gemma-3-270m", device="cpu").tokenizer
    assert tokenizer("Hello world").input_ids == [2, 9259, 1902]
    assert tokenizer("<start_of_turn>", add_special_tokens=False).input_ids == [105]


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    [
        ("smollm2-135m-instruct", "The capital of France is", " Paris"),
        ("gemma-3-270m", "One, two, three, four, five,", " six"),
    ],
)
def test_bundled_model_continues_sensibly(name: str, prompt: str, answer: str) -> None:
    loaded = load_model(f"bundled:{name}", device="cpu")
    ids = loaded.tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        best = loaded.model(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best) == answer


@pytest.mark.model
def test_warm_load_of_smollm2_takes_at_most_three_seconds() -> None:
    load_model("bundled:smollm2-135m-instruct", device="cpu")
    start_s = time.perf_counter()
    load_model("bundled:smollm2-135m-instruct", device="cpu")
    assert time.perf_counter() - start_s <= 3.0


@pytest.mark.model
def test_cache_of_a_bundled_model_is_an_ordinary_checkpoint() -> None:
    folder = load_model("bundled:smollm2-135m-instruct", device="cpu").info.path
    assert folder is not None
    assert folder.is_relative_to(default_cache_dir() / "gguf")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
