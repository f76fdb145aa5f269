"""Declares memories as fast as it can. Run as a script it needs the memory room alone, no torch.

`rate_writer.py PATH OWNER COUNT GROUP full|normal` prints `ready`, waits for a line, declares COUNT memories
with vectors [384], GROUP to a commit, and prints `done`.
"""

import sys

import numpy as np

from salience_memory import Memory, MemoryStore

DIMENSION = 384


def main(path: str, owner: str, count: int, group: int, is_durable: bool) -> None:
    vectors = np.random.default_rng(0).standard_normal((group, DIMENSION)).astype(np.float32)
    with MemoryStore(path) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for start in range(0, count, group):
            with store.transaction(durable=is_durable):
                for number in range(start, min(start + group, count)):
                    memory = Memory.model_validate(
                        {
                            "content": f"Order {number} of {owner} is delayed by three days.",
                            "type": "semantic",
                            "scope": "user",
                            "user_id": owner,
                            "key": f"order/{number}",
                            "semantic_weight": 0.8,
                        }
                    )
                    vector = vectors[number % group][None]
                    store.declare([memory], vectors=vector, fingerprint="random/384/l2/0")
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "full")
