"""Grouped-query attention with fused projections and reshapes into heads. Shaped after the Llama of
github.com/jax-ml/jax-llm-examples and of EasyLM."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def attention(h, w):
        batch, length, _ = h.shape
        q = jnp.einsum("bsd,dk->bsk", h, w["q"]).reshape(batch, length, 16, 32)
        k = jnp.einsum("bsd,dk->bsk", h, w["k"]).reshape(batch, length, 4, 32)
        v = jnp.einsum("bsd,dk->bsk", h, w["v"]).reshape(batch, length, 4, 32)
        k, v = jnp.repeat(k, 4, axis=2), jnp.repeat(v, 4, axis=2)
        scores = jax.nn.softmax(jnp.einsum("bsnh,btnh->bnst", q, k).astype(jnp.float32), axis=-1).astype(h.dtype)
        mixed = jnp.einsum("bnst,btnh->bsnh", scores, v).reshape(batch, length, 512)
        out = jnp.einsum("bsk,kd->bsd", mixed, w["o"])
        return jax.lax.with_sharding_constraint(out, jax.NamedSharding(mesh, P("x", None, None)))

    types = {
        "q": laid(mesh, (512, 512), None, "y"),
        "k": laid(mesh, (512, 128), None, "y"),
        "v": laid(mesh, (512, 128), None, "y"),
        "o": laid(mesh, (512, 512), "y", None),
    }
    return attention, (laid(mesh, (16, 128, 512), "x", None, None), types)
