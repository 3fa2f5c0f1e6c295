"""Attention with sequence parallelism by all-to-all: sequence over y outside, heads over y inside. Shaped after
DeepSpeed-Ulysses (arxiv.org/abs/2309.14509). Written after the doctor worked."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def shard(a, *spec):
        return jax.lax.with_sharding_constraint(a, jax.NamedSharding(mesh, P(*spec)))

    def attention(h, w):
        q, k, v = (jnp.einsum("bsd,dnh->bsnh", h, w[name]) for name in "qkv")
        q, k, v = (shard(each, "x", None, "y", None) for each in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("bsnh,btnh->bnst", q, k).astype(jnp.float32), axis=-1).astype(h.dtype)
        mixed = jnp.einsum("bnst,btnh->bsnh", scores, v)
        mixed = shard(mixed, "x", "y", None, None)
        return h + jnp.einsum("bsnh,nhd->bsd", mixed, w["o"])

    def loss(w, h):
        return jnp.mean(jnp.square(attention(h, w).astype(jnp.float32)))

    types = {name: laid(mesh, (256, 8, 32), None, None, None) for name in "qkv"} | {
        "o": laid(mesh, (8, 32, 256), None, None, None)
    }
    return jax.value_and_grad(loss), (types, laid(mesh, (8, 512, 256), "x", "y", None))
