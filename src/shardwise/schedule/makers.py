"""The schedules of fused steps: one maker for each form, from the number of devices, the way, the chunks and the width.

In a ring each device has a block, and blocks or partial sums go round, in parts; in a rotation two arrays move, each
along its own axis. A ring of more devices than `unroll` is a loop of two hops a trip: what arrives then has a buffer of
its own, and nothing is copied. Along the sides of a torus (`shardwise.schedule.along_sides`) nothing loops.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from shardwise.mesh import Sides
from shardwise.schedule import along_sides
from shardwise.schedule.events import Await, Copy, Event, Events, Loop, Matmul, Part, Send, Turn
from shardwise.schedule.places import Grid, Pair
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
    if isinstance(way, Sides):
        return along_sides.gather_matmul(way, chunks, width)
    ring, strands = (n, way), gathering(n, way, chunks, width)
    groups = side_by_side(strands)

    def hop(number: int, last: bool = True, step: int = 0) -> Iterator[Event]:
        """What a hop brings is sent on, if it is not the `last` of its strand, and multiplied."""
        for group in groups:
            here = [k for k in group if strands[k].hops > number]
            if not here:
                continue
            parts = {k: Part(-strands[k].way * (number + 1), strands[k].span, -strands[k].way * step) for k in here}
            yield Await(tuple(here))
            for k in here:
                if not last or strands[k].hops > number + 1:
                    yield _send(ring, k, strands[k].way, parts[k])
            yield Matmul(tuple(parts.values()), tuple(here))

    begun = [_send(ring, k, strand.way, Part(0, strand.span)) for k, strand in enumerate(strands)]
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
    """Partial sums travel to the devices that keep them, and each device adds its matmul's result.

    A sum begins one place past its home and ends there, so every element is added in one fixed order.

    >>> print(*matmul_scatter(2, "ring", 1, 4), sep="\\n")
    multiply -1[0:4]
    send -1[0:4] up as 0
    await 0
    multiply -2[0:4]
    """
    if isinstance(way, Sides):
        return along_sides.matmul_scatter(way, chunks, width)
    ring, strands = (n, way), scattering(n, way, chunks, width)
    last = len(strands) - 1

    def part(k: int, number: int, step: int = 0) -> Part:
        return Part(-strands[k].way * (number + 1), strands[k].span, -strands[k].way * step)

    def hop(number: int, step: int = 0) -> Iterator[Event]:
        """Every strand's sum takes up a result, and is sent on."""
        if number:  # so the last strand's transfer is behind the first one's matmul of the next hop, in a loop too
            yield _send(ring, last, strands[last].way, part(last, number - 1, step))
        for k in range(len(strands)):
            if number:
                yield Await((k,))
            yield Matmul((part(k, number, step),), (k,) if number else ())
            if k != last and number < n - 1:
                yield _send(ring, k, strands[k].way, part(k, number, step))

    found: list[Event] = [*hop(0)]
    trips = _trips(n, n - 2, unroll)
    if trips:
        found.append(Loop(trips, (*hop(1, step=2), *hop(2, step=2))))
    for number in range(2 * trips + 1, n):
        found += hop(number)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def matmul_gather(n: int, way: Way, chunks: int, width: int, unroll: int = UNROLL) -> Events:
    """The result of each device's matmul goes round to all, part by part as it is made: part k is made at tick k.

    >>> print(*matmul_gather(2, "ring", 1, 4), sep="\\n")
    multiply +0[0:4]
    send +0[0:4] up as 0
    copy +0[0:4]
    await 0
    copy -1[0:4]
    """
    if isinstance(way, Sides):
        return along_sides.matmul_gather(way, chunks, width)
    ring, strands = (n, way), gathering(n, way, chunks, width)
    groups = side_by_side(strands)

    def moved(tick: int, begun: int, last: bool = True, step: int = 0) -> Iterator[Event]:
        """What arrives at a tick of the parts begun is sent on, if it is not the `last` of its strand, and written."""
        for number, group in enumerate(groups[:begun]):
            hop = tick - number
            here = [k for k in group if not last or strands[k].hops >= hop]
            if not here:
                continue
            parts = {k: Part(-strands[k].way * hop, strands[k].span, -strands[k].way * step) for k in here}
            yield Await(tuple(here))
            for k in here:
                if not last or strands[k].hops > hop:
                    yield _send(ring, k, strands[k].way, parts[k])
            for k in here:
                yield Copy(parts[k], k)

    found: list[Event] = []
    for tick, group in enumerate(groups):
        own = Part(0, strands[group[0]].span)
        found += [Matmul((own,)), *moved(tick, tick), *(_send(ring, k, strands[k].way, own) for k in group), Copy(own)]
    hops, parts = [strand.hops for strand in strands], len(groups)
    trips = _trips(n, min(hops, default=0) - parts, unroll)
    if trips:  # all parts travel on
        found.append(Loop(trips, (*moved(parts, parts, False, 2), *moved(parts + 1, parts, False, 2))))
    for tick in range(parts + 2 * trips, parts + max(hops, default=0)):
        found += moved(tick, parts)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def rotate_matmul(sizes: Pair) -> Events:
    """Two operands move, operand k along its axis of `sizes[k]` devices: each to where they meet, and on after every matmul.

    What one matmul needs next is on its way behind it; nothing is in front of the first. Parts are pieces of the summed
    dimension, counted by step.

    >>> print(*rotate_matmul((2, 1)), sep="\\n")
    send +1[0:1] up as 0
    multiply +0[0:1]
    await 0
    multiply +1[0:1]
    """
    grid, found = Grid(sizes), list[Event]()

    def passed_on(before: int | None, after: int) -> list[Event]:
        turn = Turn(grid, before, after)
        return [Send(k, 1 - 2 * k, Part(after, (0, 1)), turn=turn) for k in (0, 1) if turn.hops(k)]

    def awaited(sends: Sequence[Event]) -> list[Event]:
        return [Await(tuple(send.transfer for send in sends if isinstance(send, Send)))] if sends else []

    skew = passed_on(None, 0)
    found += [*skew, *awaited(skew)]
    for step in range(grid.steps):
        sends = passed_on(step, step + 1) if step + 1 < grid.steps else []
        found += [*sends, Matmul((Part(step, (0, 1)),)), *awaited(sends)]
    return tuple(found)


def parts_of(way: Way, chunks: int, strands: int = 1) -> int:
    """Into how many parts a block is cut that goes this way, if it is wide enough: for each chunk so many strands, or sides."""
    return chunks * (len(way.sizes) if isinstance(way, Sides) else strands)


def _send(ring: tuple[int, Way], transfer: int, way: int, part: Part) -> Send:
    return Send(transfer, way, part, places=ring[0], is_folded=ring[1] == "folded")


def _trips(n: int, hops: int, unroll: int) -> int:
    """How many times a loop of two hops fits into so many, in which all strands go on; 0 in a ring that is not one."""
    return max(0, hops) // 2 if n > unroll else 0
