import os
import sqlite3
import stat
from contextlib import closing

import pytest

from salience_memory import (
    MemoryStore,
    StoreBusy,
    StoreCorrupt,
    StoreForeign,
    StoreTooNew,
    StoreUnavailable,
    Viewer,
)
from salience_memory.store import database

ANN = Viewer(user_id="ann")


def test_a_new_file_is_its_owners_alone_and_in_wal_mode(store, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("PRAGMA application_id").fetchone() == (database.APPLICATION_ID,)
        assert other.execute("PRAGMA user_version").fetchone() == (len(database.MIGRATIONS),)


def test_opening_again_wipes_nothing(path, remember):
    with MemoryStore(path) as store:
        (declared,) = store.declare([remember("Ann likes tea.")])
    for _ in range(2):
        with MemoryStore(path) as store:
            assert store.get(declared.memory_id, ANN).content == "Ann likes tea."
            assert store.latest_seq() == declared.seq


def test_an_empty_file_becomes_a_store(path):
    path.touch()
    with MemoryStore(path) as store:
        assert store.count() == 0


@pytest.mark.parametrize("content", [b"precious notes\n", b"\0" * 8192, b"SQLite format 3"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreForeign, match="must be a memory store, got a file that is no SQLite database"):
        MemoryStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("pragma", ["PRAGMA user_version = 3", "PRAGMA application_id = 7", "SELECT 1"])
def test_another_programs_database_is_refused_and_left_alone(path, pragma):
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE memories (text)")
        other.execute("INSERT INTO memories VALUES ('theirs')")
        other.execute(pragma)
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreForeign, match="must be a memory store"):
        MemoryStore(path)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


def test_a_later_versions_store_is_refused_and_left_alone(path):
    MemoryStore(path).close()
    with closing(sqlite3.connect(path)) as later:
        later.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="has schema version 99 and this Salience reads up to"):
        MemoryStore(path)
    assert path.read_bytes() == before


def test_an_older_store_is_migrated_and_keeps_what_it_holds(path, remember, monkeypatch):
    with MemoryStore(path) as store:
        (declared,) = store.declare([remember("Ann likes tea.")])
    added = ("CREATE TABLE later (x)", "INSERT INTO later SELECT memory_id FROM memories")
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, added))
    with MemoryStore(path) as store:
        assert store.get(declared.memory_id, ANN).content == "Ann likes tea."
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT x FROM later").fetchall() == [(declared.memory_id,)]
        assert other.execute("PRAGMA user_version").fetchone() == (len(database.MIGRATIONS),)


def test_a_migration_that_fails_leaves_the_older_store(path, remember, monkeypatch):
    with MemoryStore(path) as store:
        store.declare([remember("Ann likes tea.")])
    with monkeypatch.context() as patch:
        broken = ("DELETE FROM memories", "INSERT INTO nowhere VALUES (1)")
        patch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, broken))
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            MemoryStore(path)
    with MemoryStore(path) as store:
        assert store.count() == 1


def test_a_process_that_runs_when_a_later_one_migrates_writes_no_more(store, path, remember):
    with closing(sqlite3.connect(path)) as later:
        later.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreTooNew, match="update Salience"):
        store.declare([remember("Ann likes tea.")])
    assert store.count() == 0


def test_a_damaged_store_says_so_instead_of_answering(path, remember):
    with MemoryStore(path) as store:
        store.declare([remember(f"fact {number} " + "x" * 500) for number in range(200)])
    data = bytearray(path.read_bytes())
    assert len(data) > 20 * 4096
    data[4096 * 4 :] = os.urandom(len(data) - 4096 * 4)
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="is damaged"), MemoryStore(path) as store:
        store.list(ANN, limit=1000)
    assert path.read_bytes() == data


def test_a_store_that_lost_a_table_is_called_damaged(path):
    MemoryStore(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE counters")
    with pytest.raises(StoreCorrupt, match="must hold the table counters"):
        MemoryStore(path)


def test_a_store_locked_by_another_says_so(path, remember):
    with MemoryStore(path, busy_timeout_s=0.0) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="was kept locked by another process"):
            store.declare([remember("Ann likes tea.")])
        other.rollback()
        assert len(store.declare([remember("Ann likes tea.")])) == 1


def test_what_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be created"):
        MemoryStore(tmp_path / "file" / "memories.db")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        MemoryStore(tmp_path)


def test_a_closed_store_refuses(store):
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.count()


def test_a_store_carried_across_a_fork_refuses(store, monkeypatch):
    monkeypatch.setattr(database.os, "getpid", lambda: -1)
    with pytest.raises(StoreUnavailable, match="must be opened anew in a forked process"):
        store.count()


def test_a_negative_cache_is_refused(path):
    with pytest.raises(ValueError, match="cache_bytes must be at least 0, got -1"):
        MemoryStore(path, cache_bytes=-1)
    assert not path.exists()
