"""How long a schedule takes: its events on one clock, each transfer on the links of its way.

>>> from shardwise.schedule.makers import gather_matmul
>>> links = Links(lambda share, _: 1e-6 * share, both_ways=True)
>>> played = play(gather_matmul(4, "ring", 1, 1), 1, links, lambda share, parts: 2e-6 * share)
>>> round(played.seconds * 1e6, 3), round(played.exposed_seconds * 1e6, 3)     # 4 matmuls of 2 us overlap hops of 1 us
(8.0, 0.0)
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from shardwise.schedule.clock import Clock
from shardwise.schedule.events import Await, Copy, Events, Loop, Matmul, Part, Send, Turn, on_trip

TRIPS = 12  # of a loop that are played one by one; those beyond take what the last one did

Seconds = Callable[[float], float]  # of a share of a block
SendSeconds = Callable[[float, Send], float]  # of a share of a block, and what else it depends on
MatmulSeconds = Callable[[float, int], float]  # of so many parts at once, together such a share of a block


@dataclass(frozen=True, slots=True)
class Links:
    """What carries the parts: the seconds of a transfer of a share of a block, and whether each way has links of its own.

    `cover`: a compiler may start a transfer late, when the matmuls left before its end are what it takes for enough: of
    a block's transfer so many times a block's matmul. By default it starts as soon as it can.
    `joins`: parts that are multiplied together are one matmul; else transfers may start between theirs.
    `at_once`: how many transfers may be on their way, before one of them has to be awaited; 0 for any number.
    `slowdown`: how many times as long a matmul takes while something is on its way: on GPUs collectives run on the cores that
    multiply, and share their memory's bandwidth.
    """

    seconds: SendSeconds
    both_ways: bool = True
    cover: float = math.inf
    joins: bool = True
    at_once: int = 0
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that took place: an event, when it began, and how long it took; an `Await` as long as it waited.

    A `Loop` stands for the trips of one that were not played one by one.
    """

    event: Send | Await | Matmul | Copy | Loop
    start_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Played:
    """The modelled time of a schedule: in all, and of its matmuls and copies; and what happened, if that was recorded."""

    seconds: float
    busy_seconds: float
    happened: tuple[Happened, ...] = ()

    @property
    def exposed_seconds(self) -> float:
        return max(0.0, self.seconds - self.busy_seconds)  # sums of the same numbers in another order


def play(
    events: Events, width: int, links: Links, matmul: MatmulSeconds, copy: Seconds | None = None, *, ahead: float = 0.0,
    record: bool = False,
) -> Played:  # fmt: skip
    """Go through the events in order: each way sends one transfer after the other, and work waits for what it needs.

    Args:
        width: of a block, of which the events' spans are shares.
        copy: the seconds to write a share of a block, by default none.
        ahead: the seconds before the schedule at which what it sends first, before anything else, may start.
        record: keep what happened.
    """
    hops: dict[tuple[int, int, Turn | None], float] = {}
    matmuls: dict[tuple[float, int], float] = {}
    clock, arrival, on_the_way = Clock(0.0, {1: 0.0 - ahead, -1: 0.0 - ahead}), dict[int, float](), dict[int, float]()
    busy, happened = 0.0, list[Happened]()
    issued: float | None = 0.0 - ahead  # of transfers, up to the first event that is none
    ended = before = (0.0, 0.0)  # of the last two trips of a loop: the clock, and how busy it was
    for event in _as_started(events, width, links):
        start, took = clock.now, 0.0
        match event:
            case Send(transfer, _, part):
                known = part.width, transfer, event.turn
                if known not in hops:
                    hops[known] = links.seconds(part.width / width, event)
                took = hops[known]
                if links.at_once and len(on_the_way) >= links.at_once:
                    end = on_the_way.pop(min(on_the_way, key=on_the_way.__getitem__))
                    clock.wait(end)
                    issued = None if issued is None else max(issued, end)
                start = clock.send((event.lane if links.both_ways else 1,), took, issued)
                arrival[transfer] = on_the_way[transfer] = start + took
            case Await(transfers):
                took = clock.wait(max([arrival[transfer] for transfer in transfers]))
                for transfer in transfers:
                    on_the_way.pop(transfer, None)
            case Matmul(parts):
                key = sum([part.width for part in parts]) / width, len(parts)
                if key not in matmuls:
                    matmuls[key] = matmul(*key)
                took = clock.slowed(matmuls[key], links.slowdown)
            case Copy(part):
                took = copy(part.width / width) if copy else 0.0
            case Loop(trips):  # those left, each as the last one that was played
                took = trips * (ended[0] - before[0])
                busy += trips * (ended[1] - before[1])
                clock.skip(took)
                arrival = {transfer: end + took for transfer, end in arrival.items()}
            case None:
                before, ended = ended, (clock.now, busy)
                continue
            case _:
                assert_never(event)
        if isinstance(event, Matmul | Copy):
            clock.work(took)
            busy += took
        issued = issued if isinstance(event, Send) else None
        if record:
            happened.append(Happened(event, start, took))
    return Played(clock.now, busy, tuple(happened))


