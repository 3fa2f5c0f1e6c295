"""A transformer's feed-forward stack under FSDP: batch and weights over x. Shaped after "Transformers" of the JAX
scaling book (jax-ml.github.io/scaling-book/training) and the FSDP example of docs.jax.dev (notebooks/shard_map)."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def layer(h, w):
        up = jax.nn.gelu(jnp.einsum("bsd,df->bsf", h, w["up"]))
        return h + jnp.einsum("bsf,fd->bsd", up, w["down"])

    def loss(params, h, target):
        for w in params:
            h = layer(h, w)
            h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P("x", None, None)))
        return jnp.mean(jnp.square((h - target).astype(jnp.float32)))

    def step(params, h, target):
        value, gradients = jax.value_and_grad(loss)(params, h, target)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value

    layer_types = {
        "up": laid(mesh, (512, 2048), "x", None),
        "down": laid(mesh, (2048, 512), None, "x"),
    }
    batch = laid(mesh, (32, 256, 512), "x", None, None)
    return step, ([layer_types] * 2, batch, batch)
