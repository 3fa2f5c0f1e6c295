"""A deep stack that keeps named results for the backward pass and makes the rest again, under FSDP. Shaped after the
rematerialisation guide of docs.jax.dev (gradient-checkpointing)."""

import jax
import jax.numpy as jnp
from jax import P
from jax.ad_checkpoint import checkpoint_name
from making import laid

AXES = "auto"


def build(mesh):
    policy = jax.checkpoint_policies.save_only_these_names("hidden")

    def layer(h, w):
        hidden = checkpoint_name(jnp.einsum("bd,df->bf", h, w["in"]), "hidden")
        return jnp.einsum("bf,fd->bd", jnp.sin(hidden), w["out"])

    def loss(params, h):
        for w in params:
            h = jax.checkpoint(layer, policy=policy)(h, w)
            h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P(("x", "y"), None)))
        return jnp.sum(jnp.square(h.astype(jnp.float32)))

    types = {"in": laid(mesh, (512, 1024), ("x", "y"), None), "out": laid(mesh, (1024, 512), ("x", "y"), None)}
    return jax.grad(loss), ([types] * 3, laid(mesh, (256, 512), ("x", "y"), None))
