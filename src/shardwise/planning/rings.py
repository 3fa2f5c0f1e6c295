"""How long a ring takes in which transfers hide behind products: the runtime's own schedule, product by product.

Times of one product of a whole block and of one hop are given; parts of a block take parts of them. Each way has its
lane; where both ways share links (a switch, a line) they share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shardwise.chips.links import Hop
from shardwise.planning.paths import gathering, scattering
from shardwise.steps import Way

SIMULATED = 24  # devices of a ring that are gone through one by one; beyond, every hop takes what the last ones did


@dataclass(frozen=True, slots=True)
class RingTime:
    """The modelled time of a ring: in all, of its products, and of what waits for transfers."""

    seconds: float
    product_seconds: float

    @property
    def exposed_seconds(self) -> float:
        return max(0.0, self.seconds - self.product_seconds)  # sums of the same numbers in another order


@dataclass(frozen=True, slots=True)
class Traffic:
    """What carries a ring: one hop of it, the bytes of a block, and when the compiler lets a transfer start.

    `cover`: a compiler may start a transfer late, when the products left before its end are what it takes for enough: of
    a block's transfer so many times a block's product. By default as soon as it can.
    """

    hop: Hop
    block_bytes: float
    cover: float = math.inf


Product = Callable[[float], float]  # seconds of the product of a share of a block


@dataclass(frozen=True, slots=True)
class _Sent:
    """A transfer of a share of a block: it can start before the work at `ready`; once that has what it needs, if passed on."""

    way: int
    share: float
    ready: int
    is_passed_on: bool


@dataclass(slots=True)
class _Work:
    """What is done in order: each piece of work takes its time once what it needs has arrived."""

    seconds: list[float] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)
    sent: list[_Sent] = field(default_factory=list)
    used: dict[int, int] = field(default_factory=dict)  # the transfer, and the work that needs it
    shares: list[float] = field(default_factory=list)  # of a block's product; none of what is no product

    def do(self, seconds: float, share: float, needs: Sequence[int] = ()) -> None:
        self.used |= dict.fromkeys(needs, len(self.seconds))
        self.seconds.append(seconds)
        self.shares.append(share)
        self.needs.append(list(needs))

    def send(self, way: int, share: float, is_passed_on: bool = False) -> int:
        """A transfer that can start when all that has been said so far is done; if passed on, when it has arrived."""
        self.sent.append(_Sent(way, share, len(self.seconds), is_passed_on))
        return len(self.sent) - 1

    def start(self, number: int, cover: float) -> int:
        """The work at which a transfer starts: where the products left before its end are enough, or where it can."""
        sent = self.sent[number]
        place, left = self.used[number], cover * sent.share
        while place > sent.ready and left > 0:
            place -= 1
            left -= self.shares[place]
        return place


def _played(work: _Work, traffic: Traffic) -> RingTime:
    """Go through the work in order; each way sends one transfer after the other."""
    before: list[list[int]] = [[] for _ in work.seconds]  # each work waits for what it needs
    after: list[list[int]] = [[] for _ in work.seconds]  # each work has that
    for number, sent in enumerate(work.sent):
        place = work.start(number, traffic.cover)
        waits = (sent.is_passed_on or place > sent.ready) and place < work.used[number]
        (after if waits else before)[place].append(number)
    free, arrival = [0.0, 0.0], [0.0] * len(work.sent)

    def start(numbers: Iterable[int], now: float) -> None:
        for number in numbers:
            sent = work.sent[number]
            lane = 0 if sent.way > 0 or not traffic.hop.both_ways else 1
            free[lane] = max(now, free[lane]) + traffic.hop.seconds(sent.share * traffic.block_bytes)
            arrival[number] = free[lane]

    now = 0.0
    for place, (seconds, needs) in enumerate(zip(work.seconds, work.needs, strict=True)):
        start(before[place], now)
        now = max([now, *(arrival[number] for number in needs)])
        start(after[place], now)
        now += seconds
    return RingTime(now, sum(work.seconds))


def gather_time(
    n: int, way: Way, chunks: int, traffic: Traffic, product: Product, both: Product | None = None
) -> RingTime:  # fmt: skip
    """A ring that multiplies the blocks of a gathered operand as they arrive; what arrives from both sides as one, if `both`.

    >>> traffic = Traffic(Hop(1e-9, 0.0, both_ways=True), block_bytes=1000)
    >>> one_way = gather_time(4, "ring", 1, traffic, lambda share: 2e-6 * share)
    >>> round(one_way.seconds * 1e6, 3), round(one_way.exposed_seconds * 1e6, 3)     # 4 products of 2 us hide hops of 1 us
    (8.0, 0.0)
    """
    return _extrapolated(n, lambda devices: _played(_gather(devices, way, chunks, product, both), traffic))


def scatter_time(n: int, way: Way, chunks: int, traffic: Traffic, product: Product) -> RingTime:
    """A ring whose sums travel to the device that keeps them, and take up a product at every stop."""
    return _extrapolated(n, lambda devices: _played(_scatter(devices, way, chunks, product), traffic))


def spread_time(n: int, way: Way, chunks: int, traffic: Traffic, product: Product, laid: Product) -> RingTime:
    """A ring that takes a product round, part by part as it is made; `laid` is the time to write a share of a block.

    >>> traffic = Traffic(Hop(1e-9, 0.0, both_ways=True), block_bytes=1000)
    >>> both = spread_time(5, "bidirectional", 4, traffic, lambda share: 2e-6 * share, lambda share: 0.0)
    >>> round(both.seconds * 1e6, 3)      # 4 products of 0.5 us; of 2 us each way all but 0.75 us are behind them
    2.75
    """
    return _extrapolated(n, lambda devices: _played(_spread(devices, way, chunks, product, laid), traffic))


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


def _strands(n: int, way: Way, chunks: int) -> list[tuple[int, int, int]]:
    """The parts of a block that go round on their own, as if all were of one width: the part's number, its way, its hops."""
    return [(strand.span[0], strand.way, strand.hops) for strand in gathering(n, way, chunks, width=chunks)]


