"""What is legal next: the moves between the layouts of one array, in a compact form that the search can afford.

A state is a layout without names: the axes of every dimension in order, and the sorted axes that are unreduced.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from shardwise.layout import Axes, Layout, spread
from shardwise.mesh import Mesh
from shardwise.program import relayout
from shardwise.steps import AllGather, AllReduce, AllToAll, ReduceScatter, Slice, Step

State = tuple[tuple[Axes, ...], Axes]


class Move(NamedTuple):
    """One step on one array: its kind, the axes it is over, the dimensions by position, and where it leads.

    `price` is what its cost depends on, besides the bytes of the shard.
    """

    kind: str
    axes: Axes
    dim: int
    target: int
    after: State
    price: tuple[str, Axes, bool, bool]


def _move(kind: str, axes: Axes, dim: int, target: int, after: State) -> Move:
    return Move(kind, axes, dim, target, after, (kind, axes, dim == 0, target == 0))


def state_of(layout: Layout) -> State:
    return tuple(axes for _, axes in layout.dims), tuple(sorted(layout.unreduced))


def layout_of(state: State, names: tuple[str, ...]) -> Layout:
    return Layout(tuple(zip(names, state[0], strict=True)), frozenset(state[1]))


def step_of(move: Move, before: State, array: str, names: tuple[str, ...], mesh: Mesh) -> Step:
    """Write a move as the step of a program."""
    match move.kind:
        case "all-gather":
            return AllGather(array, names[move.dim], move.axes)
        case "reduce-scatter":
            return ReduceScatter(array, names[move.dim], move.axes)
        case "all-reduce":
            return AllReduce(array, move.axes)
        case "all-to-all":
            return AllToAll(array, names[move.dim], names[move.target], move.axes)
        case "slice":
            return Slice(array, names[move.dim], move.axes)
        case "collective-permute":
            return relayout(array, layout_of(before, names), layout_of(move.after, names), mesh)
        case _:
            raise AssertionError(f"unknown move {move.kind}")


@functools.lru_cache(maxsize=65536)
def moves(state: State, mesh_axes: tuple[tuple[str, int], ...]) -> tuple[Move, ...]:
    """Every legal move from a state, whatever the sizes.

    >>> [move.kind for move in moves(((("x",), ()), ()), (("x", 2),))]
    ['all-gather', 'all-to-all']
    """
    dims, unreduced = state
    used = {axis for axes in dims for axis in axes}
    idle = tuple(axis for axis, size in mesh_axes if size > 1 and axis not in used and axis not in unreduced)
    found: list[Move] = []
    for dim, axes in enumerate(dims):
        for cut in range(len(axes)):
            minor = axes[cut:]
            gathered = _with(dims, dim, axes[:cut])
            found.append(_move("all-gather", minor, dim, dim, (gathered, unreduced)))
            for target, held in enumerate(dims):
                if target != dim:
                    after = _with(gathered, target, held + minor)
                    found.append(_move("all-to-all", minor, dim, target, (after, unreduced)))
        for extra in _sequences(idle):
            found.append(_move("slice", extra, dim, dim, (_with(dims, dim, axes + extra), unreduced)))
    if unreduced:
        found.extend(_reductions(dims, unreduced))
    if len(used) > 1:
        for arranged in _arrangements(tuple(sorted(used)), mesh_axes, tuple(_extent(a, mesh_axes) for a in dims)):
            if arranged != dims:
                moved = {a for old, new in zip(dims, arranged, strict=True) if old != new for a in (*old, *new)}
                axes = tuple(axis for axis, _ in mesh_axes if axis in moved)
                found.append(_move("collective-permute", axes, 0, 0, (arranged, unreduced)))
    return tuple(found)


def _reductions(dims: tuple[Axes, ...], unreduced: Axes) -> Iterator[Move]:
    for count in range(1, len(unreduced) + 1):
        for chosen in itertools.combinations(unreduced, count):
            left = tuple(axis for axis in unreduced if axis not in chosen)
            yield _move("all-reduce", chosen, 0, 0, (dims, left))
    for sequence in _sequences(unreduced):
        left = tuple(axis for axis in unreduced if axis not in sequence)
        for dim, axes in enumerate(dims):
            yield _move("reduce-scatter", sequence, dim, dim, (_with(dims, dim, axes + sequence), left))


def _with(dims: tuple[Axes, ...], dim: int, axes: Axes) -> tuple[Axes, ...]:
    return (*dims[:dim], axes, *dims[dim + 1 :])


@functools.lru_cache(maxsize=4096)
def _sequences(axes: Axes) -> tuple[Axes, ...]:
    """Every ordered choice of at least one axis."""
    return tuple(s for count in range(1, len(axes) + 1) for s in itertools.permutations(axes, count))


@functools.lru_cache(maxsize=4096)
def _arrangements(used: Axes, mesh_axes: tuple[tuple[str, int], ...], extents: tuple[int, ...]) -> tuple[tuple[Axes, ...], ...]:
    """Every way to split the dimensions into the same numbers of parts over the same axes."""
    return tuple(
        dims
        for dims in spread(used, len(extents))
        if all(_extent(axes, mesh_axes) == extent for axes, extent in zip(dims, extents, strict=True))
    )


@functools.lru_cache(maxsize=65536)
def _extent(axes: Axes, mesh_axes: tuple[tuple[str, int], ...]) -> int:
    sizes = dict(mesh_axes)
    return math.prod(sizes[axis] for axis in axes)
