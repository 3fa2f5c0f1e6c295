"""Wastes planted in small programs of many constructions: each is found, at its line, with its bytes; clean programs show none.

The line that wastes ends in `# here`. Bytes are computed beside each program from its sizes, as one device's in one call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.compiled.audit import Audit
from shardwise.compiled.facts import Line
from shardwise.compiled.findings import Finding

Built = tuple[Callable[..., Any], Sequence[Any]]
F32 = 4  # bytes


@dataclass(frozen=True)
class Planted:
    """A program that wastes: of which kind, how many bytes, and on how many arrays; compiled for the host or for a target."""

    build: Callable[[], Built]
    kind: str
    wire: float
    memory: float
    count: int
    on: str | None


PLANTED: dict[str, Planted] = {}
CLEAN: dict[str, tuple[Callable[[], Built], str | None]] = {}


def planted(
    kind: str, wire: float = 0, memory: float = 0, count: int = 1, on: str | None = None
) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        PLANTED[build.__name__] = Planted(build, kind, wire, memory, count, on)
        return build

    return register


def clean(on: str | None = None) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        CLEAN[build.__name__] = build, on
        return build

    return register


@functools.cache
def grid(axes: str = "x=8", explicit: bool = False) -> jax.sharding.Mesh:
    return sw.make_mesh(axes, axis_types=AxisType.Explicit if explicit else AxisType.Auto)


def array(shape: tuple[int, ...], *spec: Any, mesh: Any = None, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh or grid(), P(*spec)))


def lay(*spec: Any, mesh: Any = None) -> NamedSharding:
    return NamedSharding(mesh or grid(), P(*spec))


def mapped(function: Callable[..., Any], ins: Any, outs: Any, mesh: Any = None, check: bool = True) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=mesh or grid(), in_specs=ins, out_specs=outs, check_vma=check)


# An all-reduce of which each device keeps its part: of V bytes V * 7/8 too many on eight devices.


@planted("reduced-then-sliced", wire=256 * 128 * F32 * 7 / 8)
def result_split_by_rows() -> Built:
    def product(a: Any, b: Any) -> Any:
        return a @ b  # here

    return jax.jit(product, out_shardings=NamedSharding(grid(), P("x"))), [array((256, 64), None, "x"), array((64, 128), "x")]


@planted("reduced-then-sliced", wire=(64 * 128 + 128 * 64) * F32 * 7 / 8, count=2)
def optimizer_in_parts() -> Built:
    """Gradients of two layers in one joined all-reduce; each device updates its rows of the state (ZeRO)."""

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ weights[0]) @ weights[1])  # here

    def step(weights: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(weights, x)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradients)
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, state), state

    whole, parts = [(array(s, *spec), array(s[::-1], *spec)) for s in [(64, 128)] for spec in [(), ("x",)]]
    shardings = jax.tree.map(lambda a: a.sharding, (whole, parts))
    return jax.jit(step, out_shardings=shardings, donate_argnums=(0, 1)), [whole, parts, array((64, 64), "x")]


@planted("reduced-then-sliced", wire=64 * 64 * F32 * 7 / 8)
def cut_by_hand() -> Built:
    def local(a: Any) -> Any:
        total = lax.psum(jnp.tanh(a), "x")  # here
        return lax.dynamic_slice_in_dim(total, lax.axis_index("x") * 8, 8) * 2

    return mapped(local, P(None, "x"), P("x")), [array((64, 512), None, "x")]


@planted("reduced-then-sliced", wire=64 * 128 * F32 * 7 / 8)
def clipped_by_norm() -> Built:
    """The norm of a gradient reads all of it, the update a part: the norm is that of the parts."""

    def step(w: Any, m: Any, x: Any) -> Any:
        g = jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)  # here
        g = lax.with_sharding_constraint(g, lay("x"))
        return m + g / (1 + jnp.sqrt(jnp.sum(g * g)))

    return jax.jit(step, out_shardings=NamedSharding(grid(), P("x"))), [
        array((64, 128)), array((64, 128), "x"), array((512, 64), "x"),
    ]  # fmt: skip


@planted("reduced-then-sliced", wire=3 * 64 * 16 * F32 * 7 / 8)
def cut_in_a_scan() -> Built:
    def local(a: Any) -> Any:
        def turn(carry: Any, row: Any) -> Any:
            total = lax.psum(jnp.sin(row * carry[0]), "x")  # here
            return lax.dynamic_slice_in_dim(total, lax.axis_index("x") * 8, 8), None

        return lax.scan(turn, lax.pcast(jnp.ones((8, 16)), "x", to="varying"), a)[0]

    return mapped(local, P(None, None, "x"), P("x")), [array((3, 64, 128), None, None, "x")]


# A gather of which a device keeps a part: of V bytes V * 7/8 received, of them what is not kept for nothing.


@planted("gathered-then-sliced", wire=64 * 256 * F32 * 7 / 8 * 7 / 8)
def last_tokens_of_all() -> Built:
    def local(a: Any) -> Any:
        whole = lax.all_gather(a, "x", axis=0, tiled=True)  # here
        return jnp.tanh(whole)[-8:] @ jnp.ones((256, 4))

    return mapped(local, P("x"), P(None), check=False), [array((64, 256), "x")]


@planted("gathered-then-sliced", wire=512 * 64 * F32 * 7 / 8 * (1 - 1 / 8))
def all_to_all_by_hand() -> Built:
    def local(a: Any) -> Any:
        whole = lax.all_gather(a, "x", axis=0, tiled=True)  # here
        return lax.dynamic_slice_in_dim(whole, lax.axis_index("x") * 8, 8, axis=1)

    return mapped(local, P("x"), P(None, "x")), [array((512, 64), "x")]


@planted("gathered-then-sliced", wire=4 * 64 * 128 * F32 * 7 / 8 * (1 - 1 / 64))
def one_token_of_a_sequence() -> Built:
    def head(h: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(jnp.tanh(h), lay())[:, 17] @ w  # here

    return jax.jit(head), [array((4, 64, 128), None, "x"), array((128, 16))]


# A gather of what only reductions read.


@planted("gathered-then-reduced", wire=64 * 1024 * F32 * 7 / 8 * (1 - 3 / 1024))
def gathered_logits() -> Built:
    def loss(h: Any, w: Any, labels: Any) -> Any:
        parts, whole = lay(None, "x"), lay()
        logits = lax.with_sharding_constraint(jnp.tanh(lax.with_sharding_constraint(h @ w, parts)), whole)  # here
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0])

    return jax.jit(loss), [array((64, 32)), array((32, 1024), None, "x"), array((64,), dtype=jnp.int32)]


@planted("gathered-then-reduced", wire=64 * 512 * F32 * 7 / 8 * (1 - 1 / 512))
def maximum_of_explicit_logits() -> Built:
    mesh = grid(explicit=True)

    def best(h: Any, w: Any) -> Any:
        logits = jax.sharding.reshard(jnp.tanh(h @ w), lay(mesh=mesh))  # here
        return logits.max(axis=-1)

    return jax.jit(best), [array((64, 32), mesh=mesh), array((32, 512), None, "x", mesh=mesh)]


@planted("gathered-then-reduced", wire=256 * 64 * F32 * 3 / 4 * (1 - 1 / (256 * 64)))
def mean_square_of_activations() -> Built:
    mesh = grid("x=4, y=2")

    def local(a: Any) -> Any:
        whole = lax.all_gather(a, "x", axis=0, tiled=True)  # here
        return jnp.mean(whole * whole)[None]

    return mapped(local, P("x", "y"), P("y"), mesh, check=False), [array((256, 128), "x", "y", mesh=mesh)]


# A gather that a reshape forces.


@planted("gathered-to-reshape", wire=64 * 64 * F32 * 7 / 8)
def flattened_columns() -> Built:
    def flat(a: Any) -> Any:
        return jnp.tanh(a).reshape(-1)  # here

    return jax.jit(flat), [array((64, 64), None, "x")]


@planted("gathered-to-reshape", wire=16 * 64 * 96 * F32 / 2)
def heads_that_do_not_divide() -> Built:
    """Twelve heads over eight devices: each gathers three heads, of which it computed one and a half."""

    def heads(a: Any, w: Any) -> Any:
        return jnp.tanh((a @ w).reshape(16, 64, 12, 32)) * 2  # here

    return jax.jit(heads), [array((16, 64, 128)), array((128, 384), None, "x")]


# State that every device holds.


@planted("replicated-state", memory=2 * (64 * 128 + 128 * 64) * F32 * 7 / 8, count=4)
def adam_on_every_device() -> Built:
    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ weights["up"]) @ weights["down"])  # here

    def step(weights: Any, state: Any, x: Any) -> Any:
        g = jax.grad(loss)(weights, x)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], g)
        new = jax.tree.map(lambda w, m, v: w - 0.1 * m / (jnp.sqrt(v) + 1e-8), weights, m, v)
        return new, {"m": m, "v": v}

    weights = {"up": array((64, 128)), "down": array((128, 64))}
    return jax.jit(step, donate_argnums=(0, 1)), [weights, {"m": weights, "v": weights}, array((512, 64), "x")]


@planted("replicated-state", memory=3 * 64 * 64 * F32 * 3 / 4)
def momentum_of_scanned_layers() -> Built:
    """Gradients of stacked layers are added up over x in the backward scan."""
    mesh = grid("x=4, y=2")

    def loss(stack: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, stack)[0])  # here

    def step(stack: Any, m: Any, x: Any) -> Any:
        m = 0.9 * m + jax.grad(loss)(stack, x)
        return stack - 0.1 * m, m

    stack = array((3, 64, 64), mesh=mesh)
    return jax.jit(step), [stack, stack, array((256, 64), "x", mesh=mesh)]


# A sum of equal numbers.


@planted("reduced-same", wire=2 * 64 * 32 * F32 * 7 / 8)
def added_up_twice() -> Built:
    def local(a: Any) -> Any:
        total = lax.psum(jnp.sin(a), "x")
        return lax.psum(jnp.cos(total), "x")  # here

    return mapped(local, P("x"), P(None), check=False), [array((512, 32), "x")]


@planted("reduced-same", wire=2 * 64 * 32 * F32 * 7 / 8)
def mean_of_what_is_whole() -> Built:
    def local(a: Any, b: Any) -> Any:
        return b + lax.pmean(jnp.sin(a), "x")  # here

    return mapped(local, (P(), P("x")), P("x"), check=False), [array((64, 32)), array((512, 32), "x")]


# The kinds that were there.


@planted("gathered-argument", wire=128 * 64 * F32 * 7 / 8)
def weights_in_parts() -> Built:
    def step(params: Any, x: Any) -> Any:
        return x @ lax.with_sharding_constraint(params["w"], lay())  # here

    return jax.jit(step), [{"w": array((128, 64), "x")}, array((64, 128), "x")]


@planted("gathered-twice", wire=128 * 64 * F32 * 7 / 8)
def gathered_again_for_the_backward_pass() -> Built:
    """Along another dimension the second time, so that the compiler does not take it for the first."""

    def local(w: Any, x: Any) -> Any:
        h = jnp.sin(x @ lax.all_gather(w, "x", tiled=True))  # here
        return h @ lax.all_gather(w, "x", axis=1).reshape(128, 64).T  # here

    return mapped(local, (P("x"), P("x")), P("x")), [array((128, 64), "x"), array((512, 128), "x")]


@planted("sent-wide", wire=2 * 256 * 256 * F32 * 7 / 8 / 2)
def widened_before_the_sum() -> Built:
    def local(a: Any) -> Any:
        return lax.psum(a.astype(jnp.float32), "x")  # here

    return mapped(local, P("x"), P(None)), [array((2048, 256), "x", dtype=jnp.bfloat16)]


@planted("repeated-work")
def nothing_split_over_y() -> Built:
    mesh = grid("x=4, y=2")

    def product(a: Any, b: Any) -> Any:
        return a @ b

    return jax.jit(product), [array((64, 32), "x", mesh=mesh), array((32, 16), mesh=mesh)]


@planted("uneven-layout")
def six_over_four() -> Built:
    def total(a: Any) -> Any:
        return lax.with_sharding_constraint(a * 2, lay("x", mesh=grid("x=4, y=2"))).sum(0)  # here

    return jax.jit(total), [array((6, 10), mesh=grid("x=4, y=2"))]


# Ten more, written after everything else and found without a change to the code.


@planted("reduced-then-sliced", wire=4 * 64 * 128 * F32 * 3 / 4)
def tensor_parallel_output_in_parts() -> Built:
    """Megatron's second matmul, of whose sum each device keeps its part of the sequence."""
    mesh = grid("x=2, y=4")

    def block(h: Any, up: Any, down: Any) -> Any:
        h = jax.nn.relu(h @ up) @ down  # here
        return lax.with_sharding_constraint(h, lay("x", "y", mesh=mesh)) * 2

    weights = [array((128, 256), None, "y", mesh=mesh), array((256, 128), "y", mesh=mesh)]
    return jax.jit(block), [array((8, 64, 128), "x", mesh=mesh), *weights]


