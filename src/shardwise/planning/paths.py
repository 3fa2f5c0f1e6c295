"""Who sends what in a fused step: the strands of a ring, and the meetings of a rotation; no arrays, no JAX.

The runtime sends by this description, the planner prices it, and the certificate expects it of a compiled program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import Way

Span = tuple[int, int]  # from, up to but not with
Pair = tuple[int, int]
Pairs = tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Strand:
    """A part of every block that travels on its own: up (`way` = 1) or down (-1), which span of it, and how many hops."""

    way: int
    span: Span
    hops: int


def cuts(span: Span, parts: int) -> list[Span]:
    """Cut a span into parts as equal as can be, those of no width left out.

    >>> cuts((0, 7), 2), cuts((0, 1), 2)
    ([(0, 3), (3, 7)], [(0, 1)])
    """
    start, stop = span
    edges = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return [(low, high) for low, high in itertools.pairwise(edges) if low < high]


def gathering(n: int, way: Way, chunks: int, width: int) -> list[Strand]:
    """The strands that bring every block to every device, in the order in which they are sent.

    Both ways, n - 1 blocks arrive in n / 2 hops. Where n is even, the block opposite comes from below; its chunks, if
    there are several, half from each side. A block is never cut on its way: a cut in the middle of a ring costs a copy.

    >>> gathering(4, "ring", 1, 6)
    [Strand(way=1, span=(0, 6), hops=3)]
    >>> gathering(4, "bidirectional", 1, 6)
    [Strand(way=1, span=(0, 6), hops=2), Strand(way=-1, span=(0, 6), hops=1)]
    """
    parts = cuts((0, width), chunks)
    if way == "ring":
        return [Strand(1, part, n - 1) for part in parts if n > 1]
    near, opposite = (n - 1) // 2, (n - 1) % 2
    strands = []
    for number, part in enumerate(parts):
        from_below = opposite * (2 * number < len(parts))
        strands += [Strand(1, part, near + from_below), Strand(-1, part, near + opposite - from_below)]
    return [strand for strand in strands if strand.hops]


def scattering(way: Way, chunks: int, width: int) -> list[tuple[int, Span]]:
    """The strands of a reduce-scatter: the way that each goes, and the part of the block that it sums.

    >>> scattering("bidirectional", 1, 6)
    [(1, (0, 3)), (-1, (3, 6))]
    """
    ways = (1,) if way == "ring" else (1, -1)
    return [(ways[number % len(ways)], part) for number, part in enumerate(cuts((0, width), chunks * len(ways)))]


def side_by_side(strands: Sequence[Strand]) -> list[list[int]]:
    """The numbers of the strands that are waited for together: the same span of both ways.

    >>> side_by_side(gathering(5, "bidirectional", 2, 6))
    [[0, 1], [2, 3]]
    """
    found: dict[Span, list[int]] = {}
    for number, strand in enumerate(strands):
        found.setdefault(strand.span, []).append(number)
    return list(found.values())


def is_one_product(cut: float, summed: float) -> bool:
    """Whether what arrives from both sides is multiplied as one product, and added to the running sum at once.

    No compiler takes two cuts of an array into one product's kernel: `cut` elements are copied first. Two products, one
    after the other, read and write the `summed` elements of the sum once more.

    >>> is_one_product(cut=2 * 8192 * 1024, summed=8192 * 4096), is_one_product(cut=2 * 8192 * 1024, summed=8192 * 512)
    (True, False)
    """
    return cut < summed


def neighbours(n: int, way: int) -> Pairs:
    """Who sends to whom when every position of a circle sends one place up (`way` = 1) or down (-1).

    >>> neighbours(3, -1)
    ((0, 2), (1, 0), (2, 1))
    """
    return tuple((place, (place + way) % n) for place in range(n))


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

    def moves(self, k: int) -> list[Pairs]:
        """Every time that operand k is passed on, from where it lives to the last product; none in which all stay."""
        passed = [self.pairs(k, step - 1 if step else None, step) for step in range(self.steps)]
        return [pairs for pairs in passed if any(source != target for source, target in pairs)]

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
