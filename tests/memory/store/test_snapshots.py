import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import salience_memory
from salience_memory import MemoryNotFound, MemoryStore, SnapshotInvalid, Viewer, to_ns
from salience_memory.snapshots import export_snapshot, import_snapshot

ANN = Viewer(user_id="ann")
BOB = Viewer(user_id="bob")


def accept(rule):
    """Takes every rule for one that can be enforced."""


@pytest.fixture
def store(path, clock):
    with MemoryStore(path, clock=clock, check_rule=accept) as opened:
        yield opened


@pytest.fixture
def filled(store, clock, remember):
    store.declare(
        [
            remember("Ann likes tea.", memory_id="tea", key="drink", value={"z": 1, "a": [None, 0.1]}),
            remember("退款在 14 天内", None, memory_id="refund", type="constraint", rule={"b": 1, "a": 2}),
            remember("Bob is away.", "bob", memory_id="away", valid_until=clock.ns + 5),
        ]
    )
    clock.ns += 1
    store.update("tea", ANN, changes={"content": "Ann likes oolong."}, reason="said so", actor="ann")
    store.archive("tea", ANN)
    store.touch(["refund"], ANN)
    return store


@pytest.fixture
def other(tmp_path, clock):
    with MemoryStore(tmp_path / "other.db", clock=clock, check_rule=accept) as opened:
        yield opened


def export(store, folder, **options):
    return export_snapshot(store, folder, clock=lambda: to_ns("2026-03-04T23:59:59Z"), **options)


