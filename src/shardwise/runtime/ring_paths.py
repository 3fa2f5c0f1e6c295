"""The paths of a ring: which part of whose block stands where at which hop. No arrays are touched here but to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        return lax.ppermute(array, self.axes, [(k, (k + way) % self.n) for k in range(self.n)])

    def place(self, away: int) -> Any:
        """The position that is `away` places above this device's."""
        return (lax.axis_index(self.axes) + away) % self.n


@dataclass(frozen=True, slots=True)
class Strand:
    """A part of every block that travels on its own: up or down, and after each hop the span that is left of it.

    A span lies within the one before: only the last hop takes less, where two strands share the block opposite.
    """

    way: int
    spans: tuple[Span, ...]


def cuts(span: Span, parts: int) -> list[Span]:
    """Cut a span into parts as equal as can be, those of no width left out.

    >>> cuts((0, 7), 2), cuts((0, 1), 2)
    ([(0, 3), (3, 7)], [(0, 1)])
    """
    start, stop = span
    edges = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return [(low, high) for low, high in zip(edges, edges[1:], strict=False) if low < high]


def gathering(n: int, way: Way, chunks: int, width: int) -> list[Strand]:
    """The strands that bring every block to every device, in the order in which they are sent.

    Both ways, n - 1 blocks arrive in n / 2 hops; where n is even the block opposite comes half from each side.

    >>> gathering(4, "ring", 1, 6)
    [Strand(way=1, spans=((0, 6), (0, 6), (0, 6)))]
    >>> gathering(4, "bidirectional", 1, 6)
    [Strand(way=1, spans=((0, 6), (0, 3))), Strand(way=-1, spans=((0, 6), (3, 6)))]
    """
    if way == "ring":
        return [Strand(1, (part,) * (n - 1)) for part in cuts((0, width), chunks)]
    strands = []
    for part in cuts((0, width), chunks):
        halves = cuts(part, 2) if n % 2 == 0 else []
        for number, direction in enumerate((1, -1)):
            strands.append(Strand(direction, (part,) * ((n - 1) // 2) + tuple(halves[number : number + 1])))
    return [strand for strand in strands if strand.spans]


def scattering(way: Way, chunks: int, width: int) -> list[tuple[int, Span]]:
    """The strands of a reduce-scatter: the way that each goes, and the part of the block that it sums.

    >>> scattering("bidirectional", 1, 6)
    [(1, (0, 3)), (-1, (3, 6))]
    """
    ways = (1,) if way == "ring" else (1, -1)
    return [(ways[number % len(ways)], part) for number, part in enumerate(cuts((0, width), chunks * len(ways)))]


def slots(strands: Sequence[Strand]) -> list[list[tuple[int, int]]]:
    """Which strands (by number) are multiplied together, each after which hop (from 0), in order.

    Those of both directions that left at the same time go together.

    >>> slots(gathering(5, "bidirectional", 1, 6))
    [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]
    """
    most = max((len(strand.spans) for strand in strands), default=0)
    found: list[list[tuple[int, int]]] = []
    for hop in range(most):
        for number, strand in enumerate(strands):
            if hop >= len(strand.spans):
                continue
            pairs = found and strand.way < 0 and found[-1] == [(number - 1, hop)]
            if pairs:
                found[-1].append((number, hop))
            else:
                found.append([(number, hop)])
    return found
