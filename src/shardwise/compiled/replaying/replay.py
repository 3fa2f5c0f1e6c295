"""The replay of an instruction stream on lanes: every run on a clock of its own, so that equal trips are run once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from shardwise.compiled.replaying.instruction_stream import Await, Enter, InstructionStream, Issue, Transfer, Work
from shardwise.schedule.clock import Clock
from shardwise.schedule.timeline import COMPUTE

MOST_TRIPS_APART = 2000  # trips that differ from each other are run one by one up to here
Free = tuple[tuple[str, int], ...]  # tracks that are still busy, and for how long from now


@dataclass(frozen=True, slots=True)
class Event:
    """Something on a lane, in femtoseconds from the start of its computation's run."""

    name: str
    lane: str
    kind: str
    start: int
    length: int
    issued: int = 0
    transfer: Transfer | None = None
    line: str = ""
    op_name: str = ""

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Nested:
    """A run inside of another: where it starts, how often it repeats unchanged, and its first trip's number."""

    name: str
    start: int
    run: Run
    times: int = 1
    trip: int | None = None


@dataclass(slots=True, eq=False)
class Run:
    """One computation's run from given tracks: its length, the tracks it leaves busy, what happened, and sums of it."""

    length: int = 0
    free: Free = ()
    events: list[Event] = field(default_factory=list)
    nested: list[Nested] = field(default_factory=list)
    sums: Counter[tuple[str, ...]] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """How many events it has, nested ones too."""
        return self.sums["events",]


@dataclass(slots=True)
class Player:
    """Runs instruction streams, each from the same tracks once.

    `slowdown`: how many times as long a matmul takes while one of the tracks `beside` it is busy.
    """

    notes: list[str] = field(default_factory=list)
    known: dict[tuple[int, Free], Run] = field(default_factory=dict)
    slowdown: float = 1.0
    beside: frozenset[str] = frozenset()

    def play(self, stream: InstructionStream, free: Free = (), *, last: bool = False) -> Run:
        """Run an instruction stream; the last one of a program waits for what nothing has waited for."""
        key = (id(stream), free)
        if key not in self.known or last:
            self.known[key] = _Replay(self, Clock(0, dict(free))).run(stream, last)
        return self.known[key]