@planted("reduced-then-sliced", wire=64 * 128 * F32 * 7 / 8)
def gradient_of_a_checkpointed_layer() -> Built:
    def loss(w: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda h, w: jnp.tanh(h @ w))  # here
        return jnp.mean(layer(x, w) ** 2)

    parts = NamedSharding(grid(), P("x"))
    return jax.jit(jax.grad(loss), out_shardings=parts), [array((64, 128)), array((512, 64), "x")]


@planted("reduced-then-sliced", wire=64 * 128 * F32 * 7 / 8, on="v5e:2x4")
def cut_by_hand_on_a_tpu() -> Built:
    def local(a: Any) -> Any:
        total = lax.psum(jnp.tanh(a), "x")  # here
        return lax.dynamic_slice_in_dim(total, lax.axis_index("x") * 8, 8) * 2

    return mapped(local, P(None, "x"), P("x")), [array((64, 1024), None, "x")]


@planted("gathered-then-sliced", wire=512 * 128 * F32 * 7 / 8 * (1 - 1 / 8), on="v5e:2x4")
def all_to_all_by_hand_on_a_tpu() -> Built:
    def local(a: Any) -> Any:
        whole = lax.all_gather(jnp.sin(a), "x", axis=0, tiled=True)  # here
        return lax.dynamic_slice_in_dim(whole, lax.axis_index("x") * 16, 16, axis=1)

    return mapped(local, P("x"), P(None, "x")), [array((512, 128), "x")]


