"""How arrays lie in memory, and how the blocks of a collective lie in them.

A TPU's memory holds an array in tiles of 8 rows of 128 elements, and a compiler orders the dimensions of what comes into a
program, or leaves it, so that the tiles are filled best (`memory_order`). A collective joins or cuts blocks along a dimension:
whole tiles are moved as they are; of others parts are laid out anew, and where the result of a program stands in another
order than what it came from, all of it is.

Read off the layouts of about a thousand compiled collectives of random shapes on five chips (libtpu 0.0.50).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, assert_never

from shardwise.chips import Compiler
from shardwise.planning.exchanges import Place, are_transposed
from shardwise.steps import CollectiveKind, MoveKind

Order = tuple[int, ...]  # dimensions by position, the slowest first
# How blocks fill the tiles: whole tiles; of a scatter an `odd` number of them; blocks that end within the rows of a tile, or
# within its lanes; `torn` are those that end within both.
Tiles = Literal["whole", "odd", "rows", "lanes", "torn"]

LANES, SUBLANES = 128, 8  # a tile has so many elements of the dimension that runs fastest, and so many of the next
MUCH_LESS = 1.15  # times as much as a matmul lays out: between 1.12 and 1.19, read off 40 compiled tori
SPREAD_FROM, SPREAD_FULL = 1.0585, 1.035  # times as much, read off 220 compiled gathers
WORD = 4  # bytes: rows of shorter elements are packed, so that a block of them has to be as many times as many tiles
SUMMED_FROM = 1.5  # times its size: blocks that would have to be padded to more are summed, and not scattered


class Blocks(NamedTuple):
    """How the blocks lie in a shard that a collective joins or cuts.

    `first` and `target_first` say whether it joins or cuts along the first dimension (an all-to-all cuts along its target);
    `deep` whether dimensions lie before the last two; `transposed` whether what comes out would stand in another order as the
    result of a program; `padded` is how many times its size that takes in memory. A block of a scatter is so many tiles
    (`columns`) wide; along the rows of a matrix it has so many `rows`; it fills so many tiles in all (`count`). Blocks of a
    gather are `spread` over tiles, and not transposed twice.
    """

    first: bool = True
    target_first: bool = True
    tiles: Tiles = "whole"
    deep: bool = False
    transposed: bool = False
    padded: float = 1.0
    rows: int = 0
    columns: int = 0
    joins: Place = "rows"
    cuts: Place = "lanes"
    parts: int = 1
    narrow: bool = False
    count: int = 0
    spread: bool = False
    as_written: bool = True

    def stands_apart(self, cores: int) -> bool:
        """Whether the blocks of a scatter are made a dimension of their own, on a chip of so many cores.

        Else compilers would sum all of them; or, on chips of two cores, move those that end within the rows of a tile round
        one ring instead of along all links, and their pads from device to device.
        """
        return self.tiles in ("odd", "lanes") or (cores > 1 and self.rows % SUBLANES > 0)

    def are_transposed(self, array_bytes: float, compiler: Compiler, read: bool) -> bool:
        """Whether the blocks of an all-to-all are transposed, and not spread; `read` whether a matmul reads what it makes."""
        place = self.joins, self.cuts, self.deep, self.narrow
        return are_transposed(*place, self.parts, self.as_written, array_bytes, compiler, read)

    @property
    def splits_rows(self) -> bool:
        """Whether a block of a gather ends within the rows of a tile."""
        return self.tiles in ("rows", "torn")

    @property
    def is_ragged(self) -> bool:
        """Whether a block ends within a tile."""
        return self.tiles in ("rows", "lanes", "torn")


PLAIN = Blocks()


def memory_order(shape: tuple[int, ...]) -> Order:
    """The order of dimensions in which a TPU's memory holds an array with the least padding; as they are, if nothing is less.

    >>> memory_order((4096, 170)), memory_order((4100, 256)), memory_order((8, 1792, 1472))
    ((1, 0), (0, 1), (0, 2, 1))
    """
    return _in_memory(shape)[0]


@functools.lru_cache(maxsize=4096)
def _in_memory(shape: tuple[int, ...]) -> tuple[Order, int]:
    """In which order a TPU's memory holds an array, and how many elements that takes."""
    rank = len(shape)
    last = [dim for dim in range(max(0, rank - 3), rank) if shape[dim] > 1]
    best, least = tuple(range(rank)), _padded(shape, tuple(range(rank)))
    for one in reversed(last):
        for other in reversed(last):
            if one != other and (elements := _padded(shape, (other, one))) < least:
                best, least = (*(dim for dim in range(rank) if dim not in (one, other)), other, one), elements
    return best, least


