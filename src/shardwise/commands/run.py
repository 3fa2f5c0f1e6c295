"""`shardwise run`: plan, place, run and check one equation, with everything shown."""

from __future__ import annotations

import argparse
import contextlib
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

DRAWN_DTYPE = "float32"  # of operands that no file holds: what this machine can check against the unsharded result


@dataclass(frozen=True, slots=True)
class Given:
    """An equation with what the command line says of its operands: their files by number, their sizes, their dtype."""

    equation: Equation
    sizes: dict[str, int]
    sources: dict[int, Any]
    dtype: str


def run(options: argparse.Namespace) -> int:
    """Run an equation as the command line says; 0, or 1 where the check failed."""
    equation = parse(options.equation)
    _check_options(options, equation.on(Mesh.parse(options.mesh)))
    what = given(equation, options)
    mesh = started(options)
    with enough_bits(what.dtype), enough_memory():
        return _run(what, mesh, options)


def given(equation: Equation, options: argparse.Namespace) -> Given:
    """Read what `--input`, `--sizes` and `--dtype` say of the operands of an equation."""
    if options.seed < 0:
        raise ShardwiseError(f"--seed {quoted(options.seed)}: a seed is 0 or more")
    sources = _sources(options.input, equation)
    dtype = options.dtype or _common_dtype(sources)
    _check_real(sources, dtype)
    return Given(equation, _sizes(parse_sizes(options.sizes), sources, equation), sources, dtype)


def started(options: argparse.Namespace) -> Any:
    """Start JAX with as many devices as `--mesh` has, and make that mesh."""
    grid = Mesh.parse(options.mesh)
    with progress("starting JAX"):
        choose_devices(grid.size, options.platform)
        return mesh_on(grid, options.platform)


def _run(what: Given, mesh: Any, options: argparse.Namespace) -> int:
    from shardwise.runtime.files import check_target

    equation, sizes = what.equation, what.sizes
    padded = sizes_padded_on(equation, sizes, Mesh.parse(mesh)) if options.pad else sizes
    ranked = api.plan(
        options.equation, sizes=padded, mesh=mesh, hardware=options.hardware, dtype=what.dtype,
        memory_limit=options.memory_limit, overlap=options.overlap, exact=options.exact,
    )  # fmt: skip
    shape = tuple(sizes[dim] for dim in equation.result.dims)
    if options.output is not None:
        check_target(options.output, shape, what.dtype)  # before anything long
    if not options.json:
        print(ranked.explain(), end="\n\n", flush=True)
    with progress("placing the operands"):
        arrays = placed(what, mesh, options.seed, padded)
    checked, result = _checked(ranked, equation, arrays, mesh, options)
    if not options.json:
        _show(equation, arrays, result, checked)
    else:
        print(as_json(_facts(ranked, checked)))
    if options.output is not None:
        _write(options.output, result, shape)
    return 1 if checked is not None and not checked.ok else 0


def _check_options(options: argparse.Namespace, equation: Equation) -> None:
    from shardwise.runtime.files import check_place

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
def enough_memory() -> Iterator[None]:
    """Devices that run out of memory are told as that, with the way out."""
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


def placed(what: Given, mesh: Any, seed: int, padded: dict[str, int] | None = None) -> list[Any]:
    """The operands on the mesh: of files, or random ones; where `padded` is larger than their sizes, filled with zeros."""
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.arrays import place
    from shardwise.runtime.padding import remember

    generator = np.random.default_rng(seed)
    arrays = []
    for index, operand in enumerate(what.equation.on(Mesh.parse(mesh)).operands):
        shape = tuple(what.sizes[dim] for dim in operand.dims)
        source = what.sources.get(index)
        if source is None:
            source = drawn(generator, shape, jnp.dtype(what.dtype))
        laid = place(source, operand, mesh, tuple((padded or what.sizes)[dim] for dim in operand.dims))
        arrays.append(remember(jax.block_until_ready(laid.astype(jnp.dtype(what.dtype))), shape))
    return arrays


def drawn(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Random numbers around 0; whole ones up to about 30, so that products of int8 differ."""
    import jax.numpy as jnp

    numbers = generator.standard_normal(shape, np.float32)
    if jnp.issubdtype(dtype, jnp.integer):
        numbers = numbers * 8 if jnp.issubdtype(dtype, jnp.signedinteger) else abs(numbers * 8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        numbers = numbers + 1j * generator.standard_normal(shape, np.float32)
    return np.asarray(numbers).astype(dtype)


def _checked(ranked: Any, equation: Equation, arrays: list[Any], mesh: Any, options: argparse.Namespace) -> tuple[Any, Any]:
    """The check against the unsharded result, None where it is not wanted; and the result of the plan."""
    from shardwise.measure.timing import unsharded
    from shardwise.runtime.checking import check

    planned = ranked.function(mesh)
    with progress("compiling and running the plan"):
        result = planned(*arrays)
        result.block_until_ready()
    if not options.check:
        return None, result
    with progress("checking against the unsharded result"):
        return check(planned, unsharded(equation), *arrays), result


def _show(equation: Equation, arrays: list[Any], result: Any, checked: Any) -> None:
    import dataclasses

    from shardwise.pictures.live import lying
    from shardwise.runtime.padding import true_shape

    for operand, array in zip((*equation.operands, equation.result), (*arrays, result), strict=True):
        drawn = lying(array.sharding, array.shape, true=true_shape(array))
        named = tuple((dim, axes) for dim, (_, axes) in zip(operand.dims, drawn.layout.dims, strict=True))
        layout = dataclasses.replace(drawn.layout, dims=named)
        print(lines_of(str(dataclasses.replace(drawn, name=operand.name, layout=layout))), end="\n\n")
    if checked is not None:
        print(f"check against the unsharded result: {checked}")
    print("`shardwise compare` measures it beside jax.jit")


def _facts(ranked: Any, checked: Any) -> dict[str, Any]:
    return facts(ranked) | {
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

    if not result.is_fully_addressable:
        from shardwise.distributed.saving import save as save_own

        with progress(f"writing {path}"):
            save_own(result, path)
        return
    target, member = split(path)
    named = "" if member is None else f":{member}"
    with progress(f"writing {path}"):
        writing.keeping(str(target), lambda place: save(f"{place}{named}", shape, result.dtype, inside()))


def padded_sizes(what: Given, mesh: Any, options: argparse.Namespace) -> dict[str, int]:
    """The sizes that are run."""
    return sizes_padded_on(what.equation, what.sizes, Mesh.parse(mesh)) if options.pad else what.sizes


def random_arrays(args: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Arguments with random arrays where only types are given."""
    import jax

    generator = np.random.default_rng(seed)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.device_put(drawn(generator, leaf.shape, leaf.dtype), leaf.sharding)

    return jax.tree.map(filled, args)