@planted("gathered-then-sliced", wire=2 * 256 * 64 * F32 * 7 / 8 * (1 - 1 / 2), count=2)
def halves_of_two_arrays() -> Built:
    def local(a: Any, b: Any) -> Any:
        whole = [lax.all_gather(jnp.sin(each), "x", axis=0, tiled=True) for each in (a, b)]  # here
        return whole[0][:128] @ whole[1][128:].T

    return mapped(local, (P("x"), P("x")), P(None), check=False), [array((256, 64), "x"), array((256, 64), "x")]


@planted("gathered-then-reduced", wire=64 * 1024 * F32 * 7 / 8 * (1 - 2 / 1024), on="v5e:2x4")
def softmax_weights_of_gathered_scores() -> Built:
    def local(h: Any, w: Any) -> Any:
        scores = lax.all_gather(jnp.tanh(h @ w), "x", axis=1, tiled=True)  # here
        return jnp.exp(scores - scores.max(1, keepdims=True)).sum(1)

    return mapped(local, (P(), P(None, "x")), P(None), check=False), [array((64, 128)), array((128, 1024), None, "x")]


@planted("gathered-then-reduced", wire=512 * 64 * F32 * 7 / 8 * (1 - 1 / 512))
def sums_of_explicit_rows() -> Built:
    mesh = grid(explicit=True)

    def total(a: Any) -> Any:
        whole = jax.sharding.reshard(jnp.sin(a), lay(mesh=mesh))  # here
        return jnp.sum(whole, axis=0)

    return jax.jit(total), [array((512, 64), "x", mesh=mesh)]


