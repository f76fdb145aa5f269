"""`salience memory`: every command, as a user runs it."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from salience.cli import main
from salience_memory import Memory, MemoryStore
from salience_memory.clock import DAY_NS

ROOMS = [
    str(Path(__file__).resolve().parents[2] / room)
    for room in ("harness", "models", "memory", "kernels", "experiments")
]


@pytest.fixture(autouse=True)
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store" / "memory.db"
    monkeypatch.setenv("SALIENCE_MEMORY", str(path))
    monkeypatch.setenv("COLUMNS", "200")
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run a `memory` command that must succeed without a word on stderr; returns what it printed."""

    def memory(*arguments: str) -> str:
        capsys.readouterr()
        code = main(["memory", *arguments])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return memory


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str]):
    """Run a `memory` command that must fail; returns its one sentence."""

    def memory(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["memory", *arguments]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error.removeprefix("error: ").strip()

    return memory


def add(run, *arguments: str) -> dict:
    return json.loads(run("add", *arguments, "--json"))


def test_a_memory_is_added_once_and_seen_by_its_owner_alone(run):
    said = (
        "I am allergic to peanuts",
        "--key",
        "allergy",
        "--user",
        "ann",
        "--pinned",
        "--tag",
        "domain:health",
    )
    assert run("add", *said).endswith("  version 1, user\n")
    assert run("add", *said).endswith("  was there already, user\n")
    assert "allergy: I am allergic to peanuts" in run("list", "--user", "ann")
    assert "no memories" in run("list")
    assert json.loads(run("list", "--user", "bob", "--json")) == []


def test_every_field_can_be_declared(run, tmp_path):
    rule = tmp_path / "rule.json"
    rule.write_text('{"forbid_phrases": ["refund"]}')
    fields = add(
        run, "No refunds", "--type", "constraint", "--key", "refunds", "--value", '{"max": 0}',
        "--weight", "0.95", "--tag", "domain:shop", "--trust", "0.8", "--stale-after", "0.5",
        "--valid-until", "2100-01-31T18:00+01:00", "--urgency", "high", "--source-id", "terms.pdf",
        "--source-format", "pdf", "--source-location", "page:1, line:2", "--verified",
        "--rule", str(rule), "--break-on-violation", "--pinned", "--read-only",
        "--id", "refunds", "--session", "s1", "--user", "ann",
    )  # fmt: skip
    assert (fields["memory_id"], fields["type"], fields["scope"]) == ("refunds", "constraint", "session")
    assert (fields["value"], fields["rule"]) == ({"max": 0}, {"forbid_phrases": ["refund"]})
    assert (fields["semantic_weight"], fields["trust"], fields["stale_after"]) == (0.95, 0.8, 0.5)
    assert (fields["timezone_offset_min"], fields["urgency"]) == (60, "high")
    assert [fields[name] for name in ("pinned", "read_only", "break_on_violation")] == [True] * 3
    assert fields["provenance"]["source_location"] == "page:1, line:2"
    assert "2100-01-31T18:00:00+01:00" in run("show", "refunds", "--user", "ann", "--session", "s1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--weight", "1"], "semantic_weight must be in [0.5, 0.99], got 1.0"),
        (["x", "--valid-until", "2030-01-31"], "valid_until: a time must carry its offset from UTC"),
        (["x", "--value", "{"], "--value must be JSON or a file of JSON, got '{'"),
        (
            ["x", "--type", "external"],
            "provenance must be given for a stored external memory of scope global",
        ),
        (["x", "--verified"], "--source-id must be given with"),
        (
            ["x", "--type", "constraint", "--rule", '{"forbid": 1}'],
            "cannot be enforced: forbid is not a known field",
        ),
        (["x", "--rule", '{"regex": "a"}'], "rule must stand on a memory of type constraint"),
        ([" "], "content must hold text"),
    ],
)
def test_a_wrong_declaration_is_named_and_nothing_is_stored(run, fail, arguments, message):
    add(run, "There before")
    assert message in fail("add", *arguments)
    assert len(json.loads(run("list", "--json"))) == 1


def test_another_memory_under_the_same_id_is_refused(run, fail):
    add(run, "One", "--id", "a")
    assert fail("add", "Two", "--id", "a") == "memory_id 'a' is taken by a memory that says otherwise"


