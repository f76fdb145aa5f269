"""Experiment specs: one YAML file says everything a run needs, and a misspelt field is refused."""

import hashlib
import itertools
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from salience_experiments.errors import SpecError
from salience_experiments.tasks.base import POSITIONS
from salience_experiments.weight_sources import WeightSource

__all__ = [
    "ANALYSIS_FIELDS",
    "ArmCell",
    "ArmSpec",
    "ExperimentSpec",
    "ModelSpec",
    "PowerSpec",
    "TaskSpec",
    "WeightSpec",
    "format_setting",
    "list_shipped",
    "load_spec",
]

ANALYSIS_FIELDS = {"description", "metric", "baseline", "contrasts", "logprob_margin_nats", "power"}
"""What only the report and `salience power` read."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelSpec(_Strict):
    """Which model, exactly."""

    source: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantization: str | None = None


class TaskSpec(_Strict):
    """A task by name and its parameters; `tasks.build_task` says which a task takes."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)


class WeightSpec(_Strict):
    """How a weight source becomes weights: its `top_k` best blocks get `weight`, the rest stay neutral."""

    weight: float = Field(default=0.88, gt=0.5, le=0.99)
    top_k: int = Field(default=1, ge=1)


class PowerSpec(_Strict):
    """What `salience power` plans for: the effect to detect, and spreads assumed where no pilot says."""

    effect: float = Field(default=0.05, gt=0, lt=1)
    effect_nats: float = Field(default=0.10, gt=0)
    power: float = Field(default=0.80, gt=0, lt=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)
    discordance: float = Field(default=0.20, gt=0, le=1)
    sd: float = Field(default=0.45, gt=0)
    sd_nats: float = Field(default=1.0, gt=0)


class ArmSpec(_Strict):
    """One arm and its grid: a list stands for several values, and every combination is a cell.

    `arm` is a built-in name or `package.module:Class`; `label` replaces the generated name (single
    cells only). `params` go to the arm as they are.
    """

    arm: str
    weights: WeightSource | list[WeightSource] = WeightSource.RECALL
    params: dict[str, Any] = Field(default_factory=dict)
    label: str | None = None

    @field_validator("weights", mode="before")
    @classmethod
    def _names_sources(cls, weights: Any) -> Any:
        for source in weights if isinstance(weights, list) else [weights]:
            if source not in list(WeightSource):
                raise ValueError(f"must be one of {', '.join(WeightSource)}, got {source!r}")
        return weights

    def cells(self) -> list["ArmCell"]:
        """Every combination of the listed values, labelled by the arm, its params and its weight source."""
        sources = self.weights if isinstance(self.weights, list) else [self.weights]
        axes = {name: value if isinstance(value, list) else [value] for name, value in self.params.items()}
        for name, values in {"weights": sources, **axes}.items():
            if not values:
                raise ValueError(f"{name} of arm {self.arm!r} must list at least one value, got none")
        cells = []
        for source in sources:
            for values in itertools.product(*axes.values()):
                params = {
                    k: tuple(v) if isinstance(v, list) else v for k, v in zip(axes, values, strict=True)
                }
                cells.append(ArmCell(self.label or self._label(source, params), self.arm, source, params))
        if self.label and len(cells) > 1:
            raise ValueError(f"label {self.label!r} must stand for one cell, got {len(cells)}")
        return cells

    def _label(self, source: WeightSource, params: dict[str, Any]) -> str:
        if self.arm == "none":
            return "none"
        parts = [f"{name}={format_setting(value)}" for name, value in params.items()]
        parts += [] if source is WeightSource.RECALL else [str(source)]
        return self.arm + (f"[{','.join(parts)}]" if parts else "")


class ArmCell:
    """One column of a result table: an arm with its parameters fixed."""

    def __init__(self, label: str, arm: str, weights: WeightSource, params: dict[str, Any]) -> None:
        self.label, self.arm, self.weights, self.params = label, arm, weights, params


