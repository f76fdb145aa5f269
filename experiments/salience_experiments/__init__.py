"""Experiments: tasks, arms, the runner and the report. Names are imported when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience_experiments.arms import Arm
    from salience_experiments.report import build_report
    from salience_experiments.runner import RunOptions, run_spec
    from salience_experiments.spec import ExperimentSpec, load_spec

__all__ = ["Arm", "ExperimentSpec", "RunOptions", "build_report", "load_spec", "run_spec"]

_HOMES = {
    "arms": ("Arm",),
    "report": ("build_report",),
    "runner": ("RunOptions", "run_spec"),
    "spec": ("ExperimentSpec", "load_spec"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
