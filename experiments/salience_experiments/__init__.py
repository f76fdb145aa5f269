"""Experiments: tasks, arms, the runner and the report."""

from salience_experiments.arms import Arm
from salience_experiments.report import build_report
from salience_experiments.runner import RunOptions, run_spec
from salience_experiments.spec import ExperimentSpec, load_spec

__all__ = ["Arm", "ExperimentSpec", "RunOptions", "build_report", "load_spec", "run_spec"]
