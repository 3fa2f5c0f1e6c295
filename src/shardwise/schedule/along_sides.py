"""The schedules of fused steps along all sides of a torus at once: on a cube a ring has two of three links.

Each block is cut into a part for each side. Part k goes round side k first, and what has come goes round the next side,
so that all links are busy in every round (`shardwise.schedule.strands.rotating`). Two rounds are on their way at a time:
what a round sends came before the last one, or is this device's own, wherever that can be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardwise.mesh import Sides
from shardwise.schedule.events import Await, Copy, Event, Events, Matmul, Part, Send, Span
from shardwise.schedule.strands import ROWS, Move, begun, cuts, rotating

MOST_PLACES = 64  # that a torus has for which a schedule is written out: compiled for v5p in 5 to 18 seconds


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
    run = _Moves.of(sides, chunks, width)
    starts = begun(run.rounds, len(run.spans))
    found: list[Event] = [*run.sends(starts[0]), Matmul((Part(0, (0, width)),))]
    for number, moves in enumerate(run.rounds, 1):
        come = run.numbered(moves)
        found += [Await(come), *run.sends(starts[number]), Matmul(tuple(map(run.part, moves)), come)]
    return tuple(found)


def matmul_gather(sides: Sides, chunks: int, width: int) -> Events:
    """The result of each device's matmul goes to all, part by part as it is made: part k is made before round k begins.

    >>> print(*matmul_gather(Sides((2, 2), (0, 1, 3, 2)), 1, 4)[:7], sep="\\n")
    multiply +0[0:2]
    send +0[0:2] up side 0 as 0
    send +0[0:2] up side 1 as 1
    copy +0[0:2]
    multiply +0[2:4]
    await 0, 1
    send +0[2:4] up side 0 as 2
    """
    run, found = _Moves.of(sides, chunks, width, made=True), list[Event]()
    for number, starting in enumerate(begun(run.rounds, len(run.spans), made=True)):
        own = [Part(0, span) for span in run.spans[number : number + 1]]
        come = run.rounds[number - 1] if 0 < number <= len(run.rounds) else []
        found += [Matmul((part,)) for part in own]
        found += [Await(run.numbered(come))] if come else []
        found += run.sends(starting)
        found += [*(Copy(run.part(move), run.numbers[move]) for move in come), *map(Copy, own)]
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
    run, found, over = _Moves.of(sides, chunks, width), list[Event](), set[int]()
    arriving: dict[tuple[int, int], list[int]] = {}  # the transfers that bring sums, by part and whose block it is

    def summed(part: int, away: int, before: Iterable[int]) -> Iterator[Event]:
        """What is multiplied when what it adds to has come, and what is to be over before."""
        adds = arriving.pop((part, away), [])
        waits = tuple(each for each in dict.fromkeys([*before, *adds]) if each not in over)
        over.update(waits)
        if waits:
            yield Await(waits)
        yield Matmul((Part(away, run.spans[part]),), tuple(adds))

    rounds = [*run.rounds, [], []]
    for number in reversed(range(len(run.rounds))):
        for move in rounds[number]:
            found += summed(move.part, move.come, run.numbered(rounds[number + 2]))
            found.append(Send(run.numbers[move], -move.way, run.part(move), sides=sides, side=move.side))
            arriving.setdefault((move.part, move.sent), []).append(run.numbers[move])
    for part in range(len(run.spans)):
        found += summed(part, 0, run.numbered(rounds[1]))
    return tuple(found)


@functools.lru_cache(maxsize=256)
def rounds_of(sizes: tuple[int, ...]) -> int:
    """In how many rounds a part for each side comes to every device."""
    return len(rotating(sizes, len(sizes)))


@functools.lru_cache(maxsize=1024)
def most_held(events: Events) -> int:
    """The most that a device holds at once of what is sent and of what comes, until it is used for the last time, as a width.

    >>> most_held(gather_matmul(Sides((2, 2), (0, 1, 3, 2)), 1, 4))
    16
    """
    began, ended, width = dict[object, int](), dict[object, int](), dict[object, int]()
    sources: dict[int, object] = {}  # what a transfer sends: what another one brought, or this device's own
    for now, event in enumerate(events):
        used: list[object] = []
        match event:
            case Send(transfer, part=part):
                sources[transfer] = event.source if event.source in sources else part
                used = [transfer, sources[transfer]]
                width |= dict.fromkeys(used, part.width)
            case Await(transfers):
                used = [*transfers, *(sources[transfer] for transfer in transfers)]
            case Matmul(_, transfers):
                used = [*transfers]
            case Copy(_, transfer) if transfer is not None:
                used = [transfer]
        for each in used:
            began.setdefault(each, now)
            ended[each] = now
    return max(sum(width[each] for each in began if began[each] <= now <= ended[each]) for now in range(len(events)))


@dataclass(frozen=True, slots=True)
class _Moves:
    """The moves of a schedule, in rounds, each with the number of its transfer; and the spans of the parts."""

    sides: Sides
    spans: Sequence[Span]
    rounds: list[list[Move]]
    numbers: dict[Move, int]
    brought: dict[tuple[int, int], int]  # the transfer that brings a part of a block, by which and whose it is

    @classmethod
    def of(cls, sides: Sides, chunks: int, width: int, made: bool = False) -> _Moves:
        spans = cuts(width, chunks * len(sides.sizes), ROWS)
        rounds = rotating(sides.sizes, len(spans), made)
        numbers = {move: number for number, move in enumerate(move for moves in rounds for move in moves)}
        return cls(sides, spans, rounds, numbers, {(move.part, move.come): number for move, number in numbers.items()})

    def part(self, move: Move) -> Part:
        return Part(move.come, self.spans[move.part])

    def numbered(self, moves: Iterable[Move]) -> tuple[int, ...]:
        return tuple(self.numbers[move] for move in moves)

    def sends(self, moves: Iterable[Move]) -> Iterator[Send]:
        for move in moves:
            part, source = Part(move.sent, self.spans[move.part]), self.brought.get((move.part, move.sent))
            yield Send(self.numbers[move], move.way, part, sides=self.sides, side=move.side, brought=source)
