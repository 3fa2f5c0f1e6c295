"""Arrays that lie nowhere yet: one rule inside `jit`, whichever way the mesh is told; and what is meant by default."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw

EQUATION = "A[I_x, J] · B[J, K] -> C[I_x, K]"
A, B = np.arange(32, dtype=np.float32).reshape(8, 4), np.ones((4, 8), np.float32)


@pytest.mark.parametrize("kinds", [AxisType.Explicit, AxisType.Auto, (AxisType.Explicit, AxisType.Auto)], ids=str)
@pytest.mark.parametrize("told", ["mesh=", "set_mesh", "both"])
def test_what_is_made_inside_jit_is_accepted_whichever_way_the_mesh_is_told(kinds, told):
    mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
    options = {} if told == "set_mesh" else {"mesh": mesh}

    def given(a, b):
        return sw.einsum(EQUATION, a, b, **options)

    def made(a, b):
        return sw.einsum(EQUATION, jnp.ones((8, 4)), b + 0, **options)

    def computed(a, b):
        return sw.einsum(EQUATION, a * 2, jnp.sin(b), **options)

    with contextlib.nullcontext() if told == "mesh=" else jax.set_mesh(mesh):
        for function, wanted in ((given, A @ B), (made, np.ones((8, 4)) @ B), (computed, 2 * A @ np.sin(B))):
            c = jax.jit(function)(A, B)
            np.testing.assert_allclose(c, wanted, rtol=1e-6)
            assert sw.Layout.from_spec(c.sharding.spec, "I, K") == sw.Layout.parse("I_x, K")
        grown = jax.jit(lambda b: sw.einsum(EQUATION, jnp.ones((7, 4)), b, pad=True, **options))
        if kinds == AxisType.Explicit:
            assert grown(B).shape == (8, 8)
        back = jax.jit(jax.grad(lambda a, b: computed(a, b).sum()))(A, B)
        np.testing.assert_allclose(back, np.broadcast_to(2 * np.sin(B).sum(1), (8, 4)), rtol=1e-6)


def test_nothing_is_sent_to_take_a_part_of_what_every_device_holds():
    mesh = sw.make_mesh("x=4")
    with jax.set_mesh(mesh):
        audit = sw.audit(lambda: sw.einsum(EQUATION, jnp.ones((8, 4)), jnp.ones((4, 8))), mesh=mesh)
    assert not audit.collectives


def test_outside_of_jit_an_array_that_is_replicated_is_placed():
    mesh = sw.make_mesh("x=4")
    whole = sw.put(A, "A[I, J]", mesh)
    for function in (product := lambda a: sw.einsum(EQUATION, a, B, mesh=mesh), lambda a: jax.vjp(product, a)[0]):
        with pytest.raises(sw.ShardwiseError, match=r'sw\.reshard\(a, "A\[I, J\] -> A\[I_x, J\]"\)'):
            function(whole)


def test_an_array_of_another_device_under_a_transformation():
    mesh, one = sw.make_mesh("x=4"), jax.device_put(A, jax.devices()[5])
    with pytest.raises(sw.ShardwiseError, match=r"array A lives on other devices than mesh x=4: place it before it is traced"):
        jax.vjp(lambda a: sw.einsum(EQUATION, a, B, mesh=mesh), one)


def test_a_mesh_of_some_of_the_devices():
    some = jax.devices()[2:4]
    mesh = sw.make_mesh("x=2", devices=some)
    for function in (product := lambda a, b: sw.einsum(EQUATION, a, b, mesh=mesh), jax.jit(product)):
        c = function(sw.put(A, "A[I_x, J]", mesh), sw.put(B, "B[J, K]", mesh))
        assert c.sharding.device_set == set(some)
        np.testing.assert_array_equal(c, A @ B)
    c = sw.einsum("A[I_x, J] · B[J, K] -> C[I, K]", A, B, mesh=mesh)
    assert {shard.device for shard in c.addressable_shards} == set(some)
    assert sw.check(product, lambda a, b: a @ b, A, B, gradients=False)
    assert str(sw.show(c)).startswith("A[I, J], 8 x 8, on mesh x=2")


def test_without_hardware_named_it_is_that_of_the_devices():
    mesh = sw.make_mesh("x=4", devices=jax.devices()[4:])
    plan = sw.plan(EQUATION, sizes={"I": 8, "J": 4, "K": 8}, mesh=mesh)
    assert (plan.task.hardware.name, plan.task.dtype) == ("cpu", "bfloat16")
    np.testing.assert_array_equal(plan.function(mesh)(A, B), sw.einsum(EQUATION, A, B, mesh=mesh))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(sw.einsum(EQUATION, A, B), A @ B)