@planted("gathered-to-reshape", wire=32 * 16 * 64 * F32 * 7 / 8)
def batch_joined_behind_time() -> Built:
    def joined(a: Any) -> Any:
        return jnp.exp(a).reshape(32 * 16, 64)  # here

    return jax.jit(joined), [array((32, 16, 64), None, "x")]


@planted("replicated-state", memory=64 * 64 * F32 * 7 / 8)
def momentum_by_hand() -> Built:
    def local(w: Any, m: Any, x: Any) -> Any:
        g = jax.grad(lambda v: jnp.sum(jnp.tanh(x @ v)))(lax.pcast(w, "x", to="varying"))
        m = 0.9 * m + lax.psum(g, "x")  # here
        return w - 0.1 * m, m

    step = mapped(local, (P(), P(), P("x")), (P(), P()))
    return jax.jit(step), [array((64, 64)), array((64, 64)), array((512, 64), "x")]


@planted("reduced-same", wire=2 * 16 * F32 * 7 / 8 * 3)
def gathered_and_added_up_in_a_scan() -> Built:
    def local(h: Any, ws: Any) -> Any:
        def turn(h: Any, w: Any) -> Any:
            whole = lax.pmax(jnp.sin(h * w), "x")
            return lax.psum(jnp.cos(whole), "x") / 8, None  # here

        return lax.scan(turn, h, ws)[0]

    return mapped(local, (P(), P(None, "x")), P(None), check=False), [array((16,)), array((3, 128), None, "x")]


# Clean programs: what they send and hold they need.


@clean()
def rows_stay_where_they_are() -> Built:
    return jax.jit(lambda a, b: jnp.tanh(a @ b)), [array((64, 32), "x"), array((32, 16))]


@clean()
def partial_sums_added_up() -> Built:
    return jax.jit(lambda a, b: a @ b), [array((64, 128), None, "x"), array((128, 32), "x")]


@clean()
def scattered_by_hand() -> Built:
    def local(a: Any, b: Any) -> Any:
        return lax.psum_scatter(a @ b, "x", tiled=True)

    return mapped(local, (P(None, "x"), P("x")), P("x")), [array((64, 128), None, "x"), array((128, 32), "x")]


