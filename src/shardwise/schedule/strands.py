"""What travels on its own in a ring: into which parts every block is cut, which way each goes, and how far.

`Plan.code()` copies these functions as they stand, so they lean on nothing but what they name.
"""

import math
from typing import NamedTuple

ROWS = 16  # of 16-bit elements that a register holds


class Strand(NamedTuple):
    """A part of every block that travels on its own: up (`way` = 1) or down (-1), which span of it, and how many hops."""

    way: int
    span: tuple[int, int]
    hops: int


def cuts(width: int, parts: int, rows: int = 1) -> list[tuple[int, int]]:
    """Cut a block into parts as equal as can be, those of no width left out; wide parts end where a tile of lanes does.

    A compiler that cuts an array within its tiles of 128 lanes transposes the array first, where that has more than two
    dimensions. Parts of four tiles or more differ by one tile at most. Those of fewer end where so many `rows` do, if four fit.

    >>> cuts(7, 2), cuts(1, 2), cuts(1100, 2), cuts(1024, 3, 16)
    ([(0, 3), (3, 7)], [(0, 1)], [(0, 512), (512, 1100)], [(0, 336), (336, 672), (672, 1024)])
    """
    unit = 128 if width >= 512 * parts else rows if width >= 4 * rows * parts else 1
    tiles = -(-width // unit)
    spans = [(tiles * part // parts * unit, min(width, tiles * (part + 1) // parts * unit)) for part in range(parts)]
    return [(low, high) for low, high in spans if low < high]


def gathering(n: int, way: str, chunks: int, width: int) -> list[Strand]:
    """The strands that bring every block to every device, in the order in which they are sent.

    Both ways, n - 1 blocks arrive in n / 2 hops. Where n is even, the block opposite comes from below; its chunks, if
    there are several, half from each side. A block is never cut on its way: a cut in the middle of a ring costs a copy.

    >>> gathering(4, "ring", 1, 6)
    [Strand(way=1, span=(0, 6), hops=3)]
    >>> gathering(4, "bidirectional", 1, 6)
    [Strand(way=1, span=(0, 6), hops=2), Strand(way=-1, span=(0, 6), hops=1)]
    """
    parts = cuts(width, chunks)
    if way != "bidirectional":
        return [Strand(1, part, n - 1) for part in parts if n > 1]
    near, opposite = (n - 1) // 2, (n - 1) % 2
    strands = []
    for number, part in enumerate(parts):
        from_below = opposite * (2 * number < len(parts))
        strands += [Strand(1, part, near + from_below), Strand(-1, part, near + opposite - from_below)]
    return [strand for strand in strands if strand.hops]


def scattering(n: int, way: str, chunks: int, width: int) -> list[Strand]:
    """The strands of a reduce-scatter: the way that each goes, and the part of the block that it sums.

    >>> scattering(3, "bidirectional", 1, 6)
    [Strand(way=1, span=(0, 3), hops=2), Strand(way=-1, span=(3, 6), hops=2)]
    """
    ways = (1, -1) if way == "bidirectional" else (1,)
    return [Strand(ways[k % len(ways)], part, n - 1) for k, part in enumerate(cuts(width, chunks * len(ways)))]


def side_by_side(strands: list[Strand]) -> list[list[int]]:
    """The numbers of the strands that are waited for together: the same span of both ways.

    >>> side_by_side(gathering(5, "bidirectional", 2, 6))
    [[0, 1], [2, 3]]
    """
    found = {}
    for number, strand in enumerate(strands):
        found.setdefault(strand.span, []).append(number)
    return list(found.values())


def is_one_matmul(cut: float, summed: float) -> bool:
    """Whether what arrives from both sides is multiplied in one matmul, and added to the running sum at once.

    No compiler takes two cuts of an array into one matmul's kernel: `cut` elements are copied first. Two matmuls, one
    after the other, read and write the `summed` elements of the sum once more.

    >>> is_one_matmul(cut=2 * 8192 * 1024, summed=8192 * 4096), is_one_matmul(cut=2 * 8192 * 1024, summed=8192 * 512)
    (True, False)
    """
    return cut < summed


class Move(NamedTuple):
    """A part of every block goes along a `side` of a torus, up (`way` = 1) or down; how far its owner is before and after."""

    part: int
    side: int
    way: int
    sent: int
    come: int


def rotating(sizes: tuple[int, ...], parts: int, made: bool = False) -> list[list[Move]]:
    """The moves that bring every block to every device of a torus over all its links: in rounds, one for a link at most.

    Part k goes round side k of the torus first, then what has come goes round the next side, and so on: each side carries
    another part. How far an owner is counts row by row, modulo each side. If parts are being `made`, k is there in round k.

    >>> [len(links) for links in rotating((2, 2, 2), 3)], rotating((2, 2), 2)[0]
    ([3, 3, 3, 3, 3, 3, 3], [Move(part=0, side=0, way=1, sent=0, come=2), Move(part=1, side=1, way=1, sent=0, come=1)])
    """
    strides = [math.prod(sizes[side + 1 :]) for side in range(len(sizes))]

    def gone(away: int, side: int, hops: int) -> int:
        at = away // strides[side] % sizes[side]
        return away + ((at + hops) % sizes[side] - at) * strides[side]

    queues = {}  # of each link
    for first in range(0, parts, len(sizes)):
        together = range(first, min(parts, first + len(sizes)))
        held = {part: [0] for part in together}
        for phase in range(len(sizes)):
            for part in together:
                side = (part + phase) % len(sizes)
                near, opposite = (sizes[side] - 1) // 2, (sizes[side] - 1) % 2
                come = []
                for hop in range(1, near + opposite + 1):
                    for number, away in enumerate(held[part]):
                        up = near + opposite * (sizes[side] == 2 or number % 2 == 0)
                        for way, hops in ((1, up), (-1, sizes[side] - 1 - up)):
                            if hop <= hops:
                                sent, there = gone(away, side, -way * (hop - 1)), gone(away, side, -way * hop)
                                queues.setdefault((side, way), []).append(Move(part, side, way, sent, there))
                                come.append(there)
                held[part] += come
    rounds, here = [], {(part, 0) for part in range(parts) if not made}
    while any(queues.values()):
        here |= {(len(rounds), 0)}
        links = [next((move for move in queue if (move.part, move.sent) in here), None) for queue in queues.values()]
        for queue, move in zip(queues.values(), links, strict=True):
            if move is not None:
                queue.remove(move)
        rounds.append([move for move in links if move is not None])
        here |= {(move.part, move.come) for move in rounds[-1]}
    return rounds


def begun(rounds: list[list[Move]], parts: int, made: bool = False) -> list[list[Move]]:
    """Which moves begin when so many rounds are over: two rounds are on their way at once, wherever what is sent has come.

    >>> [len(moves) for moves in begun(rotating((2, 2, 2), 3), 3)]
    [6, 3, 3, 3, 3, 3, 0, 0]
    """
    here, found = {(part, 0) for part in range(parts) if not made}, []
    for number in range(max(len(rounds) + 1, parts)):
        here |= {(number, 0), *((move.part, move.come) for moves in rounds[max(0, number - 1) : number] for move in moves)}
        near = [move for moves in rounds[number : number + 2] for move in moves if (move.part, move.sent) in here]
        found.append([move for move in near if not found or move not in found[-1]])
    return found
