"""Meshes whose axes are of several types: every layout comes back as asked for, or is refused in our words."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw
from shardwise.layout import splits
from shardwise.planning.problem import problem
from shardwise.program import Program
from shardwise.runtime.execute import planned_function
from shardwise.steps import Automatic

AXES = "xyz"
CASES = 60
TRIES = ("placed", "host", "placed, jit", "host, jit")


@dataclass(frozen=True)
class Case:
    """An equation on a mesh, the type of each of its axes, and how it is called."""

    mesh: str
    types: tuple[AxisType, ...]
    equation: str
    how: str


def cases(count: int, seed: int = 0) -> list[Case]:
    drawn = random.Random(seed)
    return [_case(drawn, TRIES[number % len(TRIES)]) for number in range(count)]


def _case(drawn: random.Random, how: str) -> Case:
    names = AXES[: drawn.randint(1, 3)]
    mesh = ", ".join(f"{name}={drawn.choice((1, 2, 2, 2))}" for name in names)
    types = tuple(drawn.choice((AxisType.Auto, AxisType.Explicit)) for _ in names)

    def operand(name: str, dims: str) -> str:
        every = splits(len(dims), tuple(names))
        deep = [each for each in every if any(len(axes) > 1 for axes in each)]  # a dimension over two axes: where types mix
        chosen = drawn.choice(deep if deep and drawn.random() < 0.5 else every)
        return f"{name}{sw.Layout(tuple(zip(dims, chosen, strict=True)))}"

    terms = drawn.choice((("J", "J"), ("IJ", "IJ"), ("IJ", "JI"), ("IJ", "I"), ("IJ", "JK", "IK")))
    *left, result = (operand(name, dims) for name, dims in zip("ABC"[: len(terms) - 1] + "C", terms, strict=True))
    return Case(mesh, types, f"{' · '.join(left)} -> {result}", how)


def explicit_axes(case: Case) -> set[str]:
    return {name for name, kind in zip(AXES, case.types, strict=False) if kind == AxisType.Explicit}


def mixed(case: Case) -> bool:
    """Whether a dimension of the result is split over axes of both types."""
    layout = sw.parse(case.equation).on(sw.Mesh.parse(case.mesh)).result.layout
    return any(0 < len(set(axes) & explicit_axes(case)) < len(axes) for _, axes in layout.dims)


def refusal(case: Case) -> str:
    """Why JAX cannot express a case; empty where it can."""
    read, explicit = sw.parse(case.equation).on(sw.Mesh.parse(case.mesh)), explicit_axes(case)
    for operand in (*read.operands, read.result):
        for _, axes in operand.layout.dims:
            if any(one not in explicit and other in explicit for one, other in itertools.pairwise(axes)):
                return "is Auto, before"
    return "inside jit JAX's types tell" if mixed(case) and "jit" in case.how else ""


def compilers_own(case: Case, mesh: jax.sharding.Mesh) -> Callable[..., jax.Array]:
    """The compiler's own program, as a confirmed plan may have it."""
    equation = sw.parse(case.equation)
    task = problem(equation, dict.fromkeys(equation.dims, 8), sw.Mesh.parse(case.mesh), "cpu", "float32")
    inputs = tuple((operand.name, operand.layout) for operand in task.equation.operands)
    step = Automatic(tuple(name for name, _ in inputs), "C", task.equation.result.layout)
    return planned_function(task, Program(task.mesh, inputs, (step,), "C"), mesh)


def run(case: Case, own: bool = False) -> tuple[jax.Array, np.ndarray]:
    """What a case gives, planned or by the compiler's own program, and the same by NumPy."""
    read, sizes = sw.parse(case.equation), {"I": 8, "J": 8, "K": 8}
    mesh = sw.make_mesh(case.mesh, axis_types=case.types)
    whole = [np.arange(np.prod(shape := [sizes[d] for d in o.dims]), dtype=np.float32).reshape(shape) for o in read.operands]
    letters = ",".join("".join(operand.dims) for operand in read.operands)
    wanted = np.einsum(f"{letters}->{''.join(read.result.dims)}", *whole)
    arrays = whole
    if "placed" in case.how:
        arrays = [sw.put(array, operand.layout, mesh) for array, operand in zip(whole, read.operands, strict=True)]

    def planned(*arrays: jax.Array) -> jax.Array:
        return sw.einsum(case.equation, *arrays, mesh=mesh)

    function = compilers_own(case, mesh) if own else planned
    return (jax.jit(function) if "jit" in case.how else function)(*arrays), wanted


