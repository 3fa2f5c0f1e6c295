"""Timing functions in turn, and the baseline: what `jax.jit` makes of an equation by itself."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from shardwise.errors import MeasureError, ShardwiseError, one_line
from shardwise.measure.intervals import Timing
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand

MOST_RUNS = 1000


Calls = Mapping[str, Callable[[], Any]]


def interleaved(functions: Calls, runs: int = 7, rest_after: float = 0.0) -> dict[str, Timing]:
    """Time functions in turn, in another order every time; before each counted run one of the same that is not.

    Args:
        functions: called without arguments; their results are waited for.
        runs: counted runs of each.
        rest_after: end early, but not before three runs, once so many seconds are spent.

    Raises:
        MeasureError: a function raises; its name and its own error are said.
    """
    found: dict[str, Timing] = {}
    for found, spent in _turns(functions, time.perf_counter):
        count = len(next(iter(found.values())).seconds)
        if count >= runs or (rest_after and count >= 3 and spent > rest_after):
            break
    return found


def until_narrow(
    functions: Calls, seconds: float, narrow: float = 0.02, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timing]:
    """Time functions in turn until each interval is narrow, or the time is up.

    Args:
        functions: called without arguments; their results are waited for.
        seconds: no turn is begun that would end later, as long as the one before; one is always made. What compiles in the
            first turn counts: run each function once before.
        narrow: the half width of an interval, as a share of the median, that is narrow enough.
        clock: tells seconds.

    Raises:
        MeasureError: a function raises; its name and its own error are said.
    """
    found: dict[str, Timing] = {}
    before = 0.0
    for found, spent in _turns(functions, clock):
        enough = len(next(iter(found.values())).seconds) >= MOST_RUNS
        if enough or 2 * spent - before > seconds or all(_half_width(timing) <= narrow for timing in found.values()):
            break
        before = spent
    return found


def _half_width(timing: Timing) -> float:
    """Half the width of the interval as a share of the median."""
    interval = timing.interval_seconds
    return math.inf if interval is None else (interval[1] - interval[0]) / 2 / timing.median_seconds


def _turns(functions: Calls, clock: Callable[[], float]) -> Iterator[tuple[dict[str, Timing], float]]:
    """What is known after each turn, and the seconds spent.

    Right before each counted run the same function runs uncounted: it is compiled then, and memory that the one before gave
    back, and caches that it filled, are no longer the next one's burden.
    """
    order = list(functions)
    shuffled = random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    started = clock()
    while functions:
        shuffled.shuffle(order)
        for name in order:
            done(name, functions[name])
            begin = clock()
            done(name, functions[name])
            taken[name].append(clock() - begin)
        yield {name: Timing(tuple(seconds)) for name, seconds in taken.items()}, clock() - started


def done(name: str, function: Callable[[], Any]) -> Any:
    """Call a function and wait for what it gives.

    Raises:
        MeasureError: it raises; its name and its own error are said.
    """
    try:
        return jax.block_until_ready(function())
    except (ShardwiseError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the user's code raises, SystemExit too
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        told = f"{type(error).__name__}: {one_line(said)}".removesuffix(": ")
        gone = (
            "; a function that donates its arguments can be called only once: measure it without" if "deleted" in said else ""
        )
        raise MeasureError(f"{one_line(name)} raises while it is run: {told}{gone}") from error


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

    def function(*arrays: Any, **options: Any) -> Any:
        given: list[Any] = [x for pair in zip(arrays, terms, strict=True) for x in pair]
        return jnp.einsum(*given, result, precision=precision, **options)

    return function
