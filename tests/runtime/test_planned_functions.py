"""A plan's function, and its code as plain JAX: every candidate equals `jnp.einsum`."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import numpy as np
import pytest
from contractions import CONTRACTED, GATHERED, SCATTERED, drawn, whole

import shardwise as sw
from shardwise.planning.ranking import Candidate
from shardwise.steps import AllToAll, CollectivePermute

# A plan's function, and its code as plain JAX.

CODED = [
    ("x=4", GATHERED),
    ("x=4", CONTRACTED),
    ("x=4", SCATTERED),
    ("x=4", "A[I_x, J] -> A[I, J_x]"),
    ("x=4", "A[I_x, J] -> A[J, I_x]"),
    ("x=4", "A[I_x, J] -> S[J_x]"),
    ("x=4", "A[I_x, J] -> S[]"),
    ("x=4", "A[I, J] · B[J, K] -> C[I_x, K]"),
    ("x=4", "A[P_x, I, J] · B[P_x, J, K] -> C[I, P_x, K]"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]"),
    ("x=2, y=2", "A[I_{x,y}, J] -> A[I_{y,x}, J]"),
    ("x=2, y=2", "A[I_x, J_y] -> A[I_y, J_x]"),
    ("x=2, y=2", "A[I_x, J] · B[J, K_y] · D[K_y, L] -> E[I_x, L]"),
    ("x=2, y=2", "A[I_x, J] · B[J_y, K] · D[K, L_y] · F[L, M] -> E[I_x, M_y]"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y} -> C[I, K_y]"),
    ("x=2, y=2", "lambda[I_x, program_y] · import[program_y, K] -> jnp[I_x, K_y]"),
]


def by_code(plan: sw.Plan, candidate: Candidate) -> Callable[..., jax.Array]:
    names: dict = {}
    exec(sw.Plan(plan.task, (candidate,)).code(), names)
    return names["program"]


@pytest.mark.parametrize(("mesh_text", "equation"), CODED)
def test_code_and_function_of_every_candidate(mesh_text, equation):
    sizes = dict.fromkeys(sw.parse(equation).dims, 8)
    arrays = drawn(equation, sizes)
    wanted = np.asarray(whole(equation)(*arrays))
    mesh = sw.make_mesh(mesh_text)
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, dtype="float32")
    lying = [sw.put(array, operand.layout, mesh) for array, operand in zip(arrays, sw.parse(equation).operands, strict=True)]

    def run(functions: list[Callable[..., jax.Array]]) -> list[jax.Array]:  # compiled as one
        return jax.jit(lambda *given: [function(*given) for function in functions])(*lying)

    ours, theirs = run([plan.function(mesh, each) for each in plan]), run([by_code(plan, each) for each in plan])
    for candidate, by_function, by_text in zip(plan, ours, theirs, strict=True):
        assert by_text.sharding == by_function.sharding
        for one, other in zip(by_text.addressable_shards, by_function.addressable_shards, strict=True):
            np.testing.assert_array_equal(one.data, other.data, err_msg=str(candidate.program))
        if not candidate.program.result.unreduced:
            np.testing.assert_array_equal(by_function, wanted, err_msg=str(candidate.program))


def test_the_coded_programs_have_permutes_and_all_to_alls():
    steps = {
        type(step)
        for mesh, equation in CODED
        for step in sw.plan(equation, sizes=dict.fromkeys(sw.parse(equation).dims, 8), mesh=mesh).best.program.steps
    }
    assert steps >= {CollectivePermute, AllToAll}


@pytest.mark.parametrize(
    "equation", ["A[B, I_x, L, J] -> A[B, I, L, J_x]", "A[J_x, B, L, I] -> A[J, B, L, I_x]", "A[B, J_x, I] -> A[B, J, I_x]"]
)
def test_an_all_to_all_leaves_out_other_dimensions_of_size_1(equation):
    """With one in front, TPU compilers lay the blocks out up to five times as slowly."""
    sizes = {dim: {"I": 256, "J": 512}.get(dim, 1) for dim in sw.parse(equation).dims}
    mesh, (array,) = sw.make_mesh("x=4"), drawn(equation, sizes)
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, dtype="float32", hardware="tpu-v5e")
    assert [type(step) for step in plan.best.program.steps] == [AllToAll]
    function = jax.jit(plan.function(mesh))
    placed = sw.put(array, sw.parse(equation).operands[0].layout, mesh)
    np.testing.assert_array_equal(function(placed), array)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda a: (function(a) ** 2).sum()))(placed), 2 * array)
    (moved,) = re.findall(r"stablehlo.all_to_all.*?-> tensor<([x\d]+)xf32>", function.lower(placed).as_text(), re.DOTALL)
    assert len([size for size in moved.split("x") if size != "1"]) == len(moved.split("x"))


def test_code_of_partial_sums_as_operands():
    mesh = sw.make_mesh("x=2, y=2")
    a, b = drawn(CONTRACTED, {"I": 8, "J": 8, "K": 8})
    partial = sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}", a, b, mesh=mesh)
    for result in ("C[I_x, K]", "C[I_x, K_y]", "C[I, K_y]"):
        plan = sw.plan(f"C[I_x, K]{{U_y}} -> {result}", sizes={"I": 8, "K": 8}, mesh=mesh, dtype="float32")
        names: dict = {}
        exec(plan.code(), names)
        np.testing.assert_array_equal(names["program"](partial), a @ b)
        np.testing.assert_array_equal(plan.function(mesh)(partial), a @ b)
