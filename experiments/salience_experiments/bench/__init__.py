"""Benchmarks: ratios of ours to a peer, measured alternately in one run, against stated bars."""

from salience_experiments.bench.cli import bench_commands

__all__ = ["bench_commands"]