class _Replay:
    """A run in progress: the clock and its tracks, and which transfers are on their way."""

    def __init__(self, player: Player, clock: Clock[str, int]) -> None:
        self.player = player
        self.clock = clock
        self.pending: dict[str, list[Event]] = {}
        self.sent: list[Event] = []  # transfers of collectives that may still be on their way
        self.shown: dict[str, int] = {}  # until when each lane is shown as busy
        self.made = Run()

    def run(self, stream: InstructionStream, last: bool) -> Run:
        """Play all steps; the last stream of a program also waits for what is still on its way."""
        for step in stream.steps:
            match step:
                case Work():
                    self._work(step)
                case Issue():
                    self._issue(step)
                case Await():
                    self._await(step.name)
                case Enter():
                    self._enter(step)
                case _:
                    assert_never(step)
        if last:
            for name in list(self.pending):
                self._await(name)
            if left := self.clock.left():
                start = self.clock.now
                self._record(
                    Event("what is still on its way", COMPUTE, "wait", start, self.clock.wait(start + max(left.values())))
                )
        self.made.length, self.made.free = self.clock.now, self._left()
        return self.made

    def _left(self) -> Free:
        return tuple(sorted(self.clock.left().items()))

    def _record(self, event: Event) -> None:
        self.made.events.append(event)
        self.made.sums["events",] += 1
        self.made.sums[event.kind,] += event.length

    def _work(self, step: Work) -> None:
        self.made.sums["flops",] += step.flops  # type: ignore[assignment]
        self.made.sums["peak_seconds",] += step.peak_seconds  # type: ignore[assignment]
        kind = "matmul" if step.is_matmul else "compute"
        if step.femtoseconds:
            slowdown = self.player.slowdown if step.is_matmul else 1.0
            length = round(self.clock.slowed(step.femtoseconds, slowdown, self.player.beside))
            start = self.clock.work(length)
            self._record(Event(step.name, COMPUTE, kind, start, length, line=step.line, op_name=step.op_name))

    def _issue(self, step: Issue) -> None:
        sums = self.made.sums
        for transfer in step.transfers:
            issued = self.clock.now
            start = self.clock.send(transfer.tracks, transfer.femtoseconds)
            kind = "transfer" if transfer.remote else "copy"
            for lane in transfer.lanes:
                event = Event(transfer.name, lane, kind, start, transfer.femtoseconds, issued, transfer)
                if event.length:
                    self.made.events.append(event)
                    sums["events",] += 1
                    sums["lane", lane] += max(0, event.end - max(start, self.shown.get(lane, 0)))
                    self.shown[lane] = max(event.end, self.shown.get(lane, 0))
            event = Event(transfer.name, "", kind, start, transfer.femtoseconds, issued, transfer)
            self.pending.setdefault(step.name, []).append(event)
            sums[f"all {kind}",] += transfer.femtoseconds
            if transfer.collective:
                self.sent.append(event)
                sums["transfer", transfer.collective.computation, transfer.name] += transfer.femtoseconds

    def _await(self, name: str) -> None:
        for event in self.pending.pop(name, []):
            began, length = self.clock.now, self.clock.wait(event.end)
            if not length:
                continue
            assert event.transfer is not None
            self._record(Event(event.name, COMPUTE, "wait", began, length, transfer=event.transfer))
            if event.transfer.remote:
                self.made.sums["exposed",] += length
                self._expose(event, began)

    def _expose(self, awaited: Event, began: int) -> None:
        """Attribute exposed time to what travels meanwhile: the transfer awaited, and before it those that it queues behind."""
        assert awaited.transfer is not None
        self.sent = [event for event in self.sent if event.end > began]
        for event in self.sent:
            shared = min(event.end, awaited.end) - max(event.start, began)
            transfer = event.transfer
            if shared > 0 and transfer and transfer.collective and set(transfer.tracks) & set(awaited.transfer.tracks):
                self.made.sums["exposed", transfer.collective.computation, event.name] += shared

    def _enter(self, step: Enter) -> None:
        if step.is_choice:
            branches = [self.player.play(stream, self._left()) for stream in step.streams]
            self._nest(step.name, max(branches, key=lambda run: run.length), 1, None)
            return
        if not step.is_loop:
            for stream in step.streams:
                self._nest(step.name, self.player.play(stream, self._left()), 1, None)
            return
        trip = 0
        while trip < step.trips:
            before = self._left()
            run = self.player.play(step.streams[0], before)
            settled = run.free == before
            if not settled and trip >= MOST_TRIPS_APART:
                self.player.notes.append(f"the trips of {step.name} go on differing: those after {trip} are taken as alike")
                settled = True
            count = step.trips - trip if settled else 1
            self._nest(step.name, run, count, trip)
            trip += count

    def _nest(self, name: str, run: Run, times: int, trip: int | None) -> None:
        self.made.nested.append(Nested(name, self.clock.now, run, times, trip))
        for key, value in run.sums.items():
            self.made.sums[key] += value * times
        self.clock.skip(run.length * times, dict(run.free))


def flattened(run: Run, most: int, offset: int = 0, trip: int | None = None) -> Iterator[tuple[Event, int, int | None]]:
    """The events of a run with their offsets and trips, nested ones too; trips beyond `most` events become one `loop` event."""
    parts: list[Event | Nested] = [*run.events, *run.nested]
    room = most
    for part in parts:
        if isinstance(part, Event):
            room -= 1
            yield part, offset, trip
            continue
        fits = part.times if not part.run.size else min(part.times, max(1, room // part.run.size))
        if part.run.size > max(room, 1000) and part.times > 1:
            fits = 1
        number = trip if part.trip is None else part.trip
        for turn in range(fits if part.run.size else 0):
            at = offset + part.start + turn * part.run.length
            now = number if part.trip is None or number is None else number + turn
            yield from flattened(part.run, max(room, 0), at, now)
        room -= fits * part.run.size
        if fits < part.times and part.run.length:
            left = part.times - fits
            start = part.start + fits * part.run.length
            yield Event(f"{part.name}: {left} more trips", COMPUTE, "loop", start, left * part.run.length), offset, number
