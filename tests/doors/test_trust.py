"""What a user's function or a lock file may do while it is traced; ending the program is no proof."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import pytest
from commands import in_a_folder, module_of, said  # noqa: F401  the folder is a fixture

import shardwise as sw
from shardwise.cli import main
from shardwise.compiled import lockfile
from shardwise.errors import CompileError

MODULE = """\
import os
import sys

import jax.numpy as jnp

ENDS = False


class Odd(BaseException):
    pass


def first(x):
    if ENDS:
        sys.exit(0)
    return x.sum()


def second(x):
    return x.sum()


def odd(x):
    raise Odd("neither an error nor an end")


def quits():
    exit()


class Lazy(type):
    def __getattr__(cls, name):
        sys.exit(0)


class Parts(metaclass=Lazy):
    pass
"""
DEVICES = jax.devices()  # JAX starts here with the eight of the tests: the first command would start it with its own
ARGS = ("--args", "float32[8@x]", "--mesh", "x=4")


@pytest.fixture
def module(tmp_path) -> str:
    return module_of(tmp_path, MODULE)


def edit(module: str, *changes: tuple[str, str]) -> None:
    """The user changes the source, and starts a new process."""
    path = Path(f"{module}.py")
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    sys.modules.pop(module, None)
    jax.clear_caches()


def names(function: str, args: str = "float32[8@x]", *, mesh: str = "x=4", on: str = "") -> lockfile.Entry:
    """An entry that somebody wrote by hand."""
    return lockfile.Entry(f"{function} of {args}", "cpu:4", "x=4", (), made=lockfile.Made(function, args, mesh, on=on))


# Ending the program.


def test_a_function_that_ends_the_program_fails_the_check_and_hides_no_other_drift(module, capsys):
    assert main(["lock", f"{module}:first", f"{module}:second", *ARGS]) == 0
    edit(module, ("ENDS = False", "ENDS = True"), ("x):\n    return x.sum()", "x):\n    return x.sum() + jnp.sin(x).max()"))
    capsys.readouterr()
    assert main(["lock", "--check"]) == 2
    captured = capsys.readouterr()
    assert f"{module}:first@cpu:4: first cannot be traced for these devices: SystemExit: 0\nat" in captured.err
    assert f"{module}:second@cpu:4 is not what was locked" in captured.out
    before = Path("comms.lock").read_bytes()
    assert main(["lock", "--update"]) == 2
    assert Path("comms.lock").read_bytes() == before


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("MODULE:odd", "odd cannot be traced for these devices: Odd: neither an error nor an end\n           at"),
        ("MODULE:Parts.step", "MODULE.Parts does not give step: MODULE.py:33: SystemExit: 0"),
        ("leaves.py:f", "leaves.py cannot be imported: leaves.py:2: SystemExit: 0"),
    ],
)
def test_an_audit_names_the_function(function, message, module, capsys):
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")
    edit(module, ("ENDS = False", "ENDS = True"))
    assert main(["audit", function.replace("MODULE", module), *ARGS]) == 2
    assert message.replace("MODULE", module) in said(capsys)


def ends(x):
    sys.exit(0)


def test_from_python_too():
    struct = jax.ShapeDtypeStruct((8,), "float32")
    with pytest.raises(CompileError, match=r"ends cannot be traced for these devices: SystemExit: 0\nat .*test_trust\.py"):
        sw.audit(ends, struct)
    with pytest.raises(CompileError, match=r"ends cannot be traced for these devices: SystemExit: 0\nat .*test_trust\.py"):
        sw.rehearse(ends, struct, on="v5e:2x4")
    with pytest.raises(CompileError, match="SystemExit: 0"):
        sw.rehearse(ends, struct, on="v5e:2x4", isolated=True)


def test_ctrl_c_is_no_error_of_the_function():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sw.audit(interrupted, jax.ShapeDtypeStruct((8,), "float32"))
    with pytest.raises(KeyboardInterrupt):
        sw.rehearse(interrupted, jax.ShapeDtypeStruct((8,), "float32"), on="v5e:2x4")


def test_an_end_that_nothing_foresaw_is_no_success(monkeypatch, capsys):
    for code in (0, None, "done", 256):

        def stops(_, code=code):
            sys.exit(code)

        monkeypatch.setattr("shardwise.commands.show.run", stops)
        assert main(["show", "A[I_x]", "--mesh", "x=2"]) == 2
        assert f"ended the program before it was done: SystemExit: {code}" in said(capsys)


# Entries.


def outside() -> list[lockfile.Entry]:
    away = Path.cwd().parent / "away.py"
    away.write_text("raise RuntimeError('imported')\n\n\ndef f(x):\n    return x\n")
    Path("linked.py").unlink(missing_ok=True)
    Path("linked.py").symlink_to(away)
    return [
        names("sys:exit"),
        names("json:loads"),
        names("numpy:sum"),
        names(f"{away}:f"),
        names("../away.py:f"),
        names("linked.py:f"),
        names("train.py:os.system"),
        names("train.py:f", "os:getcwd"),
    ]


def test_an_entry_from_outside_the_project_is_refused_and_not_imported(capsys):
    Path("train.py").write_text("import os\n\n\ndef f(x):\n    return x\n")
    lockfile.write("comms.lock", outside())
    assert main(["lock", "--check"]) == 2
    captured = capsys.readouterr()
    told = captured.err.splitlines()
    assert len(told) == len(outside())
    assert all("lies outside the project" in line and "--allow-outside" in line for line in told), told
    assert "imported" not in captured.err


def test_a_refused_entry_holds_up_no_other(capsys):
    Path("train.py").write_text("import os\n\n\ndef f(x):\n    return x\n")
    lockfile.write("comms.lock", [names("train.py:f"), names("sys:exit")])
    assert main(["lock", "--check"]) == 2
    captured = capsys.readouterr()
    assert "train.py:f of float32[8@x]@cpu:4: as locked" in captured.out
    assert f"sys:exit of float32[8@x]@cpu:4: sys lies outside the project, which is {os.getcwd()}" in captured.err


def test_what_is_outside_may_be_allowed(capsys):
    assert main(["lock", "jax.numpy:sum", *ARGS]) == 2
    assert "jax.numpy lies outside the project" in said(capsys)
    assert main(["lock", "jax.numpy:sum", *ARGS, "--allow-outside"]) == 0
    assert main(["lock", "--check"]) == 2
    assert main(["lock", "--check", "--allow-outside"]) == 0


def test_modules_and_packages_of_the_project_are_inside(capsys, tmp_path, monkeypatch):
    for folder in ("kit", "spread/parts"):
        Path(folder).mkdir(parents=True)
    Path("kit/__init__.py").touch()
    for file in ("kit/step.py", "spread/parts/step.py"):
        Path(file).write_text("def f(x):\n    return x * 2\n")
    functions = ["kit.step:f", "kit/step.py:f", "spread.parts.step:f"]
    assert main(["lock", *functions, *ARGS]) == 0
    monkeypatch.chdir(tmp_path / "spread")
    assert main(["lock", "--check", "../comms.lock"]) == 0


def test_an_entry_that_cannot_be_read_holds_up_no_other(capsys):
    Path("train.py").write_text("def f(x):\n    return x\n")
    entries = [names("train.py:f"), names("a:mesh", mesh="x=?"), names("b:devices", on="v99:2x2")]
    lockfile.write("comms.lock", entries)
    assert main(["lock", "--check"]) == 2
    captured = capsys.readouterr()
    assert "train.py:f of float32[8@x]@cpu:4" in captured.out
    assert "a:mesh of float32[8@x]@cpu:4: " in captured.err
    assert "b:devices of float32[8@x]@cpu:4: " in captured.err


def test_the_file_and_the_help_say_that_it_is_trusted(capsys):
    assert "# It is trusted as code: --check imports the functions that are named here" in lockfile.HEADER
    assert main(["lock", "--help"]) == 0
    assert "A lock file is trusted as code" in capsys.readouterr().out