def is_made_across(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a matmul makes a part of a result with another dimension along the lanes than the result has when all are there.

    It does where that pads much less: the compiler then transposes each part where it arrives. So it is in 40 compiled tori of
    random shapes, and in 28 of 30 more that were not looked at before.

    >>> is_made_across((672, 170), (672, 8192)), is_made_across((512, 682), (512, 4096))
    (True, False)
    """
    order, least = _in_memory(part)
    there = _in_memory(whole)[0]
    return order[-1] != there[-1] and _padded(part, there) > MUCH_LESS * least


def _padded(shape: Sequence[int], order: Order, whole_tiles: bool = False) -> int:
    """The elements that an array takes whose last dimensions are those of an order; few rows take a smaller tile, or not."""
    if not order:
        return 1
    *_, one = order
    other = order[-2] if len(order) > 1 else None
    sublanes = 1 if other is None else shape[other]
    tile = SUBLANES if whole_tiles or sublanes > 4 else 1 << (sublanes - 1).bit_length()
    padded = _up(shape[one], LANES) * (1 if other is None else _up(sublanes, tile))
    rest = [size for dim, size in enumerate(shape) if dim not in (one, other)] if len(shape) > 2 else ()
    return padded * math.prod(rest)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@functools.lru_cache(maxsize=4096)
def scattered_rows(rows: int, columns: int, most: int) -> int:
    """To how many rows a TPU's compiler pads each block of a scatter along the rows of a matrix.

    A block goes round the ring in both directions: it is cut in two between its columns, where their tiles are an even
    number, and else between its rows. Each half goes in equal chunks of at most so many tiles: of whole rows, or, where one
    row has more, of half its columns, or of half of these. Where they can be halved no more, a chunk has the most columns
    that the half is a multiple of. So were cut 795 of 795 scatters of random sizes that were compiled as one over 2 to 32
    chips, and 326 of 352 over 64 and 128 (libtpu 0.0.50).

    >>> scattered_rows(2048, columns=13, most=313), scattered_rows(2048, columns=256, most=313)
    (2112, 2048)

    Args:
        columns: tiles beside each other in each row.
        most: tiles that a chunk may have.
    """
    tiles, sides = -(-rows // SUBLANES), 1 + columns % 2
    width, high = columns * sides // 2, -(-tiles // sides)
    while width > most and width % 2 == 0:
        width //= 2
    if width > most:
        widest = max(part for part in range(1, most + 1) if width % part == 0)
        return _up(tiles, 2 * (most // widest)) * SUBLANES
    chunks = -(-high // max(1, min(most // width, high)))
    return _up(tiles, sides * chunks) * SUBLANES


@functools.lru_cache(maxsize=8192)
def blocks_of(
    kind: MoveKind, dims: tuple[int, int], before: tuple[int, ...], after: tuple[int, ...], order: Order | None = None,
    item_bytes: int = 2, tiled: bool = True,
) -> Blocks:  # fmt: skip
    """How the blocks of a collective lie, from a shard's sizes before and after.

    >>> blocks_of("all-gather", (1, 1), (4096, 170), (4096, 1360)).tiles
    'torn'
    >>> blocks_of("all-gather", (1, 1), (4096, 170), (4096, 1360), order=(1, 0)).tiles
    'rows'

    Args:
        dims: by position, that which it joins or cuts along; of an all-to-all that which it joins along, and which it cuts.
        order: of the dimensions in memory; by default as they are. What is scattered lies as what is left of it.
        item_bytes: of an element.
        tiled: whether memory holds arrays in tiles; else all that matters is whether a dimension is the first.
    """
    if kind == "all-reduce" or kind == "collective-permute":
        return PLAIN
    if not tiled:
        return Blocks(dims[0] == 0, dims[kind != "reduce-scatter"] == 0)
    held, filled = _in_memory(after)
    order = held if kind == "reduce-scatter" else order or tuple(range(len(before)))
    first, target_first = dims[0] == 0, dims[1] == 0
    dim, target = order.index(dims[0]), order.index(dims[1])
    size, made = [before[each] for each in order], [after[each] for each in order]
    deep, identity = len(made) > 2 and any(one > 1 for one in made[:-2]), tuple(range(len(order)))
    elements = _padded(made, identity, whole_tiles=True) if kind == "slice" else filled
    padded = elements / max(1, math.prod(made))
    match kind:
        case "all-gather":
            tiles, parts = _joined(dim, size), made[dim] // max(1, size[dim])
            if tiles == "lanes" and not deep and len(size) > 1:
                spread = _is_spread(size[-2], size[-1], parts)
                return Blocks(first, target_first, tiles, deep, held != order, padded, parts=parts, spread=spread)
        case "reduce-scatter":
            outer, flat = dims[0] < len(order) - 2, dim == len(made) - 2 and not deep
            tiles = "whole" if outer else _scattered(dim, made, -(-WORD // item_bytes))
            rows, columns = made[dim] if flat else 0, -(-made[-1] // LANES) if len(made) > 1 else 1
            count = -(-_padded(made, identity, whole_tiles=True) // (SUBLANES * LANES))
            return Blocks(first, first, tiles, deep, held != order, padded, rows, columns, count=count)
        case "all-to-all":
            tiles = "whole" if all(map(_is_whole, (dim, target), (size, made))) else "torn"
            deep = deep and not ((dim == 0 and size[0] == 1) or (target == 0 and made[0] == 1))
            joins, cuts, parts = _place(dim, len(made)), _place(target, len(made)), size[target] // max(1, made[target])
            narrow = len(made) > 1 and _is_narrow(min(size[-2], made[-2]), deep)
            flags = joins, cuts, parts, narrow, 0, False, order == identity
            return Blocks(first, target_first, tiles, deep, held != order, padded, 0, 0, *flags)
        case "slice":  # of what memory holds in another order, along a dimension before the last two, it goes through its rows
            tiles = "rows" if dim == len(order) - 2 and dims[0] < dim else "whole"
    return Blocks(first, target_first, tiles, deep, held != order, padded)


def _is_narrow(rows: int, deep: bool) -> bool:
    """Whether a block's rows do not fill tiles as lanes; those of a matrix all but fill them where little is padded.

    Read off 66 compiled all-to-alls of matrices: transposed are those that are padded by up to 4 %, as they are from 8 % on.
    """
    padded = -rows % LANES
    return padded > 0 if deep else padded > rows / 16


def _place(dim: int, rank: int) -> Place:
    """Where a dimension lies, of so many in the order of memory."""
    return "lanes" if dim == rank - 1 else "rows" if dim == rank - 2 else "outer"


def _is_whole(dim: int, shard: Sequence[int]) -> bool:
    """Whether the blocks of a shard along a dimension are whole tiles."""
    from_end = len(shard) - dim
    return from_end > 2 or shard[dim] % (LANES if from_end == 1 else SUBLANES) == 0


def _is_spread(rows: int, lanes: int, parts: int) -> bool:
    """Whether a matrix whose rows run fastest would be padded by so much more than its blocks are, that these are spread.

    Eight blocks, or more, fill the rows of a tile.
    """
    padded = _up(rows, LANES) / rows
    return padded > SPREAD_FULL if parts >= SUBLANES else padded > SPREAD_FROM * _up(lanes, LANES) / lanes


def _joined(dim: int, shard: Sequence[int]) -> Tiles:
    """How the blocks of a gather lie: those that end within a tile are gathered along a dimension of their own."""
    if _is_whole(dim, shard):
        return "whole"
    if dim == len(shard) - 2:
        return "rows"
    return "torn" if shard[dim] % SUBLANES else "lanes"


def _scattered(dim: int, shard: Sequence[int], packed: int) -> Tiles:
    """How the blocks of a scatter lie, of elements of which so many are `packed` in a word.

    Of two dimensions the compiler pads the slower one (`scattered_rows`). Behind another dimension it sums those that end
    within the rows of a tile, and before the last two all, where the rows of these fill no tiles. Of a vector it sums all.
    """
    size, from_end = shard[dim], len(shard) - dim
    if len(shard) == 1:
        return "rows" if size % LANES else "odd"
    if from_end > 2:
        return "rows" if shard[-2] % SUBLANES else "whole"
    if from_end == 1:
        return "lanes" if size % LANES else "odd" if size % (packed * LANES) else "whole"
    if any(one > 1 for one in shard[:-2]):
        return "rows" if size % SUBLANES else "odd" if size % (packed * SUBLANES) else "whole"
    return "whole"


def transposed_bytes(kind: CollectiveKind, blocks: Blocks, in_bytes: float, out_bytes: float) -> float:
    """The bytes of a shard whose blocks are moved in the memory of simulated devices.

    Their collectives work on the first dimension: along another one, what is gathered is put in order afterwards, and what
    is scattered before.
    """
    match kind:
        case "all-gather":
            return 0.0 if blocks.first else out_bytes
        case "reduce-scatter":
            return 0.0 if blocks.first else in_bytes
        case "all-to-all":
            return (0.0 if blocks.first else out_bytes) + (0.0 if blocks.target_first else in_bytes)
        case "all-reduce" | "collective-permute":
            return 0.0
        case _:
            assert_never(kind)
