"""What TPU compilers are told: of a collective's blocks as a dimension of their own, or that it is a sum; of dimensions as one.

The runtime and the printed code tell them the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from shardwise.chips import Hardware
from shardwise.planning.tiles import LANES, SUBLANES, Order, blocks_of, memory_order

# As JAX has it along a dimension, or so of an array that lies in memory as it is written; of blocks along a new first one; a
# vector as rows of tiles; as a sum of which a block is cut; or an all-to-all that joins one row.
Form = Literal["tiled", "in order", "blocks", "rows", "sum", "one"]


def scatter_form(shape: Sequence[int], at: int, n: int, item_bytes: int, chip: Hardware | None) -> Form:
    """How a reduce-scatter along a dimension is told to the compiler of a chip; None is a TPU that no catalogue has.

    Compilers lay some matmuls' results out with their rows along the lanes. Where a block ends within the lanes of a tile then,
    the scatter becomes an all-reduce: of 115 random matrices told to lie as they are written eight are up to twice as fast,
    and none is slower. Not so where rows do not fill their tiles (up to 1.6 times as slow), or of three dimensions.

    >>> scatter_form((512, 640), 1, 5, 2, None), scatter_form((512, 640), 0, 4, 2, None)
    ('blocks', 'tiled')
    >>> scatter_form((768, 640), 0, 4, 2, None)
    'in order'
    """
    cores = 1 if chip is None else chip.devices_per_chip
    after = (*shape[:at], shape[at] // n, *shape[at + 1 :])
    blocks = blocks_of("reduce-scatter", (at, at), tuple(shape), after, item_bytes=item_bytes)
    if blocks.tiles == "rows" and cores == 1:
        return "sum"
    if not blocks.stands_apart(cores):
        ends_within = len(shape) == 2 and at == 0 and shape[1] % LANES == 0 and after[0] % LANES > 0
        return "in order" if ends_within else "tiled"
    return "rows" if len(shape) == 1 else "blocks"


def exchange_form(
    shape: Sequence[int], split: int, concat: int, n: int, item_bytes: int, chip: Hardware | None, *, read: bool
) -> Form:  # fmt: skip
    """How an all-to-all is told; `read` says whether a matmul reads what it makes."""
    if shape[concat] == 1:
        return "one"
    if len(shape) < 3:
        return "tiled"
    if chip is None or chip.compiler is None:
        return "blocks" if concat == 0 else "tiled"
    after = list(shape)
    after[split], after[concat] = after[split] // n, after[concat] * n
    array_bytes = item_bytes * math.prod(shape)
    found = blocks_of("all-to-all", (concat, split), tuple(shape), tuple(after), memory_order(tuple(shape)))
    if found.joins != "lanes" and chip.devices_per_chip > 1 and array_bytes > chip.compiler.near_bytes.value:
        return "tiled"  # its sparse cores lay them out
    return "blocks" if concat == 0 or found.are_transposed(array_bytes, chip.compiler, read) else "tiled"


def result_order(shape: Sequence[int]) -> Order:
    """In which order a result's dimensions lie in memory: what a matmul writes there is told to be made in it.

    Compilers make some in another one, and transpose it at last. Of 137 random programs that end in a matmul four are up to
    1.54 times as fast so, and two, on v7x, 0.90, where the timeline counts nothing for what sparse cores transpose; one more
    was 2.9 times as fast. Of 95 gathering rings ten are up to 1.7 times as fast, and the slowest 0.98; of 81 on v6e and v7x
    whose sums are told so 34 are up to 1.98 times as fast, and two 0.85 and 0.91.

    >>> result_order((4096, 170))
    (1, 0)
    """
    return memory_order(tuple(shape))


def operand_orders(terms: Sequence[Sequence[Any]], shapes: Sequence[Sequence[int]], along: Any) -> list[Order | None]:
    """In which order operands that a ring cuts `along` a dimension are told to lie in memory; None where it is not told.

    Compilers want operands of three dimensions in another order at times, and transpose one whole, for every part at worst.
    Told to lie as they do, of 45 random scattering rings of batched matmuls 17 are faster, up to 4.7 times, and none is slower;
    of 71 other random rings that scatter or gather ten, up to 5.8 times, and two slower, by 20% and 27%. What pipelined gathers
    multiply is not told: of 28 two are up to 1.7 times as fast, and six up to 2.4 times as slow. Where a ring cuts along a
    first dimension that lies in the rows or lanes of tiles, every part is copied: of 14 random rings whose operand is
    transposed once, before, 12 are faster, up to 2.8 times, and the slowest takes 1.01 times as long.

    >>> operand_orders(["bij", "bjk"], [(8, 512, 1000), (8, 1000, 256)], "i")
    [(0, 2, 1), (0, 1, 2)]
    >>> operand_orders(["bij", "jk"], [(8, 42, 1024), (1024, 256)], "k")
    [(1, 0, 2), None]
    >>> operand_orders(["bij", "jk"], [(8, 42, 1024), (1024, 256)], "b")
    [(0, 1, 2), None]
    """
    return [_told_order(term, shape, along) if len(shape) > 2 else None for term, shape in zip(terms, shapes, strict=True)]


def _told_order(term: Sequence[Any], shape: Sequence[int], along: Any) -> Order:
    order, rank = memory_order(tuple(shape)), len(shape)
    in_tiles = any(term[place] == along and place < rank - 2 for place in order[-2:])
    return tuple(range(rank)) if in_tiles else order


def summed_as_one(
    terms: Sequence[Sequence[Any]], out: Sequence[Any], shapes: Sequence[Sequence[int]]
) -> tuple[tuple[Any, ...], ...]:
    """The dimensions that a matmul sums, by runs of which all its operands hold all or none side by side, in one order.

    Each run is one dimension where that copies nothing: operands lie in memory as they are written, and rows fill tiles. A ring
    that cuts what holds it is told of it as one: of several the compiler makes a convolution, for which it transposes an
    operand as a whole, for one part after the other. Of 180 scattering rings of random shapes that sum two
    dimensions the 58 told so are 1.23 times as fast in the geometric mean, at most 4.5, the slowest 0.98.

    >>> summed_as_one(["bij", "bik"], "jk", [(8, 512, 1024), (8, 512, 256)])
    (('b', 'i'),)
    >>> summed_as_one(["bij", "bik"], "jk", [(8, 508, 1024), (8, 508, 256)])
    ()
    """
    found: list[tuple[Any, ...]] = []
    for term in terms:
        for dim in term:
            shared = sum(dim in each for each in terms) > 1
            if not shared or dim in out or any(dim in run for run in found):
                continue
            run = [dim]
            while (after := _after(run[-1], terms)) not in (None, *out) and _is_free(run[-1], after, terms, shapes):
                run.append(after)
            if len(run) > 1:
                found.append(tuple(run))
    return tuple(found)


def _after(dim: Any, terms: Sequence[Sequence[Any]]) -> Any | None:
    """What follows a dimension in all operands that have it; None where that differs, or nothing does in one."""
    follows = {term[term.index(dim) + 1] if dim != term[-1] else None for term in terms if dim in term}
    return follows.pop() if len(follows) == 1 else None


def _is_free(dim: Any, after: Any, terms: Sequence[Sequence[Any]], shapes: Sequence[Sequence[int]]) -> bool:
    """Whether operands take two dimensions as one without a copy."""
    for term, shape in zip(terms, shapes, strict=True):
        if (dim in term) != (after in term):
            return False
        if dim in term:
            place = term.index(after)
            fills = place < len(term) - 2 or (place == len(term) - 2 and shape[place] % SUBLANES == 0)
            if not fills or memory_order(tuple(shape)) != tuple(range(len(shape))):
                return False
    return True
