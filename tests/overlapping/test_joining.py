"""Matmuls that are one: those that multiply the same activation, and those whose results are added up on the way back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.functions import background
from shardwise.functions.matmul_places import MatmulPlace
from shardwise.functions.replacing import found_places, replacing
from shardwise.functions.rewriting import rewritten
from shardwise.runtime import lower
from shardwise.steps import EinsumGather, EinsumScatter

P = PartitionSpec
Entry = str | tuple[str, ...] | None


def decoder(w: Any, x: Any) -> Any:
    """Grouped attention and a gated feed-forward, with tensor and sequence parallelism over y."""

    def laid(array: Any, *dims: Entry) -> Any:
        return jax.lax.with_sharding_constraint(array, P(*dims))

    doubled = 2 * x
    q = jnp.einsum("bsd,dhk->bshk", doubled, w["q"])
    k, v = (jnp.einsum("bsd,dgk->bsgk", doubled, w[name]) for name in ("k", "v"))
    q, k, v = (laid(each, "x", None, "y", None) for each in (q, k, v))
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jax.nn.softmax(jnp.einsum("bsghk,btgk->bghst", q, k))
    mixed = jnp.einsum("bghst,btgk->bsghk", scores, v).reshape(*x.shape[:2], -1, v.shape[-1])
    mixed = laid(mixed, "x", None, "y", None)
    x = x + laid(jnp.einsum("bshk,hkd->bsd", mixed, w["o"]), "x", "y", None)
    gate, up = (laid(jnp.einsum("bsd,df->bsf", x, w[name]), "x", None, "y") for name in ("gate", "up"))
    return x + laid(jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"]), "x", "y", None)


def arguments(mesh: Any, stored: Entry, size: int = 32) -> tuple[Any, Any]:
    """Weights, of which `stored` splits the other dimension, and activations of so many features."""
    numbers = np.random.default_rng(0)

    def drawn(shape: tuple[int, ...], *dims: Entry) -> jax.Array:
        return jax.device_put(0.2 * numbers.normal(size=shape).astype(np.float32), NamedSharding(mesh, P(*dims)))

    weights = {name: drawn((size, heads, size // 4), stored, "y", None) for name, heads in (("q", 8), ("k", 4), ("v", 4))}
    weights |= {name: drawn((size, 2 * size), stored, "y") for name in ("gate", "up")}
    weights |= {"o": drawn((8, size // 4, size), "y", None, stored), "down": drawn((2 * size, size), "y", stored)}
    return weights, drawn((4, size // 2, size), "x", "y", None)


def joint(places: list[MatmulPlace]) -> list[tuple[int | None, int]]:
    """Of places where several matmuls are one: the operand that they share, and how many they are."""
    return sorted((-1 if p.joint.shared is None else p.joint.shared, len(p.looks)) for p in places if p.joint is not None)


@pytest.mark.parametrize("stored", [None, "x"], ids=["TP", "FSDP and TP"])
def test_queries_keys_values_and_gates_are_one_matmul_forward_and_back(stored: Entry, monkeypatch):
    monkeypatch.setattr(background, "LEAST_BYTES", 0)
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    args = arguments(mesh, stored)
    function = jax.value_and_grad(lambda w, x: (decoder(w, x) ** 2).mean(), argnums=(0, 1))
    with jax.set_mesh(mesh):
        places, _ = found_places(function, args, None, mesh, "tpu-v5e", "ring")
        assert joint(places) == [(-1, 2), (-1, 3), (0, 2), (0, 3), (1, 2), (1, 3)]  # added up; forward; gradients of weights
        sums = [step for place in places for step in place.program.steps if isinstance(step, EinsumGather | EinsumScatter)]
        assert any(len(step.einsum.operands) == 1 for step in sums)
        changed = jax.jit(rewritten(function, replacing(places, mesh)))(*args)
        wanted = jax.jit(function)(*args)
    for got, want in zip(jax.tree.leaves(changed), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)
        assert got.sharding.is_equivalent_to(want.sharding, got.ndim)


@pytest.mark.parametrize("stored", [None, "x"], ids=["TP", "FSDP and TP"])
def test_gradients_take_what_was_gathered_before_them_or_after(stored: Entry, monkeypatch):
    """Nothing is gathered over y twice: the activations of the way there, and the gradients of the way back."""
    monkeypatch.setattr(background, "LEAST_BYTES", 0)
    kept: list[str] = []

    def keeping(program: Any, arrays: tuple[str, ...], *given: Any) -> Any:
        kept.append("".join(arrays))
        return real(program, arrays, *given)

    real = lower.lower_keeping
    monkeypatch.setattr(lower, "lower_keeping", keeping)
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    args = arguments(mesh, stored, size=128)
    function = jax.value_and_grad(lambda w, x: (decoder(w, x) ** 2).mean(), argnums=(0, 1))
    with jax.set_mesh(mesh):
        places, _ = found_places(function, args, None, mesh, "tpu-v6e")
        changed = [place.as_brought[0] if place.as_brought else place.furthest or place for place in places]
        again = rewritten(function, replacing(changed, mesh))
        compiled = jax.jit(again).lower(*args).compile()
        gathered = [line for line in compiled.as_text().splitlines() if " all-gather(" in line]
        assert sorted(kept) == ["A"] * 4 + (["B"] * 2 if stored else [])  # weights of the way there on the way back
        assert all('op_name="w[' in line for line in gathered), "an activation is gathered by itself"
        wanted = jax.jit(function)(*args)
        along = jax.tree.map(jnp.ones_like, args)
        slopes, slopes_wanted = (jax.jit(lambda *a, f=f: jax.jvp(f, a, along)[1])(*args) for f in (again, function))
    for got, want in zip(jax.tree.leaves((compiled(*args), slopes)), jax.tree.leaves((wanted, slopes_wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-4, atol=1e-5 * float(jnp.abs(want).max()))


def test_with_explicit_axes_too():
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Explicit)
    weights, x = arguments(mesh, None)

    def function(w: Any, x: Any) -> Any:
        whole = jax.sharding.reshard(x, P("x", None, None))
        gate, up = (jnp.einsum("bsd,df->bsf", whole, w[name], out_sharding=P("x", None, "y")) for name in ("gate", "up"))
        return jax.nn.silu(gate) * up

    with jax.set_mesh(mesh):
        places, _ = found_places(function, (weights, x), None, mesh, "tpu-v5e", "ring")
        assert joint(places) == [(0, 2)]
        changed = jax.jit(rewritten(function, replacing(places, mesh)))(weights, x)
        np.testing.assert_allclose(changed, jax.jit(function)(weights, x), rtol=1e-5, atol=1e-6)


def test_matmuls_of_which_one_needs_the_others_result_stay_two():
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    weights, x = arguments(mesh, None)

    def function(w: Any, x: Any) -> Any:
        first = jax.lax.with_sharding_constraint(jnp.einsum("bsd,df->bsf", x, w["gate"]), P("x", None, "y"))
        return first, jnp.einsum("bsd,df->bsf", x, w["up"] * first.mean())

    with jax.set_mesh(mesh):
        places, _ = found_places(function, (weights, x), None, mesh, "tpu-v5e", "ring")
        changed = jax.jit(rewritten(function, replacing(places, mesh)))(weights, x)
        for got, want in zip(changed, jax.jit(function)(weights, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_matmuls_with_other_layouts_or_dtypes_stay_two():
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    weights, x = arguments(mesh, None)
    weights["up"] = jax.device_put(weights["up"], NamedSharding(mesh, P()))

    def function(w: Any, x: Any) -> Any:
        first = jax.lax.with_sharding_constraint(jnp.einsum("bsd,df->bsf", x, w["gate"]), P("x", None, "y"))
        return first.sum() + jax.lax.with_sharding_constraint(jnp.einsum("bsd,df->bsf", x, w["up"]), P("x", None, None)).sum()

    with jax.set_mesh(mesh):
        places, _ = found_places(function, (weights, x), None, mesh, "tpu-v5e", "ring")
    assert joint(places) == []
