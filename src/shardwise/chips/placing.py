"""Where a mesh lies on a topology: an order of devices whose neighbours are linked, and what each axis has of the links."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.chips import Torus, hardware
from shardwise.chips.links import Route
from shardwise.chips.topology import Topology
from shardwise.errors import MeshError, counted
from shardwise.mesh import Mesh, folded

# Coordinates along the topology's shape, then the core within the chip; of several slices then the slice.
Position = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a mesh lies: its topology, and the position of each device, the last axis fastest."""

    topology: Topology
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What an axis takes of one dimension: so many chips (or cores), `stride` apart."""

    dimension: int
    size: int
    stride: int = 1


def sliced(topology: Topology, mesh: Mesh) -> tuple[Mesh, Mesh]:
    """A mesh over several slices as two: the slices along each axis, and what stands along it in each. The first axes cross.

    >>> across, inside = sliced(Topology.parse("v5e:2x4*2"), Mesh.parse("x=4, y=4"))
    >>> str(across), str(inside)
    ('x=2, y=1', 'x=2, y=4')

    Raises:
        MeshError: the axes cannot be shared out so.
    """
    left, across = topology.slices, []
    for name, size in mesh.axes:
        across.append((name, math.gcd(size, left)))
        left //= across[-1][1]
    if left > 1:
        raise MeshError(
            f"mesh {mesh} does not go over the {topology.slices} slices of {topology}: give a first axis of {topology.slices}, "
            f"or one that {topology.slices} divides"
        )
    inside = tuple((name, size // count) for (name, size), (_, count) in zip(mesh.axes, across, strict=True))
    return Mesh(tuple(across)), Mesh(inside)


@functools.lru_cache(maxsize=64)
def mesh_order(topology: Topology, mesh: Mesh) -> tuple[Position, ...]:
    """Say for each device of a mesh, the last axis fastest, on which position of the topology it sits.

    Each axis takes whole dimensions of the torus where the sizes allow, and parts of them otherwise. Along an axis
    neighbours are linked, and the last is linked to the first, wherever the torus has such a ring; the two cores of a
    chip follow one another. GPUs stand in the order of their hosts.

    >>> mesh_order(Topology.parse("v5e:2x2"), Mesh.parse("x=4"))
    ((0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 0))

    A smaller mesh takes a block of the torus, or the first GPUs. Over several slices the first axes go from one to the next,
    and all slices are filled alike.

    Raises:
        MeshError: the mesh has more devices than the topology, or so many as no block of it has, or does not fill all slices.
    """
    if topology.slices > 1:
        return _over_slices(topology, mesh)
    dimensions = (*topology.shape, topology.cores_per_chip)
    if topology.kind == "gpu" and mesh.size <= topology.size:
        return tuple(itertools.islice(itertools.product(*map(range, dimensions)), mesh.size))
    if mesh.size < topology.size:
        dimensions = _block(dimensions, mesh.size)
    if mesh.size != math.prod(dimensions):
        raise MeshError(
            f"mesh {mesh} has {counted(mesh.size, 'device')}, and {topology} has {topology.size}: give axes whose sizes "
            f"multiply to {topology.size}, or a topology of {mesh.size}"
        )
    sizes = [size for _, size in mesh.axes]
    shares = _whole(sizes, [_Part(d, size) for d, size in enumerate(dimensions) if size > 1]) or _split(sizes, dimensions)
    orders = [_order(parts, len(dimensions)) for parts in shares]
    return tuple(tuple(map(sum, zip(*steps, strict=True))) for steps in itertools.product(*orders))


def _over_slices(topology: Topology, mesh: Mesh) -> tuple[Position, ...]:
    across, inside = sliced(topology, mesh)
    places = dict(zip(_indices(inside), mesh_order(topology.slice, inside), strict=True))
    slices = {where: number for number, where in enumerate(_indices(across))}
    widths = [size for _, size in inside.axes]
    found = []
    for index in _indices(mesh):
        both = [divmod(at, width) for at, width in zip(index, widths, strict=True)]
        found.append((*places[tuple(at for _, at in both)], slices[tuple(at for at, _ in both)]))
    return tuple(found)


def _indices(mesh: Mesh) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(size) for _, size in mesh.axes))


def in_one_slice(positions: Sequence[Position]) -> tuple[Position, ...]:
    """The positions of a mesh over several slices that lie in the first device's."""
    return tuple(position[:-1] for position in positions if position[-1] == positions[0][-1])


