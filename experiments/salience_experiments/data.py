"""Public data files: their sha256, licence and where a user obtains each; finding, checking and reading them.

None is shipped or downloaded. `data_file` finds one in the user's folder and checks it; its name is its path
there.
"""

import gzip
import hashlib
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from salience_experiments.errors import DataFileChanged, DataFileMissing, DataFormatError


@dataclass(frozen=True)
class KnownFile:
    """One public file.

    Attributes:
        name: Path inside the data folder.
        sha256: Of the file as published, in hexadecimal.
        licence: What it may be used under.
        url: Where it is published.
    """

    name: str
    sha256: str
    licence: str
    url: str


INFINITEBENCH_TASKS = ("kv_retrieval", "number_string", "passkey")
BABILONG_TASKS = ("qa1", "qa2", "qa3")
BABILONG_LENGTHS = ("0k", "1k", "2k", "4k", "8k")

_GITHUB = "https://github.com"
_LITM = f"{_GITHUB}/nelson-liu/lost-in-the-middle/blob/main"

_SINGLE_FILES = (
    KnownFile(
        "litm/kv-retrieval-75_keys.jsonl.gz",
        "eb6d61fc3473349f2b86df76757c6ab659cc929d907d24caf1c69928e03f6203",
        "MIT",
        f"{_LITM}/kv_retrieval_data/kv-retrieval-75_keys.jsonl.gz",
    ),
    KnownFile(
        "litm/kv-retrieval-140_keys.jsonl.gz",
        "66d54aae7e38779da482895ccd538faaf5309f144e54f30dc530a95091581fa1",
        "MIT",
        f"{_LITM}/kv_retrieval_data/kv-retrieval-140_keys.jsonl.gz",
    ),
    KnownFile(
        "litm/nq-open-oracle.jsonl.gz",
        "6a7f72b846f663a133ef952244e5a4e43f06bcf190afe34e8fbe687ce0d1653e",
        "MIT; passages from Wikipedia, CC BY-SA",
        f"{_LITM}/qa_data/nq-open-oracle.jsonl.gz",
    ),
    KnownFile(
        "synthwiki/madlibs1.csv",
        "5335394557eaaf90e69ee8c24232ddbe5e88204ac9d01a98ff2f0d02c3fdde5f",
        "MIT, as declared in its setup.py",
        f"{_GITHUB}/adamlerer/synthwiki/blob/main/data/madlibs/madlibs1.csv",
    ),
    KnownFile(
        "seka/pair_qa_new.jsonl",
        "cb7876001e21319106b1a19916937e92aab1844929e325e41488524e2b127228",
        "Apache-2.0",
        f"{_GITHUB}/waylonli/SEKA/blob/main/data/synthetic/pair_qa_new.jsonl",
    ),
    KnownFile(
        "locomo/locomo10.json",
        "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
        "CC BY-NC 4.0: evaluation only",
        f"{_GITHUB}/snap-research/locomo/blob/main/data/locomo10.json",
    ),
    KnownFile(
        "locomo/locomo-audit-errors.json",
        "f298ef46263fada20688a1d672be37d4f488c6da3b19343eea55ae5c1b5fe55e",
        "CC BY-NC 4.0: evaluation only",
        f"{_GITHUB}/dial481/locomo-audit",
    ),
)

