"""Which layouts of values go together into a local einsum: axes agree on what values share, and none is used twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.layout import Axes, splits
from shardwise.planning.graph import Graph, State, Vertex
from shardwise.planning.step_cost import einsum_flops

Pair = tuple[tuple[Vertex, ...], Vertex]  # the layouts of the values, and that of what they make
Partial = tuple[Axes, ...]  # of each value, the axes over which it may be unreduced


@dataclass(frozen=True, slots=True)
class Sides:
    """The dimensions of an einsum's values and of what it makes, by name and by position."""

    made: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    dims: tuple[str, ...] = field(init=False)
    places: tuple[tuple[int, ...], ...] = field(init=False)
    kept: tuple[int, ...] = field(init=False)
    summed: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        dims = tuple(dict.fromkeys(dim for names in self.names for dim in names))
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "places", tuple(tuple(dims.index(dim) for dim in names) for names in self.names))
        object.__setattr__(self, "kept", tuple(dims.index(dim) for dim in self.made))
        object.__setattr__(self, "summed", tuple(i for i, dim in enumerate(dims) if dim not in self.made))

    def after(self, split: Sequence[Axes], unreduced: Iterable[Axes]) -> State:
        """What a local einsum makes of dimensions that are split so, and of values that are unreduced over axes."""
        sums = [axis for i in self.summed for axis in split[i]]
        return tuple([split[i] for i in self.kept]), tuple(sorted([*sums, *(axis for axes in unreduced for axis in axes)]))

    def flops(self, shapes: Iterable[tuple[int, ...]]) -> float:
        """The FLOPs of the einsum of shards with these shapes."""
        local = {
            dim: size for names, shape in zip(self.names, shapes, strict=True) for dim, size in zip(names, shape, strict=True)
        }
        return einsum_flops(self.names, self.made, local)


def every_pair(graph: Graph, sides: Sides, tables: Sequence[Mapping[Vertex, Any]]) -> Iterable[Pair]:
    """Every choice of layouts that go together, with what they make."""
    partial = tuple(tuple(sorted({axis for state in table for axis in state.unreduced})) for table in tables)
    key = len(sides.dims), sides.places, sides.kept, partial
    known = graph.pairs.get(key)
    if known is None:
        known = graph.pairs[key] = tuple(_conceivable(graph, sides, partial))
        graph.kept += len(known)
    if len(tables) == 1:
        return (pair for pair in known if pair[0][0] in tables[0])
    left, right = tables
    return (pair for pair in known if pair[0][0] in left and pair[0][1] in right)


def _conceivable(graph: Graph, sides: Sides, partial: Partial) -> Iterator[Pair]:
    """Every choice of layouts that go together, whatever the sizes."""
    for split in splits(len(sides.dims), graph.mesh_axes):
        parts = [tuple([split[i] for i in at]) for at in sides.places]
        for given in _partials(split, graph.mesh_axes, partial):
            states = tuple(map(graph.vertex, zip(parts, given, strict=True)))
            yield states, graph.vertex(sides.after(split, given))


def _partials(split: tuple[Axes, ...], names: Axes, partial: Partial) -> Iterable[tuple[Axes, ...]]:
    """Every way in which idle axes may be unreduced in at most one operand."""
    if not any(partial):
        return (((),) * len(partial),)
    used = {axis for axes in split for axis in axes}
    idle = [axis for axis in names if axis not in used]
    choices = [[None, *(k for k, own in enumerate(partial) if axis in own)] for axis in idle]
    return [
        tuple(tuple(sorted(a for a, owner in zip(idle, owners, strict=True) if owner == k)) for k in range(len(partial)))
        for owners in itertools.product(*choices)
    ]


def few_pairs(graph: Graph, sides: Sides, tables: Sequence[Mapping[Vertex, Any]], most: int) -> Iterator[Pair]:
    """Choices of layouts that go together, of tables that list the fastest first: not those of two that are both late.

    The n-th layout of one value meets `most` / n of the other. What they make is a vertex of `graph`.
    """
    if len(tables) == 1:
        for state in tables[0]:
            yield (state,), graph.vertex(sides.after(state.dims, [state.unreduced]))
        return
    left, right = sides.places
    shared = [dim for dim in left if dim in right]
    fresh = [right.index(dim) for dim in range(len(left), len(sides.dims))]
    at_left, at_right = [left.index(dim) for dim in shared], [right.index(dim) for dim in shared]
    bit = {axis: 1 << n for n, axis in enumerate(graph.mesh_axes)}
    meeting: dict[tuple[Axes, ...], list[tuple[int, Vertex]]] = {}
    for state in tables[1]:
        mask = _mask(bit, [*(state.dims[i] for i in fresh), state.unreduced])
        meeting.setdefault(tuple([state.dims[i] for i in at_right]), []).append((mask, state))
    alone = [i for i in range(len(left)) if i not in at_left]
    for number, state in enumerate(tables[0], 1):
        mask = _mask(bit, [*(state.dims[i] for i in alone), state.unreduced])
        found = meeting.get(tuple([state.dims[i] for i in at_left]), ())
        fitting = (other for theirs, other in found if not mask & theirs)
        for other in itertools.islice(fitting, max(1, most // number)):
            split = (*state.dims, *(other.dims[i] for i in fresh))
            yield (state, other), graph.vertex(sides.after(split, (state.unreduced, other.unreduced)))


def _mask(bit: Mapping[str, int], used: Iterable[Axes]) -> int:
    return sum(bit[axis] for axes in used for axis in axes)
