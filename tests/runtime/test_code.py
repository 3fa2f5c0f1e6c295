"""Fused programs as plain source: what `Plan.code()` writes is the einsum, has its derivative, and needs no Shardwise."""

from __future__ import annotations

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import PlanError
from shardwise.mesh import Mesh
from shardwise.planning.fuse import names_of
from shardwise.program import Program
from shardwise.runtime.code import source
from shardwise.runtime.lower import leaves_replicated
from shardwise.steps import AllGather, Einsum, EinsumScatter, GatherEinsum, ReduceScatter

EQUATIONS = {
    "D6, gathered": ("A[I_x, J] · B[J, K] -> C[I, K]", "x"),
    "D7, a block of each operand": ("A[I_x, J] · Y[P_x, J, K] -> C[P_x, I, K]", "x"),
    "D8, scattered": ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x"),
    "D8, summed": ("A[I, J_x] · B[J_x, K] -> C[I, K]", "x"),
    "D10, both operands": ("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "xy"),
    "up": ("X[B_x, D] · W[D, F_x] -> H[B, F_x]", "x"),
    "weights": ("A[B_x, D] · W[D_x, F] -> C[B_x, F]", "x"),
}
HAVE = {
    "D6, gathered": {"ring", "bidirectional"},
    "D7, a block of each operand": {"ring", "bidirectional"},
    "D8, scattered": {"ring", "bidirectional", "scatter"},
    "D8, summed": {"ring", "bidirectional", "scatter"},
    "D10, both operands": {"ring", "bidirectional", "rotate"},
    "up": {"ring", "bidirectional"},
    "weights": {"ring", "bidirectional"},
}
MESHES = {"x": ["x=2", "x=3", "x=4"], "xy": ["x=2, y=2", "x=2, y=3", "x=2, y=4"]}
CASES = [
    (name, mesh, way)
    for name, (_, kind) in EQUATIONS.items()
    for mesh, way in itertools.product(MESHES[kind], ["ring", "bidirectional", "scatter", "rotate"])
]
SIZE = 24


def drawn(equation: str, size: int = SIZE) -> list[np.ndarray]:
    """Small whole numbers, whose products every order of addition sums exactly."""
    random = np.random.default_rng(0)
    shapes = [[size] * len(operand.dims) for operand in sw.parse(equation).operands]
    return [random.integers(-4, 4, shape).astype("float32") for shape in shapes]


def whole(equation: str):
    terms, numbers = sw.parse(equation), {}
    letters = ["".join(chr(97 + numbers.setdefault(dim, len(numbers))) for dim in term.dims) for term in terms.operands]
    out = "".join(chr(97 + numbers[dim]) for dim in terms.result.dims)
    return lambda *arrays: jnp.einsum(f"{','.join(letters)}->{out}", *arrays, precision="highest")


def executed(text: str, program: Program, arrays: list[np.ndarray]) -> tuple:
    """The program that the source makes, and the arrays placed as it wants them."""
    names: dict = {}
    exec(text, names)
    specs = [layout.on(program.mesh).spec for _, layout in program.inputs]
    placings = [jax.sharding.NamedSharding(names["mesh"], spec) for spec in specs]
    return names["program"], [jax.device_put(a, placing) for a, placing in zip(arrays, placings, strict=True)], names["mesh"]


def assert_is_einsum(equation: str, program: Program, derivative: bool = False) -> None:
    text, arrays = source(program, equation), drawn(equation)
    assert "shardwise" not in text
    assert ("check_vma=False" in text) == leaves_replicated(program)
    function, placed, mesh = executed(text, program, arrays)
    wanted = np.asarray(whole(equation)(*arrays))
    made = function(*placed)
    for shard in made.addressable_shards:  # every copy, where there are several
        np.testing.assert_array_equal(shard.data, wanted[shard.index], err_msg=text)
    if derivative:
        weights = np.random.default_rng(1).integers(-4, 4, wanted.shape).astype("float32")
        with jax.set_mesh(mesh):
            cotangent = jax.device_put(weights, made.sharding)
            found = jax.jit(lambda ct, *given: jax.vjp(function, *given)[1](ct))(cotangent, *placed)
        for one, other in zip(found, jax.vjp(whole(equation), *arrays)[1](weights), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=text)


@pytest.mark.parametrize(("name", "mesh", "way"), CASES)
def test_the_source_of_a_fused_program_is_the_einsum(name, mesh, way):
    equation = EQUATIONS[name][0]
    sizes = dict.fromkeys(sw.parse(equation).dims, SIZE)
    if way not in HAVE[name]:
        with pytest.raises(PlanError, match="no program of this equation has it"):
            sw.plan(equation, sizes=sizes, mesh=mesh, dtype="float32", overlap=way)
        return
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, dtype="float32", overlap=way)
    assert any(way in names_of(step) for step in plan.best.program.steps)
    assert_is_einsum(equation, plan.best.program, derivative=not mesh.endswith("=2"))
