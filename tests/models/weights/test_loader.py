import json
import logging
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from salience_models.errors import (
    ModelDoesNotFit,
    QuantizationUnavailable,
    SourceNotFound,
    UnknownArchitecture,
    WeightsUnreadable,
)
from salience_models.weights import loader, placement, sources
from salience_models.weights.loader import LoadedModel, load_model
from salience_models.weights.model_info import fingerprint_folder, weight_files
from salience_models.weights.placement import check_fits, count_parameters

TinyModel = Callable[..., PreTrainedModel]


def save_tokenizer(folder: Path) -> None:
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "a", "b", "c"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)


@pytest.fixture
def llama_folder(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A complete local checkpoint: config, safetensors, tokenizer."""
    folder = tmp_path / "llama"
    tiny_model("llama").save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_folder_loads_as_saved_and_ready_for_inference(
    tiny_model: TinyModel, tiny_name: str, tmp_path: Path
) -> None:
    saved = tiny_model(tiny_name)
    saved.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    assert isinstance(loaded, LoadedModel)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    state = saved.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.model.state_dict().items())
    assert loaded.info.path == tmp_path.resolve()
    assert (loaded.info.dtype, loaded.info.device) == ("float32", "cpu")


def test_tokenizer_pads_on_the_left_with_eos_where_it_has_no_padding(llama_folder: Path) -> None:
    tokenizer = load_model(llama_folder, device="cpu").tokenizer
    assert (tokenizer.padding_side, tokenizer.pad_token) == ("left", "</s>")


def test_dtype_and_attention_are_the_ones_asked_for(llama_folder: Path) -> None:
    loaded = load_model(llama_folder, device="cpu", dtype="bfloat16", attn_implementation="sdpa")
    assert loaded.info.dtype == "bfloat16"
    assert loaded.model.config._attn_implementation == "sdpa"


def test_fingerprint_changes_with_the_weights(llama_folder: Path) -> None:
    before = fingerprint_folder(llama_folder)
    assert before == fingerprint_folder(llama_folder)
    file = llama_folder / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    assert fingerprint_folder(llama_folder) != before


def test_load_is_silent_and_leaves_verbosity_as_it_was(
    llama_folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    with caplog.at_level(logging.WARNING), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_model(llama_folder, device="cpu")
    captured = capfd.readouterr()
    assert (captured.out, captured.err, caplog.records, caught) == ("", "", [], [])
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before


def test_files_of_other_formats_and_precisions_do_not_count(llama_folder: Path) -> None:
    """An index of the older format without its shards, and a second precision, beside safetensors."""
    before = fingerprint_folder(llama_folder)
    index = {"weight_map": {"lm_head.weight": "pytorch_model-00001-of-00002.bin"}}
    (llama_folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (llama_folder / "model.fp16.safetensors").write_bytes(b"half")
    assert weight_files(llama_folder) == [llama_folder / "model.safetensors"]
    assert load_model(llama_folder, device="cpu").info.weights_sha256 == before


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "model*.safetensors"),
        ("tokenizer.json", "tokenizer"),
    ],
)
def test_missing_file_is_named(llama_folder: Path, missing: str, named: str) -> None:
    (llama_folder / missing).unlink()
    with pytest.raises(SourceNotFound, match=re.escape(named)):
        load_model(llama_folder, device="cpu")


def test_missing_shard_is_named(tiny_model: TinyModel, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    save_tokenizer(tmp_path)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    load_model(tmp_path, device="cpu")
    shard.unlink()
    with pytest.raises(SourceNotFound, match=shard.name):
        load_model(tmp_path, device="cpu")


def test_torn_weights_are_refused(llama_folder: Path) -> None:
    file = llama_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(WeightsUnreadable, match="safetensors"):
        load_model(llama_folder, device="cpu")


def test_weights_that_are_not_safetensors_are_refused(llama_folder: Path) -> None:
    (llama_folder / "model.safetensors").write_bytes(b"<html>404</html>")
    with pytest.raises(WeightsUnreadable, match=r"model\.safetensors must be a safetensors file"):
        load_model(llama_folder, device="cpu")


def test_missing_parameter_is_never_filled_with_noise(llama_folder: Path) -> None:
    file = llama_folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(WeightsUnreadable, match=r"1 missing, first model\.layers\.1\.self_attn\.q_proj"):
        load_model(llama_folder, device="cpu")


def test_layers_that_the_config_leaves_out_are_refused(llama_folder: Path) -> None:
    edit_config(llama_folder, num_hidden_layers=1)
    with pytest.raises(WeightsUnreadable, match=r"9 that would be left out, first model\.layers\.1\."):
        load_model(llama_folder, device="cpu")


def test_bias_that_the_config_leaves_out_is_refused(llama_folder: Path) -> None:
    file = llama_folder / "model.safetensors"
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    save_file(load_file(file) | bias, file, metadata={"format": "pt"})
    with pytest.raises(
        WeightsUnreadable, match=r"1 that would be left out, first model\.layers\.0\.self_attn"
    ):
        load_model(llama_folder, device="cpu")


def test_tower_of_another_sense_and_old_rotary_buffers_are_left_out(llama_folder: Path) -> None:
    file = llama_folder / "model.safetensors"
    others = {
        "vision_tower.layers.0.weight": torch.ones(4),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    save_file(load_file(file) | others, file, metadata={"format": "pt"})
    assert load_model(llama_folder, device="cpu").info.n_layers == 2


def test_parameter_of_another_shape_is_refused(llama_folder: Path) -> None:
    edit_config(llama_folder, vocab_size=300)
    with pytest.raises(WeightsUnreadable, match=r"shape.*\.weight \[256, 64\] instead of \[300, 64\]"):
        load_model(llama_folder, device="cpu")


def test_broken_config_is_refused(llama_folder: Path) -> None:
    (llama_folder / "config.json").write_text("{")
    with pytest.raises(WeightsUnreadable, match="must be JSON"):
        load_model(llama_folder, device="cpu")


@pytest.mark.parametrize("model_type", ["colossus", None])
def test_unknown_architecture_is_named(llama_folder: Path, model_type: str | None) -> None:
    edit_config(llama_folder, model_type=model_type)
    with pytest.raises(UnknownArchitecture, match=str(model_type)):
        load_model(llama_folder, device="cpu")


def test_remote_code_is_never_run(llama_folder: Path) -> None:
    (llama_folder / "evil.py").write_text("raise SystemExit('ran')")
    edit_config(llama_folder, model_type="colossus", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(UnknownArchitecture, match="is never run"):
        load_model(llama_folder, device="cpu")


def test_embedder_is_not_a_language_model(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="got the embedder bundled:all-minilm-l6-v2"):
        load_model("bundled:all-minilm-l6-v2", cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_misspelt_dtype_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match="dtype must be auto, float32, bfloat16, float16, got 'fp32'"):
        load_model(llama_folder, dtype="fp32")


def test_device_beside_a_device_map_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match='device must be "auto" beside a device_map'):
        load_model(llama_folder, device="cpu", device_map="auto")


def test_device_map_places_the_model(llama_folder: Path) -> None:
    loaded = load_model(llama_folder, device_map={"": "cpu"})
    assert loaded.info.device == "cpu"


def test_quantization_needs_cuda(llama_folder: Path) -> None:
    with pytest.raises(QuantizationUnavailable, match="bnb-4bit needs a CUDA device, got device cpu"):
        load_model(llama_folder, device="cpu", quantization="bnb-4bit")
    with pytest.raises(ValueError, match="quantization must be None, bnb-4bit, bnb-8bit, got 'int4'"):
        load_model(llama_folder, device="cpu", quantization="int4")


def test_weights_larger_than_free_memory_are_refused_with_figures(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "count_parameters", lambda folder: 7 * 2**30)
    monkeypatch.setattr(placement, "free_bytes", lambda device: 16 * 2**30)
    with pytest.raises(ModelDoesNotFit, match=r"at least 28.0 GiB for the weights of llama, got 16.0 GiB"):
        load_model(llama_folder, device="cpu")
    cuda = torch.device("cuda", 0)
    check_fits(llama_folder, cuda, torch.bfloat16, None)
    check_fits(llama_folder, cuda, torch.float32, "bnb-4bit")


def test_parameters_are_counted_from_the_headers(llama_folder: Path, tiny_model: TinyModel) -> None:
    assert count_parameters(llama_folder) == sum(p.numel() for p in tiny_model("llama").parameters())


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("can't allocate memory: 1")],
)
def test_memory_that_runs_out_while_loading_is_reported(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelDoesNotFit, match="free memory on cpu must hold llama"):
        load_model(llama_folder, device="cpu")


def test_hub_snapshot_loads_with_its_commit(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = llama_folder.with_name("0123abc")
    shutil.copytree(llama_folder, snapshot)
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo, revision))
        assert "model*.safetensors" in allow_patterns
        return str(snapshot)

    monkeypatch.setattr(sources, "snapshot_download", download)
    info = load_model("owner/model", revision="v1", device="cpu").info
    assert asked == [("owner/model", "v1")]
    assert (info.source, info.revision, info.weights_sha256) == (
        "owner/model",
        "0123abc",
        fingerprint_folder(llama_folder),
    )
