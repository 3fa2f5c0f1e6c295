"""What is legal next: the moves between the layouts of one array, in a compact form that the search can afford.

A state is a layout without names: the axes of every dimension in order, and the sorted axes that are unreduced. Moves are
asked for by the state that they leave (`moves`), or by the state that they lead to (`moves_into`). Permutes stand apart:
there are many, and none is worth making right after another, since the two are one that costs no more. A `Scope` leaves out
layouts where all of them are too many. What does not depend on sizes is found once for all problems on a mesh: a `Graph` has
one `Vertex` for each state, and an `Arc` for each move.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, assert_never

from shardwise.layout import Axes, Layout, spread
from shardwise.mesh import Mesh
from shardwise.program import relayout
from shardwise.steps import AllGather, AllReduce, AllToAll, Collective, MoveKind, ReduceScatter, Slice

State = tuple[tuple[Axes, ...], Axes]


class Move(NamedTuple):
    """One step on one array: its kind, the axes it is over, the dimensions by position, and where it leads."""

    kind: MoveKind
    axes: Axes
    dim: int
    target: int
    after: State


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What the price of a move depends on beside the shard: not on the order of its axes, which are in that of the mesh."""

    name: MoveKind
    axes: Axes
    dim: int
    target: int


@dataclass(slots=True, eq=False)
class Vertex:
    """A state of a graph: one object for each, so that a search tells states apart by identity.

    Its graph fills in the arcs from it; those into it, by the axes that may be unreduced; and permutes, by where they lead.
    """

    dims: tuple[Axes, ...]
    unreduced: Axes
    arcs: tuple[Arc, ...] | None = None
    arcs_into: dict[Axes, tuple[Arc, ...]] = field(default_factory=dict)
    permutes: dict[Vertex, Arc] = field(default_factory=dict)

    @property
    def state(self) -> State:
        return self.dims, self.unreduced


class Arc(NamedTuple):
    """A move, its kind, and the vertex on its other side."""

    other: Vertex
    kind: Kind
    move: Move


def state_of(layout: Layout) -> State:
    return tuple(axes for _, axes in layout.dims), tuple(sorted(layout.unreduced))


def layout_of(state: State, names: tuple[str, ...]) -> Layout:
    return Layout(tuple(zip(names, state[0], strict=True)), frozenset(state[1]))


