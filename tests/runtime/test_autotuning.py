"""`sw.plan(..., confirm="here")`: the first candidates run on the mesh's own devices, and are ranked by the clock."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import shardwise as sw
from shardwise.cli import main
from shardwise.errors import DeviceError, HardwareError, MeshError
from shardwise.measure import autotuning
from shardwise.measure.intervals import Timing

EQUATION = "A[I, J] · B[J, K] -> C[I, K]"
SIZES = {"I": 64, "J": 32, "K": 16}


@pytest.fixture
def clock(monkeypatch):
    """A clock by which the third program runs in 1 ms, the others in 2, 3 and so on; the names that were timed."""
    asked: dict[str, int] = {}

    def interleaved(calls, runs):
        asked.update(dict.fromkeys(calls, runs))
        for call in calls.values():
            jax.block_until_ready(call())
        return {name: Timing(((number - 2) % len(calls) + 1e-3,) * 3) for number, name in enumerate(calls)}

    monkeypatch.setattr(autotuning, "interleaved", interleaved)
    return asked


def test_the_fastest_by_the_clock_is_chosen_and_what_did_not_run_comes_last(clock):
    before = sw.plan(EQUATION, sizes=SIZES, mesh="x=4", dtype="float32")
    found = sw.plan(EQUATION, sizes=SIZES, mesh="x=4", dtype="float32", confirm="here")
    assert found.best.program == before.candidates[2].program
    assert found.best.seconds == found.best.measured_seconds == 1e-3
    measured = [each for each in found if each.measured_seconds is not None]
    assert list(found)[: len(measured)] == measured
    assert len(measured) == len(clock)
    assert any(each.is_compilers_own for each in measured)
    assert {each.program for each in before} <= {each.program for each in found}


def test_the_plan_says_that_its_times_are_measured(clock):
    found = sw.plan(EQUATION, sizes=SIZES, mesh="x=4", dtype="float32", confirm="here")
    text = str(found)
    assert f"times are measured, medians of runs in turn on the mesh's own devices: {len(clock)} programs" in text
    assert "x the time of the best, as measured" in text
    assert "seconds are those of" not in text  # of the catalogue's host: nobody's here
    if len(found) > len(clock):
        assert "not measured: an estimate" in text
    assert "measured, a median of runs" in sw.report(found).html


def test_the_function_of_the_choice_computes_the_same(clock):
    a, b = np.ones((64, 32), np.float32), np.arange(512, dtype=np.float32).reshape(32, 16)
    mesh = sw.make_mesh("x=4")
    laid = [sw.put(a, "A[I, J]", mesh), sw.put(b, "B[J, K]", mesh)]
    found = sw.plan(EQUATION, *laid, confirm="here")
    for candidate in found:
        np.testing.assert_allclose(np.asarray(found.function(mesh, candidate)(*laid)), a @ b, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "complex64"])
@pytest.mark.parametrize(
    "equation", ["A[I_x, J] -> A[I, J_x]", "A[I, J_x] · B[J_x, K] -> C[I_?, K]", "A[I_x, J]{U_y} -> A[I, J]"]
)
def test_any_problem_that_can_be_planned_can_be_confirmed(clock, equation, dtype):
    sizes = {dim: SIZES[dim] for dim in ("I", "J", "K") if dim in equation}
    found = sw.plan(equation, sizes=sizes, mesh="x=2, y=2", dtype=dtype, confirm="here")
    assert found.best.measured_seconds is not None


def test_a_memory_limit_holds_for_the_compilers_own_too(clock):
    free = sw.plan("A[I, J_x] · B[J_x, K] -> C[I_x, K]", sizes=SIZES, mesh="x=4", dtype="float32", confirm="here")
    own = next(each for each in free if each.is_compilers_own)
    limit = own.estimate.peak_memory_bytes - 1
    least = min(each.estimate.peak_memory_bytes for each in free if not each.is_compilers_own)
    if least <= limit:
        held = sw.plan(
            "A[I, J_x] · B[J_x, K] -> C[I_x, K]", sizes=SIZES, mesh="x=4", dtype="float32", confirm="here", memory_limit=limit
        )
        assert not any(each.is_compilers_own for each in held)


def test_by_the_real_clock(capsys):
    line = ["plan", EQUATION, "--sizes", "I=64,J=32,K=16", "--mesh", "x=4", "--dtype", "float32", "--confirm", "here", "--json"]
    assert main(line) == 0
    rows = json.loads(capsys.readouterr().out)["candidates"]
    times = [row["confirmed_seconds"] for row in rows if row["confirmed_seconds"] is not None]
    assert len(times) >= 2
    assert times == sorted(times)


def test_what_cannot_run_here_is_refused(capsys):
    with pytest.raises(DeviceError, match="no devices to run on"):
        sw.plan(EQUATION, sizes=SIZES, mesh=AbstractMesh((4,), ("x",)), confirm="here")
    with pytest.raises(DeviceError, match="needs 512 devices"):
        sw.plan(EQUATION, sizes={"I": 512, "J": 8, "K": 8}, mesh="x=512", confirm="here")
    with pytest.raises(MeshError, match="no mesh"):
        sw.plan(EQUATION, sizes=SIZES, confirm="here")
    with pytest.raises(HardwareError):
        sw.plan(EQUATION, sizes=SIZES, mesh="x=4", confirm="there")
    assert main(["plan", EQUATION, "--sizes", "I=64,J=32,K=16", "--mesh", "x=4", "--platform", "cpu"]) == 2
    assert "--platform says on which devices candidates run: add --confirm here" in capsys.readouterr().err


def test_a_mesh_in_force_and_arrays_say_where(clock):
    mesh = sw.make_mesh("x=4")
    with jax.set_mesh(mesh):
        assert sw.plan(EQUATION, sizes=SIZES, confirm="here").best.measured_seconds is not None
    a = sw.put(jnp.ones((64, 32)), "A[I_x, J]", mesh)
    found = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", a, jax.ShapeDtypeStruct((32, 16), "float32"), confirm="here")
    assert found.best.measured_seconds is not None