def _gather(n: int, way: Way, chunks: int, product: Product, both: Product | None) -> _Work:
    share, strands, work = 1 / chunks, _strands(n, way, chunks), _Work()
    flying = [work.send(one_way, share) for _, one_way, _ in strands]
    work.do(product(1.0), 1.0)
    seconds = {share: product(share)} | ({2 * share: both(2 * share)} if both else {})
    shares = {1: [share], 2: [2 * share] if both else [share] * 2}
    for hop in range(max((hops for *_, hops in strands), default=0)):
        for part in range(chunks):
            here = [k for k, (of, _, hops) in enumerate(strands) if of == part and hops > hop]
            arrived = [flying[k] for k in here]
            for k in here:
                if strands[k][2] > hop + 1:
                    flying[k] = work.send(strands[k][1], share, is_passed_on=True)
            for place, part_share in enumerate(shares[len(here)] if here else []):
                work.do(seconds[part_share], part_share, () if place else arrived)
    return work


def _scatter(n: int, way: Way, chunks: int, product: Product) -> _Work:
    strands, work = scattering(way, chunks, width=2 * chunks), _Work()
    share = 1 / len(strands)
    part_seconds = product(share)
    flying: list[int | None] = [None] * len(strands)
    for hop in range(n):
        for number, arrived in enumerate(flying):
            work.do(part_seconds, share, () if arrived is None else (arrived,))
            if hop < n - 1:
                flying[number] = work.send(strands[number][0], share)
    return work


def _spread(n: int, way: Way, chunks: int, product: Product, laid: Product) -> _Work:
    share, strands, work = 1 / chunks, _strands(n, way, chunks), _Work()
    part_seconds, laid_seconds = product(share), laid(share)
    flying: dict[int, int] = {}
    for tick in range(chunks + max((hops for *_, hops in strands), default=0)):
        if tick < chunks:
            work.do(part_seconds, share)
        for part in range(min(tick, chunks)):
            here = [k for k, (of, _, hops) in enumerate(strands) if of == part and hops >= tick - part]
            arrived = [flying[k] for k in here]
            for k in here:
                if strands[k][2] > tick - part:
                    flying[k] = work.send(strands[k][1], share, is_passed_on=True)
            for place in range(len(here)):
                work.do(laid_seconds, 0.0, () if place else arrived)
        if tick < chunks:
            for k, (of, one_way, _) in enumerate(strands):
                if of == tick:
                    flying[k] = work.send(one_way, share)
            work.do(laid_seconds, 0.0)
    return work