def step_of(move: Move, before: State, array: str, names: tuple[str, ...], mesh: Mesh) -> Collective | Slice:
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
            assert_never(move.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The layouts of one array that are looked at: for each dimension the sequences of axes that may split it.

    With a sequence, all that it starts with are in scope.
    """

    sequences: tuple[tuple[Axes, ...], ...]
    _known: tuple[frozenset[Axes], ...] = field(init=False)
    _tails: tuple[dict[Axes, list[Axes]], ...] = field(init=False)
    _arranged: dict[tuple[Axes, tuple[int, ...]], tuple[tuple[Axes, ...], ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", tuple(map(frozenset, self.sequences)))
        object.__setattr__(self, "_tails", tuple(map(_tails_of, self.sequences)))

    def holds(self, dim: int, axes: Axes) -> bool:
        return axes in self._known[dim]

    def holds_all(self, state: State) -> bool:
        return all(map(frozenset.__contains__, self._known, state[0]))

    def tails(self, dim: int, axes: Axes, idle: Axes) -> Iterable[Axes]:
        """What may split a dimension further, of axes that are idle."""
        free = set(idle)
        return [tail for tail in self._tails[dim].get(axes, ()) if free.issuperset(tail)]

    def arrangements(
        self, used: Axes, mesh_axes: tuple[tuple[str, int], ...], extents: tuple[int, ...]
    ) -> tuple[tuple[Axes, ...], ...]:
        """Every way in scope to split the dimensions into these numbers of parts over all of some axes."""
        known = self._arranged.get((used, extents))
        if known is None:
            fitting = [
                [axes for axes in choice if _extent(axes, mesh_axes) == extent]
                for choice, extent in zip(self.sequences, extents, strict=True)
            ]
            full = (dims for dims in _disjoint(fitting, frozenset(used)) if sum(map(len, dims)) == len(used))
            known = self._arranged[used, extents] = tuple(full)
        return known

    def splits(self, idle: Axes) -> Iterator[tuple[Axes, ...]]:
        """Every way in scope to give axes, or some of them, to the dimensions."""
        return _disjoint(self.sequences, frozenset(idle))


def _tails_of(sequences: Sequence[Axes]) -> dict[Axes, list[Axes]]:
    tails: dict[Axes, list[Axes]] = {}
    for axes in sequences:
        for cut in range(len(axes)):
            tails.setdefault(axes[:cut], []).append(axes[cut:])
    return tails


def _disjoint(choices: Sequence[Sequence[Axes]], free: frozenset[str]) -> Iterator[tuple[Axes, ...]]:
    """One sequence of each choice, no axis twice and all of them free."""
    if not choices:
        yield ()
        return
    for axes in choices[0]:
        if free.issuperset(axes):
            for rest in _disjoint(choices[1:], free.difference(axes)):
                yield (axes, *rest)


def _idle(state: State, axes: Axes) -> Axes:
    used = {axis for split in state[0] for axis in split}
    return tuple([axis for axis in axes if axis not in used and axis not in state[1]])


def moves(state: State, mesh_axes: Axes, scope: Scope | None = None) -> tuple[Move, ...]:
    """Every legal move from a state but permutes, on mesh axes of more than one device, whatever the sizes.

    >>> [move.kind for move in moves(((("x",), ()), ()), ("x",))]
    ['all-gather', 'all-to-all']
    """
    dims, unreduced = state
    idle = _idle(state, mesh_axes)
    found: list[Move] = []
    for dim, axes in enumerate(dims):
        for cut in range(len(axes)):
            minor = axes[cut:]
            gathered = _with(dims, dim, axes[:cut])
            found.append(Move("all-gather", minor, dim, dim, (gathered, unreduced)))
            for target, held in enumerate(dims):
                if target != dim and (scope is None or scope.holds(target, held + minor)):
                    after = _with(gathered, target, held + minor)
                    found.append(Move("all-to-all", minor, dim, target, (after, unreduced)))
        for extra in _further(scope, dim, axes, idle):
            found.append(Move("slice", extra, dim, dim, (_with(dims, dim, axes + extra), unreduced)))
    if unreduced:
        for chosen in _choices(unreduced):
            found.append(Move("all-reduce", chosen, 0, 0, (dims, _less(unreduced, chosen))))
        for dim, axes in enumerate(dims):
            for extra in _further(scope, dim, axes, unreduced):
                after = (_with(dims, dim, axes + extra), _less(unreduced, extra))
                found.append(Move("reduce-scatter", extra, dim, dim, after))
    return tuple(found)


def moves_into(state: State, mesh_axes: Axes, scope: Scope | None, partial: Axes) -> Iterator[tuple[Move, State]]:
    """Every legal move that leads to a state, but permutes, and the state before; unreduced before are axes of `partial`.

    >>> [move.kind for move, _ in moves_into(((("x",), ()), ()), ("x",), None, ())]
    ['slice', 'all-to-all']
    """
    dims, unreduced = state
    idle = _idle(state, mesh_axes)
    sums = tuple(axis for axis in idle if axis in partial)
    for dim, axes in enumerate(dims):
        for extra in _further(scope, dim, axes, idle):
            yield Move("all-gather", extra, dim, dim, state), (_with(dims, dim, axes + extra), unreduced)
        for cut in range(len(axes)):
            minor = axes[cut:]
            less = _with(dims, dim, axes[:cut])
            yield Move("slice", minor, dim, dim, state), (less, unreduced)
            for source, held in enumerate(dims):
                if source != dim and (scope is None or scope.holds(source, held + minor)):
                    yield Move("all-to-all", minor, source, dim, state), (_with(less, source, held + minor), unreduced)
            if not set(partial).isdisjoint(minor) and set(partial).issuperset(minor):
                yield Move("reduce-scatter", minor, dim, dim, state), (less, tuple(sorted(unreduced + minor)))
    for chosen in _choices(sums):
        yield Move("all-reduce", chosen, 0, 0, state), (dims, tuple(sorted(unreduced + chosen)))


def arrangements(
    state: State, mesh_axes: tuple[tuple[str, int], ...], scope: Scope | None = None
) -> Sequence[tuple[Axes, ...]]:
    """Every way to split the dimensions into the same numbers of parts over the same axes: permutes lead to all of them."""
    dims = state[0]
    used = tuple(sorted(axis for axes in dims for axis in axes))
    if len(used) < 2:
        return ()
    extents = tuple([_extent(axes, mesh_axes) for axes in dims])
    return _arrangements(used, mesh_axes, extents) if scope is None else scope.arrangements(used, mesh_axes, extents)


def permute(before: State, after: State, mesh_axes: Axes) -> Move:
    """The permute from one arrangement to another; the way back costs the same."""
    moved = {a for old, new in zip(before[0], after[0], strict=True) if old != new for a in (*old, *new)}
    return Move("collective-permute", tuple([axis for axis in mesh_axes if axis in moved]), 0, 0, after)


@dataclass(slots=True, eq=False)
class Graph:
    """The states on mesh axes, or those in a scope, and the moves between them, found when they are first asked for.

    `pairs` keeps what `joins` finds of states that go together, `arranged` where permutes lead on meshes by their axes' sizes;
    `kept` counts what is kept.
    """

    mesh_axes: Axes
    scope: Scope | None = None
    pairs: dict[Any, Any] = field(default_factory=dict)
    arranged: dict[Any, dict[Vertex, tuple[Vertex, ...]]] = field(default_factory=dict)
    kept: int = 0
    _vertices: dict[State, Vertex] = field(default_factory=dict)
    _kinds: dict[tuple[str, Axes, int, int], Kind] = field(default_factory=dict)

    def vertex(self, state: State) -> Vertex:
        return self._vertices.get(state) or self._vertices.setdefault(state, Vertex(*state))

    def arcs(self, vertex: Vertex) -> tuple[Arc, ...]:
        """The moves from a state but permutes."""
        known = vertex.arcs
        if known is None:
            found = moves(vertex.state, self.mesh_axes, self.scope)
            known = vertex.arcs = tuple([Arc(self.vertex(move.after), self._kind(move), move) for move in found])
            self.kept += len(known)
        return known

    def arcs_into(self, vertex: Vertex, partial: Axes) -> tuple[Arc, ...]:
        """The moves that lead to a state but permutes, from states that are unreduced over axes of `partial`."""
        known = vertex.arcs_into.get(partial)
        if known is None:
            found = moves_into(vertex.state, self.mesh_axes, self.scope, partial)
            known = tuple([Arc(self.vertex(before), self._kind(move), move) for move, before in found])
            vertex.arcs_into[partial] = known
            self.kept += len(known)
        return known

    def permute(self, before: Vertex, after: Vertex) -> Arc:
        """The permute from one arrangement to another."""
        known = before.permutes.get(after)
        if known is None:
            move = permute(before.state, after.state, self.mesh_axes)
            known = before.permutes[after] = Arc(after, self._kind(move), move)
            self.kept += 1
        return known

    def _kind(self, move: Move) -> Kind:
        name, axes, dim, target, _ = move
        if len(axes) > 1:
            axes = tuple([axis for axis in self.mesh_axes if axis in axes])
        key = name, axes, dim, target
        return self._kinds.get(key) or self._kinds.setdefault(key, Kind(*key))


MOST_KEPT = 200_000  # arcs and pairs of states on axes of the same names: beyond, they are found anew


def graph_of(mesh_axes: Axes) -> Graph:
    """The graph of all states on mesh axes; what is found of it serves the problems that follow."""
    graph = _graph(mesh_axes)
    if graph.kept > MOST_KEPT:
        _graph.cache_clear()
    return graph


@functools.lru_cache(maxsize=8)
def _graph(mesh_axes: Axes) -> Graph:
    return Graph(mesh_axes)


def _further(scope: Scope | None, dim: int, axes: Axes, idle: Axes) -> Iterable[Axes]:
    return _sequences(idle) if scope is None else scope.tails(dim, axes, idle)


def _choices(axes: Axes) -> Iterator[Axes]:
    return itertools.chain.from_iterable(itertools.combinations(axes, count) for count in range(1, len(axes) + 1))


def _less(axes: Axes, gone: Axes) -> Axes:
    return tuple(axis for axis in axes if axis not in gone)


def _with(dims: tuple[Axes, ...], dim: int, axes: Axes) -> tuple[Axes, ...]:
    return (*dims[:dim], axes, *dims[dim + 1 :])


@functools.lru_cache(maxsize=4096)
def _sequences(axes: Axes) -> tuple[Axes, ...]:
    """Every ordered choice of at least one axis."""
    return tuple(s for count in range(1, len(axes) + 1) for s in itertools.permutations(axes, count))


@functools.lru_cache(maxsize=1024)
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
