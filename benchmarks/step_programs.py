"""Training steps of six blocks, forward and backward, in the layouts that people train them in.

A step returns its parameters after one step down the gradient, so that gradients end where parameters lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

BATCH, TOKENS, MODEL, HIDDEN, HEADS, GROUPS, VOCABULARY, EXPERTS = 16, 2048, 4096, 16384, 32, 8, 32768, 8
Entry = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Way:
    """How a step lies on a mesh of axes x and y: which axes split the batch, the sequence between blocks, weights and heads."""

    name: str
    batch: Entry
    sequence: Entry
    heads: Entry
    stored: Entry  # the other dimension of each weight

    def constrained(self, array: Any, *dims: Entry) -> Any:
        return jax.lax.with_sharding_constraint(array, PartitionSpec(*dims))

    def between(self, array: Any) -> Any:
        """Activations between blocks: batch, sequence, model."""
        return self.constrained(array, self.batch, self.sequence, None)


WAYS = (
    Way("TP+SP", "x", "y", "y", None),
    Way("FSDP", ("x", "y"), None, None, ("x", "y")),
    Way("FSDP+TP", "x", "y", "y", "x"),
)
Shapes = dict[str, tuple[tuple[int, ...], tuple[Entry, ...]]]  # of each weight the shape, and what splits its dimensions


def normed(x: Any) -> Any:
    scale = jax.lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-6)
    return (x * scale).astype(x.dtype)


def feed_forward(way: Way, w: Any, x: Any) -> Any:
    hidden = jnp.einsum("bsd,df->bsf", normed(x), w["up"])
    hidden = jax.nn.gelu(way.constrained(hidden, way.batch, None, way.heads))
    return way.between(jnp.einsum("bsf,fd->bsd", hidden, w["down"]))


def gated(way: Way, w: Any, x: Any) -> Any:
    normal = normed(x)
    gate, up = (
        way.constrained(jnp.einsum("bsd,df->bsf", normal, w[name]), way.batch, None, way.heads) for name in ("gate", "up")
    )
    return way.between(jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"]))


def attention(way: Way, w: Any, x: Any, groups: int = HEADS, causal: bool = True) -> Any:
    normal = normed(x)
    q = jnp.einsum("bsd,dhk->bshk", normal, w["q"])
    k, v = (jnp.einsum("bsd,dgk->bsgk", normal, w[name]) for name in ("k", "v"))
    q, k, v = (way.constrained(each, way.batch, None, way.heads, None) for each in (q, k, v))
    q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1])
    scores = jnp.einsum("bsghk,btgk->bghst", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bghst,btgk->bsghk", weights, v).reshape(*x.shape[:2], -1, q.shape[-1])
    mixed = way.constrained(mixed, way.batch, None, way.heads, None)
    return way.between(jnp.einsum("bshk,hkd->bsd", mixed, w["o"]))


def heads_of(way: Way, groups: int, model: int = MODEL) -> Shapes:
    each = model // HEADS
    return {
        "q": ((model, HEADS, each), (way.stored, way.heads, None)),
        "k": ((model, groups, each), (way.stored, way.heads, None)),
        "v": ((model, groups, each), (way.stored, way.heads, None)),
        "o": ((HEADS, each, model), (way.heads, None, way.stored)),
    }


def matrices(way: Way, *names: str, hidden: int = HIDDEN, model: int = MODEL) -> Shapes:
    found: Shapes = dict.fromkeys(names, ((model, hidden), (way.stored, way.heads)))
    return found | {"down": ((hidden, model), (way.heads, way.stored))}


def squared(way: Way, block: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, x: (block(way, w, x).astype(jnp.float32) ** 2).mean()


def decoder(way: Way, w: Any, x: Any) -> Any:
    def layer(carried: Any, weights: Any) -> tuple[Any, None]:
        carried = carried + attention(way, weights, carried, GROUPS)
        return carried + gated(way, weights, carried), None

    out, _ = jax.lax.scan(jax.checkpoint(layer), x, w)
    return out


def logits(way: Way, w: Any, tokens: Any) -> Any:
    x = way.between(w["table"].at[tokens].get(mode="clip"))
    found = way.constrained(jnp.einsum("bsd,dv->bsv", normed(x), w["head"]), way.batch, None, way.heads).astype(jnp.float32)
    right = (jax.nn.one_hot(tokens, found.shape[-1], dtype=found.dtype) * found).sum(-1)
    return (jax.nn.logsumexp(found, axis=-1) - right).mean()


def experts(way: Way, w: Any, x: Any) -> Any:
    """A layer of experts with a fixed capacity: tokens are dealt to them in order, which costs what routing them does."""
    dealt = x.reshape(x.shape[0], EXPERTS, -1, x.shape[-1])
    hidden = jax.nn.gelu(jnp.einsum("becd,edf->becf", dealt, w["up"]))
    hidden = way.constrained(hidden, way.batch, None, None, way.heads)
    return way.between(jnp.einsum("becf,efd->becd", hidden, w["down"]).reshape(x.shape))


def vision(way: Way, w: Any, x: Any) -> Any:
    x = x + attention(way, w, x, causal=False)
    return x + feed_forward(way, w, x)


def both(way: Way, w: Any, x: Any) -> Any:
    x = x + attention(way, w, x)
    return x + feed_forward(way, w, x)


def programs(way: Way) -> dict[str, tuple[Callable[..., Any], Shapes, bool]]:
    """Of each block the loss, its weights, and whether it takes tokens."""
    stacked = {
        name: ((4, *shape), (None, *dims))
        for name, (shape, dims) in (heads_of(way, GROUPS) | matrices(way, "gate", "up", hidden=8192)).items()
    }
    expert = {
        "up": ((EXPERTS, MODEL, 4096), (None, way.stored, way.heads)),
        "down": ((EXPERTS, 4096, MODEL), (None, way.heads, way.stored)),
    }
    table: Shapes = {
        "table": ((VOCABULARY, MODEL), (None, way.stored or way.heads)),
        "head": ((MODEL, VOCABULARY), (way.stored, way.heads)),
    }
    return {
        "feed-forward": (squared(way, feed_forward), matrices(way, "up"), False),
        "attention + feed-forward": (squared(way, both), heads_of(way, HEADS) | matrices(way, "up"), False),
        "decoder, 4 layers in a scan": (squared(way, decoder), stacked, False),
        "embedding + logits + loss": (lambda w, tokens: logits(way, w, tokens), table, True),
        "experts": (squared(way, experts), expert, False),
        "vision block": (squared(way, vision), heads_of(way, HEADS) | matrices(way, "up"), False),
    }


def step_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: Any, batch: Any) -> Any:
        gradients = jax.grad(loss)(weights, batch)
        return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient.astype(weight.dtype), weights, gradients)

    return step


def laid_out(mesh: Any, way: Way, shapes: Shapes, of_tokens: bool) -> tuple[Any, Any]:
    """The types of a step's arguments on a mesh."""

    def laid(shape: tuple[int, ...], dims: tuple[Entry, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*dims)))

    weights = {name: laid(shape, dims, jnp.bfloat16) for name, (shape, dims) in shapes.items()}
    if of_tokens:
        return weights, laid((BATCH, TOKENS), (way.batch, None), jnp.int32)
    return weights, laid((BATCH, TOKENS, MODEL), (way.batch, way.sequence, None), jnp.bfloat16)