# model: one sha256 for each of INFINITEBENCH_TASKS
_INFINITEBENCH = {
    "gpt4": (
        "40a543cba178ae5ed01d4ecfa0a41f3bae6873a7f24c557f3d3486ebb03aac4d",
        "80b5e64cd13d4a9d249e4eca58d20cf4dbce1b94ccf400493cf4d303ebc2a613",
        "484758168209eba2df677ed4317724437f8bb3cf7ae3ad7563bebd496ff66a67",
    ),
    "yarn-mistral": (
        "0a207e3e68d0ab05ff84b82023da7da2a687f0de09341f566ac5aac5cdfab8a0",
        "c9f8f398cf964540e8d5fd898d308bdb2ca51a7f869f2f21b432252479a1418c",
        "1be8760ce6b14fa6c68ab33c2a6d6fd05ed7e9dd57a2f178de33687817a74c40",
    ),
    "kimi": (
        "fb60f86ea6e84e20cfa0538a6ce8de425229b345905352c352fd024b1997e3df",
        "d9558fe8a118e12b7a27019d41f64e3404962ea2da40d4798ce3f5001952cf09",
        "b4094d155a482a9c86a8c22da8f2760052260611aa99b931117cd9ec935bc474",
    ),
    "claude2": (
        "e30be59b9ff398646cc497515e9477359cbca564753aff4e988fa6143d5a7352",
        "0872d481e7e01718e8559e4b6a1ac09f741f603ffa95e9f336a4a1b91e84f324",
        "89d27576a10104d279f2b779f72ad2e44943c5d8c95772d44a7214c96c64d328",
    ),
    "yi-6b-200k": (
        "5808597446877cf78a1f1de5c288fa46c0e26fc721fb90a51ae65ac58ca6d677",
        "e5350658c6ad5a7eed0bff1738d77495207d3b7c381523ff7905e7dd060b4ab5",
        "32fc9808e806e7f109721f1fd01b5a06f6046f315937ad2806a163c092eda3ab",
    ),
    "yi-34b-200k": (
        "3e0a617fc1e8064fdba9ddeb23717aa08c3211925964bea92713edd5e9b3e8d8",
        "84c7161cbe76de246d77dd69ef91675be55b11d09b0e6a08f20fa8d73f2b7e87",
        "3304188c09297fe5a3188c6d63f02c7d86c3de63395703fb8a787d813e49ad3e",
    ),
    "chatglm3": (
        "e5a51f81ef6e61774e08127f6ec6108273a1ede54b2b0829b3817bebaca24ce7",
        "495bec868249272d7f33dc2cc0f649516ae72b53665769a5a363773e080fb2fe",
        "03d5f4a8fecd97e68c106b86d4ec3c681cfb5cb34004dd42ea21cda6986ce743",
    ),
}

