"""`shardwise rehearse`, and locks for devices that are not attached: what they print, and what they say about mistakes."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
from commands import in_a_folder, module_of, said  # noqa: F401  the folder is a fixture

from shardwise.cli import main
from shardwise.compiled import compiling, expected, lockfile

pytest_plugins = ["pytester"]
compiling.audit(lambda x: x, 1.0)  # imports what compiling needs: pytester forgets what is imported within

EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"
MODULE = """\
import jax
from jax.sharding import NamedSharding, PartitionSpec as P


def total(x):
    print("noise of the trace")
    return x.sum(axis=0)


def inputs(mesh):
    return jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(mesh, P("x", None)))
"""
TEST = """
import jax

def total(x):
    return x.sum(axis=0)

def test_total(comms_lock):
    comms_lock.check(jax.jit(total, in_shardings=jax.P("x")), jax.ShapeDtypeStruct((8, 4), "float32"), on="v5e:2x4")
"""


@pytest.fixture
def module(tmp_path) -> str:
    return module_of(tmp_path, MODULE)


@pytest.mark.needs("tpu")
def test_rehearse_a_function(module, capsys):
    assert main(["rehearse", f"{module}:total", "--args", "float32[8@x,4]", "--mesh", "x=8", "--on", "v5e:2x4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("total on v5e:2x4, mesh x=8: 1 collective")
    assert f"{module}.py:7" in printed


@pytest.mark.needs("tpu")
def test_rehearse_as_json_with_a_trace(module, capsys):
    arguments = ["--args", f"{module}:inputs", "--mesh", "x=4,y=2", "--on", "v5e:2x4", "--trace", "t.json", "--json"]
    assert main(["rehearse", f"{module}:total", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["mesh"], found["hardware"]) == ("v5e:2x4", {"x": 4, "y": 2}, "tpu-v5e")
    assert json.loads(Path("t.json").read_text(encoding="utf-8"))


@pytest.mark.needs("tpu")
def test_rehearse_an_equation_and_hold_it_to_its_plan(capsys, monkeypatch):
    problem = (EQUATION, "--sizes", "I=4096,J=1024,K=2048", "--mesh", "x=8", "--on", "v5e:2x4")
    assert main(["rehearse", *problem]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{EQUATION} on v5e:2x4, mesh x=8: 7 collectives")
    certificate, events = printed.split("\n\n")[-2:]
    assert certificate == "compiled as planned: the same collectives, axes and bytes"
    assert re.search(r"^1 multiply while .*matmul 1 ", events, re.MULTILINE)
    assert not re.search(r"transfer.* -( |$)", events), "a transfer that only one side has"

    monkeypatch.setattr(expected, "planned_collectives", lambda plan: [])
    assert main(["rehearse", *problem, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["compiled_as_planned"] is False
    assert {event["step"] for event in found["events"] if event["kind"] == "transfer"} == {1}
    assert "collective-permute over x: 0 planned" in found["differences"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:f",), "the following arguments are required: --on"),
        (("math:sqrt", "--on", "v5e"), "v5e"),
        (("math:sqrt", "--on", "v99:2x4"), "v99"),
        (("math:sqrt", "--on", "v5e:2x4", "--sizes", "I=3"), "--sizes belong to an equation, and math:sqrt is a function"),
        ((EQUATION, "--on", "v5e:2x4"), "the mesh of A[I_x, J] · B[J, K] -> C[I, K] is missing: add it, as --mesh x=8"),
        ((EQUATION, "--on", "v5e:2x4", "--mesh", "x=8"), "no size is given for dimension I"),
        ((EQUATION, "--on", "v5e:2x4", "--mesh", "x=8", "--args", "f32[]"), "--args belong to a function"),
        ((EQUATION, "--on", "v5e:2x4", "--mesh", "x=16", "--sizes", "I=16,J=3,K=3"), "16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_in_a_rehearsal(arguments, message, capsys):
    assert main(["rehearse", *arguments]) == 2
    assert message in said(capsys)


@pytest.mark.needs("tpu")
def test_lock_for_devices_that_are_not_attached(module, capsys):
    split = ("--args", "float32[8@x,4]", "--mesh", "x=8")
    assert main(["lock", f"{module}:total", *split, "--on", "v5e:2x4"]) == 0
    assert main(["lock", f"{module}:total", *split]) == 0
    capsys.readouterr()
    assert main(["lock", "--check"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(module)]
    assert told == [f"{module}:total@cpu:8: as locked", f"{module}:total@v5e:2x4: as locked"]
    assert dict(lockfile.read("comms.lock").entries[1].versions).keys() == {"jax", "libtpu"}


@pytest.mark.needs("tpu")
def test_lock_holds_the_modelled_time_and_layouts_where_asked_for(module, capsys):
    split = ("--args", "float32[8@x,4]", "--mesh", "x=8", "--on", "v5e:2x4")
    assert main(["lock", f"{module}:total", *split, "--time", "--layouts"]) == 0
    (entry,) = lockfile.read("comms.lock").entries
    assert entry.seconds is not None
    assert entry.seconds > 0
    assert (entry.arguments, entry.results) == ((lockfile.Laid("x", "[I_x, J]"),), (lockfile.Laid("result", "[I]"),))
    assert main(["lock", "--check"]) == 0
    lockfile.write("comms.lock", [dataclasses.replace(entry, seconds=2 * entry.seconds)])
    capsys.readouterr()
    assert main(["lock", "--check"]) == 1
    assert "! modelled time: " in capsys.readouterr().out


@pytest.mark.needs("tpu")
def test_the_fixture_rehearses(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(TEST)
    for update in (["--update-comms-lock"], []):
        result = pytester.runpytest_inprocess("-p", "shardwise.pytest_plugin", "-p", "no:cacheprovider", *update)
        result.assert_outcomes(passed=1)
    (entry,) = lockfile.read(pytester.path / "comms.lock").entries
    assert (entry.key, [row.kind for row in entry.rows]) == ("total@v5e:2x4", ["all-reduce"])


@pytest.mark.needs("tpu")
def test_a_users_mesh_of_all_devices_serves(capsys):
    """A module that makes its mesh while it is imported finds devices, and none of an accelerator's."""
    Path("own.py").write_text(
        "import jax\nmesh = jax.make_mesh((8,), ('x',))\nspec = jax.NamedSharding(mesh, jax.P('x'))\n"
        "def total(x):\n    return x.sum(axis=0)\n"
        "def inputs():\n    return jax.ShapeDtypeStruct((8, 4), 'float32', sharding=spec)\n"
    )
    assert main(["rehearse", "own.py:total", "--args", "own.py:inputs", "--on", "v5e:2x4"]) == 0
    assert capsys.readouterr().out.startswith("total on v5e:2x4, mesh x=8: 1 collective")


@pytest.mark.needs("tpu")
def test_a_report_holds_what_the_compiler_made(capsys, tmp_path):
    assert main(["report", "--help"]) == 0
    example = re.findall(r"shardwise (report .*--on.*)$", capsys.readouterr().out, re.MULTILINE)
    assert main(shlex.split(example[0])) == 0
    assert "wrote compiled.html" in capsys.readouterr().out
    made = (tmp_path / "compiled.html").read_text(encoding="utf-8")

    assert "✓ compiled as planned" in made
    assert "report.py" not in made  # what it compiles is asked for by the line that called it
    assert "The compiled program on tpu-v5e" in made
    assert "of it waiting for transfers (modelled from the compiled schedule)" in made
