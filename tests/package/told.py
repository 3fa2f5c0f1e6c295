"""What the README and the cheat sheet tell a reader to run: their blocks of Python, and their commands, filled in to be run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "cheatsheet.md")
SIZES, MESH = "I=256,J=128,K=64", "x=4"
# What stands for the reader's own words in the cheat sheet; the longer come before those that are in them.
PLACES = {
    "EQ": '"A[I_x, J] · B[J, K] -> C[I, K]"',
    "bench-overlap --on v5e:2x4 …": "bench-overlap --on v5e:2x4 --kinds AG --sizes 1024x512x512",
    "file.py:function": "train.py:step",
    '"A[I_x, J]" --sizes …': '"A[I_x, J]" --sizes I=256,J=128',
    "--args …": f"--args train.py:inputs --mesh {MESH}",
    "--sizes …": f"--sizes {SIZES}",
    "--mesh …": f"--mesh {MESH}",
    "--hardware …": "--hardware tpu-v5e",
    "train.py:step …": f"train.py:step --args train.py:inputs --mesh {MESH}",
    "…": f"--sizes {SIZES} --mesh {MESH}",
}
SHORTER = {
    "--seconds 60": "--seconds 2",
    "calibrate ": "calibrate --seconds 8 ",
    "I=16384,J=1024,K=2048": "I=2048,J=1024,K=2048",
    "16384x1024x2048": "1024x512x512",
}
EXTRAS = {  # which of the package's extras a command or a block needs, by what stands in it
    "tpu": r"--on |--confirm|rehearse|lock --check|^lock ",
    "files": r"\.safetensors",
    "show": r"\.html|^report ",
    "shell": r"^completion ",
}


@dataclass(frozen=True, slots=True)
class Told:
    """One thing to run: the arguments of `shardwise`, or a block of Python."""

    page: str
    text: str
    python: bool = False

    @property
    def measures(self) -> bool:
        """Whether it takes its time on purpose."""
        return self.text.startswith(("calibrate", "compare"))

    @property
    def extras(self) -> frozenset[str]:
        return frozenset(extra for extra, sign in EXTRAS.items() if re.search(sign, self.text))

    @property
    def arguments(self) -> list[str]:
        return ["-c", self.text] if self.python else ["-m", "shardwise", *shlex.split(self.text, comments=True)]


def told() -> list[Told]:
    """Everything that the pages tell a reader to run, in their order, and what both tell once.

    Raises:
        AssertionError: a page has no block or no command: then this reads it wrongly.
    """
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        lines = re.findall(r"^(?:\$ |    )?shardwise (.*)$", text, re.MULTILINE)
        cells = [code for row in re.findall(r"^\|(.*?)\|", text, re.MULTILINE) for code in commands_in(row)]
        assert blocks, f"{page.name} has no block of Python"
        assert lines or cells, f"{page.name} has no command"
        found += [Told(page.name, block, python=True) for block in blocks]
        found += [Told(page.name, filled(line)) for line in (*lines, *cells)]
    return list({each.text: each for each in reversed(found)}.values())[::-1]


def commands_in(row: str) -> list[str]:
    """The commands in the first cell of a row of a table.

    >>> commands_in(" `shardwise lock file.py:function …`, `lock --check` ")
    ['lock file.py:function …', 'lock --check']
    """
    codes = re.findall(r"`([^`]*)`", row)
    return [code.removeprefix("shardwise ") for code in codes] if codes and codes[0].startswith("shardwise ") else []


def filled(line: str) -> str:
    """A command with something in every place that the page leaves to the reader, and sizes that take no minutes."""
    for place, words in {**PLACES, **SHORTER}.items():
        line = line.replace(place, words)
    return line
