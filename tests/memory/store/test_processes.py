import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import salience_memory
from salience_memory import MemoryStore, Viewer

COUNT = 40
ANN = Viewer(user_id="ann")
WORKER = Path(__file__).with_name("store_worker.py")


def run_together(path, names):
    """Start workers, let them go at once, and wait for all."""
    environment = {**os.environ, "PYTHONPATH": str(Path(salience_memory.__file__).parents[1])}
    workers = [
        subprocess.Popen(
            [sys.executable, WORKER, path, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for name in names
    ]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate()
    return [worker.returncode for worker in workers]


def test_two_processes_lose_nothing_and_declare_one_fact_once(path, remember):
    with MemoryStore(path) as store:
        store.declare([remember("How often?", memory_id="counter", value=0)])
    assert run_together(path, ["one", "two"]) == [0, 0]
    with MemoryStore(path) as store:
        contents = [memory.content for memory in store.list(ANN, limit=1_000)]
        assert len(contents) == len(set(contents)) == 3 * COUNT + 1
        counter = store.get("counter", ANN)
        assert (counter.value, counter.version) == (2 * COUNT, 2 * COUNT + 1)
        seqs = [row.seq for row in store.iter_rows()]
        assert len(set(seqs)) == len(seqs)
        # 3 facts a number, one counter, and each of its updates: every change got a number of its own.
        assert store.latest_seq() == 3 * COUNT + 1 + 2 * COUNT
        assert [fault for fault in store.find_faults() if fault.kind != "alike_weights"] == []


def test_threads_share_a_store_by_turns(store, remember):
    def declare(number):
        (stored,) = store.declare([remember(f"fact {number}")])
        return store.get(stored.memory_id, ANN).content

    with ThreadPoolExecutor(4) as pool:
        contents = list(pool.map(declare, range(100)))
    assert contents == [f"fact {number}" for number in range(100)]
    assert store.count() == store.latest_seq() == 100
