"""The command line: what it prints and writes, its exit codes, and what it says about mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise.cli import main
from shardwise.commands import run, session

EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"
SIZES = ("--sizes", "I=8,J=6,K=4")
PROBLEM = (EQUATION, *SIZES, "--mesh", "x=4")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def a() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((8, 6), np.float32)


@pytest.fixture
def b() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((6, 4), np.float32)


def said(capsys) -> str:
    """What went to stderr; there is no traceback in it."""
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


def shardwise(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, from which JAX's settings of the tests are taken."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "shardwise.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=own | environment, check=False, timeout=120)


# Plan.


def test_plan_prints_the_ranking_and_the_best_program(capsys):
    assert main(["plan", *PROBLEM]) == 0

    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == EQUATION
    assert re.search(r"^>1 .* multiply, then all-gather C over x \(I\)$", printed, re.MULTILINE)
    assert "The best, step by step" in printed


def test_plan_json_says_what_the_plan_says(capsys):
    assert main(["plan", *PROBLEM, "--dtype", "bfloat16", "--hardware", "tpu-v5e", "--json"]) == 0

    facts = json.loads(capsys.readouterr().out)
    plan = sw.plan(EQUATION, sizes={"I": 8, "J": 6, "K": 4}, mesh="x=4", hardware="tpu-v5e", dtype="bfloat16")
    assert facts["sizes"] == {"I": 8, "J": 6, "K": 4}
    assert facts["mesh"] == {"x": 4}
    assert (facts["hardware"], facts["dtype"]) == ("tpu-v5e", "bfloat16")
    assert [each["seconds"] for each in facts["candidates"]] == [candidate.estimate.seconds for candidate in plan]


def test_plan_code_is_a_program_that_equals_numpy(capsys, a, b):
    assert main(["plan", *PROBLEM, "--code"]) == 0

    code = capsys.readouterr().out
    assert "shardwise" not in code
    names: dict = {}
    exec(code, names)
    spec = jax.sharding.NamedSharding(names["mesh"], jax.sharding.PartitionSpec("x", None))
    whole = jax.sharding.NamedSharding(names["mesh"], jax.sharding.PartitionSpec(None, None))
    c = names["program"](jax.device_put(a, spec), jax.device_put(b, whole))
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_plan_pads_on_request(capsys):
    assert main(["plan", EQUATION, "--sizes", "I=7,J=6,K=4", "--mesh", "x=4"]) == 2
    assert "I has size 7, which mesh axis x=4 does not divide: --pad pads it to 8" in said(capsys)

    assert main(["plan", EQUATION, "--sizes", "I=7,J=6,K=4", "--mesh", "x=4", "--pad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == {"I": 8, "J": 6, "K": 4}


def test_plan_end_to_end_knows_no_jax():
    code = (
        "import sys\nfrom shardwise.cli import main\n"
        f"assert main({['plan', *PROBLEM, '--hardware', 'tpu-v5e']!r}) == 0\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "multiply, then all-gather C over x (I)" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


# Run.


def test_run_shows_plan_placement_and_check(capsys):
    assert main(["run", *PROBLEM]) == 0

    printed = capsys.readouterr().out
    for shown in (
        "multiply, then all-gather C over x (I)",
        "A[I_x, J], 8 x 6, on mesh x=4\n+-----+\n|  0  |",
        "B[J, K], 6 x 4, on mesh x=4; replicated over x=4",
        "C[I, K], 8 x 4, on mesh x=4; replicated over x=4",
        "check against the unsharded result: ok",
        "`shardwise compare` measures it beside jax.jit",
    ):
        assert shown in printed


def test_run_in_a_process_of_its_own_simulates_the_devices():
    done = shardwise("run", EQUATION, *SIZES, "--mesh", "x=2", "--json", JAX_PLATFORMS="cpu")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["check"]["ok"] is True


def test_a_platform_that_is_not_here_is_the_users_mistake():
    done = shardwise("run", EQUATION, *SIZES, "--mesh", "x=2", "--platform", "tpu")

    if done.returncode:  # there may be one
        assert done.returncode == 2
        assert "tpu" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_run_reads_and_writes_files(kind, capsys, a, b):
    match kind:
        case "npy":
            np.save("a.npy", a)
            np.save("b.npy", b)
            given = "A=a.npy", "B=b.npy"
        case "npz":
            np.savez("ab.npz", left=a, right=b)
            given = "A=ab.npz:left", "B=ab.npz:right"
        case _:
            from safetensors.numpy import save_file

            save_file({"left": a, "right": b}, "ab.safetensors")
            given = "A=ab.safetensors:left", "B=ab.safetensors:right"
    inputs = [word for text in given for word in ("--input", text)]

    assert main(["run", EQUATION, "--mesh", "x=4", *inputs, "--output", "c.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == {"I": 8, "J": 6, "K": 4}
    c = np.load("c.npy")
    assert c.dtype == np.float32
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_run_writes_bfloat16_to_safetensors(capsys):
    from safetensors.numpy import load_file

    arguments = ["run", *PROBLEM, "--dtype", "bfloat16"]
    assert main([*arguments, "--output", "c.npy"]) == 2
    captured = capsys.readouterr()
    assert "the format of .npy has no name for bfloat16; save to c.safetensors" in captured.err
    assert captured.out == "", "told before anything is run"

    assert main([*arguments, "--output", "c.safetensors:product"]) == 0
    c = load_file("c.safetensors")["product"]
    assert (c.dtype, c.shape) == (ml_dtypes.bfloat16, (8, 4))


@pytest.mark.parametrize("result", ["I_x, K", "I, K", "I, K_x"])
def test_run_pads_and_writes_the_result_without_padding(result, capsys, a, b):
    np.save("a.npy", a[:7])
    np.save("b.npy", b)
    equation = f"A[I_x, J] · B[J, K] -> C[{result}]"
    arguments = ["run", equation, "--mesh", "x=3", "--input", "A=a.npy", "--input", "B=b.npy", "--output", "c.npy"]

    assert main(arguments) == 2
    assert "I has size 7, which mesh axis x=3 does not divide: --pad pads it to 9" in said(capsys)
    assert not Path("c.npy").exists()

    assert main([*arguments, "--pad"]) == 0
    c = np.load("c.npy")
    assert c.shape == (7, 4)
    np.testing.assert_allclose(c, a[:7] @ b, rtol=1e-5, atol=1e-5)


def test_a_seed_draws_the_same_numbers_again():
    drawn = []
    for seed in ("0", "0", "1"):
        assert main(["run", *PROBLEM, "--seed", seed, "--output", "c.npy"]) == 0
        drawn.append(np.load("c.npy"))

    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128", "int8", "uint8", "complex64", "float16"])
def test_run_computes_in_the_dtype_that_is_asked_for(dtype, recwarn):
    assert main(["run", *PROBLEM, "--dtype", dtype, "--output", "c.npy"]) == 0

    c = np.load("c.npy")
    assert c.dtype == np.dtype(dtype)
    if c.dtype.kind == "c":
        assert c.imag.any()
    assert not jax.config.jax_enable_x64
    assert not recwarn.list


def test_run_computes_in_the_dtype_of_the_files(a, b):
    np.save("a.npy", a.astype(np.float64))
    np.save("b.npy", b)
    arguments = ["run", EQUATION, "--mesh", "x=4", "--input", "A=a.npy", "--input", "B=b.npy", "--output", "c.npy"]
    assert main(arguments) == 0

    c = np.load("c.npy")
    assert c.dtype == np.float64
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-14)


def test_one_file_serves_every_operand_of_its_name(a, capsys):
    np.save("a.npy", a)
    for equation, wanted in [("A[I_x, J] · A[I, K] -> C[J, K]", a.T @ a), ("A[I_x, J] · A[I_x, J] -> C[I_x]", (a * a).sum(1))]:
        assert main(["run", equation, "--mesh", "x=4", "--input", "A=a.npy", "--output", "c.npy"]) == 0
        np.testing.assert_allclose(np.load("c.npy"), wanted, rtol=1e-5, atol=1e-5)

    assert main(["run", "A[I_x, J] · A[J, K] -> C[I_x, K]", "--mesh", "x=4", "--input", "A=a.npy"]) == 2
    assert "dimension J has size 6, but size 8 in a.npy" in said(capsys)


def test_run_with_a_result_of_partial_sums_is_checked_by_its_sum(capsys):
    equation = "A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}"
    arguments = ["run", equation, "--sizes", "I=8,J=8,K=4", "--mesh", "x=4"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check"]["ok"] is True

    assert main([*arguments, "--output", "c.npy"]) == 2
    assert "is partial sums, of which no file can hold all" in said(capsys)


def test_run_without_a_check(capsys, monkeypatch):
    from shardwise.runtime import checking

    monkeypatch.setattr(checking, "check", None)
    assert main(["run", *PROBLEM, "--no-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check"] is None
    assert main(["run", *PROBLEM, "--no-check"]) == 0
    assert "check against" not in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [lambda c: c + 1, lambda c: c * np.nan, lambda c: c[:, :2]], ids=["value", "NaN", "shape"])
def test_a_check_that_fails_ends_with_1(wrong, capsys, monkeypatch):
    from shardwise.measure import timing

    right = timing.unsharded
    monkeypatch.setattr(timing, "unsharded", lambda equation: lambda *arrays: wrong(right(equation)(*arrays)))
    assert main(["run", *PROBLEM]) == 1
    assert "check against the unsharded result: FAIL output" in capsys.readouterr().out

    assert main(["run", *PROBLEM, "--json"]) == 1
    check = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["check"]
    assert check["ok"] is False


# Hardware.


def test_hardware_lists_the_catalogue_with_sources(capsys):
    assert main(["hardware"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}: " in printed for name in sw.hardware.names())

    assert main(["hardware", "tpu-v5e"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tpu-v5e: ")
    assert "h100" not in printed
    assert "scaling-book" in printed


def test_hardware_json(capsys):
    assert main(["hardware", "--json"]) == 0
    chips = json.loads(capsys.readouterr().out)
    assert [chip["name"] for chip in chips] == list(sw.hardware.names())
    assert all(figure["source"] for chip in chips for figure in chip["figures"].values())

    assert main(["hardware", "h100", "--json"]) == 0
    (chip,) = json.loads(capsys.readouterr().out)
    assert chip["name"] == "h100"


# The user's mistakes: exit code 2, a message on stderr, and nothing that looks like a crash.


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((EQUATION, "--sizes", "I=8,J=6,K=x", "--mesh", "x=4"), "'K=x' is no size; write I=16384,J=1024"),
        ((EQUATION, "--sizes", "I=8,J=--6,K=4", "--mesh", "x=4"), "'J=--6' is no size"),
        ((EQUATION, "--sizes", "I=8,J", "--mesh", "x=4"), "'J' is no size"),
        ((EQUATION, "--sizes", "I=8,I=9", "--mesh", "x=4"), "dimension I has two sizes"),
        ((EQUATION, "--sizes", "I=8,J=6", "--mesh", "x=4"), "no size is given for dimension K: add it, as in --sizes K=1024"),
        ((EQUATION, "--sizes", "I=8,J=6,K=0", "--mesh", "x=4"), "dimension K has size 0: there is nothing to compute"),
        ((EQUATION, "--sizes", "I=8,J=6,K=-4", "--mesh", "x=4"), "dimension K has size -4"),
        ((EQUATION, "--sizes", "I=8,J=6,K=4,L=2", "--mesh", "x=4"), "for dimension L, which the equation lacks"),
        ((EQUATION, *SIZES, "--mesh", "x"), "write each axis as name=size"),
        ((EQUATION, *SIZES, "--mesh", "y=4"), "the mesh has no axis 'x': it has y"),
        ((EQUATION, *SIZES), "the following arguments are required: --mesh"),
        (("A[I_x, J", *SIZES, "--mesh", "x=4"), "close the bracket"),
        ((*PROBLEM, "--hardware", "tpu-v5"), "unknown hardware 'tpu-v5'"),
        ((*PROBLEM, "--dtype", "float31"), "unknown dtype 'float31'"),
        ((*PROBLEM, "--memory-limit", "100"), "the least that would do is"),
        ((*PROBLEM, "--memory-limit", "-1"), "holds nothing"),
        ((*PROBLEM, "--memory-limit", "much"), "invalid float value: 'much'"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value,
)
def test_mistakes_in_a_problem(command, arguments, message, capsys):
    assert main([command, *arguments]) == 2
    assert message in said(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "a.npy"), "write NAME=FILE, as A=a.npy"),
        (("--input", "A="), "write NAME=FILE"),
        (("--input", "D=a.npy"), "the equation has no operand D; it has A, B"),
        (("--input", "A=a.npy", "--input", "A=a.npy"), "operand A has a file already"),
        (("--input", "A=aa.npy"), "there is no file aa.npy"),
        (("--input", "A=b.npy"), "dimension I has size 8, but size 6 in b.npy"),
        (("--input", "A=row.npy"), "row.npy has shape (6,), and A[I_x, J] has 2 dimensions"),
        (("--input", "A=pickled.npy"), "pickled"),
        (("--input", "A=torn.npy"), "torn.npy: "),
        (("--input", "A=notes.txt"), "files that end in .txt are not read"),
        (("--input", "A=complex.npy", "--dtype", "float32"), "whose imaginary part --dtype float32 would drop"),
        (("--output", "c.txt"), "files that end in .txt are not written"),
        (("--output", "nowhere/c.npy"), "nowhere/c.npy: there is no folder nowhere in "),
        (("--overlap", "few"), "argument --overlap: 'few' is none that is known: they are any, none, ring,"),
        (("--seed", "-1"), "--seed -1: a seed is 0 or more"),
        (("--platform", "gpu"), "--platform gpu: JAX has started already, with cpu devices"),
        (("--platform", "abacus"), "invalid choice: 'abacus'"),
        (("--dtype", "bool"), "bool, which has no sums"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_in_a_run(arguments, message, capsys, a, b):
    np.save("a.npy", a)
    np.save("b.npy", b)
    np.save("row.npy", a[0])
    np.save("complex.npy", a + 1j)
    np.save("pickled.npy", np.array([{}, None]), allow_pickle=True)
    Path("torn.npy").write_bytes(Path("a.npy").read_bytes()[:-8])
    Path("notes.txt").write_text("8 x 6")

    assert main(["run", *PROBLEM, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_more_devices_than_there_are(capsys):
    assert main(["run", EQUATION, "--sizes", "I=16,J=6,K=4", "--mesh", "x=16"]) == 2
    assert "needs 16 devices, and there are 8" in said(capsys)


def test_more_memory_than_there_is(capsys, monkeypatch):
    assert main(["run", EQUATION, "--sizes", f"I={2**45},J={2**15},K=4", "--mesh", "x=4"]) == 2
    assert "this host has not enough memory" in said(capsys)

    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(run, "_checked", full)
    assert main(["run", *PROBLEM]) == 2
    assert "the devices have not enough memory" in said(capsys)


def test_mistakes_in_commands(capsys):
    assert main(["plan", *PROBLEM, "--code", "--json"]) == 2
    assert "ask for one of them" in said(capsys)
    assert main(["hardware", "abacus"]) == 2
    assert "unknown hardware 'abacus'" in said(capsys)
    assert main(["fly"]) == 2
    assert "invalid choice: 'fly'" in said(capsys)


def test_help_and_version(capsys):
    for command in ([], ["plan"], ["run"], ["hardware"]):
        assert main([*command, "--help"]) == 0
        assert "usage: shardwise" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"shardwise {sw.__version__}\n"


# Slow stages, and an interrupt.


def test_every_stage_of_a_run_is_told_when_it_is_slow(capsys, monkeypatch):
    class Slow(threading.Timer):
        def __init__(self, interval, function):
            super().__init__(interval, function)
            function()

    monkeypatch.setattr(session.threading, "Timer", Slow)
    assert main(["run", *PROBLEM, "--output", "c.npy", "--json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert [line.removesuffix(" ...") for line in captured.err.splitlines() if line.endswith(" ...")] == [
        "starting JAX",
        "placing the operands",
        "compiling and running the plan",
        "checking against the unsharded result",
        "writing c.npy",
    ]


def test_an_interrupt_ends_with_130(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_checked", interrupted)
    assert main(["run", *PROBLEM, "--json"]) == 130
    assert said(capsys) == "shardwise: interrupted\n"
