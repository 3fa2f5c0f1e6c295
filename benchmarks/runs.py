"""Random equations, planned for random chips, run on simulated devices every way a user may, against the unsharded einsum.

    python -m benchmarks.runs --count 20000 [--seed 0] [--only SEED] [--gradients 10]

1 to 4 operands, every dtype, with and without 64 bits, every name of `overlap=`, every chip, meshes whose axes are of mixed
types, memory limits, padding, and `Plan.code()`. Half of the plans are made for sizes thousands of times as large, where rings
win, and their programs run on the small ones. Numbers are small and whole, so that no sum is rounded, and equal means equal.
Of every tenth floating-point equation the derivatives are compared too, forward and reverse. Every equation has a seed of
its own, and a failure prints the line that runs it alone. Exit code 1 if any fails.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import shardwise as sw
from benchmarks.equations import Case, grown, padded, random_arrays, random_case, uneven, whole
from shardwise.errors import LayoutError, PlanError
from shardwise.layout import Layout
from shardwise.notation import parse
from shardwise.planning.problem import OVERLAPS, Problem, problem
from shardwise.planning.ranking import Candidate, rank
from shardwise.program import Program
from shardwise.runtime.execute import planned_function
from shardwise.steps import RotateEinsum, kind

# The largest number drawn, and how many products may be summed, so that nothing is rounded; integers may wrap around.
EXACT = {
    "bfloat16": (1, 200), "float16": (1, 2000), "float32": (3, 10**4), "float64": (3, 10**4), "complex64": (2, 10**3),
    "complex128": (2, 10**3), "int8": (100, 10**4), "int16": (100, 10**4), "int32": (100, 10**4), "int64": (100, 10**4),
    "uint8": (100, 10**4), "uint16": (100, 10**4), "uint32": (100, 10**4), "uint64": (100, 10**4),
}  # fmt: skip
MIXED = "JAX's types"  # as a dimension over axes of both types is refused that they cannot tell
WIDE = ("float64", "complex128", "int64", "uint64")
FLOATS = ("float32", "float32", "float64", "bfloat16", "float16", "complex64", "complex128")
LARGER = (1, 8, 128, 2048)
PROGRESS_SECONDS = 10.0
CACHED = 200  # equations until compiled functions are dropped


@dataclass(frozen=True)
class Drawn:
    """One equation to run, and how; prints as what it is."""

    case: Case
    dtype: str
    x64: bool
    overlap: bool | str
    axis_types: tuple[AxisType, ...]
    scale: tuple[int, ...]  # of each size, for the planner

    def __str__(self) -> str:
        types = ", ".join(each.name for each in self.axis_types)
        larger = "" if set(self.scale) <= {1} else f", planned for sizes {self.scale} times as large"
        return f"{self.case}, {self.dtype}{' with x64' if self.x64 else ''}, overlap={self.overlap}, {types}{larger}"

    def task(self, scaled: bool = True, memory_limit: float | None = None) -> Problem:
        factors = self.scale if scaled else (1,) * len(self.scale)
        sizes = {dim: size * factor for (dim, size), factor in zip(self.case.sizes.items(), factors, strict=True)}
        equation, mesh, chip = parse(str(self.case.equation)), self.case.mesh, self.case.hardware
        return problem(equation, sizes, mesh, chip, self.dtype, None, memory_limit, self.overlap)

    def mesh(self) -> Any:
        return sw.make_mesh(self.case.mesh, axis_types=self.axis_types)

    def placed(self, arrays: Sequence[np.ndarray], mesh: Any) -> list[jax.Array]:
        return [
            _placed(a, operand.layout, self.case, mesh) for a, operand in zip(arrays, self.case.equation.operands, strict=True)
        ]

    def unsharded(self) -> Callable[..., Any]:
        return lambda *arrays: whole(self.case.equation, arrays, jnp.einsum)


def _placed(array: np.ndarray, layout: Layout, case: Case, mesh: Any) -> jax.Array:
    """An array on the mesh; one of partial sums is what one device holds, and zeros on the others."""
    partial = layout.on(case.mesh).unreduced
    if not partial:
        return sw.put(array, Layout(layout.dims), mesh)
    axes = tuple(sorted(partial))
    parts = np.zeros((case.mesh.extent(axes), *array.shape), array.dtype)
    parts[0] = array
    stacked = Layout((("Count", axes), *layout.dims))
    return sw.einsum(f"S{stacked} -> A{layout}", sw.put(parts, stacked, mesh), mesh=mesh)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000, help="how many equations")
    parser.add_argument("--seed", type=int, default=0, help="the first equation's seed; the others follow it")
    parser.add_argument("--only", type=int, help="run the equation of one seed alone, and say what it is")
    parser.add_argument("--gradients", type=int, default=10, help="of so many equations one is differentiated")
    options = parser.parse_args()
    sw.simulate(8)
    if options.only is not None:
        print(check(options.only, 1, collections.Counter()))
        return 0
    counts: collections.Counter[str] = collections.Counter()
    started = said = time.perf_counter()
    for number, seed in enumerate(range(options.seed, options.seed + options.count), 1):
        try:
            check(seed, options.gradients, counts)
            counts["passed"] += 1
        except Exception:
            counts["failed"] += 1
            traceback.print_exc(limit=-6)
            print(f"FAILED: python -m benchmarks.runs --only {seed}", flush=True)
        if number % CACHED == 0:
            jax.clear_caches()
        if time.perf_counter() - said > PROGRESS_SECONDS:
            said = time.perf_counter()
            print(f"{number} of {options.count} equations, {counts['failed']} failed, {said - started:.0f} s", flush=True)
    print(", ".join(f"{counts[what]} {what}" for what in sorted(set(counts) - {"passed", "failed"})))
    print(f"{counts['passed']} passed, {counts['failed']} failed, {time.perf_counter() - started:.0f} s")
    return 1 if counts["failed"] else 0


def draw(random: Random) -> Drawn:
    """An equation that has what it is asked for."""
    while True:
        dtype = random.choice(list(EXACT))
        case = random_case(random, elements=2000, factors=(1, 2, 2, 3), partial=0.15)
        if case.summed > EXACT[dtype][1]:
            continue
        types = _axis_types(random, case)
        scale = tuple(random.choice(LARGER) for _ in case.sizes) if random.random() < 0.5 else (1,) * len(case.sizes)
        overlap = random.choice(OVERLAPS) if random.random() < 0.5 else True
        drawn = Drawn(case, dtype, dtype in WIDE or random.random() < 0.3, overlap, types, scale)
        if not isinstance(overlap, str) or (_ranked(drawn.task()) and _ranked(drawn.task(scaled=False))):
            return drawn


def _axis_types(random: Random, case: Case) -> tuple[AxisType, ...]:
    """All of one type, or mixed; partial sums are part of JAX's types only where all axes are Explicit."""
    if any(stage.layout.unreduced for stage in case.stages):
        return (AxisType.Explicit,) * len(case.mesh.axes)
    if random.random() < 0.3:
        return tuple(random.choice([AxisType.Explicit, AxisType.Auto]) for _ in case.mesh.axes)
    return (random.choice([AxisType.Explicit, AxisType.Auto]),) * len(case.mesh.axes)


