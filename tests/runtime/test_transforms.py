"""Every transformation of JAX, through the plan that each chip gets by default: derivatives of any order, vmap, remat, scan.

Plans are made for sizes at which rings win on accelerators, and their programs run on small arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from benchmarks.equations import Case, whole
from shardwise.notation import parse, parse_sizes
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import Program
from shardwise.runtime.execute import planned_function
from shardwise.steps import EinsumGather, EinsumScatter, GatherEinsum, RotateEinsum

pytestmark = pytest.mark.usefixtures("caches_cleared_afterwards")


@dataclass(frozen=True)
class Equation:
    """An equation on a mesh, the sizes that are planned for, and those that run."""

    text: str
    mesh: str
    planned: tuple[tuple[str, int], ...]
    run: tuple[tuple[str, int], ...]
    overlap: bool | str = True

    def programs(self) -> list[Program]:
        """The best program of every chip of the catalogue, each once; those of rings."""
        equation, found = parse(self.text), {}
        for chip in sw.hardware.names():
            for dtype in ("float32", "bfloat16"):
                task = problem(equation, dict(self.planned), self.mesh, chip, dtype, overlap=self.overlap)
                best = rank(task)[0].program
                if best.overlaps:
                    found[best.steps] = best
        return list(found.values())

    def function(self, program: Program, mesh: Any) -> Callable[..., jax.Array]:
        task = problem(parse(self.text), dict(self.run), self.mesh, dtype="float32")
        return planned_function(replace(task, overlap=self.overlap), program, mesh)


def equation(text: str, mesh: str, planned: str, run: str, overlap: bool | str = True) -> Equation:
    def sizes(said: str) -> tuple[tuple[str, int], ...]:
        return tuple(parse_sizes(said).items())

    return Equation(text, mesh, sizes(planned), sizes(run), overlap)


EQUATIONS = [
    equation("A[I_x, J] · B[J, K] -> C[I, K]", "x=3", "I=16383,J=1024,K=2048", "I=12,J=2,K=3"),
    equation("A[I_x, J] · B[J, K] -> C[I, K]", "x=4", "I=16384,J=8192,K=512", "I=32,J=2,K=3"),
    equation("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=3", "I=4098,J=4098,K=4096", "I=12,J=6,K=2"),
    equation("A[I_x, J] · B[J, K_x] -> C[I, K_x]", "x=3", "I=8193,J=8192,K=28671", "I=9,J=2,K=3"),
    equation("A[B_x, D] · W[D_x, F] -> C[B_x, F]", "x=3", "B=4098,D=4098,F=4096", "B=3,D=9,F=2"),
    equation("A[I, J_x] · B[J_x, K] -> C[I, K]", "x=3", "I=4098,J=4098,K=4096", "I=12,J=6,K=2"),
    equation("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "x=2, y=2", "I=8192,J=8192,K=8192", "I=4,J=8,K=4"),
    equation("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "x=2, y=3", "I=6144,J=6144,K=6144", "I=4,J=12,K=6", "rotate"),
    equation("A[I_x, J] · B[J, K] · D[K, L_x] -> C[I, L_x]", "x=4", "I=4096,J=4096,K=4096,L=4096", "I=16,J=2,K=2,L=4"),
]
EACH = [
    pytest.param(each, program, id=f"{each.text.replace(' ', '')}-{each.mesh}-{number}")
    for each in EQUATIONS
    for number, program in enumerate(each.programs())
]


def curved(function: Callable[..., Any], *arrays: Any) -> Any:
    """Not linear in anything."""
    return jnp.sin(function(*arrays)).sum()


def slopes(function: Callable[..., Any], *arrays: Any) -> Any:
    return jax.grad(functools.partial(curved, function), tuple(range(len(arrays))))(*arrays)


def summed_slopes(function: Callable[..., Any], *arrays: Any) -> Any:
    return sum((slope**2).sum() for slope in slopes(function, *arrays))


def through_a_scan(function: Callable[..., Any], *arrays: Any) -> Any:
    def turn(carry: Any, _: Any) -> tuple[Any, None]:
        return carry + 0.1 * function(arrays[0] * carry, *arrays[1:]).sum(), None

    return jax.lax.scan(turn, jnp.float32(1.0), None, length=3)[0]


def every_transformation(function: Callable[..., Any], *arrays: Any) -> dict[str, Any]:
    """What each makes of a function that is linear in each of some arrays."""
    count = range(len(arrays))
    first, *others = arrays
    return {
        "jvp": jax.jvp(function, arrays, arrays),
        "linearize": jax.linearize(function, *arrays)[1](*arrays),
        "linear transpose": jax.linear_transpose(lambda each: function(each, *others), first)(function(*arrays)),
        "jacobian forward": jax.jacfwd(lambda *xs: function(*xs).sum(0).sum(0), len(arrays) - 1)(*arrays),
        "gradient": slopes(function, *arrays),
        "forward over reverse": jax.jvp(functools.partial(slopes, function), arrays, arrays),
        "reverse over forward": jax.grad(lambda *xs: jax.jvp(functools.partial(curved, function), xs, xs)[1], tuple(count))(
            *arrays
        ),
        "reverse over reverse": jax.grad(functools.partial(summed_slopes, function), tuple(count))(*arrays),
        "remat": jax.grad(jax.checkpoint(functools.partial(curved, function)), tuple(count))(*arrays),
        "scan": jax.grad(functools.partial(through_a_scan, function), tuple(count))(*arrays),
        "vmap": jax.vmap(function, (0, *[None] * len(others)))(jnp.stack([first, 2 * first]), *others),
        "vmap of gradients": jax.vmap(functools.partial(slopes, function), (*[None] * len(others), 1))(
            *arrays[:-1], jnp.stack([arrays[-1], arrays[-1] + 1], 1)
        ),
        "gradient of vmap": slopes(
            lambda *xs: jax.vmap(function, (0, *[None] * len(others)))(jnp.stack([xs[0], 2 * xs[0]]), *xs[1:]), *arrays
        ),
    }


@functools.cache
def unsharded(case: Equation) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Arrays for an equation, and what each transformation makes of its einsum."""
    small = Case(parse(case.text), dict(case.run), sw.Mesh.parse(case.mesh), "cpu")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([small.sizes[dim] for dim in o.dims]).astype(np.float32) for o in small.equation.operands]
    function = functools.partial(every_transformation, lambda *xs: whole(small.equation, xs, jnp.einsum))
    return arrays, jax.jit(function)(*arrays)


@pytest.mark.parametrize(("case", "program"), EACH)
def test_every_transformation_of_every_chips_plan(case: Equation, program: Program):
    arrays, wanted = unsharded(case)
    mesh = sw.make_mesh(case.mesh)
    laid = [sw.put(array, operand.layout, mesh) for array, operand in zip(arrays, parse(case.text).operands, strict=True)]
    with jax.set_mesh(mesh):
        got = jax.jit(functools.partial(every_transformation, case.function(program, mesh)))(*laid)
    for name in wanted:
        for one, other in zip(jax.tree.leaves(got[name]), jax.tree.leaves(wanted[name]), strict=True):
            allowed = 1e-5 * max(1.0, float(jnp.abs(other).max()))
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=allowed, err_msg=f"{name}\n{program}")


def test_all_rings_are_among_them():
    kinds = {type(step) for each in EACH for step in each.values[1].steps}
    assert {GatherEinsum, EinsumScatter, EinsumGather, RotateEinsum} <= kinds
