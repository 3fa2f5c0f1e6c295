"""Random programs as people write them: functions over meshes, their arguments, and what may have run before them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

AXES = ("x=8", "x=4, y=2", "x=2, y=4")
SIZE = 64


@dataclass(frozen=True)
class Case:
    """A function that is made once, its arguments, and the mesh that they lie on."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: jax.sharding.Mesh


@dataclass(frozen=True)
class Draw:
    """What bodies and wraps are made with."""

    random: Random
    mesh: jax.sharding.Mesh
    explicit: bool


def bound(draw: Draw) -> Any:
    """The `mesh=` of a `jax.shard_map`: none, the mesh of the arguments, or one without devices."""
    return draw.random.choice([None, None, draw.mesh])


def mapped(draw: Draw, body: Callable[..., Any], ins: Any, outs: Any) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=bound(draw), in_specs=ins, out_specs=outs, check_vma=draw.random.random() < 0.8)


def summed(draw: Draw) -> Callable[[Any], Any]:
    made = mapped(draw, lambda a: a * jax.lax.psum(a.sum(), "x"), P("x"), P("x"))
    return lambda a: made(a)


def bare_map(draw: Draw) -> Callable[[Any], Any]:
    return mapped(draw, lambda a: a - jax.lax.pmean(a, "x"), P("x"), P("x"))


def gathered(draw: Draw) -> Callable[[Any], Any]:
    def body(a: Any) -> Any:
        whole = jax.lax.all_gather(a, "x", tiled=True)
        return a @ whole[: a.shape[1]]

    return mapped(draw, body, P("x"), P("x"))


def ringed(draw: Draw) -> Callable[[Any], Any]:
    n = dict(draw.mesh.shape)["x"]

    def body(a: Any) -> Any:
        step = lambda _, b: jax.lax.ppermute(b, "x", [(i, (i + 1) % n) for i in range(n)]) * 2.0  # noqa: E731
        return jax.lax.fori_loop(0, 3, step, a)

    return mapped(draw, body, P("x"), P("x"))


def ragged(draw: Draw) -> Callable[[Any], Any]:
    """Each device sends the first rows of its shard: a custom call until late in the compiler."""
    n = dict(draw.mesh.shape)["x"]
    rows = SIZE // n // n

    def body(a: Any) -> Any:
        starts = jnp.arange(n, dtype=jnp.int32) * rows
        counts = jnp.full((n,), rows, jnp.int32)
        place = jnp.full((n,), jax.lax.axis_index("x") * rows, jnp.int32)
        return jax.lax.ragged_all_to_all(a, jnp.zeros_like(a), starts, counts, place, counts, axis_name="x")

    return jax.shard_map(body, mesh=bound(draw), in_specs=P("x"), out_specs=P("x"), check_vma=False)


def multiplied(draw: Draw) -> Callable[[Any], Any]:
    held = np.eye(SIZE, dtype=np.float32)
    return lambda a: jnp.tanh(a @ held)


def closed_over(draw: Draw) -> Callable[[Any], Any]:
    held = jax.device_put(np.ones((SIZE, SIZE), np.float32), NamedSharding(draw.mesh, P("x")))
    return lambda a: a * held


def planned(draw: Draw) -> Callable[[Any], Any]:
    mesh = bound(draw)
    return lambda a: sw.einsum("A[I_x, J] · B[J, K] -> C[I_x, K]", a, jnp.ones((SIZE, SIZE)), mesh=mesh)


def printed(draw: Draw) -> Callable[[Any], Any]:
    def body(a: Any) -> Any:
        jax.debug.print("mean {}", a.mean())
        return a * 2

    return body


def drawn(draw: Draw) -> Callable[[Any], Any]:
    return lambda a: a + jax.random.normal(jax.random.key(0), (SIZE, SIZE))[0]


BODIES = (summed, bare_map, gathered, ringed, ragged, multiplied, closed_over, planned, printed, drawn)


def scanned(draw: Draw, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: jax.lax.scan(lambda c, _: (body(c), None), a, None, length=3)[0]


def chosen(draw: Draw, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: jax.lax.cond(a.sum() > 0, body, lambda a: a, a)


def rematerialised(draw: Draw, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    inner = jax.checkpoint(body)
    return lambda a: jax.grad(lambda a: inner(a).astype(jnp.float32).sum())(a)


def nested(draw: Draw, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(body)


def offloaded(draw: Draw, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: jax.device_put(body(a), jax.memory.Space.Host)


def plain(draw: Draw, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return body


WRAPS = (plain, plain, scanned, chosen, rematerialised, nested, offloaded)


def outer(draw: Draw, body: Callable[[Any], Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function as it is handed over, and its further arguments."""
    match draw.random.randrange(5):
        case 0:
            return jax.jit(body, donate_argnums=0), ()
        case 1:
            return jax.jit(lambda a, dtype, scale: body(a).astype(dtype) * scale, static_argnums=(1, 2)), (
                jnp.bfloat16, np.float32(draw.random.randrange(9)),
            )  # fmt: skip
        case 2:
            return functools.partial(jax.jit, static_argnames=("how",))(lambda a, b, how: (body(a), b)), ({"w": 2.0}, "up")
        case _:
            return body, ()


def case(seed: int) -> Case:
    random = Random(seed)
    explicit = random.random() < 0.5
    mesh = sw.make_mesh(random.choice(AXES), axis_types=AxisType.Explicit if explicit else AxisType.Auto)
    draw = Draw(random, mesh, explicit)
    made, wrap = random.choice(BODIES), random.choice(WRAPS)
    body = wrap(draw, made(draw))
    kind = "pinned_host" if random.random() < 0.1 else None
    function, more = outer(draw, fetching(body) if kind else body)
    a: Any = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32, sharding=NamedSharding(mesh, P("x"), memory_kind=kind))
    if not kind and random.random() < 0.3:
        a = jax.device_put(np.ones((SIZE, SIZE), np.float32), a.sharding)
    name = f"{seed} {made.__name__} {wrap.__name__} {kind} {mesh.shape_tuple} {'explicit' if explicit else 'auto'}"
    return Case(name, function, (a, *more), mesh)


def fetching(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: body(jax.device_put(a, jax.memory.Space.Device))
