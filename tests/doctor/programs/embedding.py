"""Embedding and logits with the vocabulary over y, and a cross-entropy. Shaped after T5X and PaLM's `Embed.attend`
(github.com/google-research/t5x) and MaxText's embeddings."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def loss(params, tokens, labels):
        h = jnp.take(params["embed"], tokens, axis=0)
        h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P("x", None, None)))
        h = jax.nn.gelu(jnp.einsum("bsd,de->bse", h, params["dense"]))
        logits = jnp.einsum("bsd,dv->bsv", h, params["head"])
        logits = jax.lax.with_sharding_constraint(logits, jax.NamedSharding(mesh, P("x", None, "y")))
        logits = logits.astype(jnp.float32)
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    types = {
        "embed": laid(mesh, (4096, 256), None, None),
        "dense": laid(mesh, (256, 256), None, None),
        "head": laid(mesh, (256, 4096), None, "y"),
    }
    tokens = laid(mesh, (64, 512), "x", None, dtype=jnp.int32)
    return jax.value_and_grad(loss), (types, tokens, tokens)
