"""Running under JAX's transformations: vmap, derivatives of any order, scan and remat; equal to those of `jnp.einsum`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contractions import CONTRACTED, EQUATIONS, WEIGHTS, drawn, laid_out, placed
from jax.sharding import AxisType

import shardwise as sw
from shardwise.steps import kind


@pytest.fixture(params=[AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
def mesh(request) -> jax.sharding.Mesh:
    return sw.make_mesh("x=4", axis_types=request.param)


@pytest.mark.parametrize("equation", [*EQUATIONS, "A[I_x, J] · B[J, K_x] -> C[I_x, K]"])
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap(equation, in_axes, mesh):
    a, b = drawn(equation, {"I": 8, "J": 8, "K": 4})
    many = [
        np.stack([array * n for n in (1, 2, 3)]) if axis == 0 else array for array, axis in zip((a, b), in_axes, strict=True)
    ]
    layouts = [operand.layout for operand in sw.parse(equation).operands]
    given = [
        sw.put(array, sw.Layout((("N", ()), *layout.dims)) if axis == 0 else layout, mesh)
        for array, layout, axis in zip(many, layouts, in_axes, strict=True)
    ]
    over_einsum = jax.vmap(lambda a, b: sw.einsum(equation, a, b, mesh=mesh), in_axes)
    wanted = jax.vmap(jnp.matmul, in_axes)(*many)
    result = sw.Layout((("N", ()), *sw.parse(equation).result.layout.dims))
    for function in (over_einsum, jax.jit(over_einsum)):
        c = function(*given)
        np.testing.assert_array_equal(c, wanted)
        assert laid_out(c, result), c.sharding.spec


def test_vmap_of_the_gradient(mesh):
    x, w = drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4})
    many = np.stack([x, 2 * x])

    def loss(w, x):
        return jnp.sum(sw.einsum(WEIGHTS, x, w, mesh=mesh) ** 2)

    given = sw.put(w, "W[D_x, F]", mesh), sw.put(many, "X[N, B_x, D]", mesh)
    got = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(*given)
    np.testing.assert_array_equal(got, np.stack([2 * n * n * x.T @ (x @ w) for n in (1, 2)]))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_jvp_and_vjp(equation, mesh):
    arrays, tangents = (drawn(equation, {"I": 8, "J": 8, "K": 4}, seed=seed) for seed in (0, 1))
    (a, b), (da, db) = arrays, tangents
    given, moved = (tuple(placed(equation, each, mesh)) for each in (arrays, tangents))

    def product(a, b):
        return sw.einsum(equation, a, b, mesh=mesh)

    c, dc = jax.jvp(product, given, moved)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(dc, da @ b + a @ db)
    assert laid_out(dc, sw.parse(equation).result.layout)

    c, pull = jax.vjp(product, *given)
    cotangents = pull(c)
    np.testing.assert_array_equal(cotangents[0], a @ b @ b.T)
    np.testing.assert_array_equal(cotangents[1], a.T @ (a @ b))
    for cotangent, operand in zip(cotangents, sw.parse(equation).operands, strict=True):
        assert laid_out(cotangent, operand.layout), (cotangent.sharding.spec, operand)


def test_gradient_of_a_gradient(mesh):
    x, w = (array / 8 for array in drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4}))

    def squared(w, x):
        return jnp.sum(jnp.tanh(sw.einsum(WEIGHTS, x, w, mesh=mesh)))

    def reference(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    def twice(function):
        return jax.jit(jax.grad(lambda w, x: jnp.sum(jax.grad(function)(w, x) ** 2), argnums=(0, 1)))

    got = twice(squared)(sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh))
    for one, other in zip(got, twice(reference)(w, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_forward_over_reverse(mesh):
    x, w = (array / 8 for array in drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4}))

    def product_with_hessian(function, w, x):
        return jax.jit(lambda w, x: jax.jvp(jax.grad(lambda w: jnp.sum(jnp.tanh(function(x, w)))), (w,), (w,))[1])(w, x)

    got = product_with_hessian(
        lambda x, w: sw.einsum(WEIGHTS, x, w, mesh=mesh), sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh)
    )
    np.testing.assert_allclose(got, product_with_hessian(jnp.matmul, w, x), rtol=1e-4, atol=1e-5)


def test_scan_and_remat(mesh):
    """Layers in a loop, their activations recomputed, as training code has it."""
    layer = "X[B_x, D] · W[D, F_x] -> Y[B_x, F]"
    x, _ = drawn(layer, {"B": 8, "D": 8, "F": 8})
    weights = np.stack([drawn(layer, {"B": 8, "D": 8, "F": 8}, seed=seed)[1] for seed in range(3)]) / 16

    def through(product, x, weights):
        step = jax.checkpoint(lambda x, w: (jnp.tanh(product(x, w)), None))
        return jnp.sum(jax.lax.scan(step, x / 8, weights)[0] ** 2)

    sharded = functools.partial(through, lambda x, w: sw.einsum(layer, x, w, mesh=mesh))
    got = jax.jit(jax.grad(sharded, (0, 1)))(sw.put(x, "X[B_x, D]", mesh), sw.put(weights, "W[L, D, F_x]", mesh))
    for one, other in zip(got, jax.grad(functools.partial(through, jnp.matmul), (0, 1))(x, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_gathered_weights_are_scattered(mesh):
    """The transpose of gathering the weights is a reduce-scatter of their gradient: no device holds all of it."""
    x, w = drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4})
    given = sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh)
    plan = sw.plan(WEIGHTS, sizes={"B": 8, "D": 8, "F": 4}, mesh="x=4", hardware="tpu-v5e", dtype="float32")
    assert [kind(step) for step in plan.best.program.steps] == ["all-gather", "einsum"]

    gradient = jax.grad(lambda w, x: jnp.sum(sw.einsum(WEIGHTS, x, w, mesh=mesh) ** 2))
    shown = str(jax.make_jaxpr(gradient)(*given))
    assert "reduce_scatter[" in shown
    assert "psum" not in shown
    got = jax.jit(gradient)(*given)
    assert laid_out(got, sw.Layout.parse("D_x, F"))
    np.testing.assert_array_equal(got, 2 * x.T @ (x @ w))
    compiled = jax.jit(gradient).lower(*given).compile().as_text()
    assert "reduce-scatter" in compiled or "all-reduce" in compiled


def test_partial_sums_in_and_out_with_gradients():
    mesh = sw.make_mesh("x=2, y=2")
    a, b = drawn(CONTRACTED, {"I": 8, "J": 8, "K": 4})
    partial = "A[I_y, J_x] · B[J_x, K] -> C[I_y, K]{U_x}"

    def partial_sums(a, b):
        return sw.einsum(partial, a, b, mesh=mesh)

    onward = {
        "reduced": lambda c: sw.reshard(c, "C[I_y, K]{U_x} -> C[I_y, K]", mesh=mesh),
        "scattered": lambda c: sw.reshard(c, "C[I_y, K]{U_x} -> C[I_y, K_x]", mesh=mesh),
        "multiplied": lambda c: sw.einsum("C[I_y, K]{U_x} · D[K, L] -> E[I_y, L]", c, jnp.ones((4, 2), "float32"), mesh=mesh),
        "summed": lambda c: sw.einsum("C[I_y, K]{U_x} -> S[]", c, mesh=mesh),
    }
    by_hand = {
        "reduced": lambda c: c,
        "scattered": lambda c: c,
        "multiplied": lambda c: c @ jnp.ones((4, 2), "float32"),
        "summed": jnp.sum,
    }
    given = placed(partial, [a, b], mesh)
    for name, function in onward.items():
        outcome = sw.check(
            jax.jit(lambda a, b, function=function: function(partial_sums(a, b))),
            lambda a, b, name=name: by_hand[name](a @ b),
            *given,
            gradients=True,
        )
        assert outcome, f"{name}: {outcome}"
