"""`salience models`: list and pull the bundled ones."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from salience.cli.options import JsonOption
from salience.cli.terminal import print_json
from salience.config import load_settings
from salience_models.weights.bundled_catalog import BUNDLED_MODELS, BUNDLED_PREFIX
from salience_models.weights.cache_folder import default_cache_dir

__all__ = ["add_commands", "describe_models"]

commands = typer.Typer(help="Bundled models.", no_args_is_help=True)


def add_commands(app: typer.Typer) -> None:
    """Add `models list` and `models pull`."""
    app.add_typer(commands, name="models")


def describe_models() -> list[dict[str, object]]:
    """Each bundled model: what it is, the quantisation of its file, and whether it is in the cache."""
    cache_dir = load_settings().cache_dir or default_cache_dir()
    return [
        {
            "name": BUNDLED_PREFIX + name,
            "what": "language model" if bundled.is_language_model else "embedder",
            "file_quantization": bundled.quantization,
            "size_bytes": bundled.weights_bytes,
            "licence": bundled.licence,
            "weights_sha256": bundled.weights_sha256,
            "path": None if (path := bundled.pulled_path(cache_dir)) is None else str(path),
        }
        for name, bundled in BUNDLED_MODELS.items()
    ]


@commands.command("list")
def list_models(json: JsonOption = False) -> None:
    """List the bundled models, the quantisation of their files, and which are in the cache."""
    found = describe_models()
    if json:
        print_json(found)
        return
    table = Table("name", "what", "file", "MB", "licence", "in the cache")
    for model in found:
        size = f"{int(str(model['size_bytes'])) / 1e6:.0f}"
        quantization = str(model["file_quantization"] or "-")
        here = "yes" if model["path"] else "no"
        table.add_row(str(model["name"]), str(model["what"]), quantization, size, str(model["licence"]), here)
    # Names are for copying, so a narrow terminal scrolls rather than cuts them.
    Console(width=max(Console().width, 110)).print(table)


@commands.command("pull")
def pull_model(name: Annotated[str, typer.Argument(help="A name from `salience models list`.")]) -> None:
    """Bring a bundled model into the cache and print its path; nothing is downloaded twice."""
    from salience_models.weights.bundled import pull

    say = Console(stderr=True, highlight=False).print
    print(pull(name, load_settings().cache_dir, progress=say))
