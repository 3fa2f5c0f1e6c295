"""One step of decoding with a cache of keys and values, heads over y and requests over x. Shaped after the serving loop
of github.com/AI-Hypercomputer/JetStream and jax-ml/jax-llm-examples. Written after the doctor worked."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def decode(w, cache, tokens, position):
        h = w["embed"][tokens]
        q, k, v = (jnp.einsum("bd,dnh->bnh", h, w[name]) for name in "qkv")
        keys = jax.lax.dynamic_update_slice_in_dim(cache["k"], k[:, None], position, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(cache["v"], v[:, None], position, axis=1)
        scores = jnp.einsum("bnh,btnh->bnt", q, keys).astype(jnp.float32)
        scores = jnp.where(jnp.arange(scores.shape[-1]) <= position, scores, -1e9)
        mixed = jnp.einsum("bnt,btnh->bnh", jax.nn.softmax(scores, axis=-1).astype(h.dtype), values)
        h = h + jnp.einsum("bnh,nhd->bd", mixed, w["o"])
        logits = jnp.einsum("bd,vd->bv", h, w["embed"])
        logits = jax.lax.with_sharding_constraint(logits, jax.NamedSharding(mesh, P("x", "y")))
        return jnp.argmax(logits, axis=-1), {"k": keys, "v": values}

    types = {name: laid(mesh, (256, 8, 32), None, "y", None) for name in "qkv"}
    types |= {"o": laid(mesh, (8, 32, 256), "y", None, None), "embed": laid(mesh, (4096, 256), "y", None)}
    lines = laid(mesh, (32, 1024, 8, 32), "x", None, "y", None)
    return decode, (types, {"k": lines, "v": lines}, laid(mesh, (32,), "x", dtype=jnp.int32), laid(mesh, (), dtype=jnp.int32))
