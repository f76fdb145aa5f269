import pytest
import torch

from salience_models.errors import DeviceUnavailable, QuantizationUnavailable
from salience_models.weights import placement
from salience_models.weights.placement import resolve_device, resolve_dtype


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "mps", ""])
def test_misspelt_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="device must be"):
        resolve_device(device)


def test_missing_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(DeviceUnavailable, match="device must be available, got 'cuda:0'"):
        resolve_device("cuda:0")


def test_cuda_index_beyond_the_last_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cuda") == resolve_device("auto") == torch.device("cuda", 0)
    with pytest.raises(DeviceUnavailable, match="device must be below cuda:2, got 'cuda:2'"):
        resolve_device("cuda:2")


def test_auto_dtype_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert resolve_dtype("auto", cuda) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert resolve_dtype("auto", cuda) == torch.float32
    assert resolve_dtype("float16", cuda) == torch.float16


def test_quantization_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(QuantizationUnavailable, match="needs the package bitsandbytes"):
        placement.resolve_quantization("bnb-8bit", torch.device("cuda", 0), torch.bfloat16)
