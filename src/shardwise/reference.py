"""What each step does, on plain NumPy lists of shards: the oracle that planner and runtime are held against.

An array is a list with one shard per device, in device order. Suffixes: `shards_D` is such a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np

from shardwise.layout import Axes, Layout, shard_slices
from shardwise.mesh import Mesh, flat_index
from shardwise.program import Program, cuts, rule
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Step,
    parts,
)

Shards = list[np.ndarray]


def scatter(array: np.ndarray, layout: Layout, mesh: Mesh) -> Shards:
    """Cut an array into the shards of a layout; of an unreduced axis the first device holds all but ones.

    >>> [s.tolist() for s in scatter(np.arange(4), Layout.parse("I_x"), Mesh.parse("x=2"))]
    [[0, 1], [2, 3]]
    """
    count = mesh.extent(sorted(layout.unreduced))
    shards_D = []
    for coordinate in mesh.coordinates():
        part = array[shard_slices(layout, array.shape, coordinate, mesh)]
        first = all(coordinate[axis] == 0 for axis in layout.unreduced)
        shards_D.append((part - (count - 1)).astype(array.dtype) if first else np.ones_like(part))
    return shards_D


def assemble(shards_D: Sequence[np.ndarray], layout: Layout, mesh: Mesh) -> np.ndarray:
    """Put shards together again: parts side by side, partial sums added; replicas must be equal bit by bit."""
    shape = tuple(size * mesh.extent(axes) for size, (_, axes) in zip(shards_D[0].shape, layout.dims, strict=True))
    whole = np.zeros(shape, shards_D[0].dtype)
    seen: dict[tuple[int, ...], np.ndarray] = {}
    for coordinate, shard in zip(mesh.coordinates(), shards_D, strict=True):
        where = shard_slices(layout, shape, coordinate, mesh)
        key = (*(s.start for s in where), *(coordinate[a] for a in sorted(layout.unreduced)))
        if key not in seen:
            seen[key] = shard
            whole[where] += shard
        elif not np.array_equal(seen[key], shard, equal_nan=shard.dtype.kind in "fc"):
            raise AssertionError(f"replicas differ at {coordinate}")  # no assert: pytest would write both arrays out for it
    return whole


def run(program: Program, *arrays: np.ndarray) -> np.ndarray:
    """Run a program on whole arrays: scatter, every step, assemble.

    >>> program = Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A")
    >>> run(program, np.arange(4)).tolist()
    [0, 1, 2, 3]
    """
    states = program.states()
    values = {
        name: scatter(np.asarray(array), states[0][name], program.mesh)
        for (name, _), array in zip(program.inputs, arrays, strict=True)
    }
    for step, before in zip(program.steps, states, strict=False):
        values = apply(step, values, before, program.mesh)
    return assemble(values[program.output], states[-1][program.output], program.mesh)


def apply(step: Step, values: Mapping[str, Shards], layouts: Mapping[str, Layout], mesh: Mesh) -> dict[str, Shards]:
    """Do one step to the shards of all live arrays."""
    after = dict(values)
    match step:
        case AllGather(array, dim, axes):
            at = layouts[array].names.index(dim)
            after[array] = all_gather(values[array], at, axes, mesh)
        case ReduceScatter(array, dim, axes):
            at = layouts[array].names.index(dim)
            after[array] = keep_part(all_reduce(values[array], axes, mesh), at, axes, mesh)
        case AllReduce(array, axes):
            after[array] = all_reduce(values[array], axes, mesh)
        case AllToAll(array, source_dim, target_dim, axes):
            source, target = (layouts[array].names.index(dim) for dim in (source_dim, target_dim))
            after[array] = keep_part(all_gather(values[array], source, axes, mesh), target, axes, mesh)
        case CollectivePermute(array, axes, pairs, _):
            after[array] = permute(sent_parts(values[array], step, layouts[array], mesh), axes, pairs, mesh)
        case Slice(array, dim, axes):
            after[array] = keep_part(values[array], layouts[array].names.index(dim), axes, mesh)
        case Einsum(operands, result, dims):
            sides = [after.pop(name) for name in operands]
            index = {dim: i for i, dim in enumerate(dict.fromkeys(d for name in operands for d in layouts[name].names))}
            terms = [[index[dim] for dim in layouts[name].names] for name in operands]
            after[result] = [
                np.einsum(*(x for pair in zip(parts, terms, strict=True) for x in pair), [index[d] for d in dims])
                for parts in zip(*sides, strict=True)
            ]
        case Automatic(operands, result, layout):
            wholes = [assemble(after.pop(name), layouts[name], mesh) for name in operands]
            index = {dim: i for i, dim in enumerate(dict.fromkeys(d for name in operands for d in layouts[name].names))}
            pairs = ((whole, [index[d] for d in layouts[name].names]) for whole, name in zip(wholes, operands, strict=True))
            made = np.einsum(*(x for pair in pairs for x in pair), [index[d] for d in layout.names])
            after[result] = scatter(made, layout.on(mesh), mesh)
        case GatherEinsum() | EinsumScatter() | EinsumGather() | RotateEinsum():
            held = dict(layouts)
            for part in parts(step):
                after, held = apply(part, after, held, mesh), rule(part, held, mesh)
        case _:
            assert_never(step)
    return after


def groups(axes: Axes, mesh: Mesh) -> list[list[int]]:
    """The groups of devices that differ along `axes` alone, each in the order of their combined position.

    >>> groups(("x",), Mesh.parse("x=2, y=2"))
    [[0, 2], [1, 3]]
    """
    found: dict[tuple[int, ...], dict[int, int]] = {}
    for device, coordinate in enumerate(mesh.coordinates()):
        fixed = tuple(position for axis, position in coordinate.items() if axis not in axes)
        found.setdefault(fixed, {})[flat_index(coordinate, axes, mesh)] = device
    return [[members[i] for i in range(len(members))] for members in found.values()]


def all_gather(shards_D: Shards, at: int, axes: Axes, mesh: Mesh) -> Shards:
    """Every member of a group receives the members' shards, side by side along one dimension."""
    after = list(shards_D)
    for group in groups(axes, mesh):
        whole = np.concatenate([shards_D[device] for device in group], axis=at)
        for device in group:
            after[device] = whole
    return after


