"""The command's entry: built-in commands, those of rooms above, and failures as one sentence each."""

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, cast

import typer
from pydantic import ValidationError
from rich.console import Console

from salience.cli import chat, doctor, explain, models
from salience.errors import HarnessError, describe_validation
from salience_memory.errors import MemoryRoomError
from salience_models import ModelsError

__all__ = ["build_app", "run"]

COMMAND_GROUP = "salience.commands"
"""Entry points of this group are functions `(app) -> failure classes` that add commands."""

_WrongUsage = cast(type[Exception], typer.BadParameter.__mro__[1])
"""click's UsageError, or that of the copy of click inside newer versions of typer."""

_CTRL_C = 130

_FAILURES: tuple[type[Exception], ...] = (ModelsError, MemoryRoomError, HarnessError, ValueError, OSError)


def build_app() -> tuple[typer.Typer, tuple[type[Exception], ...]]:
    """The whole command line, and the exceptions that are a user's to read rather than a bug's trace."""
    app = typer.Typer(
        name="salience",
        help="Make a Hugging Face model use its memory.",
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for module in (chat, explain, doctor, models):
        module.add_commands(app)
    failures = _FAILURES
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
    app, failures = build_app()
    errors = Console(stderr=True, highlight=False)
    try:
        result = app(
            args=list(arguments) if arguments is not None else None,
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
    except failures as error:
        errors.print(f"error: {error}", markup=False, soft_wrap=True)
        return 1
    if code == _CTRL_C:  # newer versions of typer turn Ctrl-C into an exit code themselves
        raise KeyboardInterrupt
    return code
