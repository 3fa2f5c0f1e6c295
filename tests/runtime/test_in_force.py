"""A mesh that is given beside one in force, and partial sums under `jax.vmap`."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw
from shardwise.errors import DeviceError, MeshError
from shardwise.runtime.devices import MOST_SIMULATED, simulate

EQUATION = "A[I_x, J] · B[J, K] -> C[I_x, K]"
PARTIAL = "A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}"
A = np.arange(32, dtype=np.float32).reshape(8, 4)
B = np.arange(16, dtype=np.float32).reshape(4, 4)


def mesh_of(axis: str, first: int, kind: AxisType = AxisType.Explicit) -> jax.sharding.Mesh:
    return jax.make_mesh((4,), (axis,), axis_types=(kind,), devices=jax.devices()[first : first + 4])


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return mesh_of("x", 0)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: sw.make_mesh("x=8"), "mesh x=4 is given, and mesh x=8 is in force, in which JAX runs everything"),
        (lambda: mesh_of("y", 0), "mesh x=4 is given, and mesh y=4 is in force, in which"),
        (lambda: mesh_of("x", 4), "mesh x=4 is given, and mesh x=4 is in force, on other devices, in which"),
    ],
    ids=["another size", "another axis", "other devices"],
)
def test_another_mesh_in_force_is_an_error_that_names_both(mesh, other, told):
    a = sw.put(A, "A[I_x, J]", mesh)
    plan = sw.plan(EQUATION, sizes={"I": 8, "J": 4, "K": 4}, mesh=mesh).function(mesh)
    with jax.set_mesh(other()):
        for call in (lambda: sw.einsum(EQUATION, a, B, mesh=mesh), lambda: plan(a, B)):
            with pytest.raises(MeshError) as caught:
                call()
            assert str(caught.value).startswith(told)
            assert "jax.set_mesh(mesh)" in str(caught.value)


def test_another_mesh_in_force_inside_jit_is_the_same_error(mesh):
    with jax.set_mesh(sw.make_mesh("x=8")), pytest.raises(MeshError, match="mesh x=4 is given, and mesh x=8 is in force"):
        jax.jit(lambda a: sw.einsum("A[I, J] -> A[I_x, J]", a, mesh=mesh))(A)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_same_devices_and_axes_in_force_are_taken_whatever_their_types(mesh, kind):
    a = sw.put(A, "A[I_x, J]", mesh)
    plan = sw.plan(EQUATION, sizes={"I": 8, "J": 4, "K": 4}, mesh=mesh).function(mesh)
    with jax.set_mesh(mesh_of("x", 0, kind)):
        np.testing.assert_array_equal(sw.einsum(EQUATION, a, B, mesh=mesh), A @ B)
        np.testing.assert_array_equal(plan(a, B), A @ B)


# Partial sums under vmap.


def test_partial_sums_come_out_of_vmap_and_are_the_sums(mesh):
    a, b = sw.put(np.stack([A, 2 * A]), "A[N, I, J_x]", mesh), sw.put(B, "B[J_x, K]", mesh)

    def partial(a):
        return sw.einsum(PARTIAL, a, b)

    for mapped in (jax.vmap(partial), jax.jit(jax.vmap(partial)), jax.vmap(jax.jit(partial))):
        made = mapped(a)
        assert made.sharding.spec.unreduced == {"x"}
        whole = sw.reshard(made, "C[N, I, K]{U_x} -> C[N, I, K]")
        np.testing.assert_array_equal(whole, np.stack([A @ B, 2 * A @ B]))


def test_partial_sums_under_vmap_have_derivatives(mesh):
    a, b = sw.put(np.stack([A, 2 * A]), "A[N, I, J_x]", mesh), sw.put(B, "B[J_x, K]", mesh)

    def total(a):
        made = jax.vmap(lambda a: sw.einsum(PARTIAL, a, b))(a)
        return sw.reshard(made, "C[N, I, K]{U_x} -> C[N, I, K]").sum()

    with jax.set_mesh(mesh):
        gradient = jax.grad(total)(a)
    np.testing.assert_array_equal(gradient, np.broadcast_to(B.sum(1), (2, 8, 4)))


def test_partial_sums_over_one_device_are_the_sums():
    mesh = sw.make_mesh("x=1")
    np.testing.assert_array_equal(sw.put(A, "A[I, J]{U_x}", mesh), A)
    np.testing.assert_array_equal(sw.einsum("A[I, J]{U_x} · B[J, K] -> C[I, K]", A, B, mesh=mesh), A @ B)


def test_partial_sums_go_from_one_equation_to_the_next_under_vmap(mesh):
    a, b = sw.put(np.stack([A, 2 * A]), "A[N, I, J_x]", mesh), sw.put(B, "B[J_x, K]", mesh)

    def reduced(a):
        return sw.reshard(sw.einsum(PARTIAL, a, b), "C[I, K]{U_x} -> C[I, K]")

    wanted = np.stack([A @ B, 2 * A @ B])
    with jax.set_mesh(mesh):
        for over in (jax.vmap(reduced), jax.jit(jax.vmap(reduced))):
            np.testing.assert_array_equal(over(a), wanted)
        slopes = jax.jit(jax.vmap(jax.grad(lambda a: reduced(a).sum())))(a)
        forward = jax.jit(jax.vmap(lambda a: jax.jvp(reduced, (a,), (a,))[1]))(a)
    np.testing.assert_array_equal(slopes, np.broadcast_to(B.sum(1), (2, 8, 4)))
    np.testing.assert_array_equal(forward, wanted)


def test_a_host_is_not_a_hundred_thousand_devices():
    with pytest.raises(DeviceError, match=f"a host is at most {MOST_SIMULATED:,} devices: use a smaller mesh"):
        simulate(100_000)
    with pytest.raises(DeviceError, match="about 5,001 digits"):
        simulate(10**5000)