def _ranked(task: Problem) -> tuple[Candidate, ...]:
    """The candidates; none where the equation has no program of the overlap that is asked for, or none fits."""
    try:
        return rank(task)
    except PlanError:
        return ()


def check(seed: int, gradients: int, counts: collections.Counter[str]) -> str:
    """Draw one equation, plan it, run it, and compare; says what it was."""
    random = Random(f"run {seed}")
    drawn = draw(random)
    bits = jax.enable_x64(True) if drawn.x64 else contextlib.nullcontext()
    try:
        with bits:
            odd = uneven(random, drawn.case) if random.random() < 0.1 and not _partial(drawn.case) else None
            if odd is not None:
                check_uneven(random, dataclasses.replace(drawn, case=odd), counts)
                return f"seed {seed} holds: {odd}"
            arrays = _arrays(random, drawn)
            check_values(random, drawn, arrays, counts)
            if drawn.dtype in FLOATS and seed % gradients == 0:
                check_derivatives(random, drawn, arrays, counts)
            elif random.random() < 0.1:
                check_code(drawn, arrays, counts)
    except Exception as error:
        if isinstance(error, (LayoutError, AssertionError)) and _mixes(drawn) and MIXED in str(error):
            counts["mixed in one dimension, and refused"] += 1
            return f"seed {seed} is refused: {drawn}"
        error.add_note(f"in seed {seed}: {drawn}")
        raise
    return f"seed {seed} holds: {drawn}"


