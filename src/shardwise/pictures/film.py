"""A program as frames: what every device holds before the first step and after each, and who sends what to whom between.

Values, where they are given, go through the NumPy oracle (`reference`), so that a frame shows what is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.layout import Axes, Layout, shard_slices
from shardwise.mesh import Mesh
from shardwise.program import Program, unfused
from shardwise.reference import Shards, apply, groups, scatter
from shardwise.steps import (
    AllReduce,
    CollectivePermute,
    ReduceScatter,
    Step,
    collectives_of,
    parts,
)

Where = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one device holds of one array: which part, which partial sum (its place along unreduced axes), and the values."""

    array: str
    device: int
    where: Where
    partial_sum: tuple[tuple[str, int], ...]
    values: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Move:
    """One device sends a part of an array to another; where it `adds`, what arrives is summed."""

    array: str
    source: int
    target: int
    where: Where
    adds: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """One moment: the layouts of all live arrays, their shards where values are known, and the step that comes next."""

    layouts: Mapping[str, Layout]
    shards: Mapping[str, Shards] | None
    step: Step | None


@dataclass(frozen=True, slots=True)
class Film:
    """The frames of a program on its mesh, the first before any step, the last behind the last one.

    Attributes:
        sizes: of every dimension, in elements.
        together: of each step, whether it runs at once with the one before it (they were one fused step).
    """

    mesh: Mesh
    sizes: Mapping[str, int]
    frames: tuple[Frame, ...]
    together: tuple[bool, ...]

    def holding(self, frame: int, array: str, device: int) -> Holding:
        """What a device, counted in mesh order, holds of an array."""
        moment = self.frames[frame]
        layout, coordinate = moment.layouts[array], self.coordinate(device)
        where = self._part(layout, device)
        partial_sum = tuple((axis, coordinate[axis]) for axis in sorted(layout.unreduced))
        values = None if moment.shards is None else moment.shards[array][device]
        return Holding(array, device, where, partial_sum, values)

    def holdings(self, frame: int, device: int) -> tuple[Holding, ...]:
        """Everything that a device holds."""
        return tuple(self.holding(frame, array, device) for array in self.frames[frame].layouts)

    def moves(self, frame: int, within: Iterable[int] | None = None) -> Iterator[Move]:
        """What is sent to come from a frame to the next; only between some devices, if they are given."""
        step = self.frames[frame].step
        chosen = None if within is None else set(within)
        for collective in collectives_of(step) if step is not None else ():
            before = self.frames[frame].layouts[collective.array]
            adds = isinstance(collective, AllReduce | ReduceScatter)
            after = self.frames[frame + 1].layouts[collective.array]
            for source, target in self._pairs(collective, chosen):
                where = self._part(before, source)
                # A permute moves whole shards, to other places, or parts of them to where they belong.
                if not isinstance(collective, CollectivePermute) or before.dims != after.dims:
                    where = common(where, self._part(after, target))
                yield Move(collective.array, source, target, where, adds)

    def _part(self, layout: Layout, device: int) -> Where:
        return shard_slices(layout, self.shape(layout), self.coordinate(device), self.mesh)

    def _pairs(self, collective: Step, chosen: set[int] | None) -> Iterator[tuple[int, int]]:
        for group in groups(collective.axes, self.mesh):  # type: ignore[union-attr]
            if chosen is not None and not chosen.intersection(group):
                continue
            if isinstance(collective, CollectivePermute):
                pairs = [(group[a], group[b]) for a, b in collective.pairs if a != b]
            else:
                pairs = [(a, b) for a in group for b in group if a != b]
            yield from ((a, b) for a, b in pairs if chosen is None or {a, b} <= chosen)

    def coordinate(self, device: int) -> dict[str, int]:
        """The place of a device in the mesh."""
        sizes = [size for _, size in self.mesh.axes]
        place = np.unravel_index(device, sizes) if sizes else ()
        return dict(zip(self.mesh.names, map(int, place), strict=True))

    def shape(self, layout: Layout) -> tuple[int, ...]:
        """The shape of the whole array of a layout."""
        return tuple(self.sizes[dim] for dim in layout.names)

    def group(self, axes: Axes, most: int) -> tuple[list[int], int]:
        """The devices of the first group along axes, so many at most, and how many groups there are."""
        found = groups(axes, self.mesh) if axes else [[device] for device in range(self.mesh.size)]
        return found[0][:most], len(found)


def common(one: Where, other: Where) -> Where:
    """The part that two parts of an array share.

    >>> common((slice(0, 4),), (slice(2, 8),))
    (slice(2, 4, None),)
    """
    pairs = zip(one, other, strict=True)
    return tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs)


def film(program: Program, sizes: Mapping[str, int], values: Mapping[str, np.ndarray | Shards] | None = None) -> Film:
    """The frames of a program; a fused step is shown as the plain ones that it stands for.

    >>> from shardwise.steps import AllGather
    >>> program = Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A")
    >>> shown = film(program, {"I": 4}, {"A": np.arange(4)})
    >>> [shown.holding(frame, "A", 1).values.tolist() for frame in (0, 1)]
    [[2, 3], [0, 1, 2, 3]]
    >>> [(move.source, move.target, move.where) for move in shown.moves(0)]
    [(0, 1, (slice(0, 2, None),)), (1, 0, (slice(2, 4, None),))]

    Args:
        sizes: of every dimension, in elements.
        values: whole arrays by name, or lists of shards in device order; without them frames show places alone.

    Raises:
        LayoutError: a size is missing, or its axes do not divide it.
    """
    plain = unfused(program)
    for _, layout in program.inputs:
        layout.shard_shape(sizes, program.mesh)
    together = tuple(bool(number) for step in program.steps for number, _ in enumerate(parts(step)))
    shards: dict[str, Shards] | None = None
    if values is not None:
        layouts = plain.states()[0]
        shards = {
            name: list(given) if isinstance(given, list) else scatter(np.asarray(given), layouts[name], plain.mesh)
            for name, given in values.items()
        }
    frames = []
    for number, state in enumerate(plain.states()):
        step = plain.steps[number] if number < len(plain.steps) else None
        frames.append(Frame(state, shards, step))
        if shards is not None and step is not None:
            shards = apply(step, shards, state, plain.mesh)
    return Film(plain.mesh, sizes, tuple(frames), together)
