"""How many shards of a permutation share a link of a torus: each is followed from chip to chip."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from shardwise.chips.placing import Site
from shardwise.layout import Axes
from shardwise.mesh import Mesh, Sides

Pairs = tuple[tuple[int, ...], ...]
Loads = tuple[list[tuple[int, int]], list[int]]


def crowd_of(pairs: Pairs, axes: Axes, mesh: Mesh, site: Site) -> tuple[int, int]:
    """The most shards that pass one link of a permutation along axes of a mesh, and the links to the farthest.

    >>> from shardwise.chips.placing import mesh_order
    >>> from shardwise.chips.topology import Topology
    >>> v5e, mesh = Topology.parse("v5e:2x4"), Mesh.parse("x=2, y=4")
    >>> crowd_of(((0, 1), (1, 2), (2, 3), (3, 0)), ("y",), mesh, Site(v5e, mesh_order(v5e, mesh)))
    (1, 3)

    Args:
        pairs: positions along the axes, each with that which its shard goes to.
    """
    loads, far = over_chips(over_mesh(pairs, axes, mesh), site)
    return max(1, *map(max, loads)), sum(far)


def passes_both_ways(pairs: Pairs, axes: Axes, mesh: Mesh, site: Site) -> bool:
    """Whether a permutation and its inverse, at once, share no link more than the permutation alone.

    >>> from shardwise.chips.placing import mesh_order
    >>> from shardwise.chips.topology import Topology
    >>> v5e, ring, line = Topology.parse("v5e:2x4"), Mesh.parse("x=8"), Mesh.parse("x=2, y=4")
    >>> passes_both_ways(tuple((k, (k + 1) % 8) for k in range(8)), ("x",), ring, Site(v5e, mesh_order(v5e, ring)))
    True
    >>> passes_both_ways(((0, 1), (1, 2), (2, 3), (3, 0)), ("y",), line, Site(v5e, mesh_order(v5e, line)))
    False
    """
    up = over_mesh(pairs, axes, mesh)
    both, _ = over_chips(up + tuple((goal, source) for source, goal in up), site)
    return max(map(max, both)) <= crowd_of(pairs, axes, mesh, site)[0]


@functools.lru_cache(maxsize=256)
def sides_of(axes: Axes, mesh: Mesh, site: Site) -> tuple[Sides, ...]:
    """The torus that the devices along axes fill, its neighbours linked; none where they fill none of two sides or more.

    A side is two chips, or a ring: a line of more has no link from its end to its start.

    >>> from shardwise.chips.placing import mesh_order
    >>> from shardwise.chips.topology import Topology
    >>> cube, mesh = Topology.parse("v5p:2x2x2"), Mesh.parse("x=8")
    >>> [str(sides) for sides in sides_of(("x",), mesh, Site(cube, mesh_order(cube, mesh)))]
    ['2x2x2']
    """
    topology = site.topology
    if topology.slices > 1 or topology.kind == "gpu":
        return ()
    others = [place for place, name in enumerate(mesh.names) if name not in axes]
    devices = np.arange(mesh.size).reshape([size for _, size in mesh.axes])
    row = devices.transpose([*others, *map(mesh.names.index, axes)]).reshape(-1, mesh.extent(axes))[0]
    places = np.array([site.positions[device] for device in row])
    spans = [np.unique(column) for column in places.T]
    sides = [side for side, values in enumerate(spans) if len(values) > 1]
    sizes = tuple(len(spans[side]) for side in sides)
    if len(sides) < 2 or len(spans) - 1 in sides or math.prod(sizes) != len(places):
        return ()
    if any(len(spans[side]) > 2 and not (topology.rings[side] and len(spans[side]) == topology.shape[side]) for side in sides):
        return ()
    order = np.ravel_multi_index(tuple(np.searchsorted(spans[side], places[:, side]) for side in sides), sizes)
    found = Sides(sizes, tuple(order.tolist()))
    pairs = (found.beside(side, way) for side in range(len(sides)) for way in (1, -1))
    return (found,) if all(crowd_of(each, axes, mesh, site) == (1, 1) for each in pairs) else ()


@functools.lru_cache(maxsize=1024)
def over_mesh(pairs: Pairs, axes: Axes, mesh: Mesh) -> Pairs:
    """The pairs of devices of a whole mesh, from those of positions along some of its axes."""
    sizes = tuple(size for _, size in mesh.axes)
    places = [mesh.names.index(axis) for axis in axes]
    goals = np.zeros(mesh.extent(axes), int)
    goals[[source for source, _ in pairs]] = [goal for _, goal in pairs]
    here = np.array(np.unravel_index(np.arange(mesh.size), sizes))
    moving = tuple(sizes[place] for place in places)
    there = here.copy()
    there[places] = np.unravel_index(goals[np.ravel_multi_index(tuple(here[places]), moving)], moving)
    return tuple(enumerate(np.ravel_multi_index(tuple(there), sizes).tolist()))


@functools.lru_cache(maxsize=1024)
def over_chips(pairs: Pairs, site: Site) -> Loads:
    """The loads of a torus, whose chips are known by the devices that sit on them."""
    return link_loads(*_on_chips(pairs, site), site.topology.shape, site.topology.rings)


def _on_chips(pairs: Pairs, site: Site) -> tuple[np.ndarray, np.ndarray]:
    """On which chip each shard is, and on which it goes to, as (side, shard)."""
    chips = np.array(site.positions)[:, : len(site.topology.shape)].T
    starts, goals = ends_of(pairs)
    return chips[:, starts], chips[:, goals]


def ends_of(pairs: Pairs) -> np.ndarray:
    """Where shards are, and where they go, of those that move."""
    return np.array([pair for pair in pairs if pair[0] != pair[1]], int).reshape(-1, 2).T


def link_loads(
    starts: np.ndarray, goals: np.ndarray, sizes: tuple[int, ...], rings: tuple[bool, ...]
) -> Loads:  # fmt: skip
    """For each side of a grid the most shards that pass one of its links up and down, and the most that one of them goes.

    Shards go along one side after the other, on rings the shorter way.

    >>> up = np.array([[0, 1, 2, 3]]), np.array([[1, 2, 3, 0]])
    >>> link_loads(*up, (4,), (True,))
    ([(1, 0)], [1])
    >>> link_loads(*up, (4,), (False,))              # the last goes back over the line
    ([(1, 1)], [3])
    >>> link_loads(np.array([[0, 0], [0, 1]]), np.array([[1, 1], [1, 1]]), (2, 2), (False, False))
    ([(1, 0), (1, 0)], [1, 1])

    Args:
        starts: where each shard is, as (side, shard); `goals` where it goes.
        sizes: of the sides; `rings` says which of them close.
    """
    sides = list(_followed(starts, goals, sizes, rings))
    return [(int(up.max(initial=0)), int(down.max(initial=0))) for up, down, _ in sides], [far for *_, far in sides]


@functools.lru_cache(maxsize=1024)
def links_of(pairs: Pairs, site: Site) -> tuple[int, ...]:
    """The links that at least one shard of a permutation passes, each way of each a bit; those that two pass; and so on.

    >>> from shardwise.chips.placing import mesh_order
    >>> from shardwise.chips.topology import Topology
    >>> v5e, mesh = Topology.parse("v5e:2x4"), Mesh.parse("x=8")
    >>> site = Site(v5e, mesh_order(v5e, mesh))
    >>> (up,), (down,) = (links_of(tuple((k, (k + way) % 8) for k in range(8)), site) for way in (1, -1))
    >>> up.bit_count(), down.bit_count(), up & down
    (8, 8, 0)
    """
    sides = _followed(*_on_chips(pairs, site), site.topology.shape, site.topology.rings)
    passing = np.concatenate([way.reshape(-1) for up, down, _ in sides for way in (up, down)])
    return tuple(int.from_bytes(np.packbits(passing > few).tobytes()) for few in range(passing.max(initial=0)))


def _followed(
    starts: np.ndarray, goals: np.ndarray, sizes: tuple[int, ...], rings: tuple[bool, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:  # fmt: skip
    """For each side how many shards pass each of its links, by row, up and down, and the most that one of them goes."""
    here = starts.copy()
    for side, size in enumerate(sizes):
        start, goal = here[side], goals[side]
        others = sizes[:side] + sizes[side + 1 :]
        rows = np.ravel_multi_index(np.delete(here, side, axis=0), others) if others else np.zeros(len(start), int)
        up = (goal - start) % size <= size // 2 if rings[side] else goal >= start
        steps = np.where(up, (goal - start) % size, (start - goal) % size)
        count = math.prod(others)
        upward = _passing(rows[up], start[up], steps[up], size, count)
        yield upward, _passing(rows[~up], goal[~up], steps[~up], size, count), int(steps.max(initial=0))
        here[side] = goal


def _passing(rows: np.ndarray, low: np.ndarray, steps: np.ndarray, size: int, count: int) -> np.ndarray:
    """How many shards pass each link of each of so many rows, where each passes so many from its lower end on."""
    edges = np.zeros((count, 2 * size + 1), int)
    np.add.at(edges, (rows, low), 1)
    np.add.at(edges, (rows, low + steps), -1)
    passing = edges.cumsum(axis=1)
    return passing[:, :size] + passing[:, size : 2 * size]
