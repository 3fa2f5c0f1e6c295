"""Which layouts are looked at where all of them are too many: for every axis the dimensions that are worth splitting over it.

An axis is most likely to end where the result or an operand has it already, else on a large dimension. Every value keeps as
many of these places as leave no more layouts than allowed; that an axis splits nothing, and the layouts given, always stay.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.planning.graph import Scope, State
from shardwise.planning.orders import Join, Leaf, Node, Orders

FREELY_ORDERED = 3  # axes on one dimension whose every order is looked at


@dataclass(frozen=True, slots=True)
class Places:
    """For every axis the dimensions to split over it, the best first; for every dimension the sequences that are given."""

    mesh: Mesh
    sizes: Mapping[str, int]
    of: Mapping[str, tuple[str, ...]]
    given: Mapping[str, tuple[Axes, ...]]


def places_of(
    arrays: Sequence[tuple[tuple[str, ...], State]], result: Sequence[str], free: Sequence[str], sizes: Mapping[str, int],
    mesh: Mesh,
) -> Places:  # fmt: skip
    """The places of every axis: where the arrays have it, the first of them first; then those left free; then the largest.

    Args:
        arrays: names and layouts, the result's first, then the operands', the largest first.
        free: the dimensions of the result whose layout the planner chooses.
    """
    of: dict[str, dict[str, None]] = {axis: {} for axis, size in mesh.axes if size > 1}
    given: dict[str, dict[Axes, None]] = {dim: {} for dim in sizes}
    for names, (dims, _) in arrays:
        for name, split in zip(names, dims, strict=True):
            given[name][split] = None
            for axis in split:
                of[axis][name] = None
    order = sorted(sizes, key=lambda dim: (dim not in free, dim not in result, -sizes[dim]))
    for axis, size in mesh.axes:
        if size > 1:
            of[axis].update((dim, None) for dim in order if sizes[dim] % size == 0)
    return Places(mesh, sizes, {a: tuple(d) for a, d in of.items()}, {d: tuple(s) for d, s in given.items()})


def scopes_of(orders: Orders, places: Places, wanted: State, most: int) -> dict[Node, Scope]:
    """The scopes of a root and of all values on the way, which have at most so many layouts together if that can be.

    A value that needs less than its share leaves the rest to those after it.
    """
    found: dict[Node, Scope] = {}
    partial: dict[Node, Axes] = {}
    for left, node in zip(range(len(orders.values), 0, -1), orders.values, strict=True):
        given = [*([node.state] if isinstance(node, Leaf) else ()), *([wanted] if node is orders.root else ())]
        partial[node] = node.state[1] if isinstance(node, Leaf) else _summed(node, found, partial)
        found[node] = scope_of(places, node.names, given, partial[node], most // left)
        most = max(0, most - _layouts(found[node], places, partial[node], most))
    return found


def _summed(node: Join, scopes: Mapping[Node, Scope], partial: Mapping[Node, Axes]) -> Axes:
    """The axes over which an einsum's result may be unreduced: those of what it takes, and those that split what it sums."""
    axes: set[str] = set()
    for child in itertools.chain.from_iterable(node.ways):
        summed = (s for name, s in zip(child.names, scopes[child].sequences, strict=True) if name not in node.names)
        axes.update(partial[child], *itertools.chain.from_iterable(summed))
    return tuple(sorted(axes))


