"""Ring attention: keys and values go round x while each device attends to what is there. Shaped after
github.com/haoliuhl/ringattention (ringattention_jax.py)."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def attend(q, k, v):
        count = jax.lax.axis_size("x")
        ring = [(n, (n + 1) % count) for n in range(count)]

        def turn(carry, _):
            k, v, out, total = carry
            weights = jnp.exp(jnp.einsum("bsnh,btnh->bnst", q, k) / 8)
            out = out + jnp.einsum("bnst,btnh->bsnh", weights, v)
            total = total + jnp.sum(weights, axis=-1)
            k = jax.lax.ppermute(k, "x", ring)
            v = jax.lax.ppermute(v, "x", ring)
            return (k, v, out, total), None

        start = (k, v, jnp.zeros_like(q), jnp.sum(jnp.zeros_like(q), axis=-1).transpose(0, 2, 1))
        (_, _, out, total), _ = jax.lax.scan(turn, start, None, length=count)
        return out / total.transpose(0, 2, 1)[..., None]

    spec = P(None, "x", "y", None)
    attention = jax.shard_map(attend, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)

    def block(h, w):
        q, k, v = (jnp.einsum("bsd,dnh->bsnh", h, w[name]) for name in "qkv")
        mixed = attention(q, k, v)
        return jnp.einsum("bsnh,nhd->bsd", mixed, w["o"])

    types = {name: laid(mesh, (256, 8, 32), None, "y", None) for name in "qkv"} | {
        "o": laid(mesh, (8, 32, 256), "y", None, None)
    }
    return block, (laid(mesh, (4, 1024, 256), None, "x", None), types)
