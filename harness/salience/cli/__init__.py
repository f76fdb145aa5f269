"""The `salience` command."""

import sys
from collections.abc import Sequence

__all__ = ["main"]

_CTRL_C = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 for a failure, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        from salience.cli.main import run  # seconds of imports, in which Ctrl-C counts too

        return run(arguments)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return _CTRL_C
