"""A long run of many different contractions: memory and caches must stop growing.

    python -m benchmarks.soak [--minutes 3] [--every 5] [--problems 256] [--most-growth 0.10]

Equations, sizes, dtypes and meshes are drawn once, several times as many as the cache of programs holds here, and run
in random order: programs are dropped and made anew all the time, with whatever hangs on them. Once each problem has
been run, all caches are as full as they get (JAX's own too, whose limits are thousands of entries); from there on the
level of resident memory may rise by no more than the stated share. A level is the median over a quarter of the rest.
Every tenth result is held against NumPy. Ends with 1 when memory grows, a cache exceeds its limit, more programs are
alive than the cache holds, a result is wrong, or the time is too short to tell.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import shardwise as sw
from shardwise.layout import Layout
from shardwise.notation import Equation, Operand

DEVICES = 8
MESHES = ["x=8", "x=4, y=2", "x=2, y=2, z=2", "x=4", "x=3", "x=2, y=3"]
DTYPES = ["float32", "bfloat16", "int32", "complex64"]
SIZES = (4, 6, 8, 12, 16, 18, 24)
CACHED = 64  # programs kept while soaking, so that the cache is full in seconds, and turns over many times


@dataclass
class Soak:
    """What was seen so far: resident bytes with their time, calls, and the results that were wrong."""

    started: float = field(default_factory=time.monotonic)
    calls: int = 0
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    seen: list[tuple[float, int]] = field(default_factory=list)
    full_since: float | None = None
    most_alive: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two lines")
    parser.add_argument("--most-growth", type=float, default=0.10, help="share by which memory may grow once caches are full")
    parser.add_argument("--problems", type=int, default=4 * CACHED, help="how many different ones are run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sw.simulate(DEVICES)
    small_cache(CACHED)
    soak = Soak()
    chance = random.Random(options.seed)
    pool = list(itertools.islice(problems(chance, np.random.default_rng(options.seed)), options.problems))
    told = 0.0
    while soak.seconds < 60 * options.minutes:
        call(soak, *(pool[soak.calls] if soak.calls < len(pool) else chance.choice(pool)))
        if soak.calls == len(pool):
            soak.full_since = soak.seconds
        if soak.seconds - told >= options.every:
            told = soak.seconds
            observe(soak)
    return verdict(soak, options.most_growth)


def small_cache(size: int) -> None:
    """Give the cache of prepared programs a smaller limit: the same code, full sooner."""
    from shardwise.runtime import execute

    execute.prepare = functools.lru_cache(maxsize=size)(execute.prepare.__wrapped__)


# What is run.


def problems(chance: random.Random, generator: np.random.Generator) -> Iterator[tuple[str, str, list[np.ndarray]]]:
    """Equations of one to three operands in any layout, on any of the meshes, with their arrays."""
    while True:
        mesh = chance.choice(MESHES)
        grid = sw.Mesh.parse(mesh)
        sizes = {dim: chance.choice(SIZES) for dim in "IJKL"}
        dims = chance.choice([["IJ"], ["IJ", "JK"], ["IJ", "JK"], ["IJK"], ["LIJ", "LJK"], ["IJ", "JK", "KL"]])
        known = list(dict.fromkeys("".join(dims)))
        kept = chance.sample(known, chance.randint(1, min(3, len(known))))
        operands = tuple(
            Operand(name, drawn_layout(chance, grid, each, sizes)) for name, each in zip("ABD", dims, strict=False)
        )
        equation = Equation(operands, Operand("C", drawn_layout(chance, grid, kept, sizes)))
        dtype = np.dtype(jax.numpy.dtype(chance.choice(DTYPES)))
        shapes = [tuple(sizes[dim] for dim in each) for each in dims]
        yield str(equation), mesh, [generator.integers(-4, 5, shape).astype(dtype) for shape in shapes]


def drawn_layout(chance: random.Random, grid: sw.Mesh, dims: Any, sizes: dict[str, int]) -> Layout:
    """Axes that divide their dimension, each at most once."""
    axes = chance.sample(grid.names, len(grid.names))
    layout = []
    for dim in dims:
        own: list[str] = []
        while axes and chance.random() < 0.5 and sizes[dim] % grid.extent([*own, axes[-1]]) == 0:
            own.append(axes.pop())
        layout.append((dim, tuple(own)))
    return Layout(tuple(layout))


def call(soak: Soak, text: str, mesh: str, arrays: list[np.ndarray]) -> None:
    soak.calls += 1
    result = sw.einsum(text, *arrays, mesh=mesh)
    if soak.calls % 10 == 0:
        soak.checked += 1
        if not np.array_equal(np.asarray(result, wide(result)), reference(text, arrays)):
            soak.wrong.append(f"{text} on {mesh}, {arrays[0].dtype}")


def wide(array: Any) -> np.dtype:
    return np.dtype("complex128" if np.iscomplexobj(array) else "float64")


def reference(text: str, arrays: list[np.ndarray]) -> np.ndarray:
    """By NumPy, rounded as the result is."""
    equation = sw.parse(text)
    terms = ",".join("".join(operand.dims) for operand in equation.operands)
    exact = np.einsum(f"{terms}->{''.join(equation.result.dims)}", *(array.astype(wide(array)) for array in arrays))
    return exact if arrays[0].dtype.name != "bfloat16" else exact.astype(arrays[0].dtype).astype(exact.dtype)


# What is watched.


def caches() -> dict[str, Callable[..., Any]]:
    """Every cached function of Shardwise."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("shardwise."):
            for attribute, value in vars(module).items():
                if hasattr(value, "cache_info") and getattr(value, "__module__", "") == name:
                    found[f"{name.removeprefix('shardwise.')}.{attribute}"] = value
    return found


