"""`salience models`: list and pull the bundled ones."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from salience.config import load_settings
from salience_models import pull
from salience_models.weights.bundled_catalog import BUNDLED_MODELS

__all__ = ["add_commands"]

commands = typer.Typer(help="Bundled models.", no_args_is_help=True)


def add_commands(app: typer.Typer) -> None:
    """Add `models list` and `models pull`."""
    app.add_typer(commands, name="models")


@commands.command("list")
def list_models() -> None:
    """List the bundled models."""
    table = Table("name", "what", "version")
    for name, bundled in BUNDLED_MODELS.items():
        table.add_row(name, "language model" if bundled.is_language_model else "embedder", bundled.version)
    Console().print(table)


@commands.command("pull")
def pull_model(name: Annotated[str, typer.Argument(help="A name from `salience models list`.")]) -> None:
    """Bring a bundled model into the cache; nothing is downloaded twice."""
    console = Console(highlight=False)
    console.print(
        str(pull(name, load_settings().cache_dir, progress=console.print)), markup=False, soft_wrap=True
    )
