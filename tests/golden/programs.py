"""The programs of the golden corpus: what users write, compiled for every target by `make golden`.

Each is a function of a mesh that returns a jitted function and its arguments as shapes with shardings; nothing runs.
A comment that begins with `=>` marks a line that asks for a collective, and says which; the index beside the texts
keeps the numbers of these lines. The texts name lines of this file: after an edit here, make them again.

Letters: B batch, S sequence, D model width, F hidden width, H heads, E experts; I, J, K rows, contracted, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

Built = tuple[Callable[..., Any], Sequence[jax.ShapeDtypeStruct]]


@dataclass(frozen=True, slots=True)
class Golden:
    """A program of the corpus: what it is called, the mesh that it is for, and how it is made on one."""

    name: str
    axes: str
    build: Callable[[Mesh], Built]


PROGRAMS: dict[str, Golden] = {}


def golden(axes: str) -> Callable[[Callable[[Mesh], Built]], Callable[[Mesh], Built]]:
    """Put a program into the corpus, for a mesh such as "x=4,y=2"."""

    def register(build: Callable[[Mesh], Built]) -> Callable[[Mesh], Built]:
        PROGRAMS[build.__name__] = Golden(build.__name__, axes, build)
        return build

    return register


def array(mesh: Mesh, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def scalar(mesh: Mesh) -> jax.ShapeDtypeStruct:
    return array(mesh, (), dtype=jnp.int32)


# The four cases of a contraction, as jax.jit makes them from shardings.


@golden("x=8")
def case1_local(mesh: Mesh) -> Built:
    """A[I_x, J] · B[J, K] -> C[I_x, K]: nothing moves."""
    out = NamedSharding(mesh, P("x", None))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", a, b)

    return jax.jit(matmul, out_shardings=out), [array(mesh, (4096, 2048), "x", None), array(mesh, (2048, 2048), None, None)]


@golden("x=8")
def case2_gather(mesh: Mesh) -> Built:
    """A[I, J_x] · B[J, K] -> C[I, K]: A is gathered, or B sliced and the products added."""
    out = NamedSharding(mesh, P(None, None))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        a = lax.with_sharding_constraint(a, out)  # => all-gather over x
        return jnp.einsum("ij,jk->ik", a, b)

    return jax.jit(matmul, out_shardings=out), [array(mesh, (4096, 2048), None, "x"), array(mesh, (2048, 2048), None, None)]


@golden("x=8")
def case3_reduce(mesh: Mesh) -> Built:
    """A[I, J_x] · B[J_x, K] -> C[I, K]: the products are added."""
    out = NamedSharding(mesh, P(None, None))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", a, b)  # => all-reduce over x

    return jax.jit(matmul, out_shardings=out), [array(mesh, (2048, 4096), None, "x"), array(mesh, (4096, 2048), "x", None)]


@golden("x=8")
def case3_scatter(mesh: Mesh) -> Built:
    """A[I, J_x] · B[J_x, K] -> C[I_x, K]: the products are added and split."""
    out = NamedSharding(mesh, P("x", None))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", a, b)  # => reduce-scatter over x

    return jax.jit(matmul, out_shardings=out), [array(mesh, (2048, 4096), None, "x"), array(mesh, (4096, 2048), "x", None)]


@golden("x=8")
def case4_both_free(mesh: Mesh) -> Built:
    """A[I_x, J] · B[J, K_x] -> C[I_x, K]: B is gathered."""
    out = NamedSharding(mesh, P("x", None))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", a, b)  # => all-gather over x

    return jax.jit(matmul, out_shardings=out), [array(mesh, (2048, 2048), "x", None), array(mesh, (2048, 1024), None, "x")]


# The same, planned by Shardwise.


@golden("x=8")
def planned_gather(mesh: Mesh) -> Built:
    """The headline: every device multiplies its rows of A, and C is gathered."""
    sizes = {"I": 16384, "J": 1024, "K": 2048}
    plan = sw.plan("A[I_x, J] · B[J, K] -> C[I_x, K] -> C[I, K]", sizes=sizes, mesh="x=8", hardware="tpu-v5e")
    planned = plan.function(mesh)

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return planned(a, b)  # => all-gather over x

    return jax.jit(matmul), [array(mesh, (16384, 1024), "x", None), array(mesh, (1024, 2048), None, None)]


@golden("x=8")
def planned_scatter(mesh: Mesh) -> Built:
    """Both contracted sides split: the products are added and split."""
    sizes = {"I": 2048, "J": 16384, "K": 2048}
    plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I_x, K]", sizes=sizes, mesh="x=8", hardware="tpu-v5e")
    planned = plan.function(mesh)

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return planned(a, b)  # => reduce-scatter over x

    return jax.jit(matmul), [array(mesh, (2048, 16384), None, "x"), array(mesh, (16384, 2048), "x", None)]


# Products of axes, and parts of one.


@golden("x=4,y=2")
def grid_axes(mesh: Mesh) -> Built:
    """One collective over both axes, one over y, one over x, in a map by hand."""

    def local(a: jax.Array, b: jax.Array) -> jax.Array:
        whole = lax.all_gather(a, ("x", "y"), axis=0, tiled=True)  # => all-gather over x, y
        product = jnp.dot(whole, b)
        total = lax.psum(product, "y")  # => all-reduce over y
        return lax.psum_scatter(total, "x", scatter_dimension=0, tiled=True)  # => reduce-scatter over x

    specs = (P(("x", "y"), None), P(None, "x"))
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("x", None), check_vma=False)
    return jax.jit(mapped), [array(mesh, (2048, 1024), ("x", "y"), None), array(mesh, (1024, 2048), None, "x")]


@golden("x=8")
def grid_groups(mesh: Mesh) -> Built:
    """Collectives among parts of one axis: halves for the sum, pairs for the gather."""
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    pairs = [[0, 4], [1, 5], [2, 6], [3, 7]]

    def local(a: jax.Array) -> jax.Array:
        total = lax.psum(jnp.tanh(a), "x", axis_index_groups=halves)  # => all-reduce over halves of x
        return lax.all_gather(total, "x", axis=0, tiled=True, axis_index_groups=pairs)  # => all-gather over pairs of x

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("x", None), out_specs=P("x", None), check_vma=False)
    return jax.jit(mapped), [array(mesh, (4096, 1024), "x", None)]


# Collective matmuls: the compiler's own windows, and rings by hand.


@golden("x=8")
def windowed_gather(mesh: Mesh) -> Built:
    """A[I_x, J] · B[J, K_x] -> C[I, K_x], large: on TPU the gather becomes a loop of permutes and products."""
    out = NamedSharding(mesh, P(None, "x"))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", a, b)  # => all-gather over x

    return jax.jit(matmul, out_shardings=out), [array(mesh, (8192, 8192), "x", None), array(mesh, (8192, 28672), None, "x")]


@golden("x=8")
def windowed_scatter(mesh: Mesh) -> Built:
    """A[I, J_x] · B[J_x, K] -> C[I_x, K], large: on TPU the scatter becomes a loop of permutes and products."""
    out = NamedSharding(mesh, P("x", None))

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", a, b)  # => reduce-scatter over x

    return jax.jit(matmul, out_shardings=out), [array(mesh, (8192, 28672), None, "x"), array(mesh, (28672, 8192), "x", None)]


def ring(mesh: Mesh, pinned: bool) -> Built:
    """The textbook ring of A[I_x, J] · B[J, K_x] -> C[I, K_x]: multiply the shard at hand while the next one travels."""
    n = mesh.shape["x"]
    onward = [(i, (i - 1) % n) for i in range(n)]

    def local(a: jax.Array, b: jax.Array) -> jax.Array:
        blocks = []
        for step in range(n):
            following = a
            if step < n - 1:
                following = lax.ppermute(a, "x", onward)  # => collective-permute over x
            block = jnp.dot(a, b)
            if pinned:
                following, block = lax.optimization_barrier((following, block))
            blocks.append(block)
            a = following
        mine_first = jnp.stack(blocks)
        return jnp.roll(mine_first, lax.axis_index("x"), axis=0).reshape(-1, b.shape[1])

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P(None, "x")), out_specs=P(None, "x"), check_vma=False)
    return jax.jit(mapped), [array(mesh, (8192, 8192), "x", None), array(mesh, (8192, 8192), None, "x")]


@golden("x=8")
def ring_plain(mesh: Mesh) -> Built:
    """The ring as written in textbooks: nothing keeps a product beside its permute."""
    return ring(mesh, pinned=False)


@golden("x=8")
def ring_pinned(mesh: Mesh) -> Built:
    """The ring with a barrier on (next shard, result) at every step."""
    return ring(mesh, pinned=True)


# Loops.


@golden("x=8")
def scan_psum(mesh: Mesh) -> Built:
    """Five layers in a scan, each with a sum and a step of a ring."""
    n = mesh.shape["x"]
    onward = [(i, (i + 1) % n) for i in range(n)]

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        total = lax.psum(jnp.tanh(h @ w), "x")  # => all-reduce over x, 5 times
        shifted = lax.ppermute(h, "x", onward)  # => collective-permute over x, 5 times
        return total + shifted, None

    def local(h: jax.Array, ws: jax.Array) -> jax.Array:
        return lax.scan(layer, h, ws)[0]

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P(None, None, None)), out_specs=P("x", None))
    return jax.jit(mapped), [array(mesh, (4096, 1024), "x", None), array(mesh, (5, 1024, 1024), None, None, None)]


@golden("x=8")
def dynamic_loop(mesh: Mesh) -> Built:
    """A loop from a start that is known only at run time: how often it turns, the text cannot say."""
    n = mesh.shape["x"]
    onward = [(i, (i + 1) % n) for i in range(n)]

    def local(h: jax.Array, start: jax.Array) -> jax.Array:
        def body(_: int, h: jax.Array) -> jax.Array:
            return jnp.tanh(lax.ppermute(h, "x", onward))  # => collective-permute over x, unknown times

        return lax.fori_loop(start, 12, body, h)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", None), P()), out_specs=P("x", None))
    return jax.jit(mapped), [array(mesh, (4096, 1024), "x", None), scalar(mesh)]


@golden("x=8")
def pipeline(mesh: Mesh) -> Built:
    """Eight stages, four microbatches: eleven ticks, after each the activations move one stage on."""
    stages, microbatches = mesh.shape["x"], 4
    onward = [(i, i + 1) for i in range(stages - 1)]

    def local(x: jax.Array, w: jax.Array) -> jax.Array:
        stage = lax.axis_index("x")

        def tick(carry: tuple[jax.Array, jax.Array], t: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
            arriving, done = carry
            fresh = lax.dynamic_index_in_dim(x, jnp.minimum(t, microbatches - 1), keepdims=False)
            h = jax.nn.relu(jnp.where(stage == 0, fresh, arriving) @ w[0])
            slot = jnp.clip(t - (stages - 1), 0, microbatches - 1)
            done = lax.dynamic_update_index_in_dim(done, h, slot, 0)
            return (lax.ppermute(h, "x", onward), done), None  # => collective-permute over x, 11 times

        start = (jnp.zeros_like(x[0]), jnp.zeros_like(x))
        (_, done), _ = lax.scan(tick, start, jnp.arange(microbatches + stages - 1))
        return lax.psum(jnp.where(stage == stages - 1, done, 0), "x")  # => all-reduce over x

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("x", None, None)), out_specs=P(), check_vma=False)
    return jax.jit(mapped), [array(mesh, (microbatches, 512, 1024)), array(mesh, (stages, 1024, 1024), "x", None, None)]


# Layers of models.


@golden("x=8")
def fsdp(mesh: Mesh) -> Built:
    """A two-layer MLP and its gradients: batch and weights split over x, weights gathered where they are used."""
    whole = NamedSharding(mesh, P(None, None))
    rows = NamedSharding(mesh, P("x", None))

    def loss(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        w_in, w_out = weights
        w_in = lax.with_sharding_constraint(w_in, whole)  # => all-gather over x; backward: reduce-scatter over x
        h = jax.nn.relu(x @ w_in)  # => backward: reduce-scatter over x
        h = lax.with_sharding_constraint(h, rows)
        w_out = lax.with_sharding_constraint(w_out, whole)  # => all-gather over x; backward: reduce-scatter over x
        y = lax.with_sharding_constraint(h @ w_out, rows)  # => backward: reduce-scatter over x
        return jnp.mean(y.astype(jnp.float32) ** 2)  # => all-reduce over x

    step = jax.value_and_grad(loss)
    weights = (array(mesh, (1024, 4096), "x", None), array(mesh, (4096, 1024), "x", None))
    out = (NamedSharding(mesh, P()), (rows, rows))
    return jax.jit(step, out_shardings=out), [weights, array(mesh, (8192, 1024), "x", None)]


@golden("x=8")
def moe(mesh: Mesh) -> Built:
    """Eight experts, one a device: tokens go to their expert and come back. X[E, C, D] holds C tokens for each."""

    def local(tokens: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
        mine = lax.all_to_all(tokens, "x", split_axis=0, concat_axis=1, tiled=True)  # => all-to-all over x
        h = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", mine, w_in))
        made = jnp.einsum("ecf,efd->ecd", h, w_out)
        return lax.all_to_all(made, "x", split_axis=1, concat_axis=0, tiled=True)  # => all-to-all over x

    experts = P("x", None, None)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(None, "x", None), experts, experts), out_specs=P(None, "x", None))
    shapes = [array(mesh, (8, 2048, 1024), None, "x", None), array(mesh, (8, 1024, 2048), *experts)]
    return jax.jit(mapped), [*shapes, array(mesh, (8, 2048, 1024), *experts)]


def attention(h: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", h, weights[name]) for name in ("q", "k", "v"))  # => backward: all-reduce over y
    scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / 8
    probabilities = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(h.dtype)
    mixed = jnp.einsum("bhst,bhtk->bhsk", probabilities, v)
    return jnp.einsum("bhsk,hkd->bsd", mixed, weights["o"])  # => all-reduce over y


def feed_forward(h: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    hidden = jax.nn.relu(jnp.einsum("bsd,df->bsf", h, weights["up"]))  # => backward: all-reduce over y
    return jnp.einsum("bsf,fd->bsd", hidden, weights["down"])  # => all-reduce over y


@golden("x=4,y=2")
def transformer(mesh: Mesh) -> Built:
    """One layer forward and backward: batch over x, heads and hidden width over y, as Megatron splits them."""
    batch = NamedSharding(mesh, P("x", None, None))
    specs = {"q": P(None, "y", None), "o": P("y", None, None), "up": P(None, "y"), "down": P("y", None)}
    specs |= {"k": specs["q"], "v": specs["q"]}
    dims = {"q": (1024, 16, 64), "k": (1024, 16, 64), "v": (1024, 16, 64), "o": (16, 64, 1024)}
    dims |= {"up": (1024, 4096), "down": (4096, 1024)}

    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = lax.with_sharding_constraint(x + attention(x, weights), batch)
        y = lax.with_sharding_constraint(h + feed_forward(h, weights), batch)
        return jnp.mean(y.astype(jnp.float32) ** 2)  # => all-reduce over x

    step = jax.value_and_grad(loss, argnums=(0, 1))  # => all-reduce over x, of the gradients of weights
    weights = {name: array(mesh, dims[name], *specs[name]) for name in dims}
    out = (NamedSharding(mesh, P()), ({name: weights[name].sharding for name in dims}, batch))
    return jax.jit(step, out_shardings=out), [weights, array(mesh, (16, 512, 1024), "x", None, None)]
