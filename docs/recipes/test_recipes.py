"""Every recipe runs from its first cell to its last, in a process of its own: `make recipes`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)
RECIPES = sorted(Path(__file__).parent.glob("*.md"))


def test_there_are_recipes():
    assert len(RECIPES) >= 6


@pytest.mark.parametrize("page", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs(page: Path, tmp_path: Path):
    cells = CELL.findall(page.read_text(encoding="utf-8"))
    assert len(cells) > 1
    if any("on=" in cell for cell in cells) and sys.platform != "linux":
        pytest.skip("the TPU compiler is made for Linux alone")
    script = tmp_path / f"recipe_{page.stem}.py"
    script.write_text("\n\n".join(cells), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "assert " in script.read_text(encoding="utf-8")
