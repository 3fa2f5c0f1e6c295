"""Random equations, run by JAX on simulated devices and by the NumPy oracle, against einsum of the whole arrays.

Numbers are small and whole, so that every dtype holds every sum exactly, and equal means equal. Seeds are fixed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw
from benchmarks.equations import Case, gradient, grown, padded, random_arrays, random_case, random_mesh, uneven, whole
from shardwise.errors import LayoutError
from shardwise.notation import Operand, parse
from shardwise.planning.problem import problem
from shardwise.planning.ranking import Candidate, rank
from shardwise.reference import run

pytestmark = pytest.mark.usefixtures("caches_cleared_afterwards")

# Blocks of groups: a group's equations stand on one mesh, some called alone, the others in one jitted function, which is
# compiled in half the time that it takes one by one. Of the others each block has so many; in all at least 1,000 run.
BLOCKS, GROUPS, ALONE, TOGETHER, UNEVEN, GRADIENTS = 25, 4, 3, 6, 7, 8
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


def by_einsum(case: Case, mesh: Any, arrays: Sequence[Any], **options: Any) -> jax.Array:
    return sw.einsum(str(case.equation), *arrays, mesh=mesh, hardware=case.hardware, **options)


def by_plan(case: Case, mesh: Any, arrays: Sequence[Any]) -> jax.Array:
    plan = sw.plan(str(case.equation), sizes=case.sizes, mesh=mesh, hardware=case.hardware, dtype=str(arrays[0].dtype))
    return plan.function(mesh)(*arrays)


def by_mesh_in_force(case: Case, mesh: Any, arrays: Sequence[Any], **options: Any) -> jax.Array:
    with jax.set_mesh(mesh):
        return sw.einsum(str(case.equation), *arrays, hardware=case.hardware, **options)


@dataclass(frozen=True)
class Call:
    """An equation with its arrays, to be called in one of the ways."""

    case: Case
    dtype: str
    mesh: jax.sharding.Mesh
    arrays: list[np.ndarray]
    way: Callable[..., jax.Array]

    @classmethod
    def drawn(cls, random: Random, mesh: jax.sharding.Mesh, ways: Sequence[Callable[..., jax.Array]]) -> Call:
        dtype = random.choice(DTYPES)
        case = drawn(random, dtype, mesh=sw.Mesh.parse(mesh))
        way = random.choice([way for way in ways if way is not by_plan or dtype != "int8"])
        return cls(case, dtype, mesh, given(random, case, dtype), way)

    def __call__(self, arrays: Sequence[Any]) -> jax.Array:
        options = {"preferred_element_type": jnp.int32} if self.dtype == "int8" else {}
        return self.way(self.case, self.mesh, arrays, **options)

    def __str__(self) -> str:
        return f"{self.case}, {self.dtype}, {self.way.__name__}, {self.mesh.axis_types[0]}"

    def check(self, got: jax.Array) -> None:
        wanted = whole(self.case.equation, wide(self.arrays))
        oracle = run(best(self.case, self.dtype).program, *wide(self.arrays))
        assert np.array_equal(oracle, wanted), f"the oracle: {self}"
        assert got.dtype == (jnp.int32 if self.dtype == "int8" else jnp.dtype(self.dtype)), self
        assert np.array_equal(np.asarray(got).astype(wanted.dtype), wanted), f"JAX: {self}"
        assert laid_out(got, self.case.equation.result, self.case), f"{self} lies as {got.sharding.spec}"


def placed(random: Random, case: Case, mesh: Any, arrays: list[np.ndarray]) -> list[Any]:
    """On the mesh already; or some still on the host, to be placed by the call."""
    host = random.random() < 0.3
    return [
        array if host and random.random() < 0.5 else sw.put(array, operand.layout, mesh)
        for array, operand in zip(arrays, case.equation.operands, strict=True)
    ]


def mesh_of(random: Random, mesh: sw.Mesh) -> jax.sharding.Mesh:
    return sw.make_mesh(mesh, axis_types=random.choice([AxisType.Explicit, AxisType.Auto]))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_equal_to_einsum(block: int):
    for group in range(GROUPS):
        random = Random(f"even {block} {group}")
        mesh = mesh_of(random, random_mesh(random))
        for _ in range(ALONE):
            call = Call.drawn(random, mesh, [by_einsum, by_plan, by_mesh_in_force])
            call.check(call(placed(random, call.case, mesh, call.arrays)))
        calls = [Call.drawn(random, mesh, [by_einsum, by_plan]) for _ in range(TOGETHER)]
        together = jax.jit(lambda given, calls=calls: [call(arrays) for call, arrays in zip(calls, given, strict=True)])
        for call, got in zip(calls, together([on_mesh(call.case, mesh, call.arrays) for call in calls]), strict=True):
            call.check(got)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_sizes_that_do_not_divide_are_refused_by_name_or_padded(block: int):
    done = 0
    for number in range(100):
        random = Random(f"uneven {block} {number}")
        case = uneven(random, drawn(random, free=0.0))
        if case is None:
            continue
        mesh, arrays = mesh_of(random, case.mesh), given(random, case, "float32")
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


# Derivatives: each of a few equations on one mesh, compiled together.


def differentiable(random: Random, count: int) -> tuple[Any, list[tuple[Case, list[np.ndarray]]]]:
    """A mesh, and so many equations on it with whole numbers as their arrays."""
    mesh = mesh_of(random, random_mesh(random))
    cases = [drawn(random, free=0.0, mesh=sw.Mesh.parse(mesh)) for _ in range(count)]
    return mesh, [(case, given(random, case, "float32")) for case in cases]


def function_of(case: Case, mesh: Any) -> Callable[..., jax.Array]:
    return lambda *arrays: sw.einsum(str(case.equation), *arrays, mesh=mesh, hardware=case.hardware)


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


def together(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Functions as one, of the arguments of each."""
    return jax.jit(lambda given: [function(*each) for function, each in zip(functions, given, strict=True)])


