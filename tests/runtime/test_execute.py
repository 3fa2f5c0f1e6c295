"""Running: equal to `jnp.einsum` of the whole arrays, in every dtype, on every kind of mesh, padded or not."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contractions import CONTRACTED, EQUATIONS, GATHERED, drawn, placed, whole
from jax.sharding import AxisType

import shardwise as sw

# Dtypes and arithmetic.


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "complex64", "complex128", "int32", "int8", "uint8"]
)
def test_dtypes(dtype, equation):
    with jax.enable_x64(dtype in ("float64", "complex128")):
        arrays = drawn(equation, {"I": 8, "J": 8, "K": 4}, dtype)
        got = sw.einsum(equation, *placed(equation, arrays, sw.make_mesh("x=4")))
        wanted = whole(equation)(*map(jnp.asarray, arrays))

        assert got.dtype == wanted.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64"])
def test_dtypes_within_rounding(dtype):
    with jax.enable_x64(dtype == "float64"):
        random = np.random.default_rng(0)
        arrays = [random.standard_normal(shape).astype(jnp.dtype(dtype)) for shape in ((16, 64), (64, 8))]
        outcome = sw.check(lambda a, b: sw.einsum(CONTRACTED, a, b, mesh="x=4"), whole(CONTRACTED), *arrays)

        assert outcome, str(outcome)


def test_dtypes_that_differ_are_promoted_as_jax_does():
    for one, other in itertools.combinations(["int8", "int32", "bfloat16", "float16", "float32", "complex64"], 2):
        a, b = (drawn(GATHERED, {"I": 8, "J": 4, "K": 4}, dtype)[i] for i, dtype in enumerate((one, other)))
        got = sw.einsum(GATHERED, a, b, mesh="x=4")
        wanted = whole(GATHERED)(jnp.asarray(a), jnp.asarray(b))
        assert got.dtype == wanted.dtype, (one, other)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize(
    ("dtype", "preferred"), [("int8", "int32"), ("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")]
)
def test_preferred_element_type(dtype, preferred, equation):
    arrays = drawn(equation, {"I": 8, "J": 16, "K": 4}, dtype)
    got = sw.einsum(equation, *arrays, mesh="x=4", preferred_element_type=preferred)
    wanted = whole(equation, preferred_element_type=preferred)(*map(jnp.asarray, arrays))

    assert got.dtype == wanted.dtype == jnp.dtype(preferred)
    if preferred != "bfloat16":
        np.testing.assert_array_equal(got, wanted)
    if dtype == "int8":
        np.testing.assert_array_equal(got, arrays[0].astype(int) @ arrays[1].astype(int))


def test_sums_of_int8_beyond_its_range_are_those_of_int32():
    a, b = np.full((4, 64), 127, np.int8), np.full((64, 4), -128, np.int8)
    c = sw.einsum(CONTRACTED, a, b, mesh="x=4", preferred_element_type="int32")

    np.testing.assert_array_equal(c, np.full((4, 4), 64 * 127 * -128))


@pytest.mark.parametrize("precision", [None, "highest", jax.lax.Precision.HIGH, ("default", "highest")])
def test_precision_is_passed_through(precision):
    a, b = drawn(GATHERED, {"I": 8, "J": 4, "K": 4})
    shown = [
        str(jax.make_jaxpr(function)(a, b))
        for function in (
            lambda a, b: sw.einsum(GATHERED, a, b, mesh="x=4", precision=precision),
            lambda a, b: whole(GATHERED, precision=precision)(a, b),
        )
    ]
    said = [sorted(line.strip() for line in text.splitlines() if "precision=" in line) for text in shown]
    assert said[0] == said[1]
    assert bool(said[0]) == (precision is not None)


# Meshes.


@pytest.mark.parametrize("mesh", ["x=1", "x=3", "x=5", "x=6", "x=2, y=3", "x=3, y=1, z=2", "x=2, y=2, z=2, w=1"])
def test_meshes(mesh):
    grid = sw.Mesh.parse(mesh)
    sizes = {"I": 2 * grid.size, "J": 3 * grid.size, "K": grid.size}
    names = grid.names
    x, last = names[0], names[-1]
    every = ",".join(names)
    shared = last if last != x else None
    equations = [
        f"A[I_{x}, J] · B[J, K] -> C[I, K]",
        f"A[I, J_{x}] · B[J_{x}, K] -> C[I_{x}, K]",
        f"A[I_{{{every}}}, J] · B[J, K] -> C[I, K_{{{every}}}]",
        f"A[I, J_{{{every}}}] · B[J_{{{every}}}, K] -> C[I_{last}, K]",
        "A[I, J] · B[J, K] -> C[I_?, K_?]",
    ]
    equations += [f"A[I_{x}, J_{shared}] · B[J_{shared}, K_{x}] -> C[I_{shared}, K_{x}]"] if shared else []
    for equation in equations:
        a, b = drawn(equation, sizes)
        c = sw.einsum(equation, a, b, mesh=mesh)
        np.testing.assert_array_equal(c, a @ b, err_msg=equation)
        assert len(c.sharding.device_set) == grid.size


def test_an_axis_of_size_1_changes_nothing():
    a, b = drawn(GATHERED, {"I": 8, "J": 4, "K": 4})
    mesh = sw.make_mesh("x=4, y=1")
    for equation in ("A[I_{x,y}, J] · B[J_y, K] -> C[I_y, K]", "A[I_x, J_y] · B[J, K] -> C[I, K]", GATHERED):
        c = sw.einsum(equation, *placed(GATHERED, [a, b], mesh))
        np.testing.assert_array_equal(c, a @ b)


# Padding.


@pytest.mark.parametrize("mesh", ["x=3", "x=4", "x=2, y=3"])
@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("A[I_x, J] · B[J, K] -> C[I_x, K]", {"I": 7, "J": 5, "K": 4}),
        ("A[I_x, J] · B[J, K] -> C[I, K]", {"I": 7, "J": 5, "K": 4}),
        ("A[I, J_x] · B[J_x, K] -> C[I, K]", {"I": 5, "J": 7, "K": 2}),
        ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", {"I": 5, "J": 7, "K": 2}),
        ("A[I_x, J] · B[J, K] -> C[I, K_x]", {"I": 5, "J": 7, "K": 2}),
        ("A[I_x, J] -> S[J_x]", {"I": 5, "J": 7}),
        ("A[I_x, J] -> A[I, J_x]", {"I": 5, "J": 7}),
        ("A[I_x, J] · B[J_x, K] · D[K, L_x] -> E[I_x, L]", {"I": 5, "J": 7, "K": 2, "L": 1}),
    ],
)
def test_padding(mesh, equation, sizes):
    arrays = drawn(equation, sizes)
    grid, result = sw.Mesh.parse(mesh), sw.parse(equation).result
    wanted = np.asarray(whole(equation)(*arrays))
    c = sw.einsum(equation, *arrays, mesh=mesh, pad=True)

    for have, size, (_, axes) in zip(c.shape, wanted.shape, result.layout.dims, strict=True):
        assert have == size or (axes and have > size and have % grid.extent(axes) == 0)
    np.testing.assert_array_equal(c, np.pad(wanted, [(0, have - n) for have, n in zip(c.shape, wanted.shape, strict=True)]))


def test_padding_inside_jit_under_explicit_axes():
    a, b = drawn(GATHERED, {"I": 7, "J": 5, "K": 4})
    mesh = sw.make_mesh("x=4")
    c = jax.jit(lambda a, b: sw.einsum(GATHERED, a, b, mesh=mesh, pad=True))(a, b)

    np.testing.assert_array_equal(c, a @ b)


def test_padding_inside_jit_under_auto_axes_is_refused_where_an_operand_is_split():
    a, b = drawn(GATHERED, {"I": 7, "J": 5, "K": 4})
    mesh = sw.make_mesh("x=4", axis_types=AxisType.Auto)
    with pytest.raises(sw.ShardwiseError, match="its layout is not known, so pad it before"):
        jax.jit(lambda a, b: sw.einsum(GATHERED, a, b, mesh=mesh, pad=True))(a, b)


def test_gradients_pass_padding():
    a, b = (array / 8 for array in drawn(CONTRACTED, {"I": 6, "J": 7, "K": 3}))

    def product(a, b):
        return sw.einsum(CONTRACTED, a, b, mesh="x=4", pad=True)

    outcome = sw.check(product, jnp.matmul, a, b, gradients=True)
    assert outcome, str(outcome)
