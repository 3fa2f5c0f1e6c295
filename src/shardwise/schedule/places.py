"""Who sends to whom: places on a ring, and on the grid of a rotation, as pairs of positions; no arrays, no JAX."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.layout import Axes
from shardwise.mesh import Mesh, folded

Pair = tuple[int, int]  # who sends to whom, by their places
Pairs = tuple[Pair, ...]


@functools.lru_cache(maxsize=1024)
def neighbours(n: int, way: int, is_folded: bool = False) -> Pairs:
    """Who sends to whom when every position of a circle sends one place up (`way` = 1) or down (-1).

    >>> neighbours(3, -1), neighbours(4, 1, is_folded=True)
    (((0, 2), (1, 0), (2, 1)), ((0, 2), (1, 0), (2, 3), (3, 1)))
    """
    order = folded(n) if is_folded else range(n)
    return tuple(sorted((order[place], order[(place + way) % n]) for place in range(n)))


@dataclass(frozen=True, slots=True)
class Grid:
    """A rotation's devices, `sizes[k]` along the axis that splits operand k; both operands meet on each, piece by piece.

    Operand k is in `sizes[k]` blocks along the summed dimension; cut that into L = lcm(sizes) pieces. At step t the
    device at (p0, p1) multiplies piece p0 L/sizes[0] + p1 L/sizes[1] + t (mod L).
    """

    sizes: Pair

    @property
    def steps(self) -> int:
        return math.lcm(*self.sizes)

    def blocks(self, place: Pair, step: int) -> Pair:
        """Which block of each operand the device at `place` needs at a step."""
        first, second = (self.steps // size for size in self.sizes)
        piece = place[0] * first + place[1] * second + step
        return piece // first % self.sizes[0], piece // second % self.sizes[1]

    def pairs(self, k: int, before: int | None, after: int | None) -> Pairs:
        """Who sends operand k to whom, from where it is at step `before` to where it is needed at `after`.

        None is where it lives. Positions count along both axes together, that of operand 0 the major one; a device that
        has what it needs sends to itself.

        >>> Grid((2, 2)).pairs(0, None, 0)
        ((0, 0), (3, 1), (2, 2), (1, 3))
        """

        def at(step: int | None) -> Callable[[Pair], int]:
            return lambda place: place[k] if step is None else self.blocks(place, step)[k]

        holds, needs, found = at(before), at(after), []
        for place in itertools.product(range(self.sizes[0]), range(self.sizes[1])):
            along = (_place(k, p, place[1 - k]) for p in range(self.sizes[k]))
            found.append((self._number(next(p for p in along if holds(p) == needs(place))), self._number(place)))
        return tuple(found)

    def hops(self, k: int, before: int | None, after: int | None) -> int:
        """How far operand k goes along its axis at most between two steps, round the shorter way; 0 where all of it stays.

        >>> Grid((4, 4)).hops(0, None, 0), Grid((4, 4)).hops(0, 0, 1)
        (2, 1)
        """
        n, pieces, others = self.sizes[k], self.steps // self.sizes[k], self.steps // self.sizes[1 - k]

        def ahead(other: int, step: int | None) -> int:  # of its own, the block that a device in that row needs
            return 0 if step is None else (other * others + step) // pieces

        moved = ((ahead(other, after) - ahead(other, before)) % n for other in range(self.sizes[1 - k]))
        return max(min(each, n - each) for each in moved)

    def _number(self, place: Pair) -> int:
        return place[0] * self.sizes[1] + place[1]


def _place(k: int, along: int, other: int) -> Pair:
    return (along, other) if k == 0 else (other, along)


def on_devices(pairs: Sequence[Pair], axes: Axes, mesh: Mesh) -> Pairs:
    """Pairs of positions along `axes`, the first the major one, as pairs of devices of the whole mesh, in order.

    Devices that would send to themselves are left out: they send nothing.

    >>> on_devices(((0, 1), (1, 0)), ("x",), Mesh.parse("x=2, y=2"))
    ((0, 2), (1, 3), (2, 0), (3, 1))
    """
    places = [mesh.names.index(axis) for axis in axes]
    others = [place for place in range(len(mesh.axes)) if place not in places]
    ids = np.arange(mesh.size).reshape([size for _, size in mesh.axes])
    rows = ids.transpose(others + places).reshape(-1, mesh.extent(axes)).tolist()
    return tuple(sorted((row[source], row[target]) for row in rows for source, target in pairs if source != target))
