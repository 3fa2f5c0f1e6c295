"""The process that `shardwise` and `python -m shardwise` start: the command line, without the start-up log of libraries."""

from __future__ import annotations

import sys

from shardwise.cli import main
from shardwise.commands.quiet import quiet


def start() -> int:
    """Run the command line as a process of its own; returns the exit code."""
    with quiet():
        return main()


if __name__ == "__main__":
    sys.exit(start())
