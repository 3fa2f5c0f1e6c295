"""`shardwise audit` and `lock`: what they print and write, exit codes, and what they say about mistakes."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from commands import in_a_folder, module_of, said  # noqa: F401  the folder is a fixture

import shardwise as sw
from shardwise.cli import main
from shardwise.commands import loading, making
from shardwise.compiled import lockfile

MODULE = """\
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

print("noise of the module")


def total(x):
    print("noise of the trace")
    return x.sum(axis=0)


def product(x, w):
    return x @ w


def inputs(mesh):
    print("noise of the arguments")
    return jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(mesh, P("x", None)))


def double(x):
    return x * 2 if x.dtype == "float64" else x.wrong


def inputs_wrong():
    raise KeyError("no data")


def nothing():
    return jnp.zeros(3)


class Model:
    @staticmethod
    def step(x):
        return x.sum()


SIZE = 3
"""
DEVICES = jax.devices()  # JAX starts here with the eight of the tests: the first command would start it with its own
ARGS = ("--args", "float32[8@x,4]", "--mesh", "x=4")


@pytest.fixture
def module(tmp_path) -> str:
    return module_of(tmp_path, MODULE)


def edit(module: str, old: str, new: str) -> None:
    """The user changes the source, and starts a new process."""
    path = Path(f"{module}.py")
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    sys.modules.pop(module, None)
    jax.clear_caches()


# Audit.


def test_audit_prints_the_table(module, capsys):
    assert main(["audit", f"{module}:total", *ARGS]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("total on cpu:4, mesh x=4: 1 collective")
    assert f"{module}.py:10" in printed.out
    assert "noise" not in printed.out
    assert "noise of the module\nnoise of the trace\n" in printed.err


def test_audit_as_json(module, capsys):
    assert main(["audit", f"{module}.py:total", "--args", f"{module}.py:inputs", "--mesh", "x=4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [
        "name", "target", "mesh", "hardware", "total_wire_bytes", "collectives", "memory", "work", "unread", "notes",
        "arguments", "findings",
    ]  # fmt: skip
    assert (found["name"], found["target"], found["mesh"]) == ("total", "cpu:4", {"x": 4})
    (each,) = found["collectives"]
    assert (each["kind"], each["axes"], each["dtype"], each["shape"], each["trips"]) == ("all-reduce", ["x"], "float32", [4], 1)
    assert each["wire_bytes"] == found["total_wire_bytes"] == 24
    assert each["source"].endswith(f"{module}.py:10")
    assert found["memory"]["arguments"] == 32


def test_axes_may_be_left_to_the_compiler(module, capsys):
    split = (f"{module}:product", "--args", "f32[8,4@x] f32[4@x,8]", "--mesh", "x=4")
    assert main(["audit", *split]) == 2
    assert "Contracting dimensions are sharded" in said(capsys)
    assert main(["audit", *split, "--axis-types", "auto"]) == 0
    assert "all-reduce" in capsys.readouterr().out


def test_audit_of_a_timeline(module, capsys):
    assert main(["audit", f"{module}:total", *ARGS, "--timeline", "--hardware", "tpu-v5e", "--trace", "t.json"]) == 0
    assert capsys.readouterr().out
    assert json.loads(Path("t.json").read_text(encoding="utf-8"))


def test_audit_of_what_needs_no_arguments_or_mesh(module, capsys):
    assert main(["audit", f"{module}:nothing"]) == 0
    assert "nothing on cpu:1" in capsys.readouterr().out
    assert main(["audit", f"{module}:Model.step", "--args", "f32[8]"]) == 0
    assert "0 collectives, nothing is sent" in capsys.readouterr().out


def test_types_of_64_bits_keep_them(module):
    assert main(["audit", f"{module}:double", "--args", "float64[8]"]) == 0
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "'train' names no function: write module:function or file.py:function, as train.py:step"),
        (("MODULE:",), "names no function"),
        (("MODULE:no-name",), "names no function"),
        (("nowhere:f",), "there is no module nowhere: it is looked for in the current folder"),
        (("nowhere.deep:f",), "there is no module nowhere"),
        (("nowhere.py:f",), "there is no file nowhere.py"),
        (("MODULE:totl",), "has no 'totl' (did you mean 'total'?)"),
        (("MODULE:Model.stop",), "Model has no 'stop' (did you mean 'step'?)"),
        (("MODULE:SIZE",), "is a value of type int and not a function"),
        (("broken.py:f",), "broken.py cannot be imported: broken.py:2: ZeroDivisionError: division by zero"),
        (("broken:f",), "broken cannot be imported: broken.py:2: ZeroDivisionError"),
        (("syntax.py:f",), "syntax.py cannot be imported: syntax.py:1: SyntaxError"),
        (("leaves.py:f",), "leaves.py cannot be imported: leaves.py:2: SystemExit: 3"),
        (("needs.py:f",), "needs.py cannot be imported: needs.py:1: ModuleNotFoundError: No module named 'not_there'"),
        (("needs:f",), "needs cannot be imported: needs.py:1: ModuleNotFoundError: No module named 'not_there'"),
        (("MODULE:total",), "total takes (x), and --args gives 0: missing a required argument: 'x'"),
        (("MODULE:total", "--args", "f32[8] f32[]"), "and --args gives 2: too many positional arguments"),
        (("MODULE:total", "--args", "f32[8"), "close the bracket"),
        (("MODULE:total", "--args", "f32[8@x]"), "give the mesh, as --mesh x=4"),
        (("MODULE:total", "--args", "f32[9@x]", "--mesh", "x=4"), "size 9 is not a multiple of 4 devices along x"),
        (("MODULE:total", "--args", "f32[8@y]", "--mesh", "x=4"), "the mesh has no axis 'y': it has x"),
        (("MODULE:total", "--args", "MODULE:inputs_wrong"), "inputs_wrong raises: MODULE.py:27: KeyError: 'no data'"),
        (("MODULE:product", "--args", "f32[8,4] f32[5,4]"), "product cannot be traced"),
        (("MODULE:total", "--args", "f32[8]", "--mesh", "x=16"), "needs 16 devices, and there are 8"),
        (("MODULE:total", *ARGS, "--json", "--timeline"), "two forms of the same audit"),
        (("MODULE:total", *ARGS, "--trace", "nowhere/t.json"), "there is no folder nowhere"),
        (("MODULE:total", *ARGS, "--platform", "gpu"), "--platform gpu: JAX has started already, with cpu devices"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_in_an_audit(arguments, message, module, capsys):
    Path("broken.py").write_text("x = 1\ny = x / 0\n")
    Path("syntax.py").write_text("def f(:\n")
    Path("leaves.py").write_text("import sys\nsys.exit(3)\n")
    Path("needs.py").write_text("import not_there\n")
    assert main(["audit", *(text.replace("MODULE", module) for text in arguments)]) == 2
    assert message.replace("MODULE", module) in said(capsys)


def test_a_file_may_have_the_name_of_another_module(capsys):
    Path("json.py").write_text("def f():\n    return 1.0\n")
    assert main(["audit", "json.py:f"]) == 0
    assert sys.modules["json"] is json


def test_a_file_of_a_package_imports_its_neighbours(capsys):
    folder = Path("kit", "parts")
    folder.mkdir(parents=True)
    for name in ("kit/__init__.py", "kit/parts/__init__.py"):
        Path(name).touch()
    Path("kit/sizes.py").write_text("SIZE = 3.0\n")
    (folder / "step.py").write_text("from ..sizes import SIZE\n\n\ndef f():\n    return SIZE\n")
    assert main(["audit", "kit/parts/step.py:f"]) == 0
    assert main(["audit", "kit.parts.step:f"]) == 0


def test_structs_have_the_layouts_that_are_written():
    mesh = sw.make_mesh("x=4, y=2")
    split, scalar, whole = loading.shape_structs("f32[16,8@(x,y)] int32[] bf16[3]", mesh)
    assert split.sharding == jax.sharding.NamedSharding(mesh, jax.P(None, ("x", "y")))
    assert (scalar.shape, scalar.dtype, whole.dtype) == ((), "int32", "bfloat16")
    assert whole.sharding.is_fully_replicated
    assert loading.shape_structs("f32[3]")[0].sharding is None


# Lock.


def test_an_entry_for_other_devices_is_checked_where_they_are(module, capsys):
    assert main(["lock", f"{module}:total", *ARGS]) == 0
    Path("comms.lock").write_text(Path("comms.lock").read_text().replace("cpu:4", "tpu-v5e:4"))
    before = Path("comms.lock").read_text()
    for verb in ("--check", "--update"):
        assert main(["lock", verb]) == 2
        assert "total@tpu-v5e:4: it compiles for cpu:4 here: check it where tpu-v5e:4 is" in said(capsys)
    assert Path("comms.lock").read_text() == before


def test_lock_and_check(module, capsys):
    assert main(["lock", f"{module}:total", f"{module}.py:Model.step", "--mesh", "x=4", "--args", "f32[8@x]"]) == 0
    printed = capsys.readouterr().out
    assert f"comms.lock: {module}:total@cpu:4: 1 collective, 6 B on the wire" in printed
    held = lockfile.read("comms.lock")
    assert [entry.name for entry in held.entries] == [f"{module}.py:Model.step", f"{module}:total"]
    assert held.entries[1].rows[0].source == f"{module}.py:10"
    assert dict(held.entries[1].versions).keys() == {"jax", "jaxlib"}

    assert main(["lock", "--check"]) == 0
    assert f"{module}:total@cpu:4: as locked" in capsys.readouterr().out

    edit(module, "def total", "\n\ndef total")
    assert main(["lock", "--check", "comms.lock"]) == 0
    printed = capsys.readouterr().out
    assert f"all-reduce over x moved from {module}.py:10 to {module}.py:12; the same collectives, so no drift" in printed

    edit(module, "return x.sum(axis=0)", "return jnp.cos(x.sum(axis=0)) + jnp.sin(x).max(axis=0)")
    assert main(["lock", "--check"]) == 1
    printed = capsys.readouterr().out
    assert f"- all-reduce over x, 1 x 6 B float32, {module}.py:10" in printed
    assert f"+ all-reduce over x, 2 x 6 B float32, {module}.py:12: 6 B more on the wire" in printed
    assert "If that is meant: shardwise lock --update comms.lock" in printed
    assert main(["lock", "--check", f"{module}.py:Model.step"]) == 0

    assert main(["lock", "--update", f"{module}:total"]) == 0
    assert "6 B more on the wire" in capsys.readouterr().out
    assert main(["lock", "--check"]) == 0


def test_layouts_are_held_where_asked_for_and_are_those_of_the_compiled_program(module, capsys):
    edit(module, "def total", "def turned(x):\n    return {'t': x.T, 's': x.sum()}\n\n\ndef total")
    assert main(["lock", f"{module}:turned", *ARGS, "--layouts"]) == 0
    (entry,) = lockfile.read("comms.lock").entries
    assert entry.arguments == (lockfile.Laid("x", "[I_x, J]"),)
    assert entry.results == (lockfile.Laid("result['s']", "[]"), lockfile.Laid("result['t']", "[I, J_x]"))
    mesh = sw.make_mesh("x=4")
    x = sw.put(jnp.ones((8, 4)), "A[I_x, J]", mesh)
    made = jax.jit(lambda x: {"t": x.T, "s": x.sum()}).lower(x).compile().output_shardings
    assert (made["s"].is_fully_replicated, made["t"].spec) == (True, jax.P(None, "x"))
    capsys.readouterr()
    assert main(["lock", "--check"]) == 0
    edit(module, "x.T", "x * 2")
    assert main(["lock", "--check"]) == 1
    assert "! result result['t']: [I_x, J], locked [I, J_x]" in capsys.readouterr().out
    assert main(["lock", "--update"]) == 0
    assert lockfile.read("comms.lock").entries[0].results == (
        lockfile.Laid("result['s']", "[]"), lockfile.Laid("result['t']", "[I_x, J]"),
    )  # fmt: skip


def test_no_time_is_held_where_none_can_be_modelled(module, capsys):
    assert main(["lock", f"{module}:total", *ARGS, "--time"]) == 2
    assert "no time is modelled for cpu:4: one host plays all its devices" in said(capsys)
    assert not Path("comms.lock").exists()


def test_locking_overwrites_the_named_entry_alone(module):
    assert main(["lock", f"{module}:total", *ARGS]) == 0
    assert main(["lock", f"{module}:total", *ARGS, "--name", "again"]) == 0
    text = Path("comms.lock").read_text(encoding="utf-8").replace("memory_tolerance = 0.01", "memory_tolerance = 0.5")
    Path("comms.lock").write_text(text, encoding="utf-8")
    assert main(["lock", f"{module}:total", "--args", "float32[16@x,4]", "--mesh", "x=4"]) == 0
    held = lockfile.read("comms.lock")
    assert held.memory_tolerance == 0.5
    assert {entry.name: entry.made.args for entry in held.entries if entry.made} == {
        "again": "float32[8@x,4]",
        f"{module}:total": "float32[16@x,4]",
    }


def test_a_lock_file_elsewhere_names_sources_and_modules_from_its_folder(module, monkeypatch, tmp_path, capsys):
    assert main(["lock", f"{module}.py:total", *ARGS, "-o", str(tmp_path / "comms.lock")]) == 0
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert main(["lock", "--check", "../comms.lock"]) == 0
    assert "as locked" in capsys.readouterr().out
    assert tomllib.loads(Path("../comms.lock").read_text())["program"][0]["collectives"][0]["source"] == f"{module}.py:10"


def test_what_cannot_be_compiled_again_is_the_users_mistake(module, capsys):
    assert main(["lock", f"{module}:total", f"{module}:Model.step", *ARGS]) == 0
    edit(module, "def total", "def totals")
    assert main(["lock", "--check"]) == 2
    captured = capsys.readouterr()
    assert "has no 'total' (did you mean 'totals'?)" in captured.err
    assert f"{module}:Model.step@cpu:4: as locked" in captured.out
    before = Path("comms.lock").read_bytes()
    assert main(["lock", "--update"]) == 2
    assert Path("comms.lock").read_bytes() == before


def test_entries_of_tests_are_left_to_them(capsys):
    lockfile.write("comms.lock", [lockfile.Entry("f", "cpu:8", "x=8", ())])
    assert main(["lock", "--check"]) == 0
    assert "f@cpu:8: made by a test, which holds to it; not compiled here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a function: module:function"),
        (("comms.lock",), "'comms.lock' names no function: write module:function"),
        (("a:f", "--check", "--update"), "ask for one of them"),
        (("--check",), "there is no lock file comms.lock: write one with `shardwise lock module:function`"),
        (("--check", "a.lock", "b.lock"), "a.lock and b.lock: one lock file at a time"),
        (("--check", "--mesh", "x=4"), "--mesh: --check and --update go by what the lock file says"),
        (("--check", "--layouts"), "--layouts: --check and --update go by what the lock file says"),
        (("--check", "damaged.lock"), "damaged.lock: not TOML"),
        (("--check", "held.lock", "a:g"), "a:g is not locked (did you mean 'a:f'?)"),
        (("--check", "both.lock"), "one process cannot compile for the platforms cpu and gpu at once"),
        (("a:f", "a:g", "--name", "h"), "--name h: it names one function, and 2 are given"),
        (("a:f", "-o", "nowhere/comms.lock"), "there is no folder nowhere"),
        (("a:f", "-o", "damaged.lock"), "damaged.lock: not TOML"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_in_a_lock(arguments, message, capsys):
    Path("damaged.lock").write_text("version = ")
    lockfile.write("held.lock", [lockfile.Entry("a:f", "cpu:8", "x=8", ())])
    made = (lockfile.Made("a:f", platform="cpu"), lockfile.Made("a:f", platform="gpu"))
    lockfile.write("both.lock", [lockfile.Entry("a:f", f"t{index}", "", (), made=how) for index, how in enumerate(made)])
    assert main(["lock", *arguments]) == 2
    assert message in said(capsys)


@pytest.mark.parametrize("command", ["audit", "rehearse", "lock"])
def test_help_has_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"  shardwise {command} train.py:step --args " in capsys.readouterr().out


def test_versions_name_the_compiler():
    assert list(making.versions("cpu:8")) == ["jax", "jaxlib"]
    assert making.versions("h100:8")["jax"] == jax.__version__
