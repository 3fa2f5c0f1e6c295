"""`shardwise run`: plan, place, run, check and time one equation, with everything shown."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise import api, writing
from shardwise.commands.session import choose_devices, enough_bits, mesh_on, progress
from shardwise.errors import DeviceError, FileError, ShardwiseError, as_json, lines_of, one_line, quoted
from shardwise.mesh import Mesh
from shardwise.notation import Equation, parse, parse_sizes, sizes_padded_on
from shardwise.planning.explain import facts

MOST_RUNS = 1000
DRAWN_DTYPE = "float32"  # of operands that no file holds: what this machine can check against the unsharded result
MOST_SECONDS = 20.0  # of timing


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found: the check (or None) and the seconds of the plan and of plain `jax.jit`."""

    check: Any
    seconds: float
    automatic_seconds: dict[str, float]
    spread: float


def run(options: argparse.Namespace) -> int:
    """Run an equation as the command line says; 0, or 1 where the check failed."""
    equation = parse(options.equation)
    grid = Mesh.parse(options.mesh)
    canonical = equation.on(grid)
    _check_options(options, canonical)
    sources = _sources(options.input, equation)
    sizes = _sizes(parse_sizes(options.sizes), sources, equation)
    dtype = options.dtype or _common_dtype(sources)
    _check_real(sources, dtype)
    with progress("starting JAX"):
        choose_devices(grid.size, options.platform)
        mesh = mesh_on(grid, options.platform)
    with enough_bits(dtype), _enough_memory():
        return _run(equation, sizes, sources, dtype, mesh, options)


def _run(
    equation: Equation, sizes: dict[str, int], sources: dict[int, Any], dtype: str, mesh: Any, options: argparse.Namespace
) -> int:
    from shardwise.runtime.files import check_target

    padded = sizes_padded_on(equation, sizes, Mesh.parse(mesh)) if options.pad else sizes
    ranked = api.plan(
        options.equation, sizes=padded, mesh=mesh, hardware=options.hardware, dtype=dtype, memory_limit=options.memory_limit,
        exact=options.exact,
    )  # fmt: skip
    shape = tuple(sizes[dim] for dim in equation.result.dims)
    if options.output is not None:
        check_target(options.output, shape, dtype)  # before anything long
    if not options.json:
        print(ranked.explain(), end="\n\n", flush=True)
    with progress("placing the operands"):
        arrays = _place(equation, sizes, padded, sources, dtype, mesh, options.seed)
    outcome, result = _measure(ranked, equation, arrays, mesh, options)
    if not options.json:
        _show(equation, arrays, result, outcome, options)
    else:
        print(as_json(_facts(ranked, outcome)))
    if options.output is not None:
        _write(options.output, result, shape)
    return 1 if outcome.check is not None and not outcome.check.ok else 0


def _check_options(options: argparse.Namespace, equation: Equation) -> None:
    from shardwise.runtime.files import check_place

    if not 1 <= options.runs <= MOST_RUNS:
        raise ShardwiseError(f"--runs {quoted(options.runs)}: at least one run is needed, and at most {MOST_RUNS} are made")
    if options.seed < 0:
        raise ShardwiseError(f"--seed {quoted(options.seed)}: a seed is 0 or more")
    if options.output is None:
        return
    check_place(options.output)
    if equation.result.layout.unreduced:
        raise ShardwiseError(
            f"--output {one_line(options.output)}: the result {equation.result} is partial sums, of which no file can hold "
            "all: leave off the braces, or the file"
        )


def _sources(inputs: list[str], equation: Equation) -> dict[int, Any]:
    from shardwise.runtime.files import open_source

    names = [operand.name for operand in equation.operands]
    sources: dict[int, Any] = {}
    for text in inputs:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ShardwiseError(f"--input {quoted(text)}: write NAME=FILE, as A=a.npy")
        if name not in names:
            raise ShardwiseError(
                f"--input {quoted(text)}: the equation has no operand {one_line(name)}; it has {', '.join(names)}"
            )
        if names.index(name) in sources:
            raise ShardwiseError(f"--input {quoted(text)}: operand {name} has a file already")
        source = open_source(path)
        sources |= {index: source for index, other in enumerate(names) if other == name}
    return sources


