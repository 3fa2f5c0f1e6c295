"""The schedules of fused steps along all sides of a torus at once: on a cube a ring has two of three links.

Each block is cut into a part for each side. Part k goes round side k first, and what has come goes round the next side,
so that all links are busy in every round (`shardwise.schedule.strands.rotating`). Two rounds are on their way at a time:
what a round sends came before the last one, or is this device's own, wherever that can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardwise.mesh import Sides
from shardwise.schedule.events import Await, Copy, Event, Events, Matmul, Part, Send, Span
from shardwise.schedule.strands import ROWS, Move, cuts, rotating

AHEAD = 2  # rounds on their way at once


def gather_matmul(sides: Sides, chunks: int, width: int) -> Events:
    """Every device's block comes part by part, and is multiplied as it comes.

    >>> print(*gather_matmul(Sides((2, 2), (0, 1, 3, 2)), 1, 4), sep="\\n")
    send +0[0:2] up side 0 as 0
    send +0[2:4] up side 1 as 1
    send +0[2:4] up side 0 as 2
    send +0[0:2] up side 1 as 3
    multiply +0[0:4]
    await 0, 1
    send +1[2:4] up side 0 as 4
    send +2[0:2] up side 1 as 5
    multiply +2[0:2] and +1[2:4]
    await 2, 3
    multiply +2[2:4] and +1[0:2]
    await 4, 5
    multiply +3[2:4] and +3[0:2]
    """
    run = _Run.planned(sides, chunks, width)
    run.own.update(range(len(run.spans)))
    found: list[Event] = [*run.begun(0, AHEAD), Matmul((Part(0, (0, width)),))]
    for number in range(len(run.rounds)):
        found += [run.awaited(number), *run.begun(number + 1, AHEAD), run.multiplied(number)]
    return tuple(found)


def matmul_gather(sides: Sides, chunks: int, width: int) -> Events:
    """The result of each device's matmul goes to all, part by part as it is made: part k is made in round k.

    >>> print(*matmul_gather(Sides((2, 2), (0, 1, 3, 2)), 1, 4)[:7], sep="\\n")
    multiply +0[0:2]
    send +0[0:2] up side 0 as 0
    send +0[0:2] up side 1 as 1
    copy +0[0:2]
    multiply +0[2:4]
    await 0, 1
    send +0[2:4] up side 0 as 2
    """
    run, found = _Run.planned(sides, chunks, width, made=True), list[Event]()
    for number in range(max(len(run.spans), len(run.rounds) + 1)):
        own = [Part(0, run.spans[number])] if number < len(run.spans) else []
        found += [Matmul((part,)) for part in own]
        run.own.update(range(number, number + len(own)))
        come = run.rounds[number - 1] if 0 < number <= len(run.rounds) else []
        if come:
            found.append(run.awaited(number - 1))
        found += run.begun(number, AHEAD)
        found += [Copy(run.part(move), run.numbers[move]) for move in come] + [Copy(part) for part in own]
    return tuple(found)


def matmul_scatter(sides: Sides, chunks: int, width: int) -> Events:
    """Partial sums go back the way on which blocks come, and each device adds its matmul's result to what has arrived.

    What is made for a round waits until the last but one is over: so the links are never without something to carry, and not
    all is multiplied first.

    >>> print(*matmul_scatter(Sides((2,), (0, 1)), 1, 4), sep="\\n")
    multiply +1[0:4]
    send +1[0:4] down side 0 as 0
    await 0
    multiply +0[0:4]
    """
    run, found, over = _Run.planned(sides, chunks, width), list[Event](), set[int]()
    arriving: dict[tuple[int, int], list[int]] = {}  # the transfers that bring sums, by part and whose block it is

    def summed(number: int, part: int, away: int) -> Iterator[Event]:
        """What is multiplied for a round, when what it adds to has come, and the round before the last is over."""
        adds = arriving.pop((part, away), [])
        before = [run.numbers[move] for moves in run.rounds[number + AHEAD : number + AHEAD + 1] for move in moves]
        waits = [each for each in dict.fromkeys([*before, *adds]) if each not in over]
        if waits:
            yield Await(tuple(waits))
        over.update(waits)
        yield Matmul((Part(away, run.spans[part]),), tuple(adds))

    for number in reversed(range(len(run.rounds))):
        for move in run.rounds[number]:
            found += summed(number, move.part, move.come)
            found.append(Send(run.numbers[move], -move.way, run.part(move), sides=sides, side=move.side))
            arriving.setdefault((move.part, move.sent), []).append(run.numbers[move])
    for part in range(len(run.spans)):
        found += summed(-1, part, 0)
    return tuple(found)


@dataclass(slots=True)
class _Run:
    """The moves of one schedule: their numbers, which have begun, and what this device has, by part and whose block it is."""

    sides: Sides
    spans: Sequence[Span]
    rounds: Sequence[Sequence[Move]]
    numbers: dict[Move, int]
    own: set[int] = field(default_factory=set)
    sent: set[Move] = field(default_factory=set)
    brought: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def planned(cls, sides: Sides, chunks: int, width: int, made: bool = False) -> _Run:
        spans = cuts(width, chunks * len(sides.sizes), ROWS)
        rounds = rotating(sides.sizes, len(spans), made)
        return cls(sides, spans, rounds, {move: k for k, move in enumerate(move for moves in rounds for move in moves)})

    def part(self, move: Move) -> Part:
        return Part(move.come, self.spans[move.part])

    def awaited(self, number: int) -> Await:
        """A round is over: what it brought can be sent on."""
        moves = self.rounds[number]
        self.brought.update({(move.part, move.come): self.numbers[move] for move in moves})
        return Await(tuple(self.numbers[move] for move in moves))

    def begun(self, number: int, ahead: int) -> Iterator[Send]:
        """The moves of so many rounds from this one on that can begin, and have not."""
        for move in (move for moves in self.rounds[number : number + ahead] for move in moves):
            source = self.brought.get((move.part, move.sent))
            if move not in self.sent and (source is not None or (not move.sent and move.part in self.own)):
                self.sent.add(move)
                part = Part(move.sent, self.spans[move.part])
                yield Send(self.numbers[move], move.way, part, sides=self.sides, side=move.side, brought=source)

    def multiplied(self, number: int) -> Matmul:
        moves = self.rounds[number]
        return Matmul(tuple(map(self.part, moves)), tuple(self.numbers[move] for move in moves))
