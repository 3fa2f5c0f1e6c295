"""A training step under FSDP and tensor parallelism, layers in a scan, rematerialised, with Adam. Shaped after
MaxText's decoder (github.com/AI-Hypercomputer/maxtext, layers/decoders.py)."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def layer(h, w):
        up = jax.nn.relu(jnp.einsum("bsd,df->bsf", h, w["up"]))
        h = h + jnp.einsum("bsf,fd->bsd", up, w["down"])
        h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P("x", None, None)))
        return h, None

    def loss(params, h):
        h, _ = jax.lax.scan(jax.checkpoint(layer), h, params)
        return jnp.mean(jnp.square(h.astype(jnp.float32)))

    def step(params, mu, nu, h):
        value, gradients = jax.value_and_grad(loss)(params, h)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), mu, gradients)
        nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * jnp.square(g.astype(jnp.float32)), nu, gradients)
        params = jax.tree.map(lambda p, m, n: (p - 1e-3 * m / (jnp.sqrt(n) + 1e-8)).astype(p.dtype), params, mu, nu)
        return params, mu, nu, value

    def types(dtype):
        return {
            "up": laid(mesh, (4, 512, 2048), None, "x", "y", dtype=dtype),
            "down": laid(mesh, (4, 2048, 512), None, "y", "x", dtype=dtype),
        }

    state = types(jnp.float32)
    return step, (types(jnp.bfloat16), state, state, laid(mesh, (16, 256, 512), "x", None, None))
