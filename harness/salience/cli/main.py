"""The command's entry: built-in commands, those of rooms above, and failures as one sentence each."""

import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Annotated, cast

import typer
from pydantic import ValidationError
from rich.console import Console

from salience.errors import HarnessError, describe_validation
from salience_memory.errors import MemoryRoomError

__all__ = ["build_app", "run"]

COMMAND_GROUP = "salience.commands"
"""Entry points of this group are functions `(app) -> failure classes` that add commands."""

_WrongUsage = cast(type[Exception], typer.BadParameter.__mro__[1])
"""click's UsageError, or that of the copy of click inside newer versions of typer."""

_CTRL_C = 130

_BUILT_IN = ("chat", "constrain", "explain", "doctor", "models", "memory")
"""Each a module of this package, whose `add_commands` adds the command of its name."""

_FAILURES: tuple[type[Exception], ...] = (MemoryRoomError, HarnessError, ValueError, OSError)


def build_app(command: str | None = None) -> tuple[typer.Typer, tuple[type[Exception], ...]]:
    """The command line, and the exceptions that are a user's to read rather than a bug's trace.

    Args:
        command: What will be run. A built-in command is imported alone: `memory` is there at once where
            others bring in torch.
    """
    app = typer.Typer(
        name="salience",
        help="Make a Hugging Face model use its memory.",
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name in (command,) if command in _BUILT_IN else _BUILT_IN:
        import_module(f"salience.cli.{name}").add_commands(app)
    failures = _FAILURES
    if command in _BUILT_IN:
        return app, failures
    for entry in sorted(metadata.entry_points(group=COMMAND_GROUP), key=lambda e: e.name):
        failures += tuple(entry.load()(app))
    return app, failures


def _options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Make a Hugging Face model use its memory."""
    if version:
        print(metadata.version("salience"))
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, or raises KeyboardInterrupt."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    app, failures = build_app(given[0] if given else None)
    errors = Console(stderr=True, highlight=False)
    try:
        result = app(
            args=given,
            prog_name="salience",
            standalone_mode=False,
        )
        code = result if isinstance(result, int) else 0
    except _WrongUsage as error:
        error.show(sys.stderr)  # type: ignore[attr-defined]
        return 2
    except typer.Abort as stop:
        if isinstance(stop.__cause__, EOFError):
            errors.print("error: input ended too early", markup=False)
            return 1
        raise KeyboardInterrupt from stop
    except typer.Exit as stop:
        code = stop.exit_code
    except ValidationError as error:
        errors.print(f"error: {describe_validation(error)}", markup=False, soft_wrap=True)
        return 1
    except Exception as error:
        if not isinstance(error, (*failures, *_model_failures())):
            raise
        errors.print(f"error: {error}", markup=False, soft_wrap=True)
        return 1
    if code == _CTRL_C:  # newer versions of typer turn Ctrl-C into an exit code themselves
        raise KeyboardInterrupt
    return code


def _model_failures() -> tuple[type[Exception], ...]:
    """The models room's failures, where anything has imported it."""
    room = sys.modules.get("salience_models")
    return () if room is None else (room.ModelsError,)
