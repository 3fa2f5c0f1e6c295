"""The renderer for terminals: the text with colours where rich is installed and somebody looks; plain text everywhere else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import Any

from shardwise.errors import lines_of, one_line
from shardwise.pictures.boards import board
from shardwise.pictures.picture import Picture, Tone
from shardwise.pictures.placement import Placement
from shardwise.pictures.plain_text import BOXES, Line, Segment, drawn, drawn_board
from shardwise.pictures.svg_style import DARK_SHADE, LIGHT, RAMP, SHADES

ROLES = {
    "name": "bold", "faint": "dim", "rule": "dim", "matmul": "bold #0b62a0", "compute": "#6aa9d8", "transfer": "#00a57a",
    "wait": "bold #d55e00", "stall": "#d9a58b", "copy": "#c86aa0", "loop": "dim",
    "measured": "bold #0b62a0", "interval": "#6aa9d8",
}  # fmt: skip


class Displayed:
    """What a notebook has drawn already: it is what it shows in all but being drawn once more as the value of the cell."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)

    def __str__(self) -> str:
        return str(self._thing)

    def __repr__(self) -> str:
        return repr(self._thing)

    def _ipython_display_(self) -> None:
        """Nothing: it is there."""


def present(shown: Any) -> Any:
    """Print in a terminal, draw in a notebook; returns what was shown."""
    if in_notebook():
        from IPython.display import display  # type: ignore[import-not-found]

        display(shown)
        return Displayed(shown)
    if coloured():
        _rich(shown)
    else:
        print(lines_of(str(shown)))
    return shown


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which draws what has a picture."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def coloured() -> bool:
    """Whether the output is a terminal that shows colours, they are wanted, and rich is there to write them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty():
        return False
    return importlib.util.find_spec("rich") is not None


def _rich(shown: Any) -> None:
    for line in painted(looked(shown, shutil.get_terminal_size().columns)):
        print(line)


def painted(lines: list[Line]) -> list[str]:
    """Lines with the codes that colour them; rich says which the terminal understands."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, force_terminal=True)
    found = []
    for line in lines:
        text = Text()
        for segment in line:
            text.append(one_line(segment.text), style=_look(segment))
        with console.capture() as captured:
            console.print(text, end="")
        found.append(captured.get())
    return found


def looked(shown: Any, width: int) -> list[Line]:
    """What is shown as lines that keep their looks; what has none is plain."""
    if isinstance(shown, Placement):
        table = [[Segment(line, role="" if number else "faint")] for number, line in enumerate(shown.table().split("\n"))]
        return [[Segment(shown.headline(), role="name")], *drawn_board(board(shown), width, BOXES), *table]
    if isinstance(shown, Picture):
        return drawn(shown, width, BOXES)
    return [[Segment(line)] for line in str(shown).split("\n")]


def _look(segment: Segment) -> str:
    if segment.tone is not None and segment.text.strip():
        return f"#111111 on {_fill(segment.tone)}" if _light(segment.tone) else f"#ffffff on {_fill(segment.tone)}"
    if segment.tone is not None:
        return f"on {_fill(segment.tone)}"
    return ROLES.get(segment.role, "")


def _fill(tone: Tone) -> str:
    return LIGHT[tone.index][0] if tone.of <= len(LIGHT) else RAMP[tone.index * SHADES // tone.of]


def _light(tone: Tone) -> bool:
    return tone.of <= len(LIGHT) or tone.index * SHADES // tone.of < DARK_SHADE
