"""What the overlap benchmark compares with: the compiler's own program, the textbook ring, one matmul on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding

from shardwise.measure.timing import unsharded
from shardwise.notation import Equation, Operand
from shardwise.runtime.devices import AnyMesh


def on_auto(mesh: AnyMesh) -> AnyMesh:
    """The mesh with axes that the compiler's partitioner may use as it likes."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def shapes(operands: Sequence[Operand], sizes: dict[str, int], mesh: AnyMesh) -> list[jax.ShapeDtypeStruct]:
    """Arguments in bfloat16, as their layouts say."""
    return [
        jax.ShapeDtypeStruct(
            tuple(sizes[dim] for dim in operand.dims), jnp.bfloat16, sharding=NamedSharding(mesh, operand.layout.spec)
        )
        for operand in operands
    ]


def own(equation: Equation, mesh: AnyMesh) -> Callable[..., Any]:
    """The einsum as the compiler partitions it by itself; `mesh` has Auto axes."""
    ins = tuple(NamedSharding(mesh, operand.layout.spec) for operand in equation.operands)
    return jax.jit(unsharded(equation), in_shardings=ins, out_shardings=NamedSharding(mesh, equation.result.layout.spec))


def textbook(kind: str, equation: Equation, mesh: AnyMesh) -> Callable[..., Any]:
    """A ring as teaching documents have it: unrolled, into zeros, in whatever order the compiler likes."""
    ring = {"RS": _scattered, "weights": _summed}.get(kind, _gathered)
    ins = tuple(operand.layout.spec for operand in equation.operands)
    out = equation.result.layout.spec
    mapped: Any = jax.shard_map(lambda a, b: ring(a, b, mesh.size), mesh=mesh, in_specs=ins, out_specs=out, check_vma=False)
    return jax.jit(mapped)


def _up(n: int) -> list[tuple[int, int]]:
    return [(place, (place + 1) % n) for place in range(n)]


def _gathered(a: Any, b: Any, n: int) -> Any:
    place, width = lax.axis_index("x"), a.shape[0]
    result = jnp.zeros((width * n, b.shape[1]), a.dtype)
    for hop in range(n):
        result = lax.dynamic_update_slice_in_dim(result, a @ b, (place - hop) % n * width, 0)
        a = lax.ppermute(a, "x", _up(n)) if hop < n - 1 else a
    return result


def _summed(a: Any, b: Any, n: int) -> Any:
    place, width = lax.axis_index("x"), b.shape[0]
    total = jnp.zeros((a.shape[0], b.shape[1]), a.dtype)
    for hop in range(n):
        total = total + lax.dynamic_slice_in_dim(a, (place - hop) % n * width, width, 1) @ b
        b = lax.ppermute(b, "x", _up(n)) if hop < n - 1 else b
    return total


def _scattered(a: Any, b: Any, n: int) -> Any:
    place, width = lax.axis_index("x"), a.shape[0] // n
    total = jnp.zeros((width, b.shape[1]), a.dtype)
    for hop in range(n):
        total = total + lax.dynamic_slice_in_dim(a, (place - hop - 1) % n * width, width) @ b
        total = lax.ppermute(total, "x", _up(n)) if hop < n - 1 else total
    return total


def local(terms: Sequence[Sequence[str]], dims: Sequence[str], sizes: dict[str, int]) -> tuple[Callable[..., Any], list[Any]]:
    """One matmul of whole arrays on every device, and its arguments."""
    index = {dim: i for i, dim in enumerate(sizes)}

    def function(*arrays: Any) -> Any:
        pairs = zip(arrays, ([index[dim] for dim in term] for term in terms), strict=True)
        return jnp.einsum(*(each for pair in pairs for each in pair), [index[dim] for dim in dims])

    return function, [jax.ShapeDtypeStruct(tuple(sizes[dim] for dim in term), jnp.bfloat16) for term in terms]