def _partial(case: Case) -> bool:
    return any(stage.layout.on(case.mesh).unreduced for stage in case.stages)


def _arrays(random: Random, drawn: Drawn) -> list[np.ndarray]:
    dtype = jnp.dtype(drawn.dtype)
    arrays = random_arrays(random, drawn.case, dtype, EXACT[drawn.dtype][0])
    return [array.astype(dtype) for array in arrays]


def check_values(random: Random, drawn: Drawn, arrays: list[np.ndarray], counts: collections.Counter[str]) -> None:
    """By a program of a plan, or by `sw.einsum`; inside `jit` or outside."""
    wanted, mesh = drawn.unsharded()(*arrays), drawn.mesh()
    function = _function(random, drawn, mesh, counts)
    if random.random() < 0.3:
        function = jax.jit(function)
    got = function(*drawn.placed(arrays, mesh))
    assert got.dtype == wanted.dtype, f"{got.dtype} instead of {wanted.dtype}"
    _check_layout(got, drawn.case)
    unreduced = drawn.case.equation.result.layout.on(drawn.case.mesh).unreduced
    if unreduced:
        result = drawn.case.equation.result
        made = Layout.from_spec(got.sharding.spec, result.dims)
        got = sw.reshard(got, f"R{made} -> R{Layout(made.dims)}", mesh)
    _equal(got, wanted)


def _mixes(drawn: Drawn) -> bool:
    """Whether a dimension is split over axes of both types, in an order or a place that JAX's types cannot tell."""
    types = dict(zip(drawn.case.mesh.names, drawn.axis_types, strict=True))
    splits = (axes for stage in drawn.case.stages for _, axes in stage.layout.on(drawn.case.mesh).dims)
    if drawn.case.equation.result.free and len(set(types.values())) > 1:
        return True  # the program that is run may have chosen such a layout
    return any(len({types[axis] for axis in axes}) > 1 for axes in splits)


def _function(random: Random, drawn: Drawn, mesh: Any, counts: collections.Counter[str]) -> Callable[..., Any]:
    text, case = str(drawn.case.equation), drawn.case
    limit = None
    if set(drawn.scale) <= {1} and random.random() < 0.5:
        counts["by sw.einsum"] += 1
        return lambda *arrays: sw.einsum(text, *arrays, mesh=mesh, hardware=case.hardware, overlap=drawn.overlap)
    ranked = rank(drawn.task())
    if random.random() < 0.2:
        needs = sorted(each.estimate.peak_memory_bytes for each in ranked)
        limit = random.choice(needs)
        ranked = rank(drawn.task(memory_limit=limit))
        assert all(each.estimate.peak_memory_bytes <= limit for each in ranked), "a candidate exceeds the memory limit"
        counts["under a memory limit"] += 1
    ranked = tuple(each for each in ranked if _divides(each.program, drawn.case)) or rank(drawn.task(scaled=False))
    candidate = ranked[0] if random.random() < 0.7 else random.choice(ranked)
    counts["by a program"] += 1
    counts.update(f"{kind(step)} steps" for step in candidate.program.steps)
    return planned_function(drawn.task(scaled=False), candidate.program, mesh)


def _divides(program: Program, case: Case) -> bool:
    """Whether a program that was planned for larger sizes cuts these evenly, too."""
    if any(isinstance(step, RotateEinsum) for step in program.steps):
        return False
    layouts = {layout for state in program.states() for layout in state.values()}
    return not any(case.sizes[dim] % case.mesh.extent(axes) for layout in layouts for dim, axes in layout.dims)


def _equal(got: Any, wanted: Any) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"shape {got.shape} instead of {wanted.shape}"
    same = np.array_equal(got.astype(np.complex128), wanted.astype(np.complex128))
    assert same, f"another value than the unsharded einsum:\n{got}\nwanted\n{wanted}"