# (owner, model): one sha256 for each of BABILONG_LENGTHS, task after task
_BABILONG = {
    ("mistralai", "Mistral-7B-Instruct-v0.2"): (
        "e1b9e443f911677f85ea473df66f9dc54dd5798ea309def16cfc495baf1682b6",
        "65effde15adf406e2a107de3d6e27a9ddbdb8209ee35724fa2874b1674c4b42c",
        "15cf5472c16be702233082fcd505a764451be320c999b186b76db233b99eed44",
        "d3966215be580f39b3d00ce9fd84bc3f287036dd85125209ff0c81ee95e11479",
        "de3958cb68d84ed400b80b2819d5e0432aac0c7c5daec411308070ac74a8e6bc",
        "ad65f9a72c9ab1182c6cb6814cdeb48fcb1f48050c671988a5dc6253deb394bd",
        "43dbd185b91adb755ad4db824ac7940ff68c3c0404131f55fd504e8f915db71d",
        "0a857e26755cf9703f07fa12cc07598fc963f933071900448ddfad6bf7afbbbd",
        "72e8929203e53a0d79375b24cbca159c56f0b2581b748e3868a5626e38bf204f",
        "06e5a4e9b971884513fbf9f97011dd1ce0d658aa2780fcfae02ee429d7eade65",
        "ffd9e067c908fa0aa40d4d7b353ea492244e6143c96db3df5f761de1bbcc1e66",
        "1c2049831d880254cee230e28c39523231ba5d249e3cfc29ef12ccd163e0e87f",
        "73ece93a715ff4cc472febf734293b47c027dd23f76bc2e547175f6ada80ed48",
        "4d86e7de0e5b422b0da46834af3caada014ba0f3b8c9c3833ae4996b65f2fd42",
        "6cf8c46397aa9697cf12cde4a88016252cca5a50e4961b492e24d6d91c380c03",
    ),
    ("meta-llama", "Meta-Llama-3-8B-Instruct"): (
        "f2b2a5f4252a5a1a075ecc1609a4bdf826a5d6185084cf02d08e9ed6135e3f85",
        "d308817982d19cfc68dad669ec87d24da3369c9531eb914b7e43f79429567e7d",
        "047d721a354ee88213b1731e5053c6159c2152b2634d300aabceca5b329afbf3",
        "3690cc8247e551db152e125b2ef97b661845e42152db0e2981b6b5815c8e70ed",
        "bfaeb2aeed851c7e0c565a534b50897ca5ecfa32aeedae964e4dc7578578de1e",
        "d81a2a8569736707d2bb19dc741b6ab927d0eb46f7a84c9c3b6e33f296212ed4",
        "4d7ce6577e9a654d08189f71fff1c0f863ccc058aa60bdfac71d9599e1e67f8d",
        "bf6973bba8e36e5af6fe6e8e3916403d382fb6c23261fbeb9fd92171149c3a97",
        "ff4ad8b34b96aad17c35b19678e051719296841827251ad7c84e3d636c497a1a",
        "9bbfb4a78b7d06c99bcc7251c242cde58d47ac3722d082ea07acbc91289ce26d",
        "ef17ab5b59d38fc6d62395d0e03863eb6a4dd81dd801f76e282588b49eb9fec9",
        "41e5a25d582a178ee1f37ae20c613c03f478c05dee40e800c15da46b2bcba9f3",
        "24022384996e9876c358987b4597e56e41c4f119fd8f549e3174237f360bb4a4",
        "3c14ab5949f6ce1ad599b32853b705a903d8303fbd3376e5d26f910d1cfc1124",
        "e444bbdc092f46a18459f37961766eb2fb4130937a8d8ea3ae889a2a20d3f6f3",
    ),
    ("HuggingFaceTB", "SmolLM2-360M-Instruct"): (
        "f275d67f47d81c3c9f1c4d5286e0a4e6fccab1b5eba37ee0232a789dcb78ce97",
        "a26376e165f775170b060b038e0a4815e607ba6116e54267929470002f4f5040",
        "c624fa5bc3ac43879015f3f7554e97ae15613e905b5ad0de4f92d0edfbbba303",
        "084afc9f530941cb7707b7c9f9a2eb610841d6207b074408cd6528b0564419cd",
        "23229d19dff348e127865f9b9611abdbceffdb1da76ef0d540e53215bd1b3e89",
        "3903316ce6ce08771900dce31f7bdb78184dc9d31863edc296605f66e9a3cc7e",
        "caaf6136f671ad287a3b0f7c89913aff98237d73452ca76774a84652c8de7695",
        "5dcbe1b126971621c6b3e2e9e2d89ad2898ee9da282ad77351c6f4f71f127443",
        "fc0af16893cb375e959ef451b4f5eae3f1707b3dc802a1fb510d2ff3a2fd145d",
        "071031e3f56d90133ad824ed9e7826150274c5c2a0bd882b6987ad785ea7373f",
        "e111d950073baf4ab29062cab16bb9dd36196f539bd97cece61f99a2e38e496a",
        "3645d689dbe4762555ebc17589afcf65145f43bcc72eb1b60ac1e263cc3c0e4d",
        "98506ff31409def21db8154722ed0dc4efddbc50d50aef08f014ea9cd82b210a",
        "6814d22d2adc8a1dfe8e37cfcf2504cc80deb23cde9a64aa7ea3e37a57d74fee",
        "8767e21547772b6573db8e673097fa0a728e267ca06b308c8ddb17b489946b66",
    ),
}


def infinitebench_name(model: str, task: str) -> str:
    """Return the name of a model's published predictions on an InfiniteBench task."""
    return f"score_parity/infinitebench/{model}.{task}.jsonl"


def babilong_name(model: str, task: str, length: str) -> str:
    """Return the name of a model's published predictions on a BABILong task at one context length."""
    return f"score_parity/babilong/{model}.{task}_{length}.csv"