def is_sliced(topology: Topology, positions: Sequence[Position], mesh: Mesh) -> bool:
    """Whether devices lie as a mesh over several slices does: its first axes cross them, and all slices are filled alike."""
    try:
        planned = _over_slices(topology, mesh)
    except MeshError:
        return False
    numbers = dict(zip([position[-1] for position in planned], [position[-1] for position in positions], strict=False))
    if len(set(numbers.values())) < topology.slices or any(
        numbers[one[-1]] != other[-1] for one, other in zip(planned, positions, strict=True)
    ):
        return False
    each = {tuple(p[:-1] for p in positions if p[-1] == number) for number in numbers.values()}
    return len(each) == 1


def _block(dimensions: Sequence[int], size: int) -> tuple[int, ...]:
    """The most compact block of so many devices, with all cores of its chips where they divide; empty where there is none."""
    blocks = [block for block in itertools.product(*(range(1, side + 1) for side in dimensions)) if math.prod(block) == size]
    return min(blocks, key=lambda block: (-block[-1], sum(block)), default=())


def _whole(sizes: Sequence[int], free: Sequence[_Part]) -> list[list[_Part]] | None:
    """Share out whole dimensions, so that those of each axis multiply to its size; None where that cannot be."""
    if not sizes:
        return []
    for count in range(len(free) + 1):
        for taken in itertools.combinations(free, count):
            if math.prod(part.size for part in taken) == sizes[0]:
                others = _whole(sizes[1:], [part for part in free if part not in taken])
                if others is not None:
                    return [list(taken), *others]
    return None


def _split(sizes: Sequence[int], dimensions: Sequence[int]) -> list[list[_Part]]:
    """Share out parts of dimensions. Later axes choose first and stand closer; what they leave lies further apart."""
    left, strides = list(dimensions), [1] * len(dimensions)
    shares = []
    for need in reversed(sizes):
        parts = []
        while need > 1:
            common = [math.gcd(need, size) for size in left]
            best = max(range(len(left)), key=lambda d: (common[d] == left[d] > 1, common[d]))
            parts.append(_Part(best, common[best], strides[best]))
            left[best] //= common[best]
            strides[best] *= common[best]
            need //= common[best]
        shares.append(sorted(parts, key=lambda part: part.dimension))
    return shares[::-1]


def _order(parts: Sequence[_Part], rank: int) -> list[Position]:
    """The positions along one axis, from the origin: a tour of the chips, and the cores of each chip in a row."""
    chips = [part for part in parts if part.dimension < rank - 1]
    cores = math.prod(part.size for part in parts if part.dimension == rank - 1)
    places = []
    for step in _tour([part.size for part in chips]):
        place = [0] * rank
        for part, index in zip(chips, step, strict=True):
            place[part.dimension] += part.stride * index
        places += [(*place[:-1], core) for core in range(cores)]
    return places


