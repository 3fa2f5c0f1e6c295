"""Random equations, run by JAX on simulated devices and by the NumPy oracle, against einsum of the whole arrays.

Numbers are small and whole, so that every dtype holds every sum exactly, and equal means equal. Seeds are fixed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw
from benchmarks.equations import Case, grown, padded, random_arrays, random_case, uneven, whole
from shardwise.errors import LayoutError
from shardwise.notation import Operand, parse
from shardwise.planning.plan import Candidate, rank
from shardwise.planning.problem import problem
from shardwise.reference import run

pytestmark = pytest.mark.usefixtures("caches_cleared_afterwards")

BLOCKS = 25
# Equations of each kind in a block, so that 25 blocks run at least 1,000.
EVEN, UNEVEN, GRADIENTS = 34, 7, 8
# Largest number drawn, and how many products may be summed: with those, no dtype rounds anything.
EXACT = {
    "float32": (3, 10**4),
    "bfloat16": (1, 200),
    "float16": (1, 2000),
    "complex64": (2, 10**3),
    "int32": (3, 10**4),
    "int8": (3, 10**4),
}
DTYPES = ["float32"] * 8 + list(EXACT)[1:]


def drawn(random: Random, dtype: str = "float32", **options: Any) -> Case:
    """Small shapes, since compiling is what takes the time."""
    while True:
        case = random_case(random, elements=2000, factors=(1, 2, 2, 3), **options)
        if case.summed <= EXACT[dtype][1]:
            return case


def given(random: Random, case: Case, dtype: str) -> list[np.ndarray]:
    return random_arrays(random, case, jnp.dtype(dtype), EXACT[dtype][0])


def wide(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [array.astype(np.complex128 if array.dtype.kind == "c" else np.int64) for array in arrays]


def best(case: Case, dtype: str = "float32") -> Candidate:
    return rank(problem(parse(str(case.equation)), case.sizes, case.mesh, case.hardware, dtype))[0]


def laid_out(array: jax.Array, operand: Operand, case: Case) -> bool:
    """The result lies as the equation says; what it leaves to the planner may lie anyhow."""
    made, wanted = sw.Layout.from_spec(array.sharding.spec, operand.dims).on(case.mesh), operand.layout.on(case.mesh)
    fixed = [dim for dim in operand.dims if dim not in operand.free]
    return all(made.axes_of(dim) == wanted.axes_of(dim) for dim in fixed)


# The ways in which a user may call.


def by_einsum(case: Case, mesh: Any, arrays: list[Any], **options: Any) -> jax.Array:
    return sw.einsum(str(case.equation), *arrays, mesh=mesh, hardware=case.hardware, **options)


def by_einsum_in_jit(case: Case, mesh: Any, arrays: list[Any], **options: Any) -> jax.Array:
    return jax.jit(lambda *traced: by_einsum(case, mesh, list(traced), **options))(*arrays)


def by_plan(case: Case, mesh: Any, arrays: list[Any]) -> jax.Array:
    plan = sw.plan(str(case.equation), sizes=case.sizes, mesh=mesh, hardware=case.hardware, dtype=str(arrays[0].dtype))
    return plan.function(mesh)(*arrays)


def by_mesh_in_force(case: Case, mesh: Any, arrays: list[Any], **options: Any) -> jax.Array:
    with jax.set_mesh(mesh):
        return sw.einsum(str(case.equation), *arrays, hardware=case.hardware, **options)


WAYS: list[Callable[..., jax.Array]] = [by_einsum, by_einsum_in_jit, by_plan, by_mesh_in_force]


def placed(random: Random, case: Case, mesh: Any, arrays: list[np.ndarray]) -> list[Any]:
    """On the mesh already; or some still on the host, to be placed by the call."""
    host = random.random() < 0.3
    return [
        array if host and random.random() < 0.5 else sw.put(array, operand.layout, mesh)
        for array, operand in zip(arrays, case.equation.operands, strict=True)
    ]


def mesh_of(random: Random, case: Case) -> jax.sharding.Mesh:
    return sw.make_mesh(case.mesh, axis_types=random.choice([AxisType.Explicit, AxisType.Auto]))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_equal_to_einsum(block: int):
    for number in range(EVEN):
        random = Random(f"even {block} {number}")
        dtype = random.choice(DTYPES)
        case, way = drawn(random, dtype), random.choice(WAYS)
        arrays, mesh = given(random, case, dtype), mesh_of(random, case)
        options = {}
        if dtype == "int8":
            way = by_einsum if way is by_plan else way
            options = {"preferred_element_type": jnp.int32}
        lying = on_mesh(case, mesh, arrays) if way is by_einsum_in_jit else placed(random, case, mesh, arrays)
        said = f"{case}, {dtype}, {way.__name__}, {mesh.axis_types[0]}"
        wanted = whole(case.equation, wide(arrays))
        assert np.array_equal(run(best(case, dtype).program, *wide(arrays)), wanted), f"the oracle: {said}"
        got = way(case, mesh, lying, **options)
        assert got.dtype == (jnp.int32 if dtype == "int8" else jnp.dtype(dtype)), said
        assert np.array_equal(np.asarray(got).astype(wanted.dtype), wanted), f"JAX: {said}"
        assert laid_out(got, case.equation.result, case), f"{said} lies as {got.sharding.spec}"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_sizes_that_do_not_divide_are_refused_by_name_or_padded(block: int):
    done = 0
    for number in range(100):
        random = Random(f"uneven {block} {number}")
        case = uneven(random, drawn(random, free=0.0))
        if case is None:
            continue
        mesh, arrays = mesh_of(random, case), given(random, case, "float32")
        with pytest.raises(LayoutError) as refused:
            by_einsum(case, mesh, arrays)
        assert any(f"dimension {dim} has size {size}" in str(refused.value) for dim, size in case.sizes.items()), case
        even, result = padded(case), case.equation.result
        filled = [grown(a, [even.sizes[d] for d in o.dims]) for a, o in zip(arrays, case.equation.operands, strict=True)]
        wanted = whole(case.equation, wide(arrays))
        full = grown(wanted, [even.sizes[dim] for dim in result.dims])
        assert np.array_equal(run(best(even).program, *wide(filled)), full), f"the oracle: {case}"
        got = by_einsum(case, mesh, arrays, pad=True)
        split = result.layout.on(case.mesh)
        shape = [even.sizes[dim] if split.axes_of(dim) else case.sizes[dim] for dim in result.dims]
        assert got.shape == tuple(shape), f"{case}: padded to {got.shape}"
        assert np.array_equal(np.asarray(got), grown(wanted, shape)), f"JAX: {case}"
        done += 1
        if done == UNEVEN:
            return
    raise AssertionError("too few uneven equations are drawn")


# Derivatives.


def differentiable(random: Random, **options: Any) -> tuple[Case, list[np.ndarray], Any]:
    """An equation, whole numbers as its arrays, and a mesh."""
    case = drawn(random, free=0.0, **options)
    return case, given(random, case, "float32"), mesh_of(random, case)


def function_of(case: Case, mesh: Any) -> Callable[..., jax.Array]:
    return lambda *arrays: sw.einsum(str(case.equation), *arrays, mesh=mesh, hardware=case.hardware)


def gradient(case: Case, weight: np.ndarray, arrays: list[np.ndarray], at: int) -> np.ndarray:
    """Of the weighted sum of the result, by one operand: the einsum of the weights with the others."""
    operand, others = case.equation.operands[at], [*case.equation.operands[:at], *case.equation.operands[at + 1 :]]
    turned = dataclasses.replace(case.equation, operands=(case.equation.result, *others, operand), result=operand)
    ones = np.ones_like(arrays[at])  # for a dimension that it alone sums
    return whole(turned, [weight, *arrays[:at], *arrays[at + 1 :], ones])


def tangent(case: Case, arrays: list[np.ndarray], tangents: list[np.ndarray]) -> np.ndarray:
    """Of the result: with each operand's tangent in its place, one after the other, added up."""
    return sum(whole(case.equation, [*arrays[:at], each, *arrays[at + 1 :]]) for at, each in enumerate(tangents))