KNOWN_FILES = {
    file.name: file
    for file in (
        *_SINGLE_FILES,
        *(
            KnownFile(
                infinitebench_name(model, task),
                sha256,
                "MIT",
                f"{_GITHUB}/OpenBMB/InfiniteBench/blob/main/results/{model}/preds_{task}.jsonl",
            )
            for model, sums in _INFINITEBENCH.items()
            for task, sha256 in zip(INFINITEBENCH_TASKS, sums, strict=True)
        ),
        # Each folder holds several run configurations of a cell; the sha256 tells which file is meant.
        *(
            KnownFile(
                babilong_name(model, task, length),
                sha256,
                "Apache-2.0",
                f"https://huggingface.co/datasets/RMT-team/babilong_evals/tree/main/{owner}/{model}",
            )
            for (owner, model), sums in _BABILONG.items()
            for (task, length), sha256 in zip(product(BABILONG_TASKS, BABILONG_LENGTHS), sums, strict=True)
        ),
    )
}
INFINITEBENCH_MODELS = tuple(_INFINITEBENCH)
BABILONG_MODELS = tuple(model for _, model in _BABILONG)


def data_file(name: str, data_dir: Path, *, allow_changed: bool = False) -> Path:
    """Return the path of a known file, checked against its published sha256.

    Args:
        name: Path inside the data folder, such as "litm/kv-retrieval-75_keys.jsonl.gz".
        data_dir: The user's data folder.
        allow_changed: Take the file whatever its sha256, such as a newer release of it.

    Raises:
        ValueError: No known file has that name.
        DataFileMissing: It is not there; the message says where to obtain it.
        DataFileChanged: Its sha256 is another one.
    """
    if name not in KNOWN_FILES:
        raise ValueError(f"name must be one of {', '.join(KNOWN_FILES)}, got {name!r}")
    known = KNOWN_FILES[name]
    path = data_dir / name
    if not path.is_file():
        raise DataFileMissing(
            f"{path} is missing: obtain it from {known.url} ({known.licence}) and put it there"
        )
    if not allow_changed and (found := file_sha256(path)) != known.sha256:
        raise DataFileChanged(
            f"{path} must have sha256 {known.sha256}, got {found}: obtain it from {known.url}, "
            "or allow a changed file"
        )
    return path


def find_data_file(source: str, data_dir: Path | None, *, allow_changed: bool = False) -> Path:
    """Return the path that a spec means by `source`: a known file's name, or the path of any other file.

    A relative path is taken from the data folder, and where nothing lies there from the working directory. A
    file that is not known is not checked.

    Raises:
        DataFileMissing: Nothing is there, or a known file is named and no data folder is given.
        DataFileChanged: A known file has another sha256.
    """
    if source in KNOWN_FILES:
        if data_dir is None:
            known = KNOWN_FILES[source]
            raise DataFileMissing(
                f"{source} lies in the data folder, and none is given: obtain it from {known.url} "
                f"({known.licence}), and name the folder with --data or SALIENCE_DATA"
            )
        return data_file(source, data_dir, allow_changed=allow_changed)
    path = (data_dir or Path()) / source
    if not path.is_file() and Path(source).is_file():
        path = Path(source)
    if not path.is_file():
        raise DataFileMissing(f"{path} is missing: give a file's path, or one of {', '.join(KNOWN_FILES)}")
    return path


def file_sha256(path: Path) -> str:
    """Return the file's sha256 in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json_lines(path: Path, n_rows: int | None = None) -> list[dict[str, Any]]:
    """Return the first `n_rows` objects of a `.jsonl` or `.jsonl.gz` file; none returns all.

    Raises:
        DataFileMissing: The file is not there.
        DataFormatError: A line is not a JSON object, or there are fewer rows than asked for, or none.
    """
    if n_rows is not None and n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, got {n_rows}")
    if not path.is_file():
        raise DataFileMissing(f"{path} is missing")
    rows: list[dict[str, Any]] = []
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if len(rows) == n_rows:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataFormatError(f"{path} line {number} must be JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataFormatError(f"{path} line {number} must be a JSON object, got {type(row).__name__}")
            rows.append(row)
    if not rows or (n_rows is not None and len(rows) < n_rows):
        raise DataFormatError(f"{path} must hold at least {n_rows or 1} rows, got {len(rows)}")
    return rows
