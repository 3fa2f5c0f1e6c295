"""A feed-forward block whose layouts are types (Explicit axes), with its out_sharding written. Shaped after "Explicit
sharding" of docs.jax.dev (notebooks/explicit-sharding) and the scaling book's "Programming TPUs in JAX"."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "explicit"


def build(mesh):
    def loss(w, h):
        up = jax.nn.relu(jnp.einsum("bsd,df->bsf", h, w["up"]))
        out = jnp.einsum("bsf,fd->bsd", up, w["down"], out_sharding=P("x", None, None))
        return jnp.mean(jnp.square((h + out).astype(jnp.float32)))

    types = {"up": laid(mesh, (512, 2048), None, "y"), "down": laid(mesh, (2048, 512), "y", None)}
    return jax.value_and_grad(loss), (types, laid(mesh, (16, 256, 512), "x", None, None))
