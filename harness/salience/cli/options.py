"""Options that several commands share, and what they turn into."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from salience.cli.memory_options import DEFAULT_WEIGHT
from salience.errors import MemoryFileInvalid, describe_validation
from salience.harness import Harness
from salience_memory import Memory
from salience_models import Phase, Steering, SteeringMethod

__all__ = [
    "DeviceOption",
    "DtypeOption",
    "MemoryFileOption",
    "MemoryOption",
    "MethodOption",
    "ModelOption",
    "PhaseOption",
    "RevisionOption",
    "StrengthOption",
    "load_harness",
    "read_memories",
    "steering_from",
]

DEFAULT_MODEL = "bundled:smollm2-135m-instruct"

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="bundled:NAME, hub id, folder or .gguf file.")
]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda:N.")]
DtypeOption = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
MemoryOption = Annotated[
    list[str] | None,
    typer.Option("--memory", "-M", help='A memory as "text" or "text::weight" (0.5 to 0.99).'),
]
MemoryFileOption = Annotated[
    Path | None, typer.Option("--memories", help="A JSON file: a list of memories with their fields.")
]
MethodOption = Annotated[SteeringMethod | None, typer.Option(help="How weights steer; default as measured.")]
PhaseOption = Annotated[Phase | None, typer.Option(help="Which rows are steered; default as measured.")]
StrengthOption = Annotated[
    float | None, typer.Option(help="Log-odds multiplier of logit_bias, or the top share of a share method.")
]


def read_memories(texts: list[str] | None, file: Path | None) -> list[Memory]:
    """Memories of the command line, then those of the file.

    Raises:
        ValueError: A declaration on the command line is refused.
        MemoryFileInvalid: The file is missing, not JSON, or one of its memories is refused.
    """
    return [_memory(text) for text in texts or []] + ([] if file is None else _memories_of(file))


def _memory(text: str) -> Memory:
    content, separator, weight = text.rpartition("::")
    if not separator:
        return Memory(content=text, semantic_weight=DEFAULT_WEIGHT)
    try:
        return Memory(content=content, semantic_weight=float(weight))
    except ValidationError:
        raise
    except ValueError as error:
        raise ValueError(
            f'--memory must be "text" or "text::weight" (where the text has "::", the weight must follow), '
            f"got weight {weight!r}"
        ) from error


def _memories_of(file: Path) -> list[Memory]:
    try:
        return TypeAdapter(list[Memory]).validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise MemoryFileInvalid(f"memory file {file} does not exist") from error
    except OSError as error:
        raise MemoryFileInvalid(f"memory file {file} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise MemoryFileInvalid(f"memory file {file}: {describe_validation(error)}") from error


def steering_from(
    method: SteeringMethod | None, strength: float | None, phase: Phase | None = None
) -> Steering:
    """The default steering with what the command line changed."""
    changed: dict[str, object] = {} if phase is None else {"phase": phase}
    if method is not None:
        changed["method"] = method
    if strength is not None:
        chosen = method or Steering().method
        changed["strength" if chosen is SteeringMethod.LOGIT_BIAS else "share"] = strength
    return Steering.model_validate(changed)


def load_harness(
    console: Console, model: str, revision: str | None, device: str, dtype: str, steering: Steering
) -> Harness:
    """Load with a spinner."""
    with console.status(f"loading {model}"):
        return Harness.load(model, revision=revision, device=device, dtype=dtype, steering=steering)
