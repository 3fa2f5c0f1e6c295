"""`sw.plan(equation, a, b)`: sizes, dtype, mesh, hardware and layouts read off arrays, or what describes them."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.errors import ArrayError, MeshError, NotationError, PlanError

EQUATION = "A[I, J_x] · B[J_x, K] -> C[I, K]"
SIZES = {"I": 16, "J": 32, "K": 8}


def words(**more):
    return sw.plan(EQUATION, **({"sizes": SIZES, "mesh": "x=4", "dtype": "float32"} | more))


def told(plan):
    return [(str(candidate.program), candidate.estimate) for candidate in plan]


@pytest.fixture
def mesh():
    return sw.make_mesh("x=4")


def structs(mesh, dtype="float32"):
    return [
        jax.ShapeDtypeStruct((16, 32), dtype, sharding=NamedSharding(mesh, P(None, "x"))),
        jax.ShapeDtypeStruct((32, 8), dtype, sharding=NamedSharding(mesh, P("x"))),
    ]


def placed(mesh):
    return [sw.put(np.ones((16, 32), np.float32), "I, J_x", mesh), sw.put(np.ones((32, 8), np.float32), "J_x, K", mesh)]


def test_arrays_and_what_describes_them_say_what_the_keywords_say(mesh):
    plain = [np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)]
    bare = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in plain]
    plans = [
        sw.plan(EQUATION, *placed(mesh)),
        sw.plan(EQUATION, *structs(mesh)),
        sw.plan(EQUATION, *structs(mesh.abstract_mesh)),
        sw.plan(EQUATION, placed(mesh)[0], bare[1]),
        sw.plan(EQUATION, *plain, mesh="x=4"),
        sw.plan(EQUATION, *bare, mesh={"x": 4}),
        sw.plan(EQUATION, *bare, mesh=mesh),
        sw.plan("ij,jk->ik", *placed(mesh)),
    ]
    for plan in plans[:-1]:
        assert plan.task == words().task
        assert told(plan) == told(words())
    assert dict(plans[-1].task.sizes) == {"i": 16, "j": 32, "k": 8}


def test_the_mesh_in_force_is_meant_with_arrays_and_without(mesh):
    with jax.set_mesh(mesh):
        assert sw.plan(EQUATION, np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)).task == words().task
        assert sw.plan(EQUATION, sizes=SIZES, dtype="float32").task == words().task


def test_inside_jit_types_are_read(mesh):
    seen = []

    @jax.jit
    def step(a, b):
        seen.append(sw.plan("ij,jk->ik", a, b))
        return a @ b if not seen else sw.einsum(EQUATION, a, b)

    step(*placed(mesh))
    assert str(seen[0].task.equation.operands[0].layout) == "[i, j_x]"


def test_dtypes_are_those_that_run(mesh):
    assert sw.plan(EQUATION, *structs(mesh, "bfloat16")).task.dtype == "bfloat16"
    assert sw.plan(EQUATION, np.ones((16, 32)), np.ones((32, 8)), mesh="x=4").task.dtype == "float32"  # JAX without x64
    assert sw.plan(EQUATION, jnp.ones((16, 32), "int8"), np.ones((32, 8), "int16"), mesh="x=4").task.dtype == "int16"


def test_what_is_given_besides_stands(mesh):
    plan = sw.plan(EQUATION, *structs(mesh), hardware="tpu-v5e", dtype="bfloat16", memory_limit=1e9, overlap=False)
    assert told(plan) == told(words(hardware="tpu-v5e", dtype="bfloat16", memory_limit=1e9, overlap=False))


def test_the_function_of_such_a_plan_runs(mesh):
    plan = sw.plan(EQUATION, *structs(mesh))
    np.testing.assert_array_equal(plan.function(mesh)(*placed(mesh)), np.full((16, 8), 32.0))


def refused(error, *given, equation=EQUATION, **more) -> str:
    with pytest.raises(error) as caught:
        sw.plan(equation, *given, **more)
    return str(caught.value)


def test_an_array_that_lies_otherwise_is_refused_with_the_call_that_moves_it(mesh):
    a, b = structs(mesh)
    said = refused(ArrayError, sw.put(np.ones((16, 32), np.float32), "I_x, J", mesh), b)
    assert 'move it first, sw.reshard(a, "A[I_x, J] -> A[I, J_x]")' in said
    assert "arrays: float32[16, 32], float32[32, 8]" in said
    assert "laid out as B[J_x, K]" in refused(ArrayError, a, b, equation="A[I, J_x] · B[J, K_x] -> C[I, K]")


def test_what_is_missing_or_too_much_is_said(mesh):
    a, b = structs(mesh)
    assert "drop sizes, or plan without the arrays" in refused(PlanError, a, b, sizes=SIZES)
    assert "neither sizes nor arrays are given" in refused(PlanError, mesh="x=4")
    assert "no mesh is given, none is in force" in refused(MeshError, sizes=SIZES)
    assert "no mesh is given, none is in force" in refused(MeshError, np.ones((16, 32)), np.ones((32, 8)))
    assert "the equation has 2 operands (A, B), and 1 array is given" in refused(ArrayError, a)
    assert "dimension J has size 32 in A and size 16 in B" in refused(NotationError, a, np.ones((16, 8)))
    assert "unknown dtype 'floaty'" in refused(PlanError, a, b, dtype="floaty")


def test_under_auto_axes_too():
    mesh = sw.make_mesh("x=4", axis_types=AxisType.Auto)
    assert sw.plan(EQUATION, *placed(mesh)).task == words().task


def test_the_keyword_form_needs_no_jax():
    code = f"import sys, shardwise as sw; sw.plan({EQUATION!r}, sizes={SIZES!r}, mesh='x=4'); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