_Flat = Send | Await | Matmul | Copy | Loop | None  # the trips of a loop that are left; None: the end of a trip


def _as_started(events: Events, width: int, links: Links) -> tuple[_Flat, ...]:
    """The events in the order in which they start, of a loop's trips the first ones."""
    order = _order(events, TRIPS) if any(isinstance(event, Loop) for event in events) else events
    if math.isinf(links.cover):
        return order
    return _late(order if links.joins else _apart(order), width, links.cover)


@functools.lru_cache(maxsize=1024)
def _order(events: Events, most: int) -> tuple[_Flat, ...]:
    """The events one after the other, of a loop's trips no more than `most`."""
    found: list[_Flat] = []
    for event in events:
        if not isinstance(event, Loop):
            found.append(event)
            continue
        for trip in range(min(event.trips, most)):
            found += [*(on_trip(each, trip) for each in event.body), None]
        if event.trips > most:
            found.append(Loop(event.trips - most, event.body))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _apart(order: tuple[_Flat, ...]) -> tuple[_Flat, ...]:
    """The order with a matmul for each part."""
    found: list[_Flat] = []
    for event in order:
        if isinstance(event, Matmul) and len(event.parts) > 1:
            found += [Matmul((part,), (transfer,)) for part, transfer in zip(event.parts, event.transfers, strict=True)]
        else:
            found.append(event)
    return tuple(found)


def _late(order: tuple[_Flat, ...], width: int, cover: float) -> tuple[_Flat, ...]:
    """The order in which a compiler starts transfers late: where the matmuls left before their end are enough.

    A sum that goes on starts no later than the first of its hop ends.
    """
    works = [place for place, event in enumerate(order) if isinstance(event, Matmul | Copy)]
    latest = _latest(order)
    before: dict[int, list[Send]] = {}  # sends, by the event that they are moved in front of
    ends: dict[int, int] = {}  # of transfers, the next place where one is awaited
    for place in range(len(order) - 1, -1, -1):
        match order[place]:
            case Await(transfers):
                ends.update(dict.fromkeys(transfers, place))
            case Send(transfer, _, part) as event:
                begin, end = bisect.bisect(works, place), ends[transfer]
                left, first = cover * part.width / width, bisect.bisect(works, end)
                last = first
                while first > begin and (left > 0 or first == last):
                    first -= 1
                    left -= _share(order[works[first]], width)
                at = place if first == begin else min(works[first], latest.get(place, end))
                before.setdefault(at, []).insert(0, event)
    found: list[_Flat] = []
    for place, event in enumerate(order):
        found += before.get(place, ())
        if not isinstance(event, Send):
            found.append(event)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _latest(order: tuple[_Flat, ...]) -> dict[int, int]:
    """Where the first transfer of a hop ends, by the places of the hop's sends of sums."""
    made: set[Part] = set()
    added, passed = set[int](), set[int]()  # transfers whose parts matmuls add to, and that send what a matmul made
    for event in order:
        match event:
            case Matmul(parts, transfers):
                made.update(parts)
                added.update(transfers)
            case Send(transfer, _, part) if part in made:
                passed.add(transfer)
    hops: dict[int, int] = {}  # of transfers, how often they were sent
    sent: dict[int, list[int]] = {}  # by hop
    found: dict[int, int] = {}
    for place, event in enumerate(order):
        match event:
            case Send(transfer) if transfer in added and transfer in passed:
                hops[transfer] = hops.get(transfer, 0) + 1
                sent.setdefault(hops[transfer], []).append(place)
            case Await(transfers) if transfers[0] in hops:
                found.update(dict.fromkeys(sent.pop(hops[transfers[0]], ()), place))
    return found


def _share(event: _Flat, width: int) -> float:
    """Of a block's matmul, what an event multiplies."""
    return sum(part.width for part in event.parts) / width if isinstance(event, Matmul) else 0.0