def all_reduce(shards_D: Shards, axes: Axes, mesh: Mesh) -> Shards:
    """Every member of a group receives the sum of the members' shards."""
    after = list(shards_D)
    for group in groups(axes, mesh):
        total = np.sum([shards_D[device] for device in group], axis=0, dtype=shards_D[0].dtype)
        for device in group:
            after[device] = total
    return after


def keep_part(shards_D: Shards, at: int, axes: Axes, mesh: Mesh) -> Shards:
    """Each device keeps the part of its shard that its position along `axes` says."""
    parts = mesh.extent(axes)
    after = []
    for shard, coordinate in zip(shards_D, mesh.coordinates(), strict=True):
        width = shard.shape[at] // parts
        start = flat_index(coordinate, axes, mesh) * width
        after.append(np.take(shard, range(start, start + width), axis=at))
    return after


def sent_parts(shards_D: Shards, step: CollectivePermute, before: Layout, mesh: Mesh) -> Shards:
    """What each device sends in a permute: its shard, or a part of it."""
    found = list(shards_D)
    for dim, (count, places) in cuts(step, before, mesh).items():
        at = before.names.index(dim)
        for group in groups(step.axes, mesh):
            for device, place in zip(group, places, strict=True):
                found[device] = np.split(found[device], count, axis=at)[place]
    return found


def permute(shards_D: Shards, axes: Axes, pairs: Sequence[tuple[int, int]], mesh: Mesh) -> Shards:
    """Shards move between the positions of each group; who receives nothing holds zeros, as in `lax.ppermute`."""
    after = [np.zeros_like(shard) for shard in shards_D]
    for group in groups(axes, mesh):
        for source, target in pairs:
            after[group[target]] = shards_D[group[source]]
    return after
