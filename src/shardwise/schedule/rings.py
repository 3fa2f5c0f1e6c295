"""The schedules of fused steps: one maker for each form, from the number of devices, the way, the chunks and the width.

In a ring each device has a block, and blocks or sums of products go round, in parts; in a rotation two arrays move, each
along its own axis. A ring of more devices than `unroll` is a loop of two hops a trip: what arrives then has a buffer of
its own, and nothing is copied.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.schedule.events import Await, Copy, Event, Events, Loop, Matmul, Pair, Pairs, Part, Send
from shardwise.schedule.strands import gathering, scattering, side_by_side
from shardwise.steps import Way

UNROLL = 16


@functools.lru_cache(maxsize=1024)
def gather_matmul(n: int, way: Way, chunks: int, width: int, unroll: int = UNROLL) -> Events:
    """Every device's block, of this width, goes round; each device multiplies it as it arrives, while the next is on its way.

    >>> print(*gather_matmul(3, "bidirectional", 1, 4), sep="\\n")
    send +0[0:4] up as 0
    send +0[0:4] down as 1
    multiply +0[0:4]
    await 0, 1
    multiply -1[0:4] and +1[0:4]
    """
    strands = gathering(n, way, chunks, width)
    groups = side_by_side(strands)

    def hop(number: int, last: bool = True, step: int = 0) -> Iterator[Event]:
        for group in groups:
            here = [k for k in group if strands[k].hops > number]
            if not here:
                continue
            parts = {k: Part(-strands[k].way * (number + 1), strands[k].span, -strands[k].way * step) for k in here}
            yield Await(tuple(here))
            for k in here:
                if not last or strands[k].hops > number + 1:
                    yield _send(n, k, strands[k].way, parts[k])
            yield Matmul(tuple(parts.values()), tuple(here))

    begun = [_send(n, k, strand.way, Part(0, strand.span)) for k, strand in enumerate(strands)]
    found: list[Event] = [*begun, Matmul((Part(0, (0, width)),))]
    hops = [strand.hops for strand in strands]
    trips = _trips(n, min(hops, default=0) - 1, unroll)
    if trips:
        found.append(Loop(trips, (*hop(0, last=False, step=2), *hop(1, last=False, step=2))))
    for number in range(2 * trips, max(hops, default=0)):
        found += hop(number)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def matmul_scatter(n: int, way: Way, chunks: int, width: int, unroll: int = UNROLL) -> Events:
    """Sums of products travel to the devices that keep them, and take up a product at every stop.

    A sum begins one place past its home and ends there, so every element is added in one fixed order.

    >>> print(*matmul_scatter(2, "ring", 1, 4), sep="\\n")
    multiply -1[0:4]
    send -1[0:4] up as 0
    await 0
    multiply -2[0:4]
    """
    strands = scattering(n, way, chunks, width)
    last = len(strands) - 1

    def part(k: int, number: int, step: int = 0) -> Part:
        return Part(-strands[k].way * (number + 1), strands[k].span, -strands[k].way * step)

    def hop(number: int, step: int = 0) -> Iterator[Event]:
        if number:  # so the last strand's transfer is behind the first one's product of the next hop, in a loop too
            yield _send(n, last, strands[last].way, part(last, number - 1, step))
        for k in range(len(strands)):
            if number:
                yield Await((k,))
            yield Matmul((part(k, number, step),), (k,) if number else ())
            if k != last and number < n - 1:
                yield _send(n, k, strands[k].way, part(k, number, step))

    found: list[Event] = [*hop(0)]
    trips = _trips(n, n - 2, unroll)
    if trips:
        found.append(Loop(trips, (*hop(1, step=2), *hop(2, step=2))))
    for number in range(2 * trips + 1, n):
        found += hop(number)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def matmul_gather(n: int, way: Way, chunks: int, width: int, unroll: int = UNROLL) -> Events:
    """Each device's product goes round to all, part by part as it is made: part k is made at tick k.

    >>> print(*matmul_gather(2, "ring", 1, 4), sep="\\n")
    multiply +0[0:4]
    send +0[0:4] up as 0
    copy +0[0:4]
    await 0
    copy -1[0:4]
    """
    strands = gathering(n, way, chunks, width)
    groups = side_by_side(strands)

    def moved(tick: int, begun: int, last: bool = True, step: int = 0) -> Iterator[Event]:
        for number, group in enumerate(groups[:begun]):
            hop = tick - number
            here = [k for k in group if not last or strands[k].hops >= hop]
            if not here:
                continue
            parts = {k: Part(-strands[k].way * hop, strands[k].span, -strands[k].way * step) for k in here}
            yield Await(tuple(here))
            for k in here:
                if not last or strands[k].hops > hop:
                    yield _send(n, k, strands[k].way, parts[k])
            for k in here:
                yield Copy(parts[k], k)

    found: list[Event] = []
    for tick, group in enumerate(groups):
        own = Part(0, strands[group[0]].span)
        found += [Matmul((own,)), *moved(tick, tick), *(_send(n, k, strands[k].way, own) for k in group), Copy(own)]
    hops, parts = [strand.hops for strand in strands], len(groups)
    trips = _trips(n, min(hops, default=0) - parts, unroll)
    if trips:  # all parts travel on
        found.append(Loop(trips, (*moved(parts, parts, False, 2), *moved(parts + 1, parts, False, 2))))
    for tick in range(parts + 2 * trips, parts + max(hops, default=0)):
        found += moved(tick, parts)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def rotate_matmul(sizes: Pair) -> Events:
    """Two operands move, operand k along its axis of `sizes[k]` devices: each to where they meet, and on after every product.

    What one product needs next is on its way behind it; nothing is in front of the first. Parts are pieces of the summed
    dimension, counted by step.

    >>> print(*rotate_matmul((2, 1)), sep="\\n")
    send +1[0:1] up as 0
    multiply +0[0:1]
    await 0
    multiply +1[0:1]
    """
    grid, found = Grid(sizes), list[Event]()

    def passed_on(before: int | None, after: int) -> list[Event]:
        moves = {k: pairs for k in (0, 1) if (pairs := grid.pairs(k, before, after)) and not _stays(pairs)}
        return [Send(k, 1 - 2 * k, pairs, Part(after, (0, 1))) for k, pairs in moves.items()]

    def awaited(sends: Sequence[Event]) -> list[Event]:
        return [Await(tuple(send.transfer for send in sends if isinstance(send, Send)))] if sends else []

    skew = passed_on(None, 0)
    found += [*skew, *awaited(skew)]
    for step in range(grid.steps):
        sends = passed_on(step, step + 1) if step + 1 < grid.steps else []
        found += [*sends, Matmul((Part(step, (0, 1)),)), *awaited(sends)]
    return tuple(found)


def _stays(pairs: Pairs) -> bool:
    return all(source == target for source, target in pairs)


@functools.lru_cache(maxsize=1024)
def neighbours(n: int, way: int) -> Pairs:
    """Who sends to whom when every position of a circle sends one place up (`way` = 1) or down (-1).

    >>> neighbours(3, -1)
    ((0, 2), (1, 0), (2, 1))
    """
    return tuple((place, (place + way) % n) for place in range(n))


def _send(n: int, transfer: int, way: int, part: Part) -> Send:
    return Send(transfer, way, neighbours(n, way), part)


def _trips(n: int, hops: int, unroll: int) -> int:
    """How many times a loop of two hops fits into so many, in which all strands go on; 0 in a ring that is not one."""
    return max(0, hops) // 2 if n > unroll else 0


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
        return [event.pairs for event in rotate_matmul(self.sizes) if isinstance(event, Send) and event.transfer == k]

    def hops(self, k: int, pairs: Pairs) -> int:
        """How far operand k goes along its axis at most, round the shorter way.

        >>> grid = Grid((4, 4))
        >>> grid.hops(0, grid.pairs(0, None, 0)), grid.hops(0, grid.pairs(0, 0, 1))
        (2, 1)
        """
        n = self.sizes[k]
        along = [tuple(place // self.sizes[1] if k == 0 else place % self.sizes[1] for place in pair) for pair in pairs]
        return max(min((target - source) % n, (source - target) % n) for source, target in along)

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