@pytest.mark.parametrize("block", range(BLOCKS))
def test_gradients_equal_those_of_the_unsharded_function(block: int):
    for group in range(2):
        random = Random(f"gradient {block} {group}")
        mesh, drawn = differentiable(random, GRADIENTS // 2)
        weighing = [weights(random, case) for case, _ in drawn]
        functions = [jax.grad(weighted(function_of(case, mesh)), tuple(range(1, 1 + len(arrays)))) for case, arrays in drawn]
        lying = [
            [sw.put(weight, case.equation.result.layout, mesh), *on_mesh(case, mesh, arrays)]
            for weight, (case, arrays) in zip(weighing, drawn, strict=True)
        ]
        for (case, arrays), weight, got in zip(drawn, weighing, together(functions)(lying), strict=True):
            for at, (operand, one) in enumerate(zip(case.equation.operands, got, strict=True)):
                wanted = gradient(case.equation, weight, arrays, at)
                assert np.array_equal(one, wanted), f"{case}, {mesh.axis_types[0]}: the gradient of {operand}"


@pytest.mark.parametrize("block", range(12))
def test_derivatives_forward_equal_those_of_the_unsharded_function(block: int):
    random = Random(f"forward {block}")
    mesh, drawn = differentiable(random, 4)
    tangents = [given(random, case, "float32") for case, _ in drawn]
    functions = [functools.partial(jax.jvp, function_of(case, mesh)) for case, _ in drawn]
    lying = [
        (tuple(on_mesh(case, mesh, arrays)), tuple(on_mesh(case, mesh, along)))
        for (case, arrays), along in zip(drawn, tangents, strict=True)
    ]
    for (case, arrays), along, got in zip(drawn, tangents, together(functions)(lying), strict=True):
        for one, other in zip(got, (whole(case.equation, arrays), tangent(case, arrays, along)), strict=True):
            assert np.array_equal(one, other), f"{case}, {mesh.axis_types[0]}"


@pytest.mark.parametrize("block", range(12))
def test_vmap_over_a_leading_dimension_equals_one_by_one(block: int):
    random = Random(f"vmap {block}")
    mesh, drawn = differentiable(random, 4)
    stacks, chosen = [], []
    for case, _ in drawn:
        stacks.append([given(random, case, "float32") for _ in range(3)])
        mapped = [random.random() < 0.7 for _ in case.equation.operands]
        mapped[random.randrange(len(mapped))] = True
        chosen.append(mapped)
    functions = [
        jax.vmap(function_of(case, mesh), [0 if over else None for over in mapped])
        for (case, _), mapped in zip(drawn, chosen, strict=True)
    ]
    lying = [
        [
            sw.put(np.stack(each) if over else each[0], _led(operand.layout) if over else operand.layout, mesh)
            for operand, over, *each in zip(case.equation.operands, mapped, *stack, strict=True)
        ]
        for (case, _), mapped, stack in zip(drawn, chosen, stacks, strict=True)
    ]
    for (case, _), mapped, stack, got in zip(drawn, chosen, stacks, together(functions)(lying), strict=True):
        for position, arrays in enumerate(stack):
            one = [array if over else first for array, first, over in zip(arrays, stack[0], mapped, strict=True)]
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
    assert BLOCKS * (GROUPS * (ALONE + TOGETHER) + UNEVEN) >= 1000
    assert BLOCKS * GRADIENTS >= 200
