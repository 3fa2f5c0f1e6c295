"""How fast TPU compilers put together what a gather brought, of blocks that end within the lanes of a tile.

It is transposed there and back, there for nothing if the chip keeps both; or, where that pads much more, it is spread over
tiles: the slower the fewer the blocks, half as fast where they are many tiles, and nearly as fast as transposed where the chip
has no room. Read off 220 compiled gathers of random shapes, of 2 to 16 blocks on four chips: 90 % are within 20 %, and 83 % of
60 more.
"""

from __future__ import annotations

from shardwise.chips import Compiler
from shardwise.planning.tiles import Blocks

SMALL = 1e6  # bytes for each of up to `MANY` blocks: more is many tiles
MANY = 6
EIGHT, BY_BLOCKS = 2.5, 0.77  # times as fast as two blocks eight are, or more, at most; fewer by this power of their number
FAR = 0.85  # of the speed of transposing


def faster(parts: int) -> float:
    """How many times as fast as two blocks so many are spread: in so many thousandths of their time, as it is printed."""
    return 1000 / round(1000 * max(1 / EIGHT, (2 / parts) ** BY_BLOCKS))


def along_lanes(room: float, blocks: Blocks, compiler: Compiler) -> float:
    """Bytes a second of an array that takes so much room, gathered as it was given.

    >>> from shardwise.chips import hardware
    >>> compiler = hardware("tpu-v5e").compiler
    >>> two, eight = (Blocks(tiles="lanes", spread=True, parts=parts) for parts in (2, 8))
    >>> [f"{along_lanes(1e6, each, compiler):.2g}" for each in (two, eight, Blocks(tiles="lanes"))]
    ['6.6e+10', '1.6e+11', '2.2e+11']
    """
    kept, transposed = compiler.kept_bytes.value, compiler.transposed_bytes_per_s.value
    stays = 2 * room <= kept
    if not blocks.spread:
        return transposed if stays else transposed / 2
    if kept and not stays:
        return FAR * compiler.transposes(room)
    small = not kept or room <= SMALL * min(blocks.parts, MANY)
    return compiler.spread_bytes_per_s.value * faster(blocks.parts) / (1 if small else 2)
