"""A transformer block under tensor parallelism: heads and hidden units over y, batch over x. Shaped after Megatron-LM
(github.com/NVIDIA/Megatron-LM, core/transformer), as Levanter and MaxText write it in JAX."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def shard(a, *spec):
        return jax.lax.with_sharding_constraint(a, jax.NamedSharding(mesh, P(*spec)))

    def attention(h, w):
        q = jnp.einsum("bsd,dnh->bsnh", h, w["q"])
        k = jnp.einsum("bsd,dnh->bsnh", h, w["k"])
        v = jnp.einsum("bsd,dnh->bsnh", h, w["v"])
        q = shard(q, "x", None, "y", None)
        scores = jax.nn.softmax(jnp.einsum("bsnh,btnh->bnst", q, k), axis=-1)
        mixed = jnp.einsum("bnst,btnh->bsnh", scores, v)
        out = jnp.einsum("bsnh,nhd->bsd", mixed, w["o"])
        return shard(out, "x", None, None)

    def block(h, w):
        h = h + attention(h, w)
        up = jax.nn.gelu(jnp.einsum("bsd,df->bsf", h, w["up"]))
        up = shard(up, "x", None, "y")
        return h + jnp.einsum("bsf,fd->bsd", up, w["down"])

    types = {
        "q": laid(mesh, (512, 8, 64), None, "y", None),
        "k": laid(mesh, (512, 8, 64), None, "y", None),
        "v": laid(mesh, (512, 8, 64), None, "y", None),
        "o": laid(mesh, (8, 64, 512), "y", None, None),
        "up": laid(mesh, (512, 2048), None, "y"),
        "down": laid(mesh, (2048, 512), "y", None),
    }
    return block, (laid(mesh, (16, 256, 512), "x", None, None), types)
