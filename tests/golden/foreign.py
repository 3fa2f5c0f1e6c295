"""Programs of the golden corpus in forms that other libraries write: attention over a sequence that is split, experts whose
tokens are uneven, kernels of Pallas. The texts name lines of this file: after an edit here, make its programs again.

Letters: B batch, S sequence, H heads, D width of a head or of the model.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.golden.programs import Built, array, golden


@golden("x=8")
def ring_attention(mesh: Mesh) -> Built:
    """Attention with the sequence over x, and its gradient: keys and values go round, the softmax is kept as it grows."""
    n = mesh.shape["x"]
    onward = [(i, (i + 1) % n) for i in range(n)]

    def local(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def step(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
            k, v, most, total, out = carry
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
            higher = jnp.maximum(most, scores.max(-1))
            weights, before = jnp.exp(scores - higher[..., None]), jnp.exp(most - higher)
            out = out * before[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weights, v.astype(jnp.float32))
            k, v = lax.ppermute((k, v), "x", onward)  # => collective-permute over x, 16 times; backward: 16 times
            return (k, v, higher, total * before + weights.sum(-1), out), None

        b, s, h, d = q.shape
        most = jnp.full((b, h, s), -1e30, jnp.float32)
        start = (k, v, most, jnp.zeros_like(most), jnp.zeros((b, h, s, d), jnp.float32))
        (_, _, _, total, out), _ = lax.scan(jax.checkpoint(step), start, None, length=n)
        return (out / total[..., None]).sum()[None]

    sequence = P(None, "x", None, None)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(sequence,) * 3, out_specs=P("x"), check_vma=False)
    gradient = jax.grad(lambda q, k, v: mapped(q, k, v).sum(), argnums=(0, 1, 2))
    return jax.jit(gradient), [array(mesh, (2, 2048, 4, 128), *sequence)] * 3


@golden("x=8")
def ulysses(mesh: Mesh) -> Built:
    """Attention with the sequence over x, which becomes the heads over x, and back."""

    def local(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        def heads(t: jax.Array) -> jax.Array:
            return lax.all_to_all(t, "x", split_axis=2, concat_axis=1, tiled=True)  # => all-to-all over x, 3 times

        q, k, v = heads(q), heads(k), heads(v)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)
        return lax.all_to_all(out, "x", split_axis=1, concat_axis=2, tiled=True)  # => all-to-all over x

    sequence = P(None, "x", None, None)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(sequence,) * 3, out_specs=sequence)
    return jax.jit(mapped), [array(mesh, (2, 2048, 8, 128), *sequence)] * 3


@golden("x=8")
def ragged_experts(mesh: Mesh) -> Built:
    """Tokens go to their experts, as many as want to: how many, only the run knows. There is no such operation on a host."""

    def local(tokens: jax.Array, sizes: jax.Array) -> jax.Array:
        every = lax.all_gather(sizes, "x")  # => all-gather over x
        mine = lax.axis_index("x")
        starts, places = jnp.cumsum(sizes) - sizes, (jnp.cumsum(every, axis=0) - every)[mine]
        room = jnp.zeros((4 * tokens.shape[0], tokens.shape[1]), tokens.dtype)
        arriving = every[:, mine]
        return lax.ragged_all_to_all(
            tokens, room, starts, sizes, places, arriving, axis_name="x"
        )  # => ragged-all-to-all over x

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P("x")), out_specs=P("x", None), check_vma=False)
    return jax.jit(mapped), [array(mesh, (8192, 512), "x", None), array(mesh, (64,), "x", dtype=jnp.int32)]


def _multiplied(a: Any, b: Any, out: Any) -> None:
    out[...] = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32).astype(out.dtype)


@golden("x=8")
def stated_kernel(mesh: Mesh) -> Built:
    """A kernel of Pallas that states its cost, on a gathered operand: its text goes on over lines."""
    cost = pl.CostEstimate(flops=2 * 256 * 1024 * 512, transcendentals=0, bytes_accessed=2 * (256 + 512) * 1024 + 2 * 256 * 512)

    def local(a: jax.Array, b: jax.Array) -> jax.Array:
        whole = lax.all_gather(b, "x", axis=0, tiled=True)  # => all-gather over x
        made = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype)
        return pl.pallas_call(_multiplied, out_shape=made, cost_estimate=cost)(a, whole)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P("x", None)), out_specs=P("x", None), check_vma=False)
    return jax.jit(mapped), [array(mesh, (2048, 1024), "x", None), array(mesh, (1024, 512), "x", None)]


@golden("x=8")
def sending_kernel(mesh: Mesh) -> Built:
    """A kernel of Pallas that sends its array on by itself: no collective, and not to be passed over."""
    size = 256 * 1024 * 2
    cost = pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=2 * size, remote_bytes_transferred=size)

    def onward(x: Any, out: Any, sent: Any, received: Any) -> None:
        following = lax.rem(lax.axis_index("x") + 1, 8)
        copy = pltpu.make_async_remote_copy(src_ref=x, dst_ref=out, send_sem=sent, recv_sem=received, device_id=(following,))
        copy.start()
        copy.wait()

    def local(x: jax.Array) -> jax.Array:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            onward, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), in_specs=[anywhere], out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2, cost_estimate=cost,
        )(lax.psum(x, "x"))  # => all-reduce over x  # fmt: skip

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("x", None), out_specs=P("x", None), check_vma=False)
    return jax.jit(mapped), [array(mesh, (2048, 1024), "x", None)]


@golden("x=8")
def branches(mesh: Mesh) -> Built:
    """A sum or a step of a ring, as a number says that only the run knows."""
    n = mesh.shape["x"]

    def local(x: jax.Array, which: jax.Array) -> jax.Array:
        def total(x: jax.Array) -> jax.Array:
            return lax.psum(x, "x")  # => all-reduce over x

        def shifted(x: jax.Array) -> jax.Array:
            return lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)])  # => collective-permute over x

        return lax.cond(which > 0, total, shifted, jnp.tanh(x))

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P()), out_specs=P("x", None), check_vma=False)
    return jax.jit(mapped), [array(mesh, (2048, 1024), "x", None), array(mesh, (), dtype=jnp.int32)]
