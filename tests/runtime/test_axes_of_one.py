"""Axes of one device: they split nothing, but JAX's types tell them apart, and meshes of training jobs are full of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.errors import PlanError
from shardwise.layout import splits
from shardwise.runtime.mapped import typed_as

SIZES = {"I": 8, "J": 8, "K": 16}
TERMS = (("IJ", "JK", "IK"), ("IJ", "IJ"), ("IJ", "JI"), ("IJ", "I"), ("IJ", "KJ", "KI"))
WAYS: tuple[bool | str, ...] = (True, False, "ring", "bidirectional", "scatter")


@dataclass(frozen=True)
class Case:
    """An equation on a mesh with axes of size 1, and the types that arrays of it are given with."""

    mesh: sw.Mesh
    equation: str
    given: tuple[sw.Layout, ...]
    overlap: bool | str

    @property
    def wanted(self) -> sw.Layout:
        return sw.parse(self.equation).result.layout


def case(seed: int) -> Case:
    """Axes of size 1 stand among the others in any order, and on arrays otherwise than the equation says."""
    drawn = random.Random(seed)
    sizes = drawn.sample([("x", 1), ("y", drawn.choice((2, 4))), ("z", drawn.choice((1, 2)))], 3)
    mesh, terms = sw.Mesh(tuple(sizes)), drawn.choice(TERMS)
    layouts = [sw.Layout(tuple(zip(dims, drawn.choice(list(splits(len(dims), mesh.names))), strict=True))) for dims in terms]
    equation = " · ".join(f"{name}{layout}" for name, layout in zip("AB", layouts[:-1], strict=False)) + f" -> C{layouts[-1]}"
    way = next(way for way in (drawn.choice(WAYS), True) if way in (True, False) or is_there(equation, mesh, way))
    return Case(mesh, equation, tuple(otherwise(drawn, layout, mesh) for layout in layouts[:-1]), way)


def is_there(equation: str, mesh: sw.Mesh, way: bool | str) -> bool:
    """Whether some program overlaps transfers so."""
    try:
        return bool(sw.plan(equation, sizes={dim: SIZES[dim] for dim in sw.parse(equation).dims}, mesh=mesh, overlap=way))
    except PlanError:
        return False


def otherwise(drawn: random.Random, layout: sw.Layout, mesh: sw.Mesh) -> sw.Layout:
    """The same layout, in which axes of size 1 are written elsewhere."""
    ones = [name for name, size in mesh.axes if size == 1]
    dims = {dim: list(axes) for dim, axes in layout.on(mesh).dims}
    for axis in drawn.sample(ones, drawn.randint(0, len(ones))):
        axes = dims[drawn.choice(list(dims))]
        axes.insert(drawn.randint(0, len(axes)), axis)
    return sw.Layout(tuple((dim, tuple(axes)) for dim, axes in dims.items()))


def placed(each: Case, mesh: jax.sharding.Mesh) -> list[jax.Array]:
    found = []
    for number, layout in enumerate(each.given):
        whole = np.random.default_rng(number).integers(-4, 5, [SIZES[dim] for dim in layout.names]).astype(np.float32)
        found.append(jax.device_put(whole, NamedSharding(mesh, layout.spec)))
    return found


def letters(each: Case) -> str:
    *left, result = ("".join(layout.names) for layout in (*each.given, each.wanted))
    return f"{','.join(left)}->{result}"


@pytest.mark.parametrize("part", range(4))
def test_arrays_are_taken_as_they_are_typed_and_results_are_typed_as_written(part: int):
    for seed in range(part, 48, 4):
        each = case(seed)
        mesh = sw.make_mesh(each.mesh)
        arrays, spec = placed(each, mesh), each.wanted.spec

        def multiplied(*arrays: jax.Array, each: Case = each, mesh: jax.sharding.Mesh = mesh) -> jax.Array:
            return sw.einsum(each.equation, *arrays, mesh=mesh, overlap=each.overlap)

        def squares(*arrays: jax.Array, multiplied=multiplied) -> jax.Array:
            return jnp.sum(jnp.square(multiplied(*arrays)))

        whole = [np.asarray(array) for array in arrays]
        wanted = np.einsum(letters(each), *whole)
        for call in (multiplied, jax.jit(multiplied)):
            got = call(*arrays)
            assert jax.typeof(got).sharding.spec == spec, each
            np.testing.assert_array_equal(got, wanted, err_msg=str(each))
        gradients = jax.jit(jax.grad(squares, tuple(range(len(arrays)))))(*arrays)
        plain = jax.grad(lambda *w, each=each: jnp.sum(jnp.square(jnp.einsum(letters(each), *w))), tuple(range(len(whole))))
        for array, gradient, expected in zip(arrays, gradients, plain(*whole), strict=True):
            assert jax.typeof(gradient) == jax.typeof(array), each
            np.testing.assert_array_equal(gradient, expected, err_msg=str(each))


def test_the_cases_hold_both_sorts():
    found = [case(seed) for seed in range(48)]
    assert sum(each.wanted != each.wanted.on(each.mesh) for each in found) > 16
    operands = [(sw.parse(each.equation).operands, each.given) for each in found]
    assert sum(tuple(operand.layout for operand in read) != given for read, given in operands) > 16
    assert sum(each.overlap not in (True, False) for each in found) > 8


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return sw.make_mesh("data=1, fsdp=4, tensor=2")


def test_what_is_made_is_typed_as_written(mesh):
    assert sw.put(np.ones((8, 8)), "A[I_{data,fsdp}, J]", mesh).sharding.spec == PartitionSpec(("data", "fsdp"), None)
    drawn = sw.random.normal(jax.random.key(0), "A[I_{data,fsdp}, J]", sizes={"I": 8, "J": 8}, mesh=mesh)
    assert drawn.sharding.spec == PartitionSpec(("data", "fsdp"), None)
    moved = sw.reshard(drawn, "A[I_{data,fsdp}, J] -> A[I_data, J_fsdp]")
    assert moved.sharding.spec == PartitionSpec("data", "fsdp")


def test_a_residual_is_added_and_a_loop_carried(mesh):
    x = sw.put(np.ones((8, 8), np.float32), "X[B_{data,fsdp}, D]", mesh)
    w = sw.put(np.ones((8, 8), np.float32), "W[D_tensor, F]", mesh)

    def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + sw.einsum("X[B_{data,fsdp}, D] · W[D_tensor, F] -> Y[B_{data,fsdp}, F]", x, w), None

    out, _ = jax.jit(lambda x: jax.lax.scan(layer, x, None, length=2))(x)
    np.testing.assert_array_equal(out, np.full((8, 8), 81.0))


def test_what_the_planner_lays_out_is_typed_as_the_operand_that_lies_so(mesh):
    x = sw.put(np.ones((8, 8), np.float32), "X[B_{data,fsdp}, D]", mesh)
    assert jax.typeof(sw.einsum("bd,df->bf", x, np.ones((8, 4), np.float32))).sharding.spec == PartitionSpec(
        ("data", "fsdp"), None
    )


def test_printed_code_takes_them_as_written(mesh):
    equation = "X[B_{data,fsdp}, D] · W[D_data, F_tensor] -> Y[B_{data,fsdp}, F_tensor]"
    made: dict[str, object] = {}
    exec(sw.plan(equation, sizes={"B": 8, "D": 8, "F": 8}, mesh=mesh, hardware="tpu-v5e").code(), made)
    x = sw.put(np.ones((8, 8), np.float32), "X[B_{data,fsdp}, D]", mesh)
    w = sw.put(np.ones((8, 8), np.float32), "W[D_data, F_tensor]", mesh)
    assert made["program"](x, w).sharding.spec == PartitionSpec(("data", "fsdp"), "tensor")  # type: ignore[operator]


def test_what_has_the_type_or_none_is_left():
    mesh = sw.make_mesh("x=4, y=1")
    a = sw.put(np.ones(8), "A[I_x]", mesh)
    assert typed_as(a, PartitionSpec("x")) is a
    assert jax.typeof(typed_as(a, PartitionSpec("y"))).sharding.spec == PartitionSpec("y")
    auto = sw.make_mesh("x=4, y=1", axis_types=AxisType.Auto)
    b = sw.put(np.ones(8), "A[I_x]", auto)
    assert typed_as(b, PartitionSpec(("x", "y"))) is b
