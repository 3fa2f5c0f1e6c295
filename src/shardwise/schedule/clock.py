"""One device's clock and its lanes: the rules by which schedules are played, and compiled programs replayed.

A lane carries one transfer after the other. Work goes on meanwhile, and waits for what it needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Time = TypeVar("Time", int, float)  # of one kind: seconds, or whole femtoseconds
Lane = TypeVar("Lane", bound=Hashable)


class Clock(Generic[Lane, Time]):
    """What time it is, and until when each lane is busy.

    >>> clock = Clock(0, {"up": 3})                 # a transfer from before takes 3 more
    >>> clock.send(["up"], 5)                       # waits for its lane, and the clock for nothing
    3
    >>> clock.work(6), clock.wait(8), clock.now     # 6 of work overlap it, 2 of it are exposed
    (0, 2, 8)
    """

    __slots__ = ("busy", "now")

    def __init__(self, now: Time, busy: dict[Lane, Time]) -> None:
        self.now = now
        self.busy = busy

    def send(self, lanes: Iterable[Lane], length: Time, issued: Time | None = None) -> Time:
        """Send over all these lanes at once, as soon as they are free, from now on or from when it was issued: the start."""
        start = self.now if issued is None else issued
        for lane in lanes:
            if lane in self.busy and self.busy[lane] > start:
                start = self.busy[lane]
        for lane in lanes:
            self.busy[lane] = start + length
        return start

    def work(self, length: Time) -> Time:
        """Work so long: the start."""
        start = self.now
        self.now = start + length
        return start

    def wait(self, end: Time) -> Time:
        """Wait for something that ends then: how long."""
        start, self.now = self.now, max(self.now, end)
        return self.now - start

    def slowed(self, length: Time, slowdown: float, lanes: Iterable[Lane] | None = None) -> float:
        """What work takes of so much alone, from now on, where what these lanes carry slows it down: by default all."""
        if slowdown <= 1:
            return length
        busy = self.busy if lanes is None else [lane for lane in lanes if lane in self.busy]
        return beside(length, max([self.busy[lane] for lane in busy], default=self.now) - self.now, slowdown)

    def left(self) -> dict[Lane, Time]:
        """The lanes that are still busy, and for how long from now."""
        return {lane: end - self.now for lane, end in self.busy.items() if end > self.now}

    def skip(self, length: Time, left: dict[Lane, Time] | None = None) -> None:
        """Go on by what was played elsewhere, which leaves the lanes busy for so long: as they are now, by default."""
        busy = self.left() if left is None else left
        self.now = self.now + length
        self.busy = {lane: self.now + more for lane, more in busy.items()}


def beside(seconds: float, moving: float, slowdown: float) -> float:
    """What work takes of so many seconds alone, where transfers go on for `moving` seconds from its start.

    >>> beside(3.0, 100.0, 1.5), beside(3.0, 0.0, 1.5), beside(3.0, 1.5, 1.5)
    (4.5, 3.0, 3.5)
    """
    return seconds + min(moving, seconds * slowdown) * (1 - 1 / slowdown) if slowdown > 1 and moving > 0 else seconds
