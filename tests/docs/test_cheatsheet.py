"""The cheat sheet: notation, the bytes of every step, commands and Python hold as they stand there; it prints on one page."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import shardwise as sw
from shardwise.notation import parse
from shardwise.steps import Collective, Einsum, Slice, kind

DOCS = Path(__file__).parents[2] / "docs"
SHEET = (DOCS / "cheatsheet.md").read_text(encoding="utf-8")
SIZE, N = 4096, 4
V = SIZE * SIZE * 2  # bfloat16
BYTES = {
    "V (n-1)/n": V * (N - 1) / N, "2 V (n-1)/n": 2 * V * (N - 1) / N, "V (n-1)/n²": V * (N - 1) / N**2, "its shard": V / N**2,
    "nothing": 0,
}  # fmt: skip


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", SHEET, re.MULTILINE | re.DOTALL)
    assert section
    lines = [line for line in section[1].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("text", [row[0].strip("`") for row in rows("Notation")])
def test_every_line_of_notation_is_legal(text):
    if "->" not in text:
        text = f"{text} -> {text}"
    dims = {"I": 64, "J": 64, "K": 64, "P": 64}
    sizes = {dim: size for dim, size in dims.items() if re.search(rf"\b{dim}(_|\b)", text)}
    assert str(parse(str(parse(text)))) == str(parse(text))
    assert sw.plan(text, sizes=sizes, mesh="x=4, y=2", hardware="tpu-v5e").best


@pytest.mark.parametrize(("name", "line", "sends"), rows("Steps of a program"))
def test_every_step_is_what_its_line_plans_and_sends_what_it_says(name, line, sends):
    text = line.strip("`")
    sizes = {dim: SIZE for dim in "IJK" if dim in re.sub(r"\b[A-Z]\[", "[", text)}
    mesh = "x=4, y=4" if "_y" in text else "x=4"
    best = sw.plan(text, sizes=sizes, mesh=mesh, hardware="tpu-v5e", overlap=False).best
    assert [kind(step) for step in best.program.steps] == [name]
    assert best.estimate.total_wire_bytes == BYTES[sends]


def test_no_plain_step_is_left_out():
    named = {re.sub(r"(?<!^)(?=[A-Z])", "-", step.__name__).lower() for step in (*get_args(Collective), Slice, Einsum)}
    assert {row[0] for row in rows("Steps of a program")} == named


def test_every_command_stands_there():
    told = subprocess.run([sys.executable, "-m", "shardwise", "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^    ([a-z-]+)(?:  |$)", told, re.MULTILINE))
    table = " ".join(row[0] for row in rows("Commands"))
    assert len(commands) > 10
    assert {name for name in commands if not re.search(rf"\b{name}\b", table)} == set()


def test_its_python_runs_by_itself():
    (text,) = re.findall(r"^```python\n(.*?)^```", SHEET, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def printing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("print_cheatsheet", DOCS / "print_cheatsheet.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.needs("browser")
def test_it_prints_on_one_page(tmp_path):
    printing().write_pdf(tmp_path / "sheet.pdf")
    assert re.findall(rb"/Type /Pages\s+/Count (\d+)", (tmp_path / "sheet.pdf").read_bytes()) == [b"1"]
