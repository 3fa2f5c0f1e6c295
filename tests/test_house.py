"""The house itself: its version, its floors, and the habits that a machine can check. Needs no JAX."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardwise

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "shardwise").rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT / "src").as_posix()


def sources_with(text: str) -> list[str]:
    return [name(path) for path in SOURCES if text in path.read_text(encoding="utf-8")]


def test_there_are_sources_to_check():
    assert "shardwise/errors.py" in map(name, SOURCES)


def test_package_and_project_agree_on_the_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert shardwise.__version__ == project["version"]


def test_each_floor_imports_only_floors_below_it_and_the_lower_ones_no_jax():
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_begins_by_saying_what_lives_there(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{name(path)} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_a_small_room(path: Path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 450, f"{name(path)} has {lines} lines: split it by what its parts are about"


def test_private_jax_is_not_used():
    assert sources_with("jax._src") == []


def test_experimental_jax_stays_in_few_files():
    files = sources_with("jax.experimental")
    assert len(files) <= 2, f"jax.experimental belongs in one file per use, and is in {files}"
