"""`sw.check`: what it calls equal, what it does not, and what it says of each leaf."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import shardwise as sw

ROW = np.arange(1, 7, dtype=np.float32)


def compared(got, wanted) -> sw.Check:
    """The check of two values that stand still."""
    return sw.check(lambda: got, lambda: wanted)


def replicated(copies: list[np.ndarray], mesh: jax.sharding.Mesh) -> jax.Array:
    """An array that should be the same on every device, made of what each is said to hold."""
    held = [jax.device_put(copy, device) for copy, device in zip(copies, mesh.devices.flat, strict=True)]
    return jax.make_array_from_single_device_arrays(copies[0].shape, NamedSharding(mesh, PartitionSpec()), held)


# Values.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64"])
def test_a_difference_is_allowed_up_to_the_dtypes_rounding(dtype):
    with jax.enable_x64(dtype == "float64"):
        row = jnp.asarray(ROW.astype(jnp.dtype(dtype)))
        eps = float(jnp.finfo(row.dtype).eps)
        assert compared(row, ROW)
        assert compared(row * (1 + eps), ROW)
        outcome = compared(row.at[-1].mul(1 + 32 * eps), ROW)
        assert not outcome
        assert outcome.leaves[0].error > outcome.leaves[0].allowed > 0


def test_the_tolerance_is_relative_to_the_largest_value():
    small = ROW * np.float32(1e-20)
    assert compared(small, small)
    assert not compared(small, np.zeros_like(small))
    assert not compared(np.zeros_like(small), small)
    large = ROW * np.float32(1e30)
    assert compared(large, large)
    assert not compared(large, large * np.float32(1.001))
    assert compared(np.zeros(3, np.float32), np.zeros(3, np.float32))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_integers_must_be_equal(one, other):
    assert bool(compared(np.int32([one, 0]), np.int32([other, 0]))) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.int64([-(2**63)]), np.int64([0])),
        (np.int64([2**62]), np.int64([2**62 + 1])),
        (np.uint64([2**63]), np.uint64([0])),
        (np.uint64([2**64 - 1]), np.int64([-1])),
        (np.int32([1]), np.float32([1.5])),
        (np.int32([1]), np.float32([np.inf])),
        (np.int8([-1]), np.uint8([255])),
        (np.bool_([True]), np.bool_([False])),
        (np.float32([1]), np.complex64([1 + 2j])),
        (np.float32([1]), np.int32([2])),
        (np.float32([16777216]), np.int32([16777300])),
    ],
    ids=lambda value: f"{value.dtype} {value[0]}",
)
def test_unequal_values_of_every_kind_are_found(one, other):
    for got, wanted in ((one, other), (other, one)):
        outcome = compared(got, wanted)
        assert not outcome, str(outcome)


def test_equal_values_of_other_dtypes_are_equal():
    assert compared(np.float32([1, 2]), np.int32([1, 2]))
    assert compared(np.int32([1, 2]), np.float64([1, 2]))
    assert compared(np.int8([1]), np.int64([1]))
    assert compared(np.complex64([1, 2]), np.float32([1, 2]))
    assert compared(np.bool_([True]), np.bool_([True]))


def test_integers_are_exact_through_a_contraction():
    a, b = (np.random.default_rng(seed).integers(-128, 128, (8, 8)).astype(np.int8) for seed in (0, 1))

    def product(a, b):
        return sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, b, mesh="x=4", preferred_element_type="int32")

    outcome = sw.check(product, lambda a, b: a.astype(np.int32) @ b.astype(np.int32), a, b)
    assert outcome
    assert outcome.leaves[0].allowed == 0
    outcome = sw.check(product, lambda a, b: a.astype(np.int32) @ b.astype(np.int32) + np.eye(8, dtype=np.int32), a, b)
    assert not outcome
    assert outcome.leaves[0].error == 1


# NaN and infinities.


def test_nan_and_infinities_must_stand_in_the_same_places():
    odd = np.float32([np.nan, np.inf, -np.inf, 1])
    assert compared(odd, odd)
    assert compared(odd, odd + np.float32([0, 0, 0, 1e-7]))
    for place, value in enumerate([np.inf, np.nan, np.inf, np.nan]):
        other = odd.copy()
        other[place] = value
        for one, two in ((odd, other), (other, odd)):
            outcome = compared(one, two)
            assert not outcome, (place, value)
    assert "NaN stands in other places" in str(compared(odd, np.nan_to_num(odd)))


def test_a_difference_beside_infinities_is_found():
    outcome = compared(np.float32([np.inf, 1]), np.float32([np.inf, 2]))
    assert not outcome
    assert outcome.leaves[0].error == 1


def test_nan_passes_through_a_contraction_unharmed():
    a = np.ones((8, 4), np.float32)
    a[2, 1], a[5, 0] = np.nan, np.inf
    b = np.ones((4, 4), np.float32)

    def product(a, b):
        return sw.einsum("A[I_x, J] · B[J, K] -> C[I, K]", a, b, mesh="x=4")

    with np.errstate(invalid="ignore"):  # NumPy warns of them on some processors
        outcome = sw.check(product, np.matmul, a, b)
    assert outcome, str(outcome)
    assert np.isnan(np.asarray(product(a, b))).any(axis=1).tolist() == [False, False, True] + [False] * 5


# Shapes and structures.


def test_a_wrong_shape_is_said():
    outcome = compared(ROW, ROW[:5])
    assert not outcome
    assert "shape (6,) where the reference has (5,)" in str(outcome)
    assert not compared(ROW, ROW[None]), "shapes are not broadcast"
    assert not compared(ROW[:1], ROW[0])


def test_pytrees_are_compared_leaf_by_leaf():
    got = {"a": ROW, "b": [ROW, (np.int32(3), None)]}
    outcome = compared(got, {"a": ROW, "b": [ROW + 1, (np.int32(3), None)]})
    assert [(leaf.name, leaf.ok) for leaf in outcome.leaves] == [
        ("output['a']", True),
        ("output['b'][0]", False),
        ("output['b'][1][0]", True),
    ]
    assert [line.split()[0] for line in str(outcome).splitlines()] == ["ok", "FAIL", "ok"]


@pytest.mark.parametrize(
    "wanted", [ROW, {"a": ROW}, {"a": ROW, "c": ROW}, {"a": ROW, "b": None}, [ROW, ROW], {"a": ROW, "b": (ROW,)}], ids=repr
)
def test_a_wrong_structure_is_said(wanted):
    outcome = compared({"a": ROW, "b": ROW}, wanted)
    assert not outcome
    assert "where the reference has" in str(outcome)


def test_pytrees_as_arguments():
    mesh = sw.make_mesh("x=4")
    layer = {"w": sw.put(np.ones((8, 4), np.float32), "W[D_x, F]", mesh), "b": [np.float32([1, 2, 3, 4])]}
    x = sw.put(np.arange(64, dtype=np.float32).reshape(8, 8), "X[B_x, D]", mesh)

    def sharded(layer, x):
        return {"y": sw.einsum("X[B_x, D] · W[D_x, F] -> Y[B_x, F]", x, layer["w"], mesh=mesh) + layer["b"][0]}

    def reference(layer, x):
        return {"y": x @ layer["w"] + layer["b"][0]}

    outcome = sw.check(sharded, reference, layer, x, gradients=True)
    assert outcome, str(outcome)
    assert [leaf.name for leaf in outcome.leaves] == ["output['y']", "gradient[0]", "gradient[1]", "gradient[2]"]


def test_nothing_and_empty_arrays_are_equal():
    assert compared((), ())
    assert compared(np.zeros((0, 3)), np.zeros((0, 3)))
    assert not compared(np.zeros((0, 3)), np.zeros((3, 0)))


def test_partial_sums_are_compared_by_their_sum():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    outcome = sw.check(lambda a: sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", a, a, mesh="x=4"), lambda a: a @ a, a)
    assert outcome, str(outcome)


# Replicas.


def test_replicas_that_are_equal():
    mesh = sw.make_mesh("x=2, y=2")
    assert compared(replicated([ROW] * 4, mesh), ROW)


@pytest.mark.parametrize("device", range(4))
def test_a_replica_that_differs_is_found_on_any_device(device):
    mesh = sw.make_mesh("x=2, y=2")
    copies = [ROW.copy() for _ in range(4)]
    copies[device][3] = np.nextafter(copies[device][3], np.float32(9))
    outcome = compared(replicated(copies, mesh), ROW)

    assert not outcome
    (leaf,) = outcome.leaves
    assert leaf.error <= leaf.allowed, "by value alone it would pass"
    assert "replicas differ" in str(outcome)


def test_replicas_are_compared_bit_by_bit():
    mesh = sw.make_mesh("x=2")
    assert compared(replicated([np.float32([np.nan])] * 2, mesh), np.float32([np.nan]))
    assert not compared(replicated([np.float32([0.0]), np.float32([-0.0])], mesh), np.float32([0.0]))
    for dtype in ("bfloat16", "complex64", "int8", "bool"):
        one, other = np.zeros(3, jnp.dtype(dtype)), np.ones(3, jnp.dtype(dtype))
        assert compared(replicated([one, one], mesh), one)
        assert not compared(replicated([one, other], mesh), one)


def test_shards_of_other_parts_are_no_replicas():
    a = sw.put(np.arange(8, dtype=np.float32).reshape(4, 2), "A[I_x, J]", sw.make_mesh("x=2, y=2"))
    assert sw.check(lambda a: a, lambda a: a, a)


# Gradients.


def product(a, b):
    return sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, b, mesh="x=4")


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((4, 8), np.float32), random.standard_normal((8, 2), np.float32)


def test_gradients_are_compared(pair):
    outcome = sw.check(product, jnp.matmul, *pair, gradients=True)
    assert outcome, str(outcome)
    assert [leaf.name for leaf in outcome.leaves] == ["output", "gradient[0]", "gradient[1]"]


def test_a_wrong_gradient_is_found(pair):
    @jax.custom_jvp
    def twisted(a, b):
        return a @ b

    twisted.defjvp(lambda primals, tangents: (twisted(*primals), 2 * tangents[0] @ primals[1] + primals[0] @ tangents[1]))
    outcome = sw.check(product, twisted, *pair, gradients=True)
    assert [leaf.ok for leaf in outcome.leaves] == [True, False, True]


def test_gradients_of_complex_outputs_that_hold_zeros():
    a = np.complex64([[1 + 2j, 0], [3, 4j], [0, 0], [1, 1]])
    b = np.complex64([[2, 0], [1j, 0]])

    def sharded(a, b):
        return sw.einsum("A[I_x, J] · B[J, K] -> C[I_x, K]", a, b, mesh="x=4")

    outcome = sw.check(sharded, jnp.matmul, a, b, gradients=True)
    assert outcome, str(outcome)


def test_gradients_leave_integers_out():
    x, n = np.float32([1, 2, 3, 4]), np.int32([1, 2, 3, 4])
    outcome = sw.check(lambda x, n: (x * n, n), lambda x, n: (x * n, n), x, n, gradients=True)
    assert outcome
    assert [leaf.name for leaf in outcome.leaves] == ["output[0]", "output[1]", "gradient[0]"]


def test_gradients_of_nothing_are_refused():
    with pytest.raises(sw.ShardwiseError, match="no argument has a floating or complex dtype"):
        sw.check(lambda n: n, lambda n: n, np.int32([1]), gradients=True)
    with pytest.raises(sw.ShardwiseError, match="no output has a floating or complex dtype"):
        sw.check(lambda x: x > 0, lambda x: x > 0, ROW, gradients=True)
