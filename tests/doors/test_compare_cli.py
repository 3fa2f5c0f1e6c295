"""`shardwise compare`: the table, JSON, the picture, and what it says about mistakes; `--overlap` of plan and run."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import in_a_folder as in_a_folder
from commands import module_of, said

from shardwise.cli import main
from shardwise.measure import comparing

EQUATION = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
SIZES = ("--sizes", "I=16,J=8,K=4")
PROBLEM = (EQUATION, *SIZES, "--mesh", "x=4")
SOON = ("--seconds", "0.01")
DEVICES = jax.devices()  # JAX starts here with the eight of the tests
MODULE = """\
import jax.numpy as jnp

def step(a, b):
    return a @ b

def other(a, b):
    return jnp.einsum("ij,jk->ik", a, b)

def torn(a, b):
    raise ValueError("nobody\\nis home")

def inputs():
    return jnp.ones((8, 4)), jnp.ones((4, 2))
"""


def test_an_equation_in_every_way(capsys):
    assert main(["compare", *PROBLEM, *SOON]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{EQUATION} on cpu:4, mesh x=4"
    assert [line.split()[0] for line in lines[2:7]] == ["auto", "constraint", "explicit", "manual", "planned"]
    assert lines[6].endswith("reduce-scatter over x")
    assert lines[7].startswith("fastest: ")


def test_ways_by_name_as_json_with_a_picture(capsys):
    line = ["compare", *PROBLEM, *SOON, "--ways", "planned, candidate 2,scatter", "--json", "-o", "found.svg"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert [way["name"] for way in found["ways"]] == ["planned", "candidate 2", "scatter"]
    assert found["ways"][2]["collectives"][0]["kind"] == "collective-permute"
    assert Path("found.svg").read_text(encoding="utf-8").startswith("<svg")


def test_operands_of_files(capsys):
    np.save("a.npy", np.ones((16, 8), np.float32))
    line = ["compare", EQUATION, "--mesh", "x=4", "--sizes", "K=4", "--input", "A=a.npy", *SOON, "--ways", "planned", "--json"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["ways"][0]["wire_bytes"] == 3 / 4 * 16 * 4 * 4


def test_functions_side_by_side(capsys, tmp_path):
    module = module_of(tmp_path, MODULE)
    types = ("--args", "float32[8@x,4] float32[4,2]", "--mesh", "x=4")
    assert main(["compare", f"{module}:step", f"{module}:other", *types, *SOON]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{module}:step, {module}:other on cpu:4, mesh x=4"
    assert main(["compare", f"{module}:step", *types, "--args", f"{module}:inputs", *SOON, "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    assert [way["name"].partition(" ")[2] for way in ways] == ["float32[8@x,4] float32[4,2]", f"{module}:inputs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((EQUATION, *SIZES), "the mesh of A[I, J_x] · B[J_x, K] -> C[I_x, K] is missing: add it, as --mesh x=4"),
        ((*PROBLEM, "--args", "float32[8]"), "--args belong to functions"),
        ((*PROBLEM, "--ways", "plan"), "way 'plan' is none that is known"),
        ((*PROBLEM, "--seconds", "0"), "seconds=0.0: give the seconds"),
        ((*PROBLEM, "--seed", "-1"), "a seed is 0 or more"),
        ((*PROBLEM, "-o", "found.png"), "pictures are written as .svg or .html"),
        ((*PROBLEM, "-o", "nowhere/found.svg"), "there is no folder nowhere"),
        (("MODULE:step",), "1 functions and 1 --args: give two or more functions"),
        (("MODULE:step", "MODULE:step", "--mesh", "x=4"), "MODULE:step takes (a, b)"),
        (("MODULE:step", "MODULE:other", "--sizes", "I=4"), "--sizes, --input and --ways belong to an equation"),
        (("MODULE:step", "MODULE:torn", "--args", "float32[4,4] float32[4,4]"), "torn cannot be traced"),
        (("MODULE:step", "MODULE:nothing", "--args", "float32[4,4] float32[4,4]"), "has no 'nothing'"),
        (("MODULE:step", "--args", "MODULE:inputs", "--args", "MODULE:inputs"), "is given twice"),
    ],
)
def test_mistakes_are_told_in_one_error(words, message, capsys, tmp_path):
    module = module_of(tmp_path, MODULE)
    assert main(["compare", *SOON, *(word.replace("MODULE", module) for word in words)]) == 2
    assert message.replace("MODULE", module) in said(capsys)


def test_ways_that_differ_end_with_1(capsys, monkeypatch):
    monkeypatch.setattr(comparing, "_difference", lambda *_: "output by up to 7")
    assert main(["compare", *PROBLEM, *SOON, "--ways", "planned,manual"]) == 1
    assert "manual gives another result than planned: output by up to 7" in capsys.readouterr().out


def test_an_interrupt_ends_with_130_and_writes_nothing(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "until_narrow", interrupted)
    assert main(["compare", *PROBLEM, "-o", "found.svg"]) == 130
    assert said(capsys).endswith("shardwise: interrupted\n")
    assert list(Path().iterdir()) == []


def test_plan_and_run_take_an_overlap(capsys):
    assert main(["plan", *PROBLEM, "--hardware", "tpu-v5e", "--overlap", "scatter", "--json"]) == 0
    assert "while scattering" in str(json.loads(capsys.readouterr().out)["candidates"][0])
    assert main(["plan", *PROBLEM, "--hardware", "tpu-v5e", "--overlap", "none"]) == 0
    assert " while " not in capsys.readouterr().out
    assert main(["run", *PROBLEM, "--overlap", "ring"]) == 0
    assert "multiply while" in capsys.readouterr().out


def test_sizes_that_do_not_divide_are_padded_on_request(capsys):
    line = [EQUATION, "--sizes", "I=15,J=8,K=4", "--mesh", "x=4"]
    for command in (["compare", *SOON], ["trace"]):
        assert main([*command, *line]) == 2
        assert "I has size 15, which mesh axis x=4 does not divide: --pad pads it to 16" in said(capsys)
        assert main([*command, *line, "--pad", "--json"]) == 0
        assert "reduce-scatter" in capsys.readouterr().out
