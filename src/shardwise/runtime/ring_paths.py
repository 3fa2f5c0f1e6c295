"""The paths of a ring: which part of whose block stands where at which hop. No arrays are touched here but to be sent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax import lax

Way = Literal["ring", "bidirectional"]
Span = tuple[int, int]  # from, up to but not with


@dataclass(frozen=True, slots=True)
class Ring:
    """The devices along `axes` in a circle, the first axis the major one; each sends to a neighbour."""

    axes: tuple[str, ...]
    n: int

    def sent(self, array: Any, way: int) -> Any:
        """What arrives here when every device sends `array` one place up (`way` = 1) or down (-1)."""
        axes, numbers = self._in_mesh_order()
        return lax.ppermute(array, axes, [(numbers[k], numbers[(k + way) % self.n]) for k in range(self.n)])

    def _in_mesh_order(self) -> tuple[tuple[str, ...], list[int]]:
        """The axes as the mesh has them, which `ppermute` wants, and what it calls the ring's positions in order."""
        axes = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in self.axes)
        numbers = np.arange(self.n).reshape([lax.axis_size(axis) for axis in axes])
        return axes, numbers.transpose([axes.index(axis) for axis in self.axes]).reshape(-1).tolist()

    def place(self, away: int) -> Any:
        """The position that is `away` places above this device's."""
        return (lax.axis_index(self.axes) + away) % self.n


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way or both; into how many chunks, each sent on its own, every block is cut; a ring of more than `unroll` loops.

    `save`: what is gathered is kept for the products of the derivative that can wait for all of it.
    """

    way: Way = "bidirectional"
    chunks: int = 1
    unroll: int = 16
    save: bool = True


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
