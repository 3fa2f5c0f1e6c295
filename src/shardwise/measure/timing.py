"""Timing functions in turn, and the baseline: what `jax.jit` makes of an equation by itself."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of several runs of one function."""

    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the middle half of the runs, as a share of the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / self.median_seconds
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median_seconds


def interleaved(functions: Mapping[str, Callable[[], Any]], runs: int = 7, rest_after: float = 0.0) -> dict[str, Timing]:
    """Time functions in turn, in another order every time, after one run of each that compiles and is not counted.

    Right before each counted run the same function runs uncounted: memory that the one before gave back, and caches
    that it filled, are then no longer the next one's burden.

    Args:
        functions: called without arguments; their results are waited for.
        runs: counted runs of each.
        rest_after: end early, but not before three runs, once so many seconds are spent.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    order = list(functions)
    shuffled = random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    started = time.perf_counter()
    for turn in range(runs):
        shuffled.shuffle(order)
        for name in order:
            jax.block_until_ready(functions[name]())
            begin = time.perf_counter()
            jax.block_until_ready(functions[name]())
            taken[name].append(time.perf_counter() - begin)
        if rest_after and turn >= 2 and time.perf_counter() - started > rest_after:
            break
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}


def automatic(equation: Equation, mesh: jax.sharding.Mesh) -> tuple[dict[str, Callable[..., Any]], Callable[..., list[Any]]]:
    """What `jax.jit` makes of an equation by itself, and a function that lays its arguments out.

    The einsum is given whole to the compiler, whose partitioner chooses the collectives (Auto axes). The result's layout
    is asked for in the two ways that JAX has, and the compiler can choose otherwise for each: "constraint" is
    `jax.lax.with_sharding_constraint`, the only way inside a larger function; "out_shardings" that argument of
    `jax.jit`.
    """
    auto = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    grid = Mesh.parse(mesh)

    def sharding(operand: Operand) -> NamedSharding:
        return NamedSharding(auto, operand.layout.on(grid).spec)

    ins = tuple(sharding(operand) for operand in equation.operands)
    out = sharding(equation.result)
    whole = unsharded(equation)

    def constrained(*arrays: Any) -> Any:
        return jax.lax.with_sharding_constraint(whole(*arrays), out)

    functions: dict[str, Callable[..., Any]] = {
        "constraint": jax.jit(constrained),
        "out_shardings": jax.jit(whole, out_shardings=out),
    }
    return functions, lambda *arrays: [jax.device_put(a, s) for a, s in zip(arrays, ins, strict=True)]


def unsharded(equation: Equation, precision: Any = None) -> Callable[..., Any]:
    """The equation as one `jnp.einsum` of whole arrays."""
    index = {dim: i for i, dim in enumerate(equation.dims)}
    terms: Sequence[list[int]] = [[index[dim] for dim in operand.dims] for operand in equation.operands]
    result = [index[dim] for dim in equation.result.dims]

    def function(*arrays: Any) -> Any:
        return jnp.einsum(*(x for pair in zip(arrays, terms, strict=True) for x in pair), result, precision=precision)

    return function