class ExperimentSpec(_Strict):
    """One experiment. `contrasts` are the (arm, baseline) label pairs that Holm's correction covers."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    description: str = ""
    model: ModelSpec
    task: TaskSpec
    arms: tuple[ArmSpec, ...] = Field(min_length=1)
    positions: tuple[str, ...] = POSITIONS
    seed: int = 0
    split: Literal["dev", "test", "all"] = "all"
    weighting: WeightSpec = WeightSpec()
    metric: Literal["accuracy", "rule_kept", "gold_logprob"] = "accuracy"
    """What arms are judged by; `rule_kept` is the task's score where that says whether a rule was kept."""
    baseline: str = "none"
    contrasts: tuple[tuple[str, str], ...] = ()
    logprob_margin_nats: float | None = Field(default=None, gt=0)
    """Half-width of equivalence for log-probabilities."""
    power: PowerSpec = PowerSpec()
    max_new_tokens: int | None = Field(default=None, ge=0)
    """Answer tokens; None = the task's published number, 0 = gold log-probability only."""
    receipts: bool = True
    render: Literal["published", "product"] = "published"
    """Whose prompt is run: the task's published one, or the product's own recall and default template."""
    batch_columns: int = Field(default=65536, ge=1)
    """Bound on batch rows × columns, which bounds the key-value cache."""

    @field_validator("positions")
    @classmethod
    def _has_positions(cls, positions: tuple[str, ...]) -> tuple[str, ...]:
        if not positions or len(set(positions)) != len(positions):
            raise ValueError(f"must name each position once, got {list(positions)}")
        return positions

    @model_validator(mode="after")
    def _names_agree(self) -> "ExperimentSpec":
        labels = [cell.label for cell in self.cells()]
        doubled = sorted({label for label in labels if labels.count(label) > 1})
        if doubled:
            raise ValueError(f"arms must have different labels, got {doubled} more than once")
        for label in (self.baseline, *itertools.chain(*self.contrasts)):
            if label not in labels:
                raise ValueError(f"baseline and contrasts must name arms {labels}, got {label!r}")
        return self

    def cells(self) -> list[ArmCell]:
        """All cells of all arms, in the spec's order."""
        return [cell for arm in self.arms for cell in arm.cells()]

    def sha256(self) -> str:
        """Hash over the fields that decide what is run; params count in the order the spec names them.

        A contrast or a sentence added later belongs to the same run.
        """
        # Runs are older than the field: a spec that does not use it keeps the hash that names its results.
        left_out = ANALYSIS_FIELDS | ({"render"} if self.render == "published" else set())
        return hashlib.sha256(self.model_dump_json(exclude=left_out).encode()).hexdigest()


def format_setting(value: Any) -> str:
    """An arm's setting in few characters: `0.5-1` for (0.5, 1.0)."""
    if isinstance(value, list | tuple):
        return "-".join(format_setting(entry) for entry in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def list_shipped() -> list[Path]:
    """The specs that come with the project, by name: beside the package in a checkout, else inside it."""
    package = Path(__file__).parent
    folder = package.parent / "ablations"
    return sorted((folder if folder.is_dir() else package / "ablations").glob("*.yaml"))


def load_spec(path: Path) -> ExperimentSpec:
    """Read and check one YAML file.

    Raises:
        SpecError: The file is missing, unreadable or not YAML, or a field is unknown, missing or out of
            bounds.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        names = ", ".join(shipped.stem for shipped in list_shipped())
        raise SpecError(f"spec {path} must be a file or one of {names}, got neither") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"spec {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"spec {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise SpecError(f"spec {path} must hold a mapping of fields, got {type(raw).__name__}")
    try:
        return ExperimentSpec.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(_problem(e) for e in error.errors())
        raise SpecError(f"spec {path}: {problems}") from error


def _problem(error: Any) -> str:
    """One refusal with the path of its field, such as `arms.1.params`."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{where} is not a field of a spec"
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "value_error":
        return f"{where} " * bool(where) + error["msg"].removeprefix("Value error, ")
    return f"{where}: {error['msg']}, got {str(error['input'])[:80]!r}"
