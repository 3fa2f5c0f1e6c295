"""What `exact=True` gives: the bits of the same blocks multiplied on one device, on simulated devices whole or in part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw

WEIGHTS = "X[B_i, D] · W[D_i, F] -> Y[B_i, F]"


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(8).standard_normal(shape, np.float32)


@pytest.mark.parametrize("sizes", [(192, 64, 128), (64, 1000, 16), (8, 40, 8), (128, 512, 256)], ids=str)
def test_C8_a_block_has_the_bits_of_the_same_rows_on_one_device(sizes):
    rows, summed, columns = sizes
    x, w = drawn(rows, summed), drawn(summed, columns)
    y = sw.einsum(WEIGHTS, x, w, mesh="i=4", exact=True)
    alone = jax.jit(jnp.matmul)
    plan = sw.plan(WEIGHTS, sizes={"B": rows, "D": summed, "F": columns}, mesh="i=4", dtype="float32", exact=True)
    assert [type(step).__name__ for step in plan.best.program.steps] == ["AllGather", "Einsum"]
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), alone(x[shard.index[0]], w))
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", ["A[I, J_x] · B[J_x, K] -> C[I, K]", "A[I_x, J] · B[J, K] · D[K_x, L] -> C[L_x, I]"])
def test_an_exact_sum_does_not_depend_on_the_mesh(text):
    """Numbers whose sum tells its order: large ones cancel, and what stands between them is lost or not."""
    sizes = {"I": 8, "J": 8, "K": 8, "L": 8}
    shapes = [[sizes[dim] for dim in operand.dims] for operand in sw.parse(text).operands]
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    arrays[0][:, ::2], arrays[0][:, 1::2] = 1e8, 1.0
    arrays[0][:, 4::2] = -1e8
    letters = ",".join("".join(operand.dims) for operand in sw.parse(text).operands)
    whole = jax.jit(lambda *given: jnp.einsum(f"{letters}->{''.join(sw.parse(text).result.dims)}", *given))
    outcome = sw.check(lambda *given: sw.einsum(text, *given, mesh="x=4", exact=True), whole, *arrays, exact=True)
    assert outcome.ok, outcome


def test_a_check_may_allow_no_difference_at_all():
    x = np.float32([1.0, 2.0, -0.0])
    nudged = np.nextafter(x, np.float32(9))
    assert sw.check(lambda x: x * 1, lambda x: x, x, exact=True)
    assert sw.check(lambda x: nudged, lambda x: x, x)
    found = sw.check(lambda x: nudged, lambda x: x, x, exact=True)
    assert not found
    assert "allowed 0" in str(found)
    assert "equal values of other bits" in str(sw.check(lambda x: np.float32([1.0, 2.0, 0.0]), lambda x: x, x, exact=True))
    other = sw.check(lambda x: x.astype(np.float64), lambda x: x, x, exact=True)
    assert "dtype float64 where the reference has float32" in str(other)
    assert sw.check(lambda x: x.astype(np.float64), lambda x: x, x)


def test_a_shard_map_over_explicit_axes_is_told_the_way_out():
    mesh = sw.make_mesh("x=4")
    mapped = jax.shard_map(lambda v: 2 * v, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    for given in (np.arange(8.0), jnp.arange(8.0)):
        with pytest.raises(sw.ShardwiseError, match=r"lies otherwise than its in_specs say, P\('x'.*sw\.put"):
            sw.check(mapped, lambda v: 2 * v, given)
    assert sw.check(mapped, lambda v: 2 * v, sw.put(np.arange(8.0), "A[I_x]", mesh), exact=True)
    with pytest.raises(ValueError, match="of the user's own"):
        sw.check(lambda v: (_ for _ in ()).throw(ValueError("of the user's own")), lambda v: v, np.arange(8.0))