def test_history_and_rollback_lose_nothing(run):
    first = add(run, "Lives in Berlin", "--key", "city", "--user", "ann")["memory_id"]
    add(run, "Lives in Hamburg", "--key", "city", "--user", "ann", "--supersede", "--reason", "moved")
    assert run("rollback", first, "1", "--user", "ann") == f"{first}  version 3 says what version 1 said\n"
    history = json.loads(run("history", first, "--user", "ann", "--json"))
    assert [(version["content"], version["reason"]) for version in history] == [
        ("Lives in Berlin", "declared"),
        ("Lives in Hamburg", "moved"),
        ("Lives in Berlin", "rolled back to version 1"),
    ]
    assert "moved" in run("history", first, "--user", "ann")
    assert (
        json.loads(run("show", first, "--user", "ann", "--version", "2", "--json"))["content"]
        == "Lives in Hamburg"
    )


def test_what_behaviour_contradicts_weighs_less(run, fail):
    memory_id = add(run, "Dislikes fish", "--user", "ann")["memory_id"]
    said = run("contradict", memory_id, "--reason", "bought sushi", "--user", "ann")
    assert said == f"{memory_id}  version 2 is contradicted: bought sushi\n"
    assert "bought sushi" in run("history", memory_id, "--user", "ann")
    tags = json.loads(run("show", memory_id, "--user", "ann", "--json"))["tags"]
    assert any(tag.startswith("contradicted:") for tag in tags)
    shared = add(run, "Everybody likes fish")["memory_id"]
    assert "is global" in fail("contradict", shared, "--reason", "no")


def test_others_memories_do_not_exist_for_a_stranger(run, fail):
    memory_id = add(run, "Secret", "--user", "ann")["memory_id"]
    for command in (["show", memory_id], ["history", memory_id], ["forget", memory_id, "--yes"]):
        assert fail(*command, "--user", "bob") == f"no memory '{memory_id}' that this viewer may see"


def test_forgetting_asks_first(run, capsys, monkeypatch):
    memory_id = add(run, "Lives in Berlin", "--user", "ann")["memory_id"]
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert main(["memory", "forget", memory_id, "--user", "ann"]) == 1
    assert "nothing was forgotten" in capsys.readouterr().out
    assert run("show", memory_id, "--user", "ann")
    monkeypatch.setattr("typer.confirm", lambda question: True)
    assert "forgot 1 memory" in run("forget", memory_id, "--user", "ann")
    assert json.loads(run("list", "--user", "ann", "--json")) == []


def test_forgetting_all_of_one_user_leaves_the_others(run, fail):
    for user in ("ann", "bob"):
        add(run, f"{user}'s memory", "--user", user)
    add(run, "Everybody's")
    assert fail("forget", "--all", "user", "--yes") == "--user must be given with --all user, got none"
    assert "--all must be user or session" in fail("forget", "--all", "global", "--yes")
    assert fail("forget", "--yes") == "forget needs either ids or --all, got neither"
    assert "forgot 1 memory" in run("forget", "--all", "user", "--user", "ann", "--yes")
    assert [m["content"] for m in json.loads(run("list", "--user", "bob", "--json"))] == [
        "bob's memory",
        "Everybody's",
    ]


def test_what_is_forgotten_leaves_the_indexes_on_disk(run, db):
    memory_id = add(run, "The password is xylophone")["memory_id"]
    run("search", "xylophone", "--no-embed")
    files = [path for path in db.parent.rglob("*") if path.is_file()]
    assert any(b"xylophone" in path.read_bytes() for path in files)
    run("forget", memory_id, "--yes")
    files = [path for path in db.parent.rglob("*") if path.is_file()]
    assert [path.name for path in files if b"xylophone" in path.read_bytes()] == []


def test_search_by_words_explains_its_scores(run, fail):
    wanted = add(run, "Invoices are paid within thirty days", "--key", "payment")["memory_id"]
    add(run, "The museum opens at ten")
    (found,) = json.loads(run("search", "when are invoices paid", "--no-embed", "--json"))
    assert found["memory"]["memory_id"] == wanted
    assert found["score"] == found["breakdown"]["coverage"] > 0
    assert found["breakdown"]["similarity"] is None
    out = run("search", "invoices", "--no-embed", "--explain")
    for word in (wanted, "coverage", "bm25", "fused", "ranks", "trust", "fresh", "1.000"):
        assert word in out
    assert "nothing found" in run("search", "zebra", "--no-embed")
    assert fail("search", " ", "--no-embed") == "query must hold text, got ' '"


