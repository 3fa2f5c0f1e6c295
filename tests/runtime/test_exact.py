"""What `exact=True` gives: the bits of the same blocks multiplied on one device, on simulated devices whole or in part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.program import sums_stay_whole

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


def test_what_partial_sums_lose_an_exact_sum_keeps():
    """Large numbers that cancel, and ones between: every device's partial sum loses its ones, a whole sum not all."""
    text, large = "A[I, J_x] · B[J_x, K] -> C[I_x, K]", np.float32([2**25, 1, 2**25, 1, -(2**25), 1, -(2**25), 1])
    a, b = np.broadcast_to(large, (16, 8)).copy(), np.ones((8, 16), np.float32)
    c = sw.einsum(text, a, b, mesh="x=4", exact=True)
    alone = jax.jit(jnp.matmul)
    for shard in c.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), alone(a[shard.index[0]], b))
    assert c.any()
    scattered = [
        each for each in sw.plan(text, sizes={"I": 16, "J": 8, "K": 16}, mesh="x=4") if not sums_stay_whole(each.program)
    ]
    assert (
        not sw.plan(text, sizes={"I": 16, "J": 8, "K": 16}, mesh="x=4").function(sw.make_mesh("x=4"), scattered[0])(a, b).any()
    )


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
