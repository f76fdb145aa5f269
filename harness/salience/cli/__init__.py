"""The `salience` command."""

from salience.cli.main import main

__all__ = ["main"]