def scope_of(places: Places, names: tuple[str, ...], given: Sequence[State], partial: Axes, most: int) -> Scope:
    """The widest scope of a value that has at most so many layouts, or the narrowest.

    Args:
        given: layouts that it must have.
        partial: the axes over which it may be unreduced.
    """
    fitting = {axis: [dim for dim in dims if dim in names] for axis, dims in places.of.items()}
    own = [tuple(state[0][at] for state in given) for at in range(len(names))]
    sequences = functools.cache(functools.partial(_sequences, places))

    def scope(allowed: Mapping[str, list[str]], in_turn: bool) -> Scope:
        on = [tuple(axis for axis, dims in allowed.items() if name in dims) for name in names]
        return Scope(tuple(map(sequences, names, on, own, itertools.repeat(in_turn))))

    def fits(scope: Scope) -> bool:
        return _layouts(scope, places, partial, most) <= most

    allowed = {axis: dims[:1] for axis, dims in fitting.items()}
    widest = scope(allowed, False)
    in_turn = not fits(widest)  # axes split a dimension in one order alone, where those of all orders are too many
    widest = scope(allowed, True) if in_turn else widest
    for rank in range(1, max(map(len, fitting.values()), default=0)):
        before = widest
        for axis in (axis for axis, dims in fitting.items() if rank < len(dims)):
            more = {**allowed, axis: [*allowed[axis], fitting[axis][rank]]}
            wider = scope(more, in_turn)
            if fits(wider):
                widest, allowed = wider, more
        if widest is before:
            break
    return widest


def _sequences(places: Places, dim: str, axes: Axes, own: tuple[Axes, ...], in_turn: bool) -> tuple[Axes, ...]:
    """The sequences of axes that may split a dimension, the shortest first: those given, and others of some axes."""
    met = [split for split in places.given[dim] if set(split) <= set(axes)]
    found = dict.fromkeys(split[:cut] for split in (*own, *met) for cut in range(len(split) + 1))
    free = not in_turn and len(axes) <= FREELY_ORDERED
    found |= dict.fromkeys(_orders(axes) if free else _runs(axes, (*own, *met, ()), 1 if in_turn else 2))
    fitting = (split for split in found if places.sizes[dim] % places.mesh.extent(split) == 0)
    return tuple(sorted(fitting, key=len))


@functools.lru_cache(maxsize=1024)
def _orders(axes: Axes) -> tuple[Axes, ...]:
    return tuple(order for count in range(len(axes) + 1) for order in itertools.permutations(axes, count))


@functools.lru_cache(maxsize=1024)
def _runs(axes: Axes, met: tuple[Axes, ...], most: int) -> tuple[Axes, ...]:
    """Sequences of so many parts, each in the order of a layout that is given, or else of the mesh.

    With two, axes that are in order may be moved behind others that are.
    """
    found: dict[Axes, None] = {}
    for split in dict.fromkeys(met):
        first = tuple(axis for axis in split if axis in axes)
        place = {axis: at for at, axis in enumerate((*first, *(axis for axis in axes if axis not in first)))}
        for order in _orders(axes):
            if sum(place[one] > place[other] for one, other in itertools.pairwise(order)) < most:
                found[order] = None
    return tuple(found)


def _layouts(scope: Scope, places: Places, partial: Axes, most: int) -> int:
    """How many layouts a scope has, or some number beyond `most`."""
    axes = tuple(places.of)
    count = 0
    for dims in scope.splits(axes):
        used = {axis for split in dims for axis in split}
        count += 2 ** len([axis for axis in partial if axis not in used])
        if count > most:
            break
    return count


def looks_in_all(orders: Orders, mesh: Mesh) -> float:
    """About how many moves and einsums a search of all layouts looks at."""
    axes = sum(size > 1 for _, size in mesh.axes)
    looks = 0.0
    for node in orders.values:
        rank = len(node.names)
        layouts = _layouts_in_all(rank, axes, isinstance(node, Join) or bool(node.state[1]))
        looks += layouts * axes**3 * (rank + 4) / 18  # as counted for two to four dimensions on three to five axes
        for way in node.ways if isinstance(node, Join) else ():
            looks += _layouts_in_all(len({dim for child in way for dim in child.names}), axes, False)
    return looks


def _layouts_in_all(rank: int, axes: int, partial: bool) -> int:
    """How many layouts an array has: some axes in every order, cut into one part for each dimension; others unreduced."""
    counts = (
        math.perm(axes, used) * math.comb(used + max(rank, 1) - 1, used) * (2 ** (axes - used) if partial else 1)
        for used in range(axes + 1 if rank else 1)
    )
    return sum(counts)