def test_two_exports_of_one_state_are_byte_identical(filled, tmp_path):
    paths = [export(filled, tmp_path / name) for name in "ab"]
    assert paths[0].name == paths[1].name
    assert paths[0].name.startswith("memories_20260304_sha256_")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == [paths[0].name]


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_another_process_with_another_hash_seed_exports_the_same_bytes(filled, tmp_path, hash_seed):
    expected = export(filled, tmp_path / "here")
    code = (
        "import sys; from pathlib import Path; from salience_memory import MemoryStore; "
        "from salience_memory.snapshots import export_snapshot; "
        "export_snapshot(MemoryStore(sys.argv[1]), Path(sys.argv[2]), clock=lambda: 1772668799 * 10**9)"
    )
    room = str(Path(salience_memory.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": room, "PYTHONHASHSEED": hash_seed, "LC_ALL": "C"}
    command = [sys.executable, "-c", code, str(filled.path), str(tmp_path / "there")]
    subprocess.run(command, env=environment, check=True)
    (found,) = (tmp_path / "there").iterdir()
    assert found.name == expected.name
    assert found.read_bytes() == expected.read_bytes()


def test_an_import_brings_memories_histories_and_states_and_exports_alike(filled, other, tmp_path):
    path = export(filled, tmp_path / "a")
    report = import_snapshot(other, path)
    assert report.added == ("away", "refund", "tea")
    assert [(v.version, v.content, v.reason, v.actor) for v in other.history("tea", ANN)] == [
        (1, "Ann likes tea.", "declared", ""),
        (2, "Ann likes oolong.", "said so", "ann"),
        (3, "Ann likes oolong.", "archived", ""),
    ]
    assert export(other, tmp_path / "b").read_bytes() == path.read_bytes()
    assert import_snapshot(other, path).kept == ("away", "refund", "tea")
    assert [memory.memory_id for memory in other.missing_vectors("f", 10)] == ["away", "refund", "tea"]


def test_a_viewers_snapshot_holds_what_the_viewer_sees(filled, other, tmp_path):
    path = export(filled, tmp_path, viewer=ANN, name="ann")
    assert "Bob" not in path.read_text(encoding="utf-8")
    assert import_snapshot(other, path, viewer=ANN).added == ("refund", "tea")
    with pytest.raises(SnapshotInvalid, match="must hold this viewer's memories alone"):
        import_snapshot(other, export(filled, tmp_path), viewer=ANN)


def test_a_forgotten_memory_stays_forgotten_unless_asked_for(filled, tmp_path):
    path = export(filled, tmp_path)
    filled.get_many(["tea"], ANN, include_archived=True)
    filled.forget("tea", ANN)
    report = import_snapshot(filled, path)
    assert (report.forgotten, report.kept) == (("tea",), ("away", "refund"))
    with pytest.raises(MemoryNotFound):
        filled.get("tea", ANN)
    assert import_snapshot(filled, path, restore_forgotten=True).added == ("tea",)
    back = filled.get("tea", ANN)
    assert (back.content, back.version) == ("Ann likes oolong.", 4)
    assert filled.history("tea", ANN)[-1].reason == "restored after it was forgotten"
    assert filled.find_faults() == []


def test_an_older_snapshot_never_overwrites_and_a_newer_one_follows_on(filled, other, clock, tmp_path):
    old = export(filled, tmp_path / "old")
    import_snapshot(other, old)
    clock.ns += 1
    filled.update("refund", ANN, changes={"content": "退款在 30 天内"}, reason="new policy")
    assert import_snapshot(filled, old).kept == ("away", "refund", "tea")
    assert filled.get("refund", ANN).content == "退款在 30 天内"
    new = export(filled, tmp_path / "new")
    assert import_snapshot(other, new).updated == ("refund",)
    assert other.get("refund", ANN).content == "退款在 30 天内"
    assert [version.version for version in other.history("refund", ANN)] == [1, 2]


def test_another_history_of_the_same_id_is_reported_and_left_out(filled, other, remember, tmp_path):
    other.declare([remember("Mine.", memory_id="tea")])
    report = import_snapshot(other, export(filled, tmp_path))
    assert (report.conflicting, report.added) == (("tea",), ("away", "refund"))
    assert other.get("tea", ANN).content == "Mine."


def test_a_rule_that_nothing_can_check_is_not_imported(filled, clock, tmp_path):
    path = export(filled, tmp_path / "a")
    with MemoryStore(tmp_path / "plain.db", clock=clock) as plain:
        with pytest.raises(ValueError, match="rule of memory 'refund' cannot be checked here"):
            import_snapshot(plain, path)
        assert plain.count() == 0


def tampered(path, change):
    lines = path.read_bytes().splitlines(keepends=True)
    changed = path.with_name("renamed.jsonl")
    changed.write_bytes(b"".join(change(lines)))
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], "must end with the number and the hash"),
        (lambda lines: [*lines[:2], *lines[3:]], "must end with the number and the hash"),
        (lambda lines: [line.replace(b"oolong", b"coffee") for line in lines], "must end with the number"),
        (lambda lines: lines[1:], "must begin with"),
        (lambda lines: [], "must begin with"),
        (lambda lines: [b"\xff\n"], "must begin with"),
    ],
)
def test_a_cut_off_or_changed_snapshot_is_refused_whole(filled, other, tmp_path, change, message):
    with pytest.raises(SnapshotInvalid, match=message):
        import_snapshot(other, tampered(export(filled, tmp_path), change))
    assert other.count() == 0


def test_a_snapshot_that_is_not_what_its_name_says_is_refused(filled, other, tmp_path):
    path = export(filled, tmp_path)
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(SnapshotInvalid, match="must have the hash its name says"):
        import_snapshot(other, path)


def test_records_that_are_no_memories_are_refused_whole(filled, other, tmp_path):
    def blank(lines):
        record = json.loads(lines[1])
        record["versions"][-1]["memory"]["content"] = " "
        lines = [lines[0], json.dumps(record).encode() + b"\n"]
        trailer = {"memories": 1, "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
        return [*lines, json.dumps(trailer).encode() + b"\n"]

    with pytest.raises(
        SnapshotInvalid, match=r"must hold valid memories: versions.0.memory.content: .*must hold text"
    ):
        import_snapshot(other, tampered(export(filled, tmp_path), blank))


def test_names_stay_in_their_folder(filled, tmp_path):
    with pytest.raises(ValueError, match="name must be up to 64 letters"):
        export_snapshot(filled, tmp_path, name="../elsewhere")
