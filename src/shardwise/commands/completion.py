"""`shardwise completion`: what a shell loads to complete commands, options and hardware, by the library argcomplete."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

from shardwise.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")


def run(options: argparse.Namespace) -> int:
    """Print what a shell loads.

    Raises:
        MissingExtraError: argcomplete is not installed.
    """
    print(_library().shellcode(["shardwise"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end the process."""
    for action in _actions(parser):
        if action.dest == "hardware" or (action.dest == "name" and not action.option_strings):
            action.completer = _hardware  # type: ignore[attr-defined]
    _library().autocomplete(parser)


def _hardware(**_: Any) -> list[str]:
    from shardwise.chips import hardware

    return list(hardware.names())


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)


def _library() -> Any:
    try:
        return importlib.import_module("argcomplete")
    except ImportError:
        raise MissingExtraError("completion is made by the library argcomplete: pip install 'shardwise[shell]'") from None
