"""Data parallelism with one copy of a model for each device, and pmean by hand, in the style of pmap. Shaped after
"pmap" of the old docs.jax.dev and its migration guide (docs.jax.dev/en/latest/migrate_pmap.html). Written after the
doctor worked; the map is a jax.shard_map, as that guide writes it; `pmapped` is the step before it."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def update(w, inputs, targets):
        def loss(w):
            predicted = jnp.tanh(inputs @ w["in"]) @ w["out"]
            return jnp.mean(jnp.square((predicted - targets).astype(jnp.float32)))

        value, gradients = jax.value_and_grad(loss)(w)
        gradients = jax.lax.pmean(gradients, ("x", "y"))
        value = jax.lax.pmean(value, ("x", "y"))
        return jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), w, gradients), value

    def step(w, inputs, targets):
        batch = P(("x", "y"))
        mapped = jax.shard_map(update, mesh=mesh, in_specs=(P(), batch, batch), out_specs=(P(), P()), check_vma=False)
        return mapped(w, inputs, targets)

    types = {"in": laid(mesh, (256, 512)), "out": laid(mesh, (512, 64))}
    return step, (types, laid(mesh, (256, 256), ("x", "y")), laid(mesh, (256, 64), ("x", "y")))