def test_stored_text_never_sends_a_terminal_its_escapes(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("red \x1b[31m, wiped \x9b2J, gone\r"))
    added = add(run, "-", "--key", "k\x1b]0;title\x07", "--tag", "t", "--reason", "so\x1b[2J", "--id", "a")
    assert added["content"] == "red \x1b[31m, wiped \x9b2J, gone"
    for command in (
        ["list"],
        ["show", "a"],
        ["history", "a"],
        ["search", "wiped", "--no-embed", "--explain"],
        ["list", "--json"],
        ["show", "a", "--json"],
        ["forget", "a", "--yes"],
    ):
        out = run(*command)
        assert "wiped" in out
        assert not set(out) & {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n"}
        if "--json" not in command:
            assert r"red \x1b[31m, wiped \x9b2J" in out


@pytest.mark.model
def test_search_by_meaning_finds_what_shares_no_word(run):
    add(run, "Ann is allergic to peanuts", "--user", "ann")
    add(run, "The museum opens at ten")
    found = json.loads(run("search", "which food makes her ill", "--user", "ann", "--json"))
    assert found[0]["memory"]["content"] == "Ann is allergic to peanuts"
    assert found[0]["breakdown"]["similarity"] > 0


def test_a_snapshot_goes_out_and_comes_back(run, fail, tmp_path, db, monkeypatch):
    add(run, "Ann's", "--user", "ann")
    add(run, "Bob's", "--user", "bob")
    own = Path(run("export", str(tmp_path / "out"), "--user", "ann").strip())
    everything = Path(run("export", str(tmp_path / "out"), "--all", "--name", "all").strip())
    monkeypatch.setenv("SALIENCE_MEMORY", str(tmp_path / "other.db"))
    assert "got others' as well" in fail("import", str(everything), "--user", "ann")
    assert run("import", str(own), "--user", "ann").startswith("1 added")
    assert run("import", str(everything), "--all").startswith("1 added, 0 updated, 1 kept")
    own.write_bytes(own.read_bytes().replace(b"Ann", b"Eve"))
    assert "must have the hash its name says" in fail("import", str(own), "--user", "ann")


def test_a_document_is_ingested_and_its_new_edition_reported(run, fail, tmp_path):
    lease = tmp_path / "lease.md"
    lease.write_text("# Lease\n\n1. Rent is 900 euros.\n2. No dogs are allowed.\n")
    assert (
        run("ingest", str(lease), "--weight", "0.8") == "lease.md: 2 added, 0 changed, 0 moved, 0 unchanged\n"
    )
    lease.write_text("# Lease\n\n1. Rent is 950 euros.\n")
    dry = run("ingest", str(lease), "--dry-run")
    assert "0 added, 1 changed, 0 moved, 0 unchanged (dry run: nothing was stored)" in dry
    assert "vanished (no longer in it; --prune forgets them)" in dry
    assert "vanished (forgotten)" in run("ingest", str(lease), "--prune")
    (memory,) = json.loads(run("list", "--tag", "source:lease.md", "--json"))
    assert (memory["content"], memory["semantic_weight"], memory["version"]) == (
        "1. Rent is 950 euros.",
        0.8,
        2,
    )
    assert "must be a PDF or Markdown file" in fail("ingest", str(tmp_path / "store" / "memory.db"))
    assert fail("ingest", str(tmp_path / "no.pdf")) == f"document {tmp_path / 'no.pdf'} does not exist"
    assert "--type must be external or constraint, got 'task'" in fail("ingest", str(lease), "--type", "task")


def test_audit_shows_events_and_a_heat_map_in_which_rows_stand_out(run, db):
    used, cut = add(run, "Used much")["memory_id"], add(run, "Never fits")["memory_id"]
    with MemoryStore(db) as store:
        for request in ("r1", "r2", "r3"):
            rendered = [{"memory_id": used, "weight": 0.8}]
            cuts = [{"memory_id": cut, "reason": "section_budget"}]
            store.append_event(
                "render", request, {"template": "shop", "rendered": rendered, "truncations": cuts}
            )
            store.append_event("generation", request, {"references": {"memory_ids": [used]}})
    out = run("audit")
    for text in (
        "Events",
        "generation",
        "Heat map",
        "██████████ 3 ▲",
        "0.80",
        "██████████ 100% ✂",
        "Used much",
    ):
        assert text in out
    found = json.loads(run("audit", "--json", "--kind", "render", "--limit", "2"))
    assert [event["request_id"] for event in found["events"]] == ["r2", "r3"]
    assert {row["memory_id"]: row["truncation_rate"] for row in found["heat_map"]} == {used: 0.0, cut: 1.0}
    assert "template 'shop' left memories out for want of room in all 3 of its prompts" in run("doctor")


def test_doctor_finds_and_mends_an_index_that_disagrees(run, capsys, db):
    memory_id = add(run, "Invoices are paid within thirty days")["memory_id"]
    run("search", "invoices", "--no-embed")
    assert "rows and indexes agree" in run("doctor")
    with MemoryStore(db) as store:
        connection = store._database._connection  # the doctor is for what no method does
        connection.execute("UPDATE memories SET key = 'other' WHERE memory_id = ?", (memory_id,))
    assert main(["memory", "doctor"]) == 1
    assert f"fault: {memory_id}" in capsys.readouterr().out
    mended = run("doctor", "--repair")
    assert f"mended: {memory_id}" in mended
    assert "rows and indexes agree" in mended


def test_doctor_warns_of_weights_that_are_all_alike(run):
    for i in range(12):
        add(run, f"Fact {i}")
    assert "warning: all 12 memories have the semantic weight 0.9: none stands out" in run("doctor")


def test_without_a_store_reading_says_how_to_make_one(fail, db):
    for command in (
        ["list"],
        ["show", "x"],
        ["search", "x", "--no-embed"],
        ["audit"],
        ["doctor"],
        ["export", "out"],
    ):
        assert (
            fail(*command) == f"there is no memory store at {db}: 'salience memory add' or 'ingest' makes one"
        )
    assert not db.exists()


def test_without_a_setting_the_store_is_in_the_users_data_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SALIENCE_MEMORY", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    add(run, "A fact")
    assert (tmp_path / "data" / "salience" / "memory.db").is_file()
    other = tmp_path / "other.db"
    add(run, "Another fact", "--memory", str(other))
    assert [memory["content"] for memory in json.loads(run("list", "--json"))] == ["A fact"]


def test_a_file_that_is_no_store_is_left_alone(fail, db):
    db.parent.mkdir(parents=True)
    db.write_text("my diary")
    assert "must be a memory store" in fail("add", "x")
    assert db.read_text() == "my diary"


def test_wrong_usage_is_told_with_code_2(capsys):
    for arguments, message in (
        (["memory", "fnd"], "No such command 'fnd'"),
        (["memory", "show"], "Missing argument"),
        (["memory", "add", "x", "--type", "fact"], "Invalid value for '--type'"),
        (["memory", "search", "x", "--top-k", "0"], "Invalid value for '--top-k'"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_memory_commands_bring_in_no_language_model():
    code = (
        f"import sys; sys.path[:0] = {ROOMS!r}\n"
        "from salience.cli import main\n"
        "code = main(['memory', 'add', 'A fact.'])\n"
        "assert main(['memory', 'list']) == 0\n"
        "print(code, sorted({'torch', 'transformers', 'faiss', 'pymupdf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_maintenance_archives_what_is_old_and_deletes_what_is_long_expired(run, db):
    long_ago_ns = time.time_ns() - 200 * DAY_NS
    with MemoryStore(db, clock=lambda: long_ago_ns) as store:
        facts = {"type": "semantic", "scope": "global"}
        old, gone = store.declare(
            [
                Memory(content="An old fact", **facts),
                Memory(content="Expired long ago", valid_until=long_ago_ns + DAY_NS, **facts),
            ]
        )
    add(run, "A new fact")
    found = {"archived": [old.memory_id], "deleted": [gone.memory_id]}
    assert json.loads(run("maintain", "--json")) == found
    assert run("maintain") == "archived 0 memories, deleted 0 memories\n"
    assert "An old fact" in run("list", "--archived")


def test_a_snapshot_that_is_no_file_is_wrong_usage_and_makes_no_store(capsys, db, tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl"):
        assert main(["memory", "import", str(path)]) == 2
        assert str(path) in capsys.readouterr().err.replace("\n", "")
    assert not db.exists()


def test_forgetting_where_nobody_can_be_asked_says_so(run, fail, monkeypatch):
    memory_id = add(run, "Lives in Berlin")["memory_id"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "--yes must be given where nobody can be asked" in fail("forget", memory_id)
    assert run("show", memory_id)
