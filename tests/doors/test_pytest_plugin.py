"""Pytest's fixture `comms_lock`: it writes, holds, and fails with a diff; loading it imports nothing."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from shardwise.compiled import compiling, lockfile

pytest_plugins = ["pytester"]
compiling.audit(lambda x: x, 1.0)  # imports what compiling needs: pytester forgets what is imported within

TEST = """
import jax, jax.numpy as jnp
import shardwise as sw
from shardwise.compiled import compiling

def total(x):
    return x.sum(axis=0)

def struct():
    mesh = sw.make_mesh("x=4")
    return jax.ShapeDtypeStruct((8, 4), "float32", sharding=jax.sharding.NamedSharding(mesh, jax.P("x", None)))

def test_a_function(comms_lock):
    comms_lock.check(total, struct())

def test_an_audit(comms_lock):
    comms_lock.check(compiling.audit(total, struct()), name="named")
"""


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess("-p", "shardwise.pytest_plugin", "-p", "no:cacheprovider", *arguments)

    return run


def test_without_an_entry_it_says_what_to_do(pytester, run):
    pytester.makepyfile(TEST)
    result = run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*total@cpu:4 is not locked in *comms.lock: run pytest --update-comms-lock"])


def test_it_writes_holds_and_fails_with_the_diff(pytester, run):
    path = pytester.makepyfile(TEST)
    run("--update-comms-lock").assert_outcomes(passed=2)
    assert [entry.key for entry in lockfile.read(pytester.path / "comms.lock").entries] == ["named@cpu:4", "total@cpu:4"]
    run().assert_outcomes(passed=2)

    path.write_text(TEST.replace("return x.sum(axis=0)", "return jnp.cos(x.sum(axis=0)) + jnp.sin(x).max(axis=0)"))
    jax.clear_caches()
    result = run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "total@cpu:4 is not what was locked: 48 B on the wire, 24 B locked",
            "  - all-reduce over x, 1 x 24 B float32, test_it_writes*.py:6",
            "  + all-reduce over x, 2 x 24 B float32, test_it_writes*.py:7: 24 B more on the wire",
            "If that is meant: pytest --update-comms-lock",
        ]
    )
    run("--update-comms-lock").assert_outcomes(passed=2)
    run().assert_outcomes(passed=2)


def test_the_file_is_named_by_option_or_setting(pytester, run):
    pytester.makepyfile(TEST)
    run("--update-comms-lock", "--comms-lock", "mine.lock").assert_outcomes(passed=2)
    pytester.makeini("[pytest]\ncomms_lock = mine.lock")
    run().assert_outcomes(passed=2)
    assert not (pytester.path / "comms.lock").exists()


def test_two_programs_of_one_name_are_not_one_entry(pytester, run):
    more = "\n\ndef test_another(comms_lock):\n    comms_lock.check(jax.jit(lambda x: x.max()), struct(), name='named')\n"
    pytester.makepyfile(TEST + more)
    result = run("--update-comms-lock")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["two programs are checked under one name; give each its own, as name=..."])


def test_an_audit_comes_alone(pytester, run):
    pytester.makepyfile(TEST.replace('name="named")', "1)"))
    run("--update-comms-lock").assert_outcomes(passed=1, failed=1)


def test_a_damaged_file_is_told(pytester, run):
    pytester.makepyfile(TEST)
    (pytester.path / "comms.lock").write_text("version = ")
    result = run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*FileError: *comms.lock: not TOML: *"])


def test_a_file_that_cannot_be_written_is_told_before_compiling(pytester, run):
    pytester.makepyfile(TEST.replace("return x.sum(axis=0)", "assert False"))
    result = run("--update-comms-lock", "--comms-lock", "nowhere/comms.lock")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*FileError: *nowhere/comms.lock: there is no folder nowhere in *"])
    result = run("--update-comms-lock", "--comms-lock", "")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*--comms-lock: the name of the file is empty: name one*"])


def test_a_function_that_ends_the_program_fails_its_test(pytester, run):
    pytester.makepyfile(TEST.replace("return x.sum(axis=0)", "raise SystemExit(0)"))
    result = run("--update-comms-lock")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*CompileError: total cannot be traced for these devices: SystemExit: 0*"])


def test_loading_it_imports_neither_jax_nor_numpy():
    code = "import sys, shardwise.pytest_plugin; print(sorted({'jax', 'numpy', 'shardwise.compiled'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