@pytest.mark.parametrize("part", range(4))
def test_every_mix_of_axis_types_gives_the_layout_asked_for(part: int):
    for case in cases(CASES)[part::4]:
        if why := refusal(case):
            with pytest.raises(sw.ShardwiseError, match=why):
                run(case)
            continue
        got, wanted = run(case)
        layout = sw.parse(case.equation).result.layout.on(sw.Mesh.parse(case.mesh))
        assert sw.Layout.from_spec(got.sharding.spec, layout.names).on(sw.Mesh.parse(case.mesh)) == layout, case
        np.testing.assert_array_equal(got, wanted, err_msg=str(case))


@pytest.mark.parametrize("part", range(4))
def test_the_compilers_own_program_gives_it_too(part: int):
    """With one operand and nothing to sum, `jnp.einsum` leaves the layout as it was, whatever `out_sharding` says."""
    for case in cases(2 * CASES, seed=1)[part::4]:
        if "placed" in case.how and not refusal(case) and not mixed(case):
            got, wanted = run(case, own=True)
            layout = sw.parse(case.equation).result.layout.on(sw.Mesh.parse(case.mesh))
            assert sw.Layout.from_spec(got.sharding.spec, layout.names).on(sw.Mesh.parse(case.mesh)) == layout, case
            np.testing.assert_array_equal(got, wanted, err_msg=str(case))


def test_the_cases_hold_every_sort():
    """Of every way to call there are mixed results that are given, or refused, and none of it is most of the cases."""
    sorts = [(case.how, refusal(case), mixed(case)) for case in cases(CASES)]
    assert sum(not why for _, why, _ in sorts) > CASES // 2
    for how in ("placed", "host"):
        assert (how, "", True) in sorts
        assert (f"{how}, jit", "inside jit JAX's types tell", True) in sorts


def test_a_dimension_over_an_explicit_axis_and_then_an_auto_one():
    mesh, given = sw.make_mesh("y=2, z=2", axis_types=(AxisType.Auto, AxisType.Explicit)), np.arange(8, dtype=np.float32)

    def spread(a: jax.Array) -> jax.Array:
        return sw.einsum("A[J] -> C[J_{z,y}]", a, mesh=mesh)

    outside = spread(sw.put(given, "A[J]", mesh))
    assert outside.sharding.spec == jax.P(("z", "y"))
    np.testing.assert_array_equal(outside, given)
    batched = jax.vmap(spread)(sw.put(np.stack([given, given]), "A[N, J]", mesh))
    assert batched.sharding.spec == jax.P(None, ("z", "y"))
    back = jax.vjp(spread, sw.put(given, "A[J]", mesh))[1](outside)[0]
    np.testing.assert_array_equal(back, given)
    why = "J is split over z, which is Explicit, and y, which is Auto: inside jit JAX's types tell z alone"
    with pytest.raises(sw.ShardwiseError, match=why):
        jax.jit(spread)(given)
    with pytest.raises(sw.ShardwiseError, match=why):
        jax.jit(lambda key: sw.random.normal(key, "C[J_{z,y}]", sizes={"J": 8}, mesh=mesh))(jax.random.key(0))


def test_a_free_layout_is_one_that_types_can_tell():
    mesh = sw.make_mesh("y=2, z=2", axis_types=(AxisType.Auto, AxisType.Explicit))
    given = np.arange(16, dtype=np.float32).reshape(4, 4)
    for function in (free := lambda a: sw.einsum("A[I_y, J_z] -> C[I_?, J_?]", a, mesh=mesh), jax.jit(free)):
        np.testing.assert_array_equal(function(sw.put(given, "A[I_y, J_z]", mesh)), given)


def test_manual_axes_are_refused():
    for kinds in (AxisType.Manual, (AxisType.Explicit, AxisType.Manual)):
        mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
        for use in (
            lambda mesh: sw.einsum("A[I_x] -> A[I]", np.arange(8.0), mesh=mesh),
            lambda mesh: sw.reshard(np.arange(8.0), "A[I_x] -> A[I]", mesh),
            lambda mesh: sw.put(np.arange(8.0), "A[I_x]", mesh),
            lambda mesh: sw.random.normal(jax.random.key(0), "A[I_x]", sizes={"I": 8}, mesh=mesh),
            lambda mesh: sw.plan("A[I_x] -> A[I]", sizes={"I": 8}, mesh="x=2, y=2").function(mesh),
        ):
            with pytest.raises(sw.ShardwiseError, match=r"y is Manual.*sw\.make_mesh"):
                use(mesh)