@clean()
def softmax_over_a_split_dimension() -> Built:
    def local(a: Any) -> Any:
        return sw.spmd.softmax(a, axis=1, over="x")

    return mapped(local, P(None, "x"), P(None, "x")), [array((64, 512), None, "x")]


@clean()
def all_to_all_of_experts() -> Built:
    def local(a: Any) -> Any:
        return lax.all_to_all(jnp.sin(a), "x", split_axis=1, concat_axis=0, tiled=True)

    return mapped(local, P("x"), P(None, "x")), [array((64, 64), "x")]


@clean()
def ring_of_neighbours() -> Built:
    onward = [(i, (i + 1) % 8) for i in range(8)]

    def local(a: Any) -> Any:
        return lax.fori_loop(0, 7, lambda _, b: jnp.sin(lax.ppermute(b, "x", onward)) + b, a)

    return mapped(local, P("x"), P("x")), [array((64, 64), "x")]


@clean()
def sums_in_a_scan() -> Built:
    def local(h: Any, ws: Any) -> Any:
        return lax.scan(lambda h, w: (jnp.tanh(lax.psum(h @ w, "x")) * h, None), h, ws)[0]

    return mapped(local, (P("x"), P()), P("x")), [array((64, 16), "x"), array((3, 16, 16))]


@clean()
def optimizer_that_scatters() -> Built:
    """ZeRO by hand: gradients scattered, the state in parts, the new weights gathered."""

    def local(w: Any, m: Any, x: Any) -> Any:
        g = jax.grad(lambda v: jnp.sum(jnp.tanh(x @ v)))(lax.pcast(w, "x", to="varying"))
        m = 0.9 * m + lax.psum_scatter(g, "x", tiled=True)
        return w - lax.all_gather(0.1 * m, "x", tiled=True), m

    step = mapped(local, (P(), P("x"), P("x")), (P(), P("x")), check=False)
    return jax.jit(step), [array((64, 32)), array((64, 32), "x"), array((512, 64), "x")]


@clean()
def batch_norm_of_the_whole_batch() -> Built:
    mesh = grid("x=4, y=2")

    def normal(a: Any) -> Any:
        return (a - a.mean(0)) * lax.rsqrt(a.var(0) + 1e-5)

    return jax.jit(normal), [array((256, 64), "x", "y", mesh=mesh)]


@clean(on="v5e:2x4")
def planned_product() -> Built:
    sizes = {"I": 512, "J": 256, "K": 128}
    plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I_x, K]", sizes=sizes, mesh="x=8", hardware="tpu-v5e", dtype="float32")
    return plan.function(grid(explicit=True)), [array((512, 256), None, "x"), array((256, 128), "x")]


# Tests.


def audited(build: Callable[[], Built], on: str | None) -> Audit:
    function, arguments = build()
    return sw.audit(function, *arguments) if on is None else sw.rehearse(function, *arguments, on=on)


def lines_of(build: Callable[[], Built]) -> list[str]:
    lines, start = inspect.getsourcelines(build)
    return [f"{Path(__file__).name}:{n}" for n, line in enumerate(lines, start) if line.rstrip().endswith("# here")]


def found(program: Planted) -> list[Finding]:
    return [finding for finding in audited(program.build, program.on).findings if finding.kind == program.kind]


@pytest.mark.parametrize("name", [name for name, program in PLANTED.items() if program.on is None])
def test_a_planted_waste_is_found_at_its_line_with_its_bytes(name: str):
    program = PLANTED[name]
    (finding,) = found(program)
    assert (round(finding.wire_bytes), round(finding.memory_bytes)) == (round(program.wire), round(program.memory))
    assert finding.count == program.count
    named = {Line(line.place).short for line in finding.lines}
    assert set(lines_of(program.build)) <= named


@pytest.mark.needs("tpu")
@pytest.mark.parametrize("name", [name for name, program in PLANTED.items() if program.on is not None])
def test_a_planted_waste_is_found_in_what_tpus_run(name: str):
    test_a_planted_waste_is_found_at_its_line_with_its_bytes(name)


@pytest.mark.parametrize("name", [name for name, (_, on) in CLEAN.items() if on is None])
def test_a_clean_program_has_no_finding(name: str):
    build, on = CLEAN[name]
    assert [str(finding) for finding in audited(build, on).findings] == []


@pytest.mark.needs("tpu")
@pytest.mark.parametrize("name", [name for name, (_, on) in CLEAN.items() if on is not None])
def test_a_clean_program_has_no_finding_on_tpus(name: str):
    test_a_clean_program_has_no_finding(name)