def _sizes(sizes: dict[str, int], sources: dict[int, Any], equation: Equation) -> dict[str, int]:
    for index, source in sources.items():
        operand = equation.operands[index]
        if len(source.shape) != len(operand.dims):
            raise FileError(
                f"{one_line(source.name)} has shape {tuple(source.shape)}, and {operand} has {len(operand.dims)} dimensions"
            )
        for dim, size in zip(operand.dims, source.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise FileError(f"dimension {dim} has size {sizes[dim]}, but size {size} in {one_line(source.name)}")
    return sizes


@contextlib.contextmanager
def _enough_memory() -> Iterator[None]:
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DeviceError(f"the devices have not enough memory: {error}; use smaller --sizes, or more devices") from None


def _common_dtype(sources: dict[int, Any]) -> str:
    import jax

    if not sources:
        return DRAWN_DTYPE
    with jax.enable_x64(True):
        return jax.numpy.result_type(*(source.dtype for source in sources.values())).name


def _check_real(sources: dict[int, Any], dtype: str) -> None:
    for source in sources.values():
        if source.dtype.kind == "c" and not dtype.startswith("complex"):
            raise FileError(
                f"{one_line(source.name)} holds {source.dtype.name}, whose imaginary part --dtype {one_line(dtype)} would drop"
            )


def _place(
    equation: Equation, sizes: dict[str, int], padded: dict[str, int], sources: dict[int, Any], dtype: str, mesh: Any, seed: int
) -> list[Any]:
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.arrays import place
    from shardwise.runtime.padding import remember

    generator = np.random.default_rng(seed)
    arrays = []
    for index, operand in enumerate(equation.on(Mesh.parse(mesh)).operands):
        shape = tuple(sizes[dim] for dim in operand.dims)
        source = sources.get(index)
        if source is None:
            source = _drawn(generator, shape, jnp.dtype(dtype))
        placed = place(source, operand, mesh, tuple(padded[dim] for dim in operand.dims))
        arrays.append(remember(jax.block_until_ready(placed.astype(jnp.dtype(dtype))), shape))
    return arrays


def _drawn(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Random numbers around 0; whole ones up to about 30, so that products of int8 differ."""
    import jax.numpy as jnp

    drawn = generator.standard_normal(shape, np.float32)
    if jnp.issubdtype(dtype, jnp.integer):
        drawn = drawn * 8 if jnp.issubdtype(dtype, jnp.signedinteger) else abs(drawn * 8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        drawn = drawn + 1j * generator.standard_normal(shape, np.float32)
    return np.asarray(drawn).astype(dtype)


def _measure(ranked: Any, equation: Equation, arrays: list[Any], mesh: Any, options: argparse.Namespace) -> tuple[Outcome, Any]:
    from shardwise.measure.timing import automatic, interleaved, unsharded
    from shardwise.runtime.checking import check

    planned = ranked.function(mesh)
    with progress("compiling and running the plan"):
        result = planned(*arrays)
        result.block_until_ready()
    checked = None
    if options.check:
        with progress("checking against the unsharded result"):
            checked = check(planned, unsharded(equation), *arrays)
    with progress("timing beside jax.jit"):
        rivals = {}
        if not equation.on(Mesh.parse(mesh)).result.layout.unreduced:  # partial sums jax.jit cannot be asked for
            jitted, lay_out = automatic(equation, mesh)
            laid = lay_out(*arrays)
            rivals = {name: functools.partial(function, *laid) for name, function in jitted.items()}
        times = interleaved({"planned": functools.partial(planned, *arrays), **rivals}, options.runs, MOST_SECONDS)
    spread = max(timing.spread for timing in times.values())
    medians = {name: timing.median_seconds for name, timing in times.items()}
    return Outcome(checked, medians.pop("planned"), medians, spread), result


def _show(equation: Equation, arrays: list[Any], result: Any, outcome: Outcome, options: argparse.Namespace) -> None:
    import dataclasses

    from shardwise.pictures.live import lying
    from shardwise.runtime.padding import true_shape
    from shardwise.units import seconds_text

    for operand, array in zip((*equation.operands, equation.result), (*arrays, result), strict=True):
        drawn = lying(array.sharding, array.shape, true=true_shape(array))
        named = tuple((dim, axes) for dim, (_, axes) in zip(operand.dims, drawn.layout.dims, strict=True))
        layout = dataclasses.replace(drawn.layout, dims=named)
        print(lines_of(str(dataclasses.replace(drawn, name=operand.name, layout=layout))), end="\n\n")
    if outcome.check is not None:
        print(f"check against the unsharded result: {outcome.check}")
    print(
        f"planned: {seconds_text(outcome.seconds)} (medians of up to {options.runs} runs in turn, spread {outcome.spread:.0%})"
    )
    for name, seconds in outcome.automatic_seconds.items():
        how = {"constraint": "jax.jit with a sharding constraint", "out_shardings": "jax.jit with out_shardings"}[name]
        print(f"{how}: {seconds_text(seconds)}, {seconds / outcome.seconds:.2f} times the plan's")


def _facts(ranked: Any, outcome: Outcome) -> dict[str, Any]:
    checked = outcome.check
    return facts(ranked) | {
        "measured_seconds": outcome.seconds,
        "automatic_seconds": outcome.automatic_seconds,
        "spread": outcome.spread,
        "check": None if checked is None else {
            "ok": checked.ok,
            "largest_error": _finite(max(leaf.error for leaf in checked.leaves)),
            "allowed": _finite(min(leaf.allowed for leaf in checked.leaves)),
            "replicas_equal": all(leaf.replicas_equal for leaf in checked.leaves),
            "notes": [leaf.note for leaf in checked.leaves if leaf.note],
        },
    }  # fmt: skip


def _finite(number: float) -> float | None:
    """JSON has no word for infinity."""
    return number if math.isfinite(number) else None


def _write(path: str, result: Any, shape: tuple[int, ...]) -> None:
    """Write the result shard by shard, without the zeros of padding; elsewhere where that fails, as the error says."""
    from shardwise.runtime.files import save, split

    parts = {str(shard.index): shard for shard in result.addressable_shards}

    def inside() -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        for shard in parts.values():
            bounds = [part.indices(size)[:2] for part, size in zip(shard.index, result.shape, strict=True)]
            kept = tuple(slice(min(a, n), min(b, n)) for (a, b), n in zip(bounds, shape, strict=True))
            yield kept, np.asarray(shard.data)[tuple(slice(part.stop - part.start) for part in kept)]

    target, member = split(path)
    named = "" if member is None else f":{member}"
    with progress(f"writing {path}"):
        writing.keeping(str(target), lambda place: save(f"{place}{named}", shape, result.dtype, inside()))
