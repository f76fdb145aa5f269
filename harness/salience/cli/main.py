"""The command's entry: built-in commands, those of rooms above, and failures as one sentence each."""

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

import click
import typer
from pydantic import ValidationError
from rich.console import Console
from salience_memory.errors import MemoryRoomError
from salience_models import ModelsError

from salience.cli import chat, doctor, explain, models
from salience.errors import HarnessError, describe_validation

__all__ = ["build_app", "main"]

COMMAND_GROUP = "salience.commands"
"""Entry points of this group are functions `(app) -> failure classes` that add commands."""

_FAILURES: tuple[type[Exception], ...] = (ModelsError, MemoryRoomError, HarnessError, ValueError, OSError)


def build_app() -> tuple[typer.Typer, tuple[type[Exception], ...]]:
    """The whole command line, and the exceptions that are a user's to read rather than a bug's trace."""
    app = typer.Typer(
        name="salience",
        help="Make a Hugging Face model use its memory.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for module in (chat, explain, doctor, models):
        module.add_commands(app)
    failures = _FAILURES
    for entry in sorted(entry_points(group=COMMAND_GROUP), key=lambda e: e.name):
        failures += tuple(entry.load()(app))
    return app, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a failure, 2 for wrong usage, 130 for Ctrl-C."""
    app, failures = build_app()
    errors = Console(stderr=True, highlight=False)
    try:
        result = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.UsageError as error:
        error.show(sys.stderr)
        return 2
    except (click.Abort, KeyboardInterrupt):
        errors.print("stopped by Ctrl-C", markup=False)
        return 130
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except ValidationError as error:
        errors.print(f"error: {describe_validation(error)}", markup=False, soft_wrap=True)
    except failures as error:
        errors.print(f"error: {error}", markup=False, soft_wrap=True)
    return 1
