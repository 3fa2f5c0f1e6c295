"""The events of a schedule: what one device does, in order, with parts of the blocks that go round; no arrays, no JAX.

A schedule is a tuple of events. The runtime and the printed code run it, the planner prices it by playing it
(`schedule.play`), the certificate expects its sends of a compiled program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import counted
from shardwise.mesh import Sides
from shardwise.schedule.places import Grid, Pairs, neighbours

Span = tuple[int, int]  # from, up to but not with


@dataclass(frozen=True, slots=True)
class Part:
    """Of the block of the device `away` places above this one, the elements `span` of its width.

    In a loop it is `step` places further away with every trip. On a torus `away` is how far that device is by `Sides`.
    """

    away: int
    span: Span
    step: int = 0

    @property
    def width(self) -> int:
        return self.span[1] - self.span[0]

    def away_on(self, trip: Any) -> Any:
        """How many places above this device's its block is in a trip of a loop, or outside of one (None)."""
        return self.away if trip is None or not self.step else self.away + self.step * trip

    def __str__(self) -> str:
        turning = f"{self.step:+} a trip" if self.step else ""
        return f"{self.away:+}{turning}[{self.span[0]}:{self.span[1]}]"


@dataclass(frozen=True, slots=True)
class Turn:
    """From one step of a rotation to another; before the first, None, operands are where they live."""

    grid: Grid
    before: int | None
    after: int

    def hops(self, k: int) -> int:
        """How far operand k goes at most."""
        return self.grid.hops(k, self.before, self.after)


@dataclass(frozen=True, slots=True)
class Send:
    """Every device sends a part; when it has come, `Await` of the same `transfer` is over.

    `way`: up (1) or down (-1): transfers of one way queue for the same links. `part` is what this device sends, to its
    neighbour on a ring of so many `places`, which may be folded; or in a rotation as from one step to another of its `turn`; or
    along `side` of the `sides` of a torus. What it sends on is what `brought` it, by default the last of the same number.
    """

    transfer: int
    way: int
    part: Part
    places: int = 0
    turn: Turn | None = None
    is_folded: bool = False
    sides: Sides | None = None
    side: int = 0
    brought: int | None = None

    @property
    def pairs(self) -> Pairs:
        """Who sends to whom, by their places on the ring or on the grid, or by their positions along the axes of a torus."""
        if self.sides is not None:
            return self.sides.beside(self.side, self.way)
        if self.turn is None:
            return neighbours(self.places, self.way, self.is_folded)
        return self.turn.grid.pairs(self.transfer, self.turn.before, self.turn.after)

    @property
    def source(self) -> int:
        """The transfer that brought what is sent, if one did."""
        return self.transfer if self.brought is None else self.brought

    @property
    def lane(self) -> int:
        """The links that it takes: a number for each side of a torus, more than zero up and less than it down."""
        return self.way * (1 + self.side)

    def __str__(self) -> str:
        along = "" if self.sides is None else f" side {self.side}"
        return f"send {self.part} {'up' if self.way > 0 else 'down'}{along} as {self.transfer}"


@dataclass(frozen=True, slots=True)
class Await:
    """What follows needs what these transfers bring."""

    transfers: tuple[int, ...]

    def __str__(self) -> str:
        return f"await {', '.join(map(str, self.transfers))}"


@dataclass(frozen=True, slots=True)
class Matmul:
    """Parts are multiplied, those that `transfers` have brought or, without any, this device's own.

    Of a running sum that goes round, the transfers brought the sum, and the result of the matmul is added to it.
    """

    parts: tuple[Part, ...]
    transfers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"multiply {' and '.join(map(str, self.parts))}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A part that a transfer has brought, or without one this device's own, is written where it belongs."""

    part: Part
    transfer: int | None = None

    def __str__(self) -> str:
        return f"copy {self.part}"


@dataclass(frozen=True, slots=True)
class Loop:
    """Events that repeat so many times, each time with parts of blocks further away."""

    trips: int
    body: Events

    def __str__(self) -> str:
        inner = "\n".join(f"  {event}" for event in self.body)
        return f"{counted(self.trips, 'time')}:\n{inner}"


Event = Send | Await | Matmul | Copy | Loop
Events = tuple[Event, ...]


def unrolled(events: Events) -> Iterator[Send | Await | Matmul | Copy]:
    """The events as they happen, loops trip by trip.

    >>> part = Part(-1, (0, 4), step=-1)
    >>> print(*unrolled((Loop(2, (Copy(part),)),)), sep="; ")
    copy -1[0:4]; copy -2[0:4]
    """
    for event in events:
        if isinstance(event, Loop):
            for trip in range(event.trips):
                yield from unrolled(tuple(on_trip(each, trip) for each in event.body))
        else:
            yield event


def on_trip(event: Event, trip: int) -> Event:
    """An event of a loop's body as it happens on one of its trips."""
    match event:
        case Send() | Copy():
            return replace(event, part=_further(event.part, trip))
        case Matmul():
            return replace(event, parts=tuple(_further(part, trip) for part in event.parts))
        case _:
            return event


def _further(part: Part, trip: int) -> Part:
    return Part(part.away_on(trip), part.span)
