"""`shardwise doctor`: text, JSON, a page, stops that are tried one after the other, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import in_a_folder, module_of, said  # noqa: F401  the folder is a fixture

from shardwise.cli import main

MODULE = """\
import jax.numpy as jnp


def step(a, b, c):
    h = jnp.einsum("ij,jk->ik", a, b)
    g = h @ c
    return g + a
"""
ARGS = "bfloat16[64,64@x] bfloat16[64@x,64] bfloat16[64,64@x]"
CALL = ("--args", ARGS, "--mesh", "x=4,y=2", "--platform", "cpu", "--hardware", "tpu-v5e")


@pytest.fixture
def step(tmp_path: Path) -> str:
    return f"{module_of(tmp_path, MODULE)}.py:step"


def test_every_place_is_printed_with_its_line_and_cause(step: str, capsys):
    assert main(["doctor", step, *CALL, "--axis-types", "auto"]) == 0
    printed = capsys.readouterr().out
    assert 'h = jnp.einsum("ij,jk->ik", a, b)' in printed
    assert "which x splits (the layout of argument a and the layout of argument b)" in printed


def test_json_holds_what_the_text_says(step: str, capsys):
    assert main(["doctor", step, *CALL, "--axis-types", "auto", "--json", "--on", "here"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["mesh"] == {"x": 4, "y": 2}
    assert facts["places"][0]["line"].endswith(".py:5")
    assert facts["places"][0]["equation"].startswith("A[I, K_x] · B[K_x, J]")
    assert facts["truth"]["explained"] == 1.0


def test_a_page_is_written(step: str, tmp_path: Path):
    assert main(["doctor", step, *CALL, "--axis-types", "auto", "-o", "why.html"]) == 0
    assert "jnp.einsum" in (tmp_path / "why.html").read_text(encoding="utf-8")


def test_explicit_axes_stop_with_code_one_and_try_goes_on(step: str, capsys):
    assert main(["doctor", step, *CALL]) == 1
    assert "out_sharding=" in capsys.readouterr().out
    before = Path(step.partition(":")[0]).read_text(encoding="utf-8")
    assert main(["doctor", step, *CALL, "--try"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("in place of") >= 1
    assert "tried" in printed
    assert Path(step.partition(":")[0]).read_text(encoding="utf-8") == before


def test_mistakes_are_told_on_a_line(step: str, capsys):
    assert main(["doctor", step, "--args", ARGS, "--mesh", "z=8", "--platform", "cpu"]) == 2
    assert "axis" in said(capsys)
    assert main(["doctor", "json:dumps", *CALL, "--try"]) == 2
    assert "--try changes a copy of a file" in said(capsys)
