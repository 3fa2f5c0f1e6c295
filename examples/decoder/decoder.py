"""A small decoder in plain JAX: RMSNorm, attention with grouped heads, SwiGLU, embedding and logits; and how its weights lie.

A mesh has two axes. "data" splits the batch and, with FSDP, stores each weight in parts. "model" splits heads, hidden
dimensions, the vocabulary and, between the blocks, the sequence.

Dimensions: L layers, B batch, T tokens, D width, H heads, G heads of keys and values, K width of a head, F hidden,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import P

VOCABULARY = 256  # bytes
Weights = dict[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Sizes:
    batch: int = 8
    tokens: int = 128
    width: int = 512
    hidden: int = 2048
    heads: int = 8
    groups: int = 4
    layers: int = 2


def weights_of(sizes: Sizes, stored: str | None) -> dict[str, tuple[tuple[int, ...], P, float]]:
    """Of each weight its shape, its layout, and the standard deviation that it starts with.

    Args:
        stored: the axis over which weights are stored in parts; None without FSDP.
    """
    L, D, F, H, G, V = sizes.layers, sizes.width, sizes.hidden, sizes.heads, sizes.groups, VOCABULARY
    K = D // H
    return {
        "table": ((V, D), P("model", stored), 1.0),
        "norm_attention": ((L, D), P(), 0.0),
        "q": ((L, D, H, K), P(None, stored, "model", None), D**-0.5),
        "kv": ((L, 2, D, G, K), P(None, None, stored, "model", None), D**-0.5),
        "o": ((L, H, K, D), P(None, "model", None, stored), D**-0.5),
        "norm_hidden": ((L, D), P(), 0.0),
        "up": ((L, 2, D, F), P(None, None, stored, "model"), D**-0.5),  # the gate, and what it gates
        "down": ((L, F, D), P(None, "model", stored), F**-0.5),
        "norm_last": ((D,), P(), 0.0),
        "head": ((D, V), P(stored, "model"), D**-0.5),
    }


def laid(array: jax.Array, *dims: str | None) -> jax.Array:
    return jax.lax.with_sharding_constraint(array, P(*dims))


def normed(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    return x_BTD * jax.lax.rsqrt((x_BTD**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale_D)


def rotated(x_BTHK: jax.Array) -> jax.Array:
    """Rotary positions: pairs of features turned by an angle that grows with the position."""
    half = x_BTHK.shape[-1] // 2
    angle = jnp.arange(x_BTHK.shape[1])[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
    one, other = x_BTHK[..., :half], x_BTHK[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


def attention(w: Weights, x_BTD: jax.Array) -> jax.Array:
    normal = normed(x_BTD, w["norm_attention"])
    q_BTHK = laid(jnp.einsum("btd,dhk->bthk", normal, w["q"]), "data", None, "model", None)
    k_BTGK, v_BTGK = laid(jnp.einsum("btd,cdgk->cbtgk", normal, w["kv"]), None, "data", None, "model", None)
    mixed_BTHK = jax.nn.dot_product_attention(rotated(q_BTHK), rotated(k_BTGK), v_BTGK, is_causal=True)
    mixed_BTHK = laid(mixed_BTHK, "data", None, "model", None)
    return laid(jnp.einsum("bthk,hkd->btd", mixed_BTHK, w["o"]), "data", "model", None)


def feed_forward(w: Weights, x_BTD: jax.Array) -> jax.Array:
    normal = normed(x_BTD, w["norm_hidden"])
    gate_BTF, up_BTF = laid(jnp.einsum("btd,cdf->cbtf", normal, w["up"]), None, "data", None, "model")
    return laid(jnp.einsum("btf,fd->btd", jax.nn.silu(gate_BTF) * up_BTF, w["down"]), "data", "model", None)


def loss(weights: Weights, text: jax.Array) -> jax.Array:
    """Mean nats of the next byte."""
    outer = {name: weights[name] for name in ("table", "norm_last", "head")}
    stacked = {name: weight for name, weight in weights.items() if name not in outer}

    def layer(x_BTD: jax.Array, w: Weights) -> tuple[jax.Array, None]:
        x_BTD = x_BTD + attention(w, x_BTD)
        return x_BTD + feed_forward(w, x_BTD), None

    x_BTD = laid(outer["table"][text[:, :-1]], "data", "model", None)
    x_BTD, _ = jax.lax.scan(jax.checkpoint(layer), x_BTD, stacked)
    logits_BTV = jnp.einsum("btd,dv->btv", normed(x_BTD, outer["norm_last"]), outer["head"])
    logits_BTV = laid(logits_BTV, "data", None, "model")
    right = (jax.nn.one_hot(text[:, 1:], VOCABULARY) * logits_BTV).sum(-1)
    return (jax.nn.logsumexp(logits_BTV, axis=-1) - right).mean()
