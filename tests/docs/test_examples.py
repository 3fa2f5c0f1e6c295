"""Every example is executed: those of docstrings, and those of the README."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardwise

README = Path(__file__).parents[2] / "README.md"
COMPILING = [  # for a target
    "compiled.compiling", "compiled.targets.helper_process", "compiled.targets.unattached", "compiled.targets.lowering",
    "functions.overlapping",
]  # fmt: skip
MODULES = [
    pytest.param(name, marks=[pytest.mark.needs("tpu")] if name.removeprefix("shardwise.") in COMPILING else [])
    for name in (module.name for module in pkgutil.walk_packages(shardwise.__path__, "shardwise."))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert outcome.failed == 0


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no {kind} block"
    return found


def runnable(kind: str) -> list[Any]:
    """Blocks to run: one that rehearses needs the TPU compiler."""
    return [pytest.param(text, marks=[pytest.mark.needs("tpu")] if "rehearse" in text else []) for text in blocks(kind)]


@pytest.mark.parametrize("text", runnable("python"))
def test_python_in_the_readme_runs_by_itself(text):
    done = subprocess.run(
        [sys.executable, "-c", text.replace("sw.simulate(4)", "sw.simulate(8)")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "print(" not in text or "all-gather C over x" in done.stdout


@pytest.mark.parametrize("text", blocks("pycon"))
def test_console_in_the_readme_says_what_is_printed(text):
    test = doctest.DocTestParser().get_doctest(text, {}, "README", str(README), 0)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test).failed == 0


@pytest.mark.parametrize("text", runnable("console"))
def test_commands_in_the_readme_print_what_stands_there(text):
    command, _, shown = text.partition("\n")
    arguments = [sys.executable, "-m", "shardwise.cli", *shlex.split(command.removeprefix("$ shardwise "))]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line.rstrip() for line in shown.splitlines()]


def test_the_readmes_picture_is_the_one_that_its_script_draws():
    namespace: dict = {}
    exec((README.parent / "docs" / "picture.py").read_text(encoding="utf-8").split('if __name__ == "__main__"')[0], namespace)
    assert (README.parent / "docs" / "images" / "headline.svg").read_text(encoding="utf-8") == namespace["picture"]()


@pytest.mark.parametrize(
    "line", [line for text in blocks("bash") for line in text.splitlines() if line.startswith("shardwise")]
)
def test_what_the_readme_tells_to_type_works(line, tmp_path):
    arguments = [sys.executable, "-m", "shardwise.cli", *shlex.split(line.removeprefix("shardwise"), comments=True)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readmes_placement_is_the_one_that_the_command_draws(tmp_path):
    line = next(line for text in blocks("bash") for line in text.splitlines() if line.startswith("shardwise show"))
    arguments = [*shlex.split(line.removeprefix("shardwise"), comments=True), "-o", str(tmp_path / "drawn.svg")]
    subprocess.run([sys.executable, "-m", "shardwise.cli", *arguments], check=True, capture_output=True)
    assert (tmp_path / "drawn.svg").read_bytes() == (README.parent / "docs" / "images" / "placement.svg").read_bytes()
