"""The doctor on training steps of other projects' modules: what is compiled for them is explained."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardwise as sw

sw.simulate(8)


def placed(mesh: Any, tree: Any) -> Any:
    """Matrices split over both axes, everything else whole."""

    def place(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        split = PartitionSpec("data", "model") if leaf.ndim == 2 else PartitionSpec()
        return jax.device_put(leaf, NamedSharding(mesh, split))

    return jax.tree.map(place, tree)


def nnx_step(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(64, 256, rngs=rngs)
            self.norm = nnx.LayerNorm(64, rngs=rngs)
            self.down = nnx.Linear(256, 64, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return x + self.down(jax.nn.gelu(self.up(self.norm(x))))

    definition, state = nnx.split(Block(nnx.Rngs(0)))
    state = placed(mesh, state)
    optimizer = optax.adamw(1e-3)
    moments = optimizer.init(state)

    def step(state: Any, moments: Any, x: jax.Array) -> tuple[Any, Any]:
        gradients = jax.grad(lambda state: (nnx.merge(definition, state)(x) ** 2).mean())(state)
        updates, moments = optimizer.update(gradients, moments, state)
        return optax.apply_updates(state, updates), moments

    return step, (state, moments)


def equinox_step(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    arrays, rest = eqx.partition(eqx.nn.MLP(64, 64, 256, 2, key=jax.random.key(0)), eqx.is_array)
    arrays = placed(mesh, arrays)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    moments = optimizer.init(arrays)

    def step(arrays: Any, moments: Any, x: jax.Array) -> tuple[Any, Any]:
        gradients = jax.grad(lambda arrays: (jax.vmap(eqx.combine(arrays, rest))(x) ** 2).mean())(arrays)
        updates, moments = optimizer.update(gradients, moments, arrays)
        return eqx.apply_updates(arrays, updates), moments

    return step, (arrays, moments)


@pytest.mark.parametrize("made", [nnx_step, equinox_step])
def test_what_is_compiled_for_a_module_is_explained(made: Any) -> None:
    mesh = sw.make_mesh("data=4, model=2", axis_types=AxisType.Auto)
    step, args = made(mesh)
    x = jax.device_put(jnp.ones((32, 64)), NamedSharding(mesh, PartitionSpec("data")))
    found = sw.doctor(step, *args, x, mesh=mesh, on="here", remedies=False)
    truth: Any = found.truth
    assert found.unread == ()
    assert len(truth.audit.collectives) >= 4
    assert truth.explained >= 0.95, [str(each.line) for each in truth.own]
