"""What every test shares: shape checking, no network, tiny random models, where the data lies."""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from salience_models import LanguageModel

# Both take hold only of what is imported later: no import above brings in a room or huggingface_hub.
install_import_hook(["salience_kernels", "salience_models"], "beartype.beartype")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

REPO_ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("salience", deadline=None, derandomize=True)
settings.load_profile("salience")

@pytest.fixture(scope="session")
def scale() -> int:
    """How many times more than usual the tests that sample do: `SALIENCE_TEST_SCALE`, else 1."""
    return int(os.environ.get("SALIENCE_TEST_SCALE", "1"))


_SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    # Wide enough that attention is far from uniform and a bias visibly moves the logits.
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}

TINY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_hidden_layers": 2, **_GROUPED}),
    "qwen3": ("qwen3", {"num_hidden_layers": 2, **_GROUPED}),
    "mistral": ("mistral", {"num_hidden_layers": 2, "sliding_window": 16, **_GROUPED}),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            **_GROUPED,
        },
    ),
    "gpt_neox": ("gpt_neox", {"num_hidden_layers": 2}),
    "phi": ("phi", {"num_hidden_layers": 2, "num_key_value_heads": 4}),
}
"""Architecture by short name: transformers' model type and what differs from `_SIZES`."""


@cache
def build_tiny_model(name: str, dtype: torch.dtype = torch.float32) -> "PreTrainedModel":
    """A random model of 2 to 4 layers: hidden 64, 4 heads of 16, vocabulary 256; the same for every call.

    Llama, Qwen3, Mistral and Gemma 3 share 2 key/value heads among 4; GPT-NeoX and Phi have one each.
    Mistral's layers all slide over 16 keys; Gemma 3 has three such layers and a full one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, overrides = TINY_MODELS[name]
    config = AutoConfig.for_model(model_type, **(_SIZES | overrides))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    return model.to(dtype).eval()


@pytest.fixture
def unchecked_types() -> Iterator[None]:
    """Turn the tests' shape checking off, so that the checks of production are reached."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def tiny_model() -> "Callable[..., PreTrainedModel]":
    """`tiny_model(name, dtype=torch.float32)`: shared by the session, so a test leaves it as it was."""
    return build_tiny_model


CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads as any local model does: a random Llama of 2 layers with a window of 2048 tokens.

    Its tokenizer is a byte-level BPE trained on a few lines, with a ChatML template; end token `<|im_end|>`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    lines = [
        "Extract the value for the key in the JSON object below.",
        "Answer the question: when, where, who?",
    ]
    backend.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML, model_max_length=2048
    )
    overrides = TINY_MODELS["llama"][1] | {"vocab_size": len(tokenizer), "pad_token_id": None}
    config = AutoConfig.for_model("llama", **(_SIZES | overrides))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_lm(tiny_checkpoint: Path) -> "LanguageModel":
    """The model of `tiny_checkpoint`, loaded once for the session."""
    from salience_models import LanguageModel

    return LanguageModel.load(str(tiny_checkpoint), device="cpu")


@pytest.fixture(params=sorted(TINY_MODELS))
def tiny_name(request: pytest.FixtureRequest) -> str:
    """Runs the test once for each tiny architecture."""
    return request.param


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public data files: `SALIENCE_DATA`, else `../shared/data` beside the repository."""
    given = os.environ.get("SALIENCE_DATA")
    folder = Path(given) if given else REPO_ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("public data files are absent: set SALIENCE_DATA to their folder")
    return folder


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that leave the machine; tests marked `model` may fetch their package."""
    if request.node.get_closest_marker("model"):
        return
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise RuntimeError(f"a unit test tried to connect to {address[0]!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_locally)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is False")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
