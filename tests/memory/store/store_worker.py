"""Run by `test_processes`: one of several processes that use one store at once."""

import sys

from salience_memory import Memory, MemoryStore, VersionConflict, Viewer

COUNT = 40
ANN = Viewer(user_id="ann")


def remember(content):
    return Memory(content=content, type="semantic", scope="user", user_id="ann")


def count_up(store):
    """Add one to a shared number, on top of whatever the other has written."""
    while True:
        memory = store.get("counter", ANN)
        try:
            store.update(
                "counter",
                ANN,
                changes={"value": memory.value + 1},
                reason="count",
                expected_version=memory.version,
            )
            return
        except VersionConflict:
            continue


def main(path, name):
    print("ready", flush=True)
    sys.stdin.readline()
    with MemoryStore(path) as store:
        for number in range(COUNT):
            store.declare([remember(f"fact {number} of {name}"), remember(f"shared fact {number}")])
            count_up(store)


main(*sys.argv[1:])
