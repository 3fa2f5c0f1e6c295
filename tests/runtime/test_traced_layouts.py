"""Running under meshes whose axes are Explicit or Auto, in force or given, inside `jit` and outside."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from contractions import CONTRACTED, GATHERED, drawn, laid_out, placed, whole
from jax.sharding import AxisType

import shardwise as sw

KINDS = {
    "explicit": AxisType.Explicit,
    "auto": AxisType.Auto,
    "x explicit": (AxisType.Explicit, AxisType.Auto),
    "y explicit": (AxisType.Auto, AxisType.Explicit),
}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    "equation",
    [
        "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]",
        "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]",
        "A[I_{x,y}, J] · B[J, K_x] -> C[K_y, I_x]",
        "A[I_y, J] · B[J, K] -> C[I, K]",
    ],
)
def test_axis_types(kinds, equation):
    mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
    arrays = drawn(equation, {"I": 8, "J": 8, "K": 8})
    given = placed(equation, arrays, mesh)
    wanted = np.asarray(whole(equation)(*arrays))
    result = sw.parse(equation).result.layout
    if kinds == KINDS["y explicit"] and "I_{x,y}" in equation:
        with pytest.raises(
            sw.ShardwiseError, match=r"I is split over x, which is Auto, before y, which is Explicit.* write y first"
        ):
            sw.einsum(equation, *given, mesh=mesh)
        return

    def product(a, b):
        return sw.einsum(equation, a, b, mesh=mesh)

    for function in (product, jax.jit(product), jax.jit(lambda a, b: 2 * product(a, b + 0) / 2)):
        for inputs in (given, arrays):
            c = function(*inputs)
            assert laid_out(c, result), c.sharding.spec
            np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_a_mesh_in_force(kinds):
    equation = "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]"
    arrays = drawn(equation, {"I": 8, "J": 8, "K": 8})
    mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
    with jax.set_mesh(mesh):
        given = placed(equation, arrays, mesh)
        for function in (lambda a, b: sw.einsum(equation, a, b), jax.jit(lambda a, b: sw.einsum(equation, a, b))):
            np.testing.assert_array_equal(function(*given), arrays[0] @ arrays[1])


def test_an_array_traced_in_another_layout_is_refused_where_types_tell_it():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    for kinds in (KINDS["explicit"], KINDS["y explicit"]):
        mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
        given = sw.put(a, "A[I, J_y]", mesh)

        def move(a, mesh=mesh):
            return sw.einsum("A[I_y, J] -> A[I, J]", a, mesh=mesh)

        for function in (move, jax.jit(move)):
            with pytest.raises(sw.ShardwiseError, match=r'sw\.reshard\(a, "A\[I, J_y\] -> A\[I_y, J\]"\)'):
                function(given)


def test_the_short_form_reads_layouts_off_types_inside_jit():
    a, b = drawn(GATHERED, {"I": 8, "J": 4, "K": 4})
    for kinds, told in ((KINDS["explicit"], True), (KINDS["auto"], False), (KINDS["x explicit"], False)):
        mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
        given = placed("A[I_x, J] · B[J, K] -> C[I, K]", [a, b], mesh)
        function = jax.jit(lambda a, b, mesh=mesh: sw.einsum("ij,jk->ik", a, b, mesh=mesh, out="i_x, k"))
        if told:
            np.testing.assert_array_equal(function(*given), a @ b)
        else:
            with pytest.raises(sw.ShardwiseError, match="inside jit under Auto axes"):
                function(*given)


def test_partial_sums_need_explicit_axes():
    a, b = drawn(CONTRACTED, {"I": 8, "J": 4, "K": 4})
    for kinds in (KINDS["auto"], KINDS["y explicit"]):
        with pytest.raises(sw.ShardwiseError, match="only where all axes of the mesh are Explicit"):
            sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", a, b, mesh=sw.make_mesh("x=2, y=2", axis_types=kinds))
