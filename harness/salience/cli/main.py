"""The command's entry: built-in commands, those of rooms above, and failures as one sentence each."""

import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Annotated, cast

import typer
from pydantic import ValidationError

from salience.cli.terminal import Terminal
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

    @app.callback()
    def options(
        version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    ) -> None:
        """Make a Hugging Face model use its memory."""
        if version:
            print(metadata.version("salience"))
            raise typer.Exit

    for name in (command,) if command in _BUILT_IN else _BUILT_IN:
        import_module(f"salience.cli.{name}").add_commands(app)
    failures = _FAILURES
    if command in _BUILT_IN:
        return app, failures
    for entry in sorted(metadata.entry_points(group=COMMAND_GROUP), key=lambda e: e.name):
        failures += tuple(entry.load()(app))
    return app, failures


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, or raises KeyboardInterrupt."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    app, failures = build_app(given[0] if given else None)
    errors = Terminal(stderr=True)
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
            errors.say("error: input ended too early")
            return 1
        raise KeyboardInterrupt from stop
    except typer.Exit as stop:
        code = stop.exit_code
    except ValidationError as error:
        errors.say(f"error: {describe_validation(error)}")
        return 1
    except Exception as error:
        room = sys.modules.get("salience_models")  # its failures, where anything has imported it
        if not isinstance(error, (*failures, *(() if room is None else (room.ModelsError,)))):
            raise
        errors.say(f"error: {error}")
        return 1
    if code == _CTRL_C:  # newer versions of typer turn Ctrl-C into an exit code themselves
        raise KeyboardInterrupt
    return code
