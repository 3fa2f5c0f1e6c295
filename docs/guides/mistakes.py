"""A training step with five mistakes in its layouts, for the guide that asks why arrays move."""

import jax
import jax.numpy as jnp
from jax import P


def build(mesh):
    """The step, and the types of its arguments: batch over x, hidden units over y, weights stored in parts over x too."""

    def typed(shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, P(*spec)))

    def layer(h, w):
        up = jnp.einsum("bsd,df->bsf", h, w["up"])
        up = jax.lax.with_sharding_constraint(up, jax.NamedSharding(mesh, P(None, None, "y")))
        down = jax.lax.with_sharding_constraint(w["down"], jax.NamedSharding(mesh, P("y", None)))
        h = h + jnp.einsum("bsf,fd->bsd", jax.nn.relu(up), down.astype(jnp.bfloat16))
        return jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P(None, "x", None)))

    def loss(params, h, target):
        for w in params:
            h = layer(h, w)
        return jnp.mean(jnp.square((h - target).astype(jnp.float32)))

    def step(params, momentum, h, target):
        value, gradients = jax.value_and_grad(loss)(params, h, target)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), momentum, gradients)
        return jax.tree.map(lambda p, m: (p - 0.01 * m).astype(p.dtype), params, momentum), momentum, value

    weights = {"up": typed((512, 2048), "x", "y"), "down": typed((2048, 512), "y", "x", dtype=jnp.float32)}
    whole = {"up": typed((512, 2048), dtype=jnp.float32), "down": typed((2048, 512), dtype=jnp.float32)}
    batch = typed((32, 256, 512), "x", None, None)
    return step, ([weights] * 2, [whole] * 2, batch, typed((32, 256, 512), None, None, "x"))
