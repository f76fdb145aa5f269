"""Options that several commands share, and what they turn into. Nothing here imports torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from salience.cli.terminal import Terminal, shorten
from salience.errors import MemoryFileInvalid, describe_validation
from salience_memory import Memory, Scope
from salience_models.steering.bias_plan import Phase, SteeringMethod

if TYPE_CHECKING:
    from salience.harness import Harness
    from salience_models import Steering

__all__ = [
    "DeviceOption",
    "DtypeOption",
    "EmbedderOption",
    "GivenFileOption",
    "GivenOption",
    "JsonOption",
    "MemoryOption",
    "ModelOption",
    "NoEmbedOption",
    "NoMemoryOption",
    "PhaseOption",
    "RevisionOption",
    "SessionOption",
    "SteeringOption",
    "StrengthOption",
    "UserOption",
    "load_harness",
    "read_given",
    "read_json",
    "scope_of",
    "steering_from",
]

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="bundled:NAME, hub id, folder or .gguf file.")
]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda:N.")]
DtypeOption = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]

MemoryOption = Annotated[
    Path | None,
    typer.Option(
        "--memory",
        "-M",
        help="The file of memories [SALIENCE_MEMORY]; default: memory.db in the user's data folder.",
        show_default=False,
    ),
]
NoMemoryOption = Annotated[
    bool, typer.Option("--no-memory", help="Recall nothing and remember nothing: only what --given says.")
]
UserOption = Annotated[
    str | None, typer.Option("--user", "-u", help="Whose memories; without it, none that are a user's.")
]
SessionOption = Annotated[
    str | None, typer.Option("--session", "-s", help="Which session's; without it, none that are one's.")
]
GivenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--given", "-g", help='A memory for this message alone: "text" or "text::weight"; repeatable.'
    ),
]
GivenFileOption = Annotated[
    Path | None, typer.Option("--given-file", help="Such memories as a JSON list, with all their fields.")
]
EmbedderOption = Annotated[str, typer.Option(help="bundled:NAME, folder or hub id of a sentence embedder.")]
NoEmbedOption = Annotated[bool, typer.Option("--no-embed", help="By words alone, without a model.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

SteeringOption = Annotated[
    SteeringMethod | None,
    typer.Option("--steering", help="How weights steer, or none; default as measured.", show_default=False),
]
PhaseOption = Annotated[Phase | None, typer.Option(help="Which rows are steered; default as measured.")]
StrengthOption = Annotated[
    float | None, typer.Option(help="Log-odds multiplier of logit_bias, or the top share of a share method.")
]


def scope_of(user: str | None, session: str | None) -> Scope:
    """The narrowest scope that the options name."""
    return Scope.SESSION if session else Scope.USER if user else Scope.GLOBAL


def read_given(texts: list[str] | None, file: Path | None) -> list[Memory]:
    """Memories of the command line, then those of the file.

    Raises:
        ValueError: A declaration on the command line is refused.
        MemoryFileInvalid: The file is missing, not JSON, or one of its memories is refused.
    """
    given = []
    for text in texts or ():
        content, separator, weight = text.rpartition("::")
        if not separator:
            given.append(Memory(content=text))
            continue
        try:
            number = float(weight)
        except ValueError as error:
            raise ValueError(
                '--given must be "text" or "text::weight" (where the text has "::", the weight must follow), '
                f"got weight {weight!r}"
            ) from error
        given.append(Memory(content=content, semantic_weight=number))
    if file is None:
        return given
    try:
        return given + TypeAdapter(list[Memory]).validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise MemoryFileInvalid(f"memory file {file} does not exist") from error
    except OSError as error:
        raise MemoryFileInvalid(f"memory file {file} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise MemoryFileInvalid(f"memory file {file}: {describe_validation(error)}") from error


def steering_from(
    method: SteeringMethod | None, strength: float | None, phase: Phase | None = None
) -> "Steering":
    """The default steering with what the command line changed."""
    from salience_models import Steering

    changed: dict[str, object] = {} if phase is None else {"phase": phase}
    if method is not None:
        changed["method"] = method
    if strength is not None:
        chosen = method or Steering().method
        changed["strength" if chosen is SteeringMethod.LOGIT_BIAS else "share"] = strength
    return Steering.model_validate(changed)


def load_harness(model: str, **options: Any) -> "Harness":
    """Load with a spinner on stderr; options as for `Harness.load`."""
    with Terminal(stderr=True).status(f"loading {model}"):
        from salience.harness import Harness  # seconds of imports

        return Harness.load(model, **options)


def read_json(text: str, option: str) -> Any:
    """JSON given on the command line, or in a file whose path was given.

    Raises:
        ValueError: Neither.
    """
    file = Path(text).expanduser()
    is_file = not text.lstrip().startswith(("{", "[", '"')) and len(text) < 4096 and file.is_file()
    try:
        return json.loads(file.read_text(encoding="utf-8") if is_file else text)
    except UnicodeDecodeError as error:
        raise MemoryFileInvalid(f"{option} file {file} must be UTF-8 text") from error
    except ValueError as error:
        raise ValueError(
            f"{option} must be JSON or a file of JSON, got {shorten(text)!r}: {error}"
        ) from error