def resident_bytes() -> int:
    """The memory of this process that is in RAM, as Linux tells it."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def programs_alive() -> int:
    """The lowered programs that anything still holds on to."""
    return sum(
        type(each).__module__ == "shardwise.runtime.lower" and type(each).__name__ == "_Local" for each in gc.get_objects()
    )


def observe(soak: Soak) -> None:
    gc.collect()
    soak.seen.append((soak.seconds, resident_bytes()))
    prepared = caches()["runtime.execute.prepare"].cache_info()
    soak.most_alive = max(soak.most_alive, programs_alive())
    print(
        f"{soak.seconds:6.0f} s  {soak.calls:7,} calls  {soak.seen[-1][1] / 1e6:7.1f} MB resident  "
        f"{prepared.currsize:,} programs kept of {prepared.maxsize:,}, {prepared.misses - prepared.currsize:,} dropped, "
        f"{programs_alive():,} alive  {'all caches full' if soak.full_since else 'filling'}",
        flush=True,
    )


def verdict(soak: Soak, most_growth: float) -> int:
    print()
    for name, cached in caches().items():
        info = cached.cache_info()
        print(f"{name}: {info.currsize:,} of {'any number' if info.maxsize is None else f'{info.maxsize:,}'}")
    steady = [seen for at, seen in soak.seen if soak.full_since is not None and at >= soak.full_since]
    quarter = len(steady) // 4
    if quarter < 2:
        print(f"too short: {len(steady)} looks at memory since the caches were full, and at least 8 are needed")
        return 1
    before, after = statistics.median(steady[:quarter]), statistics.median(steady[-quarter:])
    growth = after / before - 1
    faults = [f"{name} exceeds its limit" for name, cached in caches().items() if not bounded(cached.cache_info())]
    faults += [f"wrong: {each}" for each in soak.wrong[:5]]
    faults += [f"memory grew by {growth:.1%}, and {most_growth:.0%} is allowed"] if growth > most_growth else []
    faults += [f"{soak.most_alive} programs were alive, and {CACHED} are kept"] if soak.most_alive > CACHED else []
    print(f"{soak.calls:,} calls; {soak.checked:,} results held against NumPy, {len(soak.wrong)} of them wrong")
    print(f"resident memory since the caches are full: {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB, {growth:+.1%}")
    print(
        "\n".join(["FAILED", *faults])
        if faults
        else f"fine: growth is below {most_growth:.0%}, and every cache within its limit"
    )
    return 1 if faults else 0


def bounded(info: Any) -> bool:
    """The catalogue of hardware is a fixed set, and the only cache without a limit."""
    return info.currsize <= (64 if info.maxsize is None else info.maxsize)


if __name__ == "__main__":
    sys.exit(main())