def weights(random: Random, case: Case) -> np.ndarray:
    shape = [case.sizes[dim] for dim in case.equation.result.dims]
    return np.random.default_rng(random.getrandbits(32)).integers(-3, 4, shape).astype(np.float32)


def on_mesh(case: Case, mesh: Any, arrays: list[np.ndarray]) -> list[jax.Array]:
    return [sw.put(array, operand.layout, mesh) for array, operand in zip(arrays, case.equation.operands, strict=True)]


def weighted(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda weight, *arrays: (function(*arrays) * weight).sum()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_gradients_equal_those_of_the_unsharded_function(block: int):
    for number in range(GRADIENTS):
        random = Random(f"gradient {block} {number}")
        case, arrays, mesh = differentiable(random)
        weight = weights(random, case)
        lying = [sw.put(weight, case.equation.result.layout, mesh), *on_mesh(case, mesh, arrays)]
        chosen = tuple(range(1, len(lying)))
        got = jax.jit(jax.grad(weighted(function_of(case, mesh)), chosen))(*lying)
        for at, (operand, one) in enumerate(zip(case.equation.operands, got, strict=True)):
            wanted = gradient(case, weight, arrays, at)
            assert np.array_equal(one, wanted), f"{case}, {mesh.axis_types[0]}: the gradient of {operand}"


@pytest.mark.parametrize("block", range(4))
def test_derivatives_forward_equal_those_of_the_unsharded_function(block: int):
    for number in range(12):
        random = Random(f"forward {block} {number}")
        case, arrays, mesh = differentiable(random)
        tangents = given(random, case, "float32")
        forward = jax.jit(functools.partial(jax.jvp, function_of(case, mesh)))
        got = forward(tuple(on_mesh(case, mesh, arrays)), tuple(on_mesh(case, mesh, tangents)))
        wanted = whole(case.equation, arrays), tangent(case, arrays, tangents)
        for one, other in zip(got, wanted, strict=True):
            assert np.array_equal(one, other), f"{case}, {mesh.axis_types[0]}"


@pytest.mark.parametrize("block", range(4))
def test_vmap_over_a_leading_dimension_equals_one_by_one(block: int):
    for number in range(12):
        random = Random(f"vmap {block} {number}")
        case, _, mesh = differentiable(random)
        stacks = [given(random, case, "float32") for _ in range(3)]
        mapped = [random.random() < 0.7 for _ in stacks[0]]
        mapped[random.randrange(len(mapped))] = True
        arrays = [
            sw.put(np.stack(each) if over else each[0], _led(operand.layout) if over else operand.layout, mesh)
            for operand, over, *each in zip(case.equation.operands, mapped, *stacks, strict=True)
        ]
        got = jax.jit(jax.vmap(function_of(case, mesh), [0 if over else None for over in mapped]))(*arrays)
        for position, stack in enumerate(stacks):
            one = [array if over else first for array, first, over in zip(stack, stacks[0], mapped, strict=True)]
            assert np.array_equal(got[position], whole(case.equation, one)), f"{case}, {mesh.axis_types[0]}, {mapped}"


def _led(layout: sw.Layout) -> sw.Layout:
    return dataclasses.replace(layout, dims=(("Lead", ()), *layout.dims))


# Partial sums leave one equation and enter the next.


@pytest.mark.parametrize("block", range(4))
def test_partial_sums_pass_from_one_equation_to_the_next(block: int):
    done = 0
    for number in range(400):
        random = Random(f"partial {block} {number}")
        case = drawn(random, partial=1.0, free=0.0, via=0.0)
        made = case.equation.result
        if not made.layout.on(case.mesh).unreduced or any(o.layout.unreduced for o in case.equation.operands):
            continue
        arrays, mesh = given(random, case, "float32"), sw.make_mesh(case.mesh)
        lying = on_mesh(case, mesh, arrays)
        reduced = dataclasses.replace(made, layout=sw.Layout(made.layout.dims))
        with jax.set_mesh(mesh):
            sums = sw.einsum(str(case.equation), *lying, hardware=case.hardware)
            got = sw.reshard(sums, f"{made} -> {reduced}")
        assert np.array_equal(got, whole(case.equation, arrays)), case
        done += 1
        if done == 6:
            return
    raise AssertionError("too few equations make partial sums")


def test_enough_equations_are_run():
    assert BLOCKS * (EVEN + UNEVEN) >= 1000
    assert BLOCKS * GRADIENTS >= 200
