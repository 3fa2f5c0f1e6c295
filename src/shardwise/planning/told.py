"""What TPU compilers are told of a collective: of its blocks as a dimension of their own, or that it is a sum, or nothing.

The runtime and the printed code tell them the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from shardwise.chips import Hardware
from shardwise.planning.tiles import blocks_of

# As JAX has it along a dimension; of blocks along a new first one; a vector as rows of tiles; as a sum of which a block is cut;
# or an all-to-all that joins one row.
Form = Literal["tiled", "blocks", "rows", "sum", "one"]


def scatter_form(shape: Sequence[int], at: int, n: int, item_bytes: int, chip: Hardware | None) -> Form:
    """How a reduce-scatter along a dimension is told to the compiler of a chip; None is a TPU that no catalogue has.

    >>> scatter_form((512, 640), 1, 5, 2, None), scatter_form((512, 640), 0, 4, 2, None)
    ('blocks', 'tiled')
    """
    cores = 1 if chip is None else chip.devices_per_chip
    after = (*shape[:at], shape[at] // n, *shape[at + 1 :])
    blocks = blocks_of("reduce-scatter", (at, at), shape, after, item_bytes=item_bytes)
    if blocks.tiles == "rows" and cores == 1:
        return "sum"
    if not blocks.stands_apart(cores):
        return "tiled"
    return "rows" if len(shape) == 1 else "blocks"


def exchange_form(
    shape: Sequence[int], split: int, concat: int, n: int, item_bytes: int, chip: Hardware | None, *, read: bool
) -> Form:  # fmt: skip
    """How an all-to-all is told; `read` says whether a matmul reads what it makes."""
    if shape[concat] == 1:
        return "one"
    if len(shape) < 3:
        return "tiled"
    if concat == 0:
        return "blocks"
    if chip is None or chip.compiler is None:
        return "tiled"
    after = list(shape)
    after[split], after[concat] = after[split] // n, after[concat] * n
    found = blocks_of("all-to-all", (concat, split), shape, after)
    return "blocks" if found.are_transposed(item_bytes * math.prod(shape), chip.compiler, read) else "tiled"
