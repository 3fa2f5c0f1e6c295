"""How long a ring takes in which transfers hide behind products: the runtime's own schedule, step by step.

Times of one product of a whole block and of one hop are given; parts of a block take parts of them. Each way has its
lane; where both ways share links (a switch, a line) they share one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from shardwise.chips.links import Hop

SIMULATED = 24  # devices of a ring that are gone through one by one; beyond, every hop takes what the last ones did


@dataclass(slots=True)
class _Lanes:
    """When each way of the ring is free again."""

    hop: Hop
    block_bytes: float
    free: list[float] = field(default_factory=lambda: [0.0, 0.0])
    moving: float = 0.0

    def send(self, way: int, share: float, now: float) -> float:
        """Send a share of a block; when it arrives."""
        lane = 0 if way > 0 or not self.hop.both_ways else 1
        start, took = max(now, self.free[lane]), self.hop.seconds(share * self.block_bytes)
        self.free[lane] = start + took
        self.moving += took
        return start + took


@dataclass(frozen=True, slots=True)
class RingTime:
    """The modelled time of a ring: in all, of its products, and of what waits for transfers."""

    seconds: float
    product_seconds: float

    @property
    def exposed_seconds(self) -> float:
        return max(0.0, self.seconds - self.product_seconds)  # sums of the same numbers in another order


def gather_time(n: int, way: str, chunks: int, hop: Hop, block_bytes: float, product: Callable[[float], float]) -> RingTime:
    """A ring that multiplies the blocks of a gathered operand as they arrive.

    >>> hop = Hop(1e-9, 0.0, both_ways=True)
    >>> one_way = gather_time(4, "ring", 1, hop, 1000, lambda share: 2e-6 * share)
    >>> round(one_way.seconds * 1e6, 3), round(one_way.exposed_seconds * 1e6, 3)     # 4 products of 2 us hide hops of 1 us
    (8.0, 0.0)
    """
    return _extrapolated(n, lambda devices: _gather(devices, way, chunks, _Lanes(hop, block_bytes), product))


def scatter_time(n: int, way: str, chunks: int, hop: Hop, block_bytes: float, product: Callable[[float], float]) -> RingTime:
    """A ring whose sums travel to the device that keeps them, and take up a product at every stop."""
    return _extrapolated(n, lambda devices: _scatter(devices, way, chunks, _Lanes(hop, block_bytes), product))


def gather_sends(n: int, way: str, chunks: int) -> list[float]:
    """What every device sends in a gathering ring, hop by hop, as shares of a block."""
    return [1 / chunks for _, _, hops in _strands(n, way, chunks) for _ in range(hops)]


def scatter_sends(n: int, way: str, chunks: int) -> list[float]:
    """What every device sends in a scattering ring, hop by hop, as shares of a block."""
    count = chunks * (1 if way == "ring" else 2)
    return [1 / count] * (count * (n - 1))


def _extrapolated(n: int, simulate: Callable[[int], RingTime]) -> RingTime:
    if n <= SIMULATED:
        return simulate(n)
    even = SIMULATED - (SIMULATED - n) % 2
    last, before = simulate(even), simulate(even - 2)
    times = (n - even) / 2
    return RingTime(
        last.seconds + times * (last.seconds - before.seconds),
        last.product_seconds + times * (last.product_seconds - before.product_seconds),
    )


def _strands(n: int, way: str, chunks: int) -> list[tuple[int, int, int]]:
    """The parts of a block that go round on their own: the part's number, its way, and its hops."""
    near, opposite = (n - 1) // 2, (n - 1) % 2
    strands: list[tuple[int, int, int]] = []
    for part in range(chunks):
        if way == "ring":
            strands.append((part, 1, n - 1))
        else:
            below = opposite * (2 * part < chunks)
            strands += [(part, 1, near + below), (part, -1, near + opposite - below)]
    return [strand for strand in strands if strand[2]]


def _gather(n: int, way: str, chunks: int, lanes: _Lanes, product: Callable[[float], float]) -> RingTime:
    share, strands = 1 / chunks, _strands(n, way, chunks)
    arrivals = [lanes.send(one_way, share, 0.0) for _, one_way, _ in strands]
    now = busy = product(1.0)
    part_seconds = product(share)
    for hop in range(max((hops for *_, hops in strands), default=0)):
        for part in range(chunks):
            here = [k for k, (of, _, hops) in enumerate(strands) if of == part and hops > hop]
            now = max([now, *(arrivals[k] for k in here)])
            for k in here:
                if strands[k][2] > hop + 1:
                    arrivals[k] = lanes.send(strands[k][1], share, now)
            now += len(here) * part_seconds
            busy += len(here) * part_seconds
    return RingTime(now, busy)


def _scatter(n: int, way: str, chunks: int, lanes: _Lanes, product: Callable[[float], float]) -> RingTime:
    ways = (1,) if way == "ring" else (1, -1)
    count = chunks * len(ways)
    strands = [ways[number % len(ways)] for number in range(count)]
    arrivals = [0.0] * count
    now = busy = 0.0
    part_seconds = product(1 / count)
    for hop, (number, one_way) in itertools.product(range(n), enumerate(strands)):
        now = max(now, arrivals[number]) + part_seconds
        busy += part_seconds
        if hop < n - 1:
            arrivals[number] = lanes.send(one_way, 1 / count, now)
    return RingTime(now, busy)