def _check_layout(got: jax.Array, case: Case) -> None:
    result = case.equation.result
    made, asked = Layout.from_spec(got.sharding.spec, result.dims).on(case.mesh), result.layout.on(case.mesh)
    assert made.unreduced == asked.unreduced, f"{made} for {result}"
    assert all(made.axes_of(dim) == asked.axes_of(dim) for dim in result.dims if dim not in result.free), f"{made} for {result}"


def check_uneven(random: Random, drawn: Drawn, counts: collections.Counter[str]) -> None:
    """Sizes that axes do not divide are refused by name, and padded on request."""
    case, mesh, arrays = drawn.case, drawn.mesh(), _arrays(random, drawn)
    text = str(case.equation)
    said = _refusal(lambda: sw.einsum(text, *arrays, mesh=mesh, hardware=case.hardware, overlap=drawn.overlap))
    named = [dim for dim, size in case.sizes.items() if f"dimension {dim} has size {size}" in said]
    assert named, f"the refusal names no dimension: {said}"
    wanted = drawn.unsharded()(*arrays)
    try:
        got = sw.einsum(text, *arrays, mesh=mesh, hardware=case.hardware, overlap=drawn.overlap, pad=True)
    except PlanError:
        assert isinstance(drawn.overlap, str)  # a ring that the padded sizes have no more
        return
    even = padded(case)
    made = Layout.from_spec(got.sharding.spec, case.equation.result.dims).on(case.mesh)
    shape = [even.sizes[dim] if made.axes_of(dim) else case.sizes[dim] for dim in case.equation.result.dims]
    _equal(got, grown(np.asarray(wanted), shape))
    counts["padded"] += 1


def _refusal(run: Callable[[], Any]) -> str:
    try:
        run()
    except LayoutError as error:
        return str(error)
    raise AssertionError("sizes that axes do not divide are run")


def check_derivatives(random: Random, drawn: Drawn, arrays: list[np.ndarray], counts: collections.Counter[str]) -> None:
    """Forward mode, reverse mode, and the transpose of a linearisation are those of the unsharded einsum."""
    if _partial(drawn.case) or drawn.case.equation.result.free:
        return
    mesh = drawn.mesh()
    function, plain = _function(random, drawn, mesh, collections.Counter()), drawn.unsharded()
    tangents = _arrays(random, drawn)
    cotangent = np.asarray(plain(*_arrays(random, drawn)) % 2 if drawn.dtype[0] != "c" else plain(*arrays) * 0 + 1)

    def both(function: Callable[..., Any]) -> Callable[..., Any]:
        def derivatives(arrays: Any, tangents: Any, cotangent: Any) -> Any:
            value, back = jax.vjp(function, *arrays)
            return value, jax.jvp(function, arrays, tangents)[1], back(cotangent)

        return jax.jit(derivatives)

    lying = sw.put(cotangent, drawn.case.equation.result.layout, mesh)
    with jax.set_mesh(mesh):
        got = both(function)(tuple(drawn.placed(arrays, mesh)), tuple(drawn.placed(tangents, mesh)), lying)
    wanted = both(plain)(tuple(arrays), tuple(tangents), cotangent)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        _equal(one, other)
    counts["differentiated"] += 1


def check_code(drawn: Drawn, arrays: list[np.ndarray], counts: collections.Counter[str]) -> None:
    """The program as plain JAX makes the same."""
    if _partial(drawn.case):
        return
    plan = sw.plan(
        str(drawn.case.equation), sizes=drawn.case.sizes, mesh=str(drawn.case.mesh), hardware=drawn.case.hardware,
        dtype=drawn.dtype, overlap=drawn.overlap,
    )  # fmt: skip
    space: dict[str, Any] = {}
    exec(compile(plan.code(), "code", "exec"), space)
    got = space["program"](*drawn.placed(arrays, space["mesh"]))
    wanted = drawn.unsharded()(*arrays)
    assert got.dtype == wanted.dtype, f"code() makes {got.dtype} instead of {wanted.dtype}"
    _check_layout(got, drawn.case)
    _equal(got, wanted)
    counts["by code()"] += 1


if __name__ == "__main__":
    sys.exit(main())
