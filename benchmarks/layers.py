"""Layers as people train them, as functions of arrays: a transformer layer with its gradients, weights and batch split."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def weights(width: int, heads: int, hidden: int, placed: Any) -> dict[str, Any]:
    """The weights of one layer, heads and hidden width over y, and stored in parts over x (FSDP)."""
    each = width // heads
    specs = {
        "q": ((width, heads, each), P("x", "y", None)),
        "k": ((width, heads, each), P("x", "y", None)),
        "v": ((width, heads, each), P("x", "y", None)),
        "o": ((heads, each, width), P("y", None, "x")),
        "up": ((width, hidden), P("x", "y")),
        "down": ((hidden, width), P("y", "x")),
    }
    return {name: placed(shape, spec) for name, (shape, spec) in specs.items()}


def attention(x_BSD: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    q_BHSK = jnp.einsum("bsd,dhk->bhsk", x_BSD, jax.lax.with_sharding_constraint(w["q"], P(None, "y", None)))
    k_BHTK = jnp.einsum("btd,dhk->bhtk", x_BSD, jax.lax.with_sharding_constraint(w["k"], P(None, "y", None)))
    v_BHTK = jnp.einsum("btd,dhk->bhtk", x_BSD, jax.lax.with_sharding_constraint(w["v"], P(None, "y", None)))
    scores = jnp.einsum("bhsk,bhtk->bhst", q_BHSK, k_BHTK) / q_BHSK.shape[-1] ** 0.5
    p_BHST = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x_BSD.dtype)
    mixed = jnp.einsum("bhst,bhtk->bhsk", p_BHST, v_BHTK)
    return jnp.einsum("bhsk,hkd->bsd", mixed, jax.lax.with_sharding_constraint(w["o"], P("y", None, None)))


def feed_forward(x_BSD: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    h_BSF = jax.nn.gelu(jnp.einsum("bsd,df->bsf", x_BSD, jax.lax.with_sharding_constraint(w["up"], P(None, "y"))))
    return jnp.einsum("bsf,fd->bsd", h_BSF, jax.lax.with_sharding_constraint(w["down"], P("y", None)))


def layer(w: dict[str, jax.Array], x_BSD: jax.Array) -> jax.Array:
    """One transformer layer: attention and feed-forward, each added to what came in."""
    h_BSD = jax.lax.with_sharding_constraint(x_BSD + attention(x_BSD, w), P("x", None, None))
    return jax.lax.with_sharding_constraint(h_BSD + feed_forward(h_BSD, w), P("x", None, None))


def loss(w: dict[str, jax.Array], x_BSD: jax.Array) -> jax.Array:
    return jnp.mean(layer(w, x_BSD).astype(jnp.float32) ** 2)


def step(w: dict[str, jax.Array], x_BSD: jax.Array) -> Any:
    """Forward and backward: the loss, and the gradients, each laid out as its weight."""
    value, grads = jax.value_and_grad(loss)(w, x_BSD)
    specs = weights(0, 1, 0, lambda shape, spec: spec)
    return value, {name: jax.lax.with_sharding_constraint(grad, specs[name]) for name, grad in grads.items()}
