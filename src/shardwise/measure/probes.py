"""What calibration runs: single collectives, matmuls and copies on a mesh, as the programs that the planner prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.planning.prices import ITEM_BYTES
from shardwise.program import Program
from shardwise.runtime.lower import lower
from shardwise.steps import (
    COLLECTIVES,
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveKind,
    CollectivePermute,
    Einsum,
    ReduceScatter,
    Slice,
    Step,
)

KIB, MIB = 2**10, 2**20
ROWS = 64  # of what is cut along two dimensions: any number of devices up to so many divides it


@dataclass(frozen=True, slots=True)
class Trial:
    """One program to time, and what kind of figure it tells: `matmul`, `copy`, a collective's, or `program`."""

    kind: str
    says: str
    program: Program
    sizes: dict[str, int]
    dtype: str = "float32"


def collective_trial(kind: CollectiveKind, mesh: Mesh, axes: Axes, whole_bytes: int, first: bool = True) -> Trial:
    """One collective of float32 over mesh axes.

    >>> trial = collective_trial("all-gather", Mesh.parse("x=4"), ("x",), 2**20)
    >>> str(trial.program.inputs[0][1]), str(trial.program.result), trial.sizes
    ('[I_x, J]', '[I, J]', {'I': 512, 'J': 512})

    Args:
        whole_bytes: of the array when it is gathered over the axes, on one device.
        first: along the first dimension, or the second.
    """
    elements = whole_bytes // ITEM_BYTES["float32"]
    short = 1 << (elements.bit_length() - 1) // 2
    n = mesh.extent(axes)
    short = max(short // n, 1) * n
    sizes = {"I": max(elements // short // n, 1) * n, "J": short}
    dim, other = ("I", "J") if first else ("J", "I")
    plain = Layout.parse("I, J")
    split, partial = plain.with_axes(dim, axes), Layout(plain.dims, frozenset(axes))
    step: Step
    match kind:
        case "all-gather":
            given, step = split, AllGather("A", dim, axes)
        case "reduce-scatter":
            given, step = partial, ReduceScatter("A", dim, axes)
        case "all-reduce":
            given, step = partial, AllReduce("A", axes)
        case "all-to-all":
            given, step = split, AllToAll("A", dim, other, axes)
        case "collective-permute":
            given, step = split, CollectivePermute("A", axes, tuple((k, (k + 1) % n) for k in range(n)), split)
    says = f"{kind} over {','.join(axes)} of {mesh}, {whole_bytes} bytes{'' if first else ', along the second dimension'}"
    return Trial(kind, says, Program(mesh, (("A", given),), (step,), "A"), sizes)


def matmul_trial(mesh: Mesh, shape: tuple[int, int, int], dtype: str = "float32") -> Trial:
    """A matmul of this shape on every device at once."""
    rows, inner, columns = shape
    axes = mesh.names
    inputs = (("A", Layout((("I", axes), ("J", ())))), ("B", Layout.parse("J, K")))
    program = Program(mesh, inputs, (Einsum(("A", "B"), "C", ("I", "K")),), "C")
    sizes = {"I": rows * mesh.size, "J": inner, "K": columns}
    return Trial("matmul", f"matmul of {rows}x{inner}x{columns} on each device of {mesh}, {dtype}", program, sizes, dtype)


def copy_trial(mesh: Mesh, shard_bytes: int) -> Trial:
    """A slice on every device at once, which copies so many bytes."""
    rows = max(shard_bytes // (4 * KIB), 1)
    inputs = (("A", Layout.parse("I, J")),)
    program = Program(mesh, inputs, (Slice("A", "I", mesh.names),), "A")
    return Trial("copy", f"slice of {shard_bytes} bytes on each device of {mesh}", program, {"I": rows * mesh.size, "J": KIB})


DTYPES = ("bfloat16", "float16", "float64", "int32", "complex64", "int8")
SHAPES = ((128,) * 3, (256,) * 3, (512,) * 3, (1024,) * 3, (2048, 512, 64), (64, 1024, 1024), (512, 64, 4096))
IN_GROUPS: tuple[CollectiveKind, ...] = ("all-gather", "all-reduce", "all-to-all")
TRANSPOSED: tuple[CollectiveKind, ...] = ("all-gather", "reduce-scatter", "all-to-all")  # slower along a later dimension


def host_trials(mesh: Mesh) -> list[Trial]:
    """What tells the figures of simulated devices: on all of them, in groups of two and of half, and some on half as many.

    Results of 32 MiB and more tell what mapping memory anew costs.
    """
    found = local_trials(mesh)
    half = max(mesh.size // 2, 1)
    flat, small = Mesh((("all", mesh.size),)), Mesh((("all", half),))
    if mesh.size > 1:
        for kind in COLLECTIVES:
            found += [collective_trial(kind, flat, ("all",), size) for size in (64 * KIB, MIB, 8 * MIB)]
            if kind in TRANSPOSED:
                found += [collective_trial(kind, flat, ("all",), size, first=False) for size in (MIB, 8 * MIB)]
        found += [trial(flat, ("all",), size) for trial in (chain_trial, sum_trial) for size in (32, 128)]
        found += [chain_trial(flat, ("all",), size, rounds=3) for size in (32, 64)]
    if half > 1 and mesh.size == 2 * half:
        grid = Mesh((("half", half), ("pair", 2)))
        found += [collective_trial(kind, grid, (axis,), 16 * KIB) for kind in IN_GROUPS for axis in grid.names]
    if half > 1:
        found += [matmul_trial(small, shape) for shape in SHAPES[1:3]] + [copy_trial(small, MIB)]
        found += [collective_trial(kind, small, ("all",), size) for kind in COLLECTIVES for size in (64 * KIB, 8 * MIB)]
        found += [collective_trial(kind, small, ("all",), 40 * MIB) for kind in ("all-gather", "all-reduce")]
        found += [collective_trial(kind, small, ("all",), MIB, first=False) for kind in TRANSPOSED]
        found += [trial(small, ("all",), 64) for trial in (chain_trial, sum_trial)]
        found += [chain_trial(small, ("all",), size, rounds=3) for size in (32, 64)]
    return found


def local_trials(mesh: Mesh) -> list[Trial]:
    """What tells the figures of simulated devices but those of collectives."""
    found = [matmul_trial(mesh, shape) for shape in SHAPES]
    found += [copy_trial(mesh, size) for size in (64 * KIB, MIB, 8 * MIB, 40 * MIB)]
    return found + [matmul_trial(mesh, (128, 128, 128) if dtype == "int8" else (256, 256, 256), dtype) for dtype in DTYPES]


def device_trials(mesh: Mesh) -> list[Trial]:
    """What tells the figures of devices with links of their own: matmuls, copies, and each collective on each axis."""
    shapes = [(512,) * 3, (1024,) * 3, (2048,) * 3, (4096,) * 3, (4096, 128, 4096), (128, 4096, 4096)]
    found = [matmul_trial(mesh, shape, dtype) for dtype in ("float32", "bfloat16") for shape in shapes]
    found += [copy_trial(mesh, size) for size in (MIB, 16 * MIB, 128 * MIB)]
    return found + axis_trials(mesh, (64 * KIB, MIB, 16 * MIB, 128 * MIB))


def axis_trials(mesh: Mesh, sizes: Sequence[int]) -> list[Trial]:
    """Each collective on each axis of a mesh, and over all."""
    groups = [(axis,) for axis, size in mesh.axes if size > 1]
    groups += [mesh.names] if len(groups) > 1 else []
    return [collective_trial(kind, mesh, axes, size) for axes in groups for kind in COLLECTIVES for size in sizes]


def probe_trial(mesh: Mesh, shared: bool) -> Trial:
    """What tells whether a machine is as fast as it was: a matmul of some milliseconds."""
    return matmul_trial(mesh, (512, 512, 512) if shared else (4096, 4096, 4096))


def chain_trial(mesh: Mesh, axes: Axes, size: int, rounds: int = 1) -> Trial:
    """A matmul, and in each round three steps that move its result: what starting a program costs beyond its steps."""
    n = mesh.extent(axes)
    inputs = (("A", Layout((("I", axes), ("J", ())))), ("B", Layout.parse("J, K")))
    once = (AllGather("C", "I", axes), Slice("C", "K", axes), AllToAll("C", "K", "I", axes))
    steps = (Einsum(("A", "B"), "C", ("I", "K")), *rounds * once)
    sizes = {"I": size * n, "J": size, "K": size * n}
    says = f"{len(steps)} steps over {','.join(axes)} of {mesh}, {size}"
    return Trial("program", says, Program(mesh, inputs, steps, "C"), sizes)


def sum_trial(mesh: Mesh, axes: Axes, size: int) -> Trial:
    """A matmul of partial sums, which are summed."""
    inputs = (("A", Layout((("I", ()), ("J", axes)))), ("B", Layout((("J", axes), ("K", ())))))
    steps = (Einsum(("A", "B"), "C", ("I", "K")), AllReduce("C", axes))
    sizes = {"I": size, "J": size * mesh.extent(axes), "K": size}
    return Trial("program", f"two steps over {','.join(axes)} of {mesh}, {size}", Program(mesh, inputs, steps, "C"), sizes)


def ready(trial: Trial, mesh: jax.sharding.Mesh) -> Callable[[], Any]:
    """The program of a trial with its arrays, ready to run."""
    arrays = arrays_of(trial, mesh)
    function = jax.jit(lower(trial.program, mesh))
    return lambda: function(*arrays)


def arrays_of(trial: Trial, mesh: jax.sharding.Mesh) -> list[Any]:
    """What the program of a trial takes."""
    return [_array(layout, trial, mesh) for _, layout in trial.program.inputs]


def _array(layout: Layout, trial: Trial, mesh: jax.sharding.Mesh) -> Any:
    """Numbers that no compiler knows, laid out so; of partial sums every device holds the same."""
    shape = tuple(trial.sizes[name] for name in layout.names)
    if layout.unreduced:
        counted = Layout((("Count", tuple(sorted(layout.unreduced))), *layout.dims))
        made = Program(trial.program.mesh, (("A", counted),), (Einsum(("A",), "A", layout.names),), "A")
        partial = _filled((trial.program.mesh.extent(tuple(sorted(layout.unreduced))), *shape), counted, trial.dtype, mesh)
        return jax.jit(lower(made, mesh))(partial)
    return _filled(shape, layout, trial.dtype, mesh)


def _filled(shape: tuple[int, ...], layout: Layout, dtype: str, mesh: jax.sharding.Mesh) -> Any:
    place = NamedSharding(mesh, layout.on(Mesh.parse(mesh)).spec)
    drawn = (np.arange(251) / 251 - 0.5) * (100 if np.dtype(jnp.dtype(dtype)).kind in "iu" else 1)
    values = drawn.astype(jnp.dtype(dtype))

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        sizes = [len(range(*each.indices(size))) for each, size in zip(index, shape, strict=True)]
        return np.resize(values, sizes)

    return jax.make_array_from_callback(shape, place, part, dtype=jnp.dtype(dtype))
