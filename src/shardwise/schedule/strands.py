"""What travels on its own in a ring: into which parts every block is cut, which way each goes, and how far.

`Plan.code()` copies these functions as they stand, so they lean on nothing but what they name.
"""

from typing import NamedTuple


class Strand(NamedTuple):
    """A part of every block that travels on its own: up (`way` = 1) or down (-1), which span of it, and how many hops."""

    way: int
    span: tuple[int, int]
    hops: int


def cuts(width: int, parts: int) -> list[tuple[int, int]]:
    """Cut a block into parts as equal as can be, those of no width left out; wide parts end where a tile of lanes does.

    A compiler that cuts an array within its tiles of 128 lanes transposes the array first, where that has more than two
    dimensions. Parts of four tiles or more differ by one tile at most.

    >>> cuts(7, 2), cuts(1, 2), cuts(1100, 2)
    ([(0, 3), (3, 7)], [(0, 1)], [(0, 512), (512, 1100)])
    """
    unit = 128 if width >= 512 * parts else 1
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
