"""A function evaluated again with other computations in the place of its matmuls: the same values and derivatives."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from random_functions import SIZE, drawn, typed_operation

import shardwise as sw
from shardwise.functions import background
from shardwise.functions.matmul_places import MatmulPlace
from shardwise.functions.replacing import found_places, replacing
from shardwise.functions.rewriting import Together, rewritten

CHIP = "tpu-v5e"
FUNCTIONS = int(os.environ.get("FUNCTIONS", "16"))  # that are drawn; `make soak` draws 200


def places(function: Any, args: Any, mesh: Any, forced: str = "ring", chip: str = CHIP) -> list[MatmulPlace]:
    """Where transfers can run behind matmuls so, of a function on simulated devices."""
    return found_places(function, args, None, mesh, chip, forced)[0]


def matmuls(function: Any, args: Any) -> list[Any]:
    """The paths of the matmuls that a rewriting comes by."""
    seen: dict[Any, None] = {}
    jax.eval_shape(rewritten(function, lambda path, *_: seen.update({path: None})), *args)
    return list(seen)


def mesh_of(axes: str) -> jax.sharding.Mesh:
    return sw.make_mesh(axes, axis_types=AxisType.Auto)


def placed(seed: int, layouts: Any, mesh: Any) -> list[jax.Array]:
    numbers = np.random.default_rng(seed)
    return [
        jax.device_put(numbers.normal(size=(SIZE, SIZE)).astype(np.float32), NamedSharding(mesh, layout)) for layout in layouts
    ]


@pytest.mark.parametrize("block", range(FUNCTIONS // 8))
def test_random_functions_with_planned_matmuls_have_the_same_values_and_gradients(block: int, monkeypatch):
    """Every second four as on v6e, whose compiler runs gathers by themselves: they go by permutes, sums as everywhere.

    Of gradients every second one has no more changed than its sum, in one way or the other.
    """
    monkeypatch.setattr(background, "LEAST_BYTES", 0)
    changed, gathering, summing = 0, 0, 0
    for seed in range(8 * block, 8 * block + 8):
        mesh = mesh_of(["x=4", "x=2, y=2", "x=2, y=4", "x=8"][seed % 4])
        function, layouts = drawn(seed, mesh)
        args = placed(seed, layouts, mesh)
        gradient = jax.value_and_grad(function, argnums=(0, 1, 2, 3))
        forced = ["ring", "bidirectional", "scatter", "ring"][seed % 4]
        found = places(gradient, tuple(args), mesh, forced, ["tpu-v5e", "tpu-v6e"][seed // 4 % 2])
        found = [
            each.as_brought[-(seed % 2)] if each.as_brought and (seed + n) % 2 else each.furthest or each
            for n, each in enumerate(found)
        ]
        changed, gathering = changed + len(found), gathering + sum(each.gathering is not None for each in found)
        summing += sum(each.is_brought for each in found)
        if not found:
            continue
        again = rewritten(gradient, replacing(found, mesh))
        for got, wanted in zip(jax.tree.leaves(jax.jit(again)(*args)), jax.tree.leaves(jax.jit(gradient)(*args)), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=2e-4, atol=2e-5, err_msg=f"seed {seed}")
    assert changed > 8, "too few matmuls were changed to prove anything"
    assert gathering, "no gather went by permutes"
    assert summing, "no gradient had its sum alone changed"


@pytest.mark.parametrize("block", range(FUNCTIONS // 8))
def test_random_functions_under_explicit_axes_keep_values_gradients_and_types(block: int, monkeypatch):
    """Meshes have axes of size 1, which types tell apart: a map or a loop behind a matmul asks for its very type."""
    monkeypatch.setattr(background, "LEAST_BYTES", 0)
    changed = 0
    for seed in range(8 * block, 8 * block + 8):
        mesh = sw.make_mesh(["x=1, y=4", "x=2, y=1, z=2", "x=4, y=1, z=1", "x=2, y=4"][seed % 4])
        function, layouts = drawn(seed, mesh, typed_operation)
        args = placed(seed, layouts, mesh)
        gradient = jax.value_and_grad(function, argnums=(0, 1, 2, 3))
        with jax.set_mesh(mesh):
            found = places(gradient, tuple(args), mesh, ["ring", "bidirectional", "scatter", "ring"][seed // 4 % 4])
            found = [each.as_brought[0] if each.as_brought and (seed + n) % 2 else each for n, each in enumerate(found)]
            changed += len(found)
            again = rewritten(gradient, replacing(found, mesh))
            assert jax.eval_shape(again, *args) == jax.eval_shape(gradient, *args)
            for got, wanted in zip(
                jax.tree.leaves(jax.jit(again)(*args)), jax.tree.leaves(jax.jit(gradient)(*args)), strict=True
            ):
                assert jax.typeof(got) == jax.typeof(wanted)
                np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=2e-4, atol=2e-5, err_msg=f"seed {seed}")
    assert changed > 8, "too few matmuls were changed to prove anything"


def layers(weights: Any, x: Any) -> Any:
    def layer(carried: Any, weight: Any) -> Any:
        return jax.checkpoint(lambda a, w: jnp.tanh(a @ w))(carried, weight), None

    out, _ = jax.lax.scan(layer, x, weights)
    return (out**2).mean()


def test_matmuls_in_loops_and_checkpoints_are_found_each_with_its_path():
    args = (jnp.ones((3, 8, 8)), jnp.ones((4, 8)))
    assert len(matmuls(jax.jit(jax.grad(layers)), args)) == 4  # forward; again, and the two of the way back


def doubled(path: Any, equation: Any, jaxpr: Any) -> Any:
    return lambda a, b: 2 * jax.lax.dot_general(a, b, equation.params["dimension_numbers"])


def test_a_change_in_a_loop_a_branch_and_a_call_is_made_and_differentiated():
    def function(a: Any, b: Any) -> Any:
        looped = jax.lax.fori_loop(0, 2, lambda _, carried: jnp.tanh(carried @ b), a)
        branched = jax.lax.cond(a[0, 0] > 0, lambda c: c @ b, lambda c: c - b, looped)
        return jax.jit(lambda c: c @ b)(branched).sum()

    def by_hand(a: Any, b: Any) -> Any:
        looped = jnp.tanh(2 * jnp.tanh(2 * a @ b) @ b)
        return (2 * ((2 * looped @ b) if float(a[0, 0]) > 0 else looped - b) @ b).sum()

    a, b = jnp.linspace(0.1, 1, 16).reshape(4, 4), jnp.linspace(-1, 1, 16).reshape(4, 4)
    np.testing.assert_allclose(rewritten(function, doubled)(a, b), by_hand(a, b), rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(rewritten(function, doubled))(a, b), jax.grad(by_hand_at(a, b))(a, b), rtol=1e-4, atol=1e-5
    )


def by_hand_at(a: Any, b: Any) -> Any:
    positive = float(a[0, 0]) > 0

    def function(a: Any, b: Any) -> Any:
        looped = jnp.tanh(2 * jnp.tanh(2 * a @ b) @ b)
        return (2 * ((2 * looped @ b) if positive else looped - b) @ b).sum()

    return function


def test_transposes_around_a_matmul_are_part_of_it():
    """Or its steps would run on arrays in one order, and a copy would bring them into the other."""
    mesh = mesh_of("x=2, y=4")

    def function(w: Any, x: Any) -> Any:
        return jnp.tanh(jnp.einsum("bsd,df->sbf", x, w)).sum()

    args = [
        jax.device_put(np.random.default_rng(0).normal(size=shape).astype(np.float32), NamedSharding(mesh, jax.P(*spec)))
        for shape, spec in (((8, 16), ("x", "y")), ((4, 8, 8), ("x", "y")))
    ]
    gradient = jax.grad(function)
    found = places(gradient, tuple(args), mesh)
    way_back = next(place for place in found if place.orders[0].result == (1, 0))
    assert [way_back.task.sizes[dim] for dim in way_back.task.equation.result.dims] == [8, 16]
    again = jax.jit(rewritten(gradient, replacing(found, mesh)))(*args)
    np.testing.assert_allclose(again, jax.jit(gradient)(*args), rtol=1e-4, atol=1e-5)


def test_what_has_a_derivative_of_its_own_is_left_as_it_is():
    @jax.custom_vjp
    def own(a: Any, b: Any) -> Any:
        return a @ b

    own.defvjp(lambda a, b: (own(a, b), (a, b)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    a = jnp.eye(3)
    assert matmuls(lambda a, b: own(a, b), (a, a)) == []
    np.testing.assert_array_equal(rewritten(lambda a, b: own(a, b), doubled)(a, a), a)


def test_static_arguments_closures_trees_and_keywords_are_kept():
    scale = jnp.full((2, 2), 3.0)

    @functools.partial(jax.jit, static_argnums=2)
    def repeated(a: Any, b: Any, times: int) -> Any:
        return a @ b * sum(range(times))

    def function(tree: Any, name: str, *, factor: float) -> Any:
        assert name == "kept"
        return {"out": tree["a"] @ scale * factor, "same": tree["a"], "none": None}

    np.testing.assert_array_equal(rewritten(repeated, doubled)(scale, scale, 3), 2 * scale @ scale * 3)
    got = rewritten(function, doubled)({"a": jnp.ones((2, 2))}, "kept", factor=2.0)
    assert got["none"] is None
    np.testing.assert_array_equal(got["out"], jnp.full((2, 2), 24.0))
    np.testing.assert_array_equal(got["same"], jnp.ones((2, 2)))


def test_the_lines_of_what_is_changed_are_those_of_the_matmuls():
    def function(a: Any, b: Any) -> Any:
        return jnp.tanh(a @ b)

    line = function.__code__.co_firstlineno + 1
    text = jax.jit(rewritten(function, doubled)).lower(jnp.ones((4, 4)), jnp.ones((4, 4))).as_text(debug_info=True)
    assert f'test_rewriting.py":{line}' in text


@pytest.mark.parametrize(("between", "is_given"), [("nothing", True), ("its result", False), ("a callback", False)])
def test_what_takes_an_array_comes_after_what_brings_it_unless_that_needs_it_or_does_more(between: str, is_given: bool):
    def function(a: Any, b: Any) -> Any:
        first = a @ b
        if between == "a callback":
            b = jax.experimental.io_callback(lambda b: b, b, b)
        return first, a @ (b + first if between == "its result" else b + 1)

    def replacement(path: Any, equation: Any, jaxpr: Any) -> Together:
        brought = (equation.invars[0], ((), ()))
        if path == (0,):
            return Together((path,), lambda a, b, *given, brought: [(given[0] if brought else a) @ b], {0: brought})
        return Together((path,), lambda a, b, brought: [a @ b, 3 * a], gives=(brought,))

    a, b = jnp.linspace(0.1, 1, 16).reshape(4, 4), jnp.linspace(-1, 1, 16).reshape(4, 4)
    first, second = rewritten(function, replacement)(a, b)
    np.testing.assert_allclose(first, (3 if is_given else 1) * a @ b, rtol=1e-5)
    np.testing.assert_allclose(second, function(a, b)[1], rtol=1e-5)


EXPERTS, MODEL, HIDDEN = 8, 32, 64


def experts(weights: Any, x: Any) -> Any:
    dealt = constrained(x.reshape(x.shape[0], EXPERTS, -1, x.shape[-1]), "x", "y")
    hidden = constrained(jnp.tanh(jnp.einsum("becd,edf->becf", dealt, weights["up"])), "x", None, None, "y")
    return (constrained(jnp.einsum("becf,efd->becd", hidden, weights["down"]), "x", "y") ** 2).sum()


def constrained(array: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(array, jax.P(*spec))


@pytest.mark.parametrize(
    ("stored", "axes", "forced"), [(None, "x=2, y=4", "bidirectional"), ("x", "x=4, y=2", "ring"), (None, "x=4, y=2", "ring")]
)
def test_gradients_of_experts_take_what_a_ring_brings_in_parts(stored: Any, axes: str, forced: str, monkeypatch):
    """Weights gathered over x or not, so that gradients are scattered or summed: the same, and so are their derivatives."""
    monkeypatch.setattr(background, "LEAST_BYTES", 0)
    mesh, numbers = mesh_of(axes), np.random.default_rng(0)

    def put(shape: Any, *spec: Any) -> Any:
        return jax.device_put(numbers.normal(size=shape).astype(np.float32) / 8, NamedSharding(mesh, jax.P(*spec)))

    weights = {"up": put((EXPERTS, MODEL, HIDDEN), None, stored, "y"), "down": put((EXPERTS, HIDDEN, MODEL), None, "y", stored)}
    args = weights, put((8, 32, MODEL), "x", "y")

    def step(weights: Any, x: Any) -> Any:
        return jax.tree.map(lambda weight, gradient: weight - gradient / 8, weights, jax.grad(experts)(weights, x))

    def bent(function: Any) -> Any:
        return jax.grad(lambda *args: sum((each**2).sum() for each in jax.tree.leaves(function(*args))))

    with jax.set_mesh(mesh):
        found = places(step, args, mesh, forced)
        wanted = [jax.jit(step)(*args), jax.jit(bent(step))(*args)]
        seen = set()
        for number in range(max(len(each.as_brought) for each in found)):
            whole = [each.as_brought[min(number, len(each.as_brought) - 1)] if each.as_brought else each for each in found]
            parted = [each.in_parts or each for each in whole]
            if parted == whole:
                continue
            seen |= {each.program for each in parted if each.parts_of}
            whole, parted = (rewritten(step, replacing(each, mesh)) for each in (whole, parted))
            texts = [jax.jit(each).lower(*args).as_text() for each in (whole, parted)]
            assert texts[0].count("dot_general") < texts[1].count("dot_general")
            made = [jax.jit(parted)(*args), *([] if number else [jax.jit(bent(parted))(*args)])]
            for got, right in zip(jax.tree.leaves(made), jax.tree.leaves(wanted[: len(made)]), strict=True):
                np.testing.assert_allclose(np.asarray(got), np.asarray(right), rtol=2e-4, atol=2e-5)
        assert len(seen) > 1
