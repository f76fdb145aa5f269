"""`salience memory`: what is remembered, from the command line."""

import typer

from salience.cli import memory_audit, memory_editing, memory_files, memory_reading

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add the group `memory`."""
    group = typer.Typer(help="Declare, find, change and forget memories.", no_args_is_help=True)
    for module in (memory_editing, memory_reading, memory_files, memory_audit):
        module.add_commands(group)
    app.add_typer(group, name="memory")
