"""Tensor parallelism with sequence parallelism: between the matmuls the sequence lies over y. Shaped after "Reducing
activation recomputation" (arxiv.org/abs/2205.05198) as MaxText (github.com/AI-Hypercomputer/maxtext) annotates it."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def norm(h):
        h32 = h.astype(jnp.float32)
        return (h32 * jax.lax.rsqrt(jnp.mean(h32 * h32, axis=-1, keepdims=True) + 1e-6)).astype(h.dtype)

    def block(h, w):
        n = norm(h)
        n = jax.lax.with_sharding_constraint(n, jax.NamedSharding(mesh, P("x", None, None)))
        up = jnp.einsum("bsd,df->bsf", n, w["up"])
        gate = jnp.einsum("bsd,df->bsf", n, w["gate"])
        out = jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"])
        out = jax.lax.with_sharding_constraint(out, jax.NamedSharding(mesh, P("x", "y", None)))
        return h + out

    def loss(params, h):
        for w in params:
            h = block(h, w)
        return jnp.mean(h.astype(jnp.float32))

    types = {
        "up": laid(mesh, (512, 2048), None, "y"),
        "gate": laid(mesh, (512, 2048), None, "y"),
        "down": laid(mesh, (2048, 512), "y", None),
    }
    return jax.value_and_grad(loss), ([types] * 2, laid(mesh, (16, 256, 512), "x", "y", None))
