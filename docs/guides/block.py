"""A feed-forward block and a step of its training, as the guide on overlapping has it."""

import jax
import jax.numpy as jnp
from jax import P


def loss(w, x):
    h = jnp.einsum("bsd,df->bsf", x, w["up"])
    h = jax.nn.gelu(jax.lax.with_sharding_constraint(h, P("x", None, "y")))
    out = jnp.einsum("bsf,fd->bsd", h, w["down"])
    out = jax.lax.with_sharding_constraint(out, P("x", "y", None))
    return (out.astype(jnp.float32) ** 2).mean()


def step(w, x):
    grads = jax.grad(loss)(w, x)
    return jax.tree.map(lambda w, g: w - 0.01 * g, w, grads)


def inputs(mesh):
    """The weights and a batch, as they lie on the mesh."""

    def laid(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=jax.NamedSharding(mesh, P(*spec)))

    weights = {"up": laid((2048, 8192), "x", "y"), "down": laid((8192, 2048), "y", "x")}
    return weights, laid((8, 1024, 2048), "x", "y", None)