def _tour(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Visit a grid from neighbour to neighbour; back to the start where one of several sides is even.

    With rows along the even side: all rows back and forth, sparing the first column, by which the tour returns.
    """
    even = next((side for side, size in enumerate(sizes) if size % 2 == 0), None)
    if len(sizes) < 2 or even is None:
        return list(_snake(sizes))
    rows, columns = sizes[even], list(_snake([*sizes[:even], *sizes[even + 1 :]]))
    tour = [(0, columns[0])]
    for row in range(rows):
        tour += [(row, column) for column in (columns[1:] if row % 2 == 0 else columns[:0:-1])]
    tour += [(row, columns[0]) for row in range(rows - 1, 0, -1)]
    return [(*column[:even], row, *column[even:]) for row, column in tour]


def _snake(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Visit a grid back and forth, the last side fastest."""
    if not sizes:
        yield ()
        return
    inner = list(_snake(sizes[1:]))
    for index in range(sizes[0]):
        yield from ((index, *rest) for rest in (inner if index % 2 == 0 else reversed(inner)))


def hops(topology: Topology, one: Position, other: Position) -> int:
    """The links between two positions: none between the cores of a chip, one between GPUs (the switch).

    >>> hops(Topology.parse("v5e:4x4"), (0, 0, 0), (3, 1, 0)), hops(Topology.parse("v5p:4x4x4"), (0, 0, 0, 0), (3, 1, 0, 0))
    (4, 2)
    """
    if topology.kind == "gpu":
        return int(one != other)
    total = 0
    for a, b, size, ring in zip(one, other, topology.shape, topology.rings, strict=False):  # the core comes after
        apart = abs(a - b)
        total += min(apart, size - apart) if ring else apart
    return total


def physical_routes(topology: Topology, positions: Sequence[Position], mesh: Mesh) -> dict[str, Route]:
    """What each axis of a mesh has of the torus, from the positions of its devices; behind a switch, nothing to say.

    An axis has both links of each dimension that it goes round, and one of each that it crosses from end to end. One
    that stands `s` apart shares its links with `s` others. The devices of a chip share its links.

    >>> v5e = Topology.parse("v5e:2x4")
    >>> mesh = Mesh.parse("x=8")
    >>> route = physical_routes(v5e, mesh_order(v5e, mesh), mesh)["x"]
    >>> route.bytes_per_s, route.hops, route.says
    (90000000000.0, 4, 'x a line of 2 x line of 4')

    Raises:
        MeshError: there are more or fewer positions than the mesh has devices.
    """
    if len(positions) != mesh.size:
        raise MeshError(f"mesh {mesh} has {counted(mesh.size, 'device')}, and {counted(len(positions), 'position')} are given")
    if topology.slices > 1:
        across, inside = sliced(topology, mesh)
        routes = physical_routes(topology.slice, in_one_slice(positions), inside)
        return {name: _crossing(name, routes.get(name), across.axis_size(name)) for name, size in mesh.axes if size > 1}
    torus = hardware(topology.chip).links if topology.chip else None
    if not isinstance(torus, Torus):
        return {}
    routes, stride = {}, mesh.size
    for name, size in mesh.axes:
        stride //= size
        if size > 1:
            routes[name] = _route(name, topology, torus, positions[: stride * size : stride])
    return routes


def _crossing(name: str, route: Route | None, slices: int) -> Route:
    """The route of an axis that goes over so many slices, with what it has in each."""
    if route is None:
        return Route(1, 0.0, 0, False, f"{name} over {slices} slices", slices=slices)
    return route if slices == 1 else replace(route, says=f"{route.says} in each of {slices} slices", slices=slices)


def _route(name: str, topology: Topology, torus: Torus, places: Sequence[Position]) -> Route:
    link = torus.bytes_per_s.value / topology.cores_per_chip
    spans = [sorted(set(coordinates)) for coordinates in zip(*places, strict=True)]
    speed, farthest, rings, said, sides = 0.0, 0, [], [], []
    for dimension, values in enumerate(spans[:-1]):
        count, gap = len(values), values[1] - values[0] if len(values) > 1 else 1
        if count == 1:
            continue
        ring = topology.rings[dimension] and count * gap == topology.shape[dimension] and count > 2
        rings.append(ring)
        if count == topology.shape[dimension]:
            sides.append(count)
        speed += link * (2 if ring else 1) / gap
        farthest += (count // 2 if ring else count - 1) * gap
        said.append(f"{'ring' if ring else 'line'} of {count}" + (f" ({gap} apart)" if gap > 1 else ""))
    chips = math.prod(len(values) for values in spans[:-1])
    if chips == 1:  # the cores of one chip: at least as fast as a link, and no hop
        says = f"{name} the {len(places)} cores of a chip"
        return Route(len(places), torus.bytes_per_s.value, 0, False, says, cores=len(places))
    cores = f", {len(spans[-1])} cores a chip" if len(spans[-1]) > 1 else ""
    if chips * len(spans[-1]) != len(places):  # no block of the torus: taken as one link
        steps = max(hops(topology, places[0], place) for place in places)
        return Route(len(places), link / steps, steps, False, f"{name} {len(places)} devices, scattered")
    filled = tuple(sides) if len(sides) == len(rings) else ()
    says = f"{name} a {' x '.join(said)}{cores}"
    visited = [places[at] for at in folded(len(places))]
    direct, folds = (all(map(_is_direct, order, (*order[1:], order[0]))) for order in (list(places), visited))
    return Route(len(places), speed, farthest, all(rings), says, len(spans[-1]), filled, direct, folds)


def _is_direct(one: Position, other: Position) -> bool:
    apart = [abs(a - b) for a, b in zip(one[:-1], other[:-1], strict=True) if a != b]
    return len(apart) <= 1 and all(steps.bit_count() == 1 for steps in apart)
