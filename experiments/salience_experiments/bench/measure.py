"""Measuring in turn: ours and the peer side by side in one run, so that the machine's noise hits both."""

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile

__all__ = ["Timing", "alternate", "geometric_mean", "measure_peak_bytes", "time_in_turn"]

MIN_SAMPLE_S = 0.01
"""A sample repeats its call until the peer takes about this long: below, clock and caches decide."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Timing:
    """Seconds per call; `ours_s[i]` and `peer_s[i]` were measured one right after the other."""

    ours_s: tuple[float, ...]
    peer_s: tuple[float, ...]

    @property
    def ours_median_s(self) -> float:
        return statistics.median(self.ours_s)

    @property
    def peer_median_s(self) -> float:
        return statistics.median(self.peer_s)

    @property
    def ratio(self) -> float:
        """Median over the neighbouring samples of ours / peer: below 1 is faster than the peer.

        A slow spell of the machine covers both neighbours and cancels; in a ratio of medians it does not.
        """
        return statistics.median(ours / peer for ours, peer in zip(self.ours_s, self.peer_s, strict=True))


def alternate(
    ours: Callable[[], _Result], peer: Callable[[], _Result], repeats: int
) -> tuple[list[_Result], list[_Result]]:
    """What `ours` and `peer` return, called in turn; who goes first changes at every repeat."""
    ours_results: list[_Result] = []
    peer_results: list[_Result] = []
    for repeat in range(repeats):
        turns = [(ours, ours_results), (peer, peer_results)]
        for call, results in turns if repeat % 2 == 0 else reversed(turns):
            results.append(call())
    return ours_results, peer_results


def time_in_turn(
    ours: Callable[[], object], peer: Callable[[], object], repeats: int, min_sample_s: float = MIN_SAMPLE_S
) -> Timing:
    """Time two functions against each other, after one call of each that is not counted."""
    ours()
    peer()
    calls = max(1, math.ceil(min_sample_s / max(_seconds_per_call(peer, 1), 1e-9)))
    ours_s, peer_s = alternate(
        lambda: _seconds_per_call(ours, calls), lambda: _seconds_per_call(peer, calls), repeats
    )
    return Timing(tuple(ours_s), tuple(peer_s))


def _seconds_per_call(call: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios: 2 and 0.5 make 1."""
    if not values:
        raise ValueError("values must hold at least one ratio, got none")
    return math.exp(sum(math.log(value) for value in values) / len(values))


def measure_peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that `call` held at once beyond what was there before, on the CPU.

    Counts every allocation through torch, those inside fused kernels included, and so neither moves with the
    machine's load nor hides under an earlier peak of the process, as its resident size would.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with _silent_profiler(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_bytes())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def _silent_profiler() -> Iterator[None]:
    """The profiler's C++ logger greets on file descriptor 2, whatever Python's stderr is."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
