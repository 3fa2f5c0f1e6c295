"""What an all-to-all of whole tiles copies on TPUs: by the dimensions that it joins and cuts, and by what stands around it.

A device's blocks have to lie one after the other in memory to be sent, and those that it receives are put side by side. Where
the rows of a matmul or of another collective can do that by themselves, compilers copy nothing for it.

Read off 360 compiled all-to-alls: of matrices and of three dimensions, alone, of what a matmul made, and for one to read, of 8
to 537 MB a device, on five chips (libtpu 0.0.50).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# Where a dimension lies in memory: the one that runs fastest is along a tile's lanes, the next along its rows.
Place = Literal["outer", "rows", "lanes"]
# What an all-to-all takes and makes: a program's input and its result; or a matmul makes what it takes, or reads what it makes.
Around = Literal["alone", "made", "read", "within"]


class Copies(NamedTuple):
    """How often all of a shard is copied, and how often so that another dimension runs fastest."""

    plain: int = 0
    transposed: int = 0


def copies_of(joined: Place, cut: Place, deep: bool, around: Around) -> Copies:
    """What an all-to-all copies that joins its blocks along one dimension and cuts them along another.

    >>> copies_of("lanes", "rows", deep=False, around="alone"), copies_of("lanes", "rows", deep=False, around="made")
    (Copies(plain=0, transposed=2), Copies(plain=1, transposed=0))

    Args:
        deep: whether dimensions of more than one element lie before the last two.
        around: `within` other collectives it takes as little as what one side saves.
    """
    alone, made, read = _COPIES[joined, cut, deep]
    match around:
        case "alone":
            return alone
        case "made":
            return made
        case "read":
            return read
        case "within":
            return min(made, read, key=lambda copies: (copies.plain + copies.transposed, copies.transposed))


_COPIES: dict[tuple[Place, Place, bool], tuple[Copies, Copies, Copies]] = {  # alone, made, read
    ("rows", "lanes", False): (Copies(2), Copies(2), Copies(0, 2)),
    ("lanes", "rows", False): (Copies(0, 2), Copies(1), Copies(0, 1)),
    ("outer", "rows", True): (Copies(2), Copies(2), Copies(1)),
    ("outer", "lanes", True): (Copies(2), Copies(2), Copies(1)),
    ("rows", "outer", True): (Copies(1), Copies(1), Copies(1)),
    ("lanes", "outer", True): (Copies(0, 1), Copies(1), Copies(0, 1)),
    ("rows", "lanes", True): (Copies(0, 2), Copies(0, 2), Copies(0, 2)),
    ("lanes", "rows", True): (Copies(1, 1), Copies(0, 1), Copies(1, 1)),
    ("outer", "outer", True): (Copies(1), Copies(1), Copies(1)),
    # Of an outer dimension of one element before, or after:
    ("outer", "rows", False): (Copies(1), Copies(1), Copies(1)),
    ("outer", "lanes", False): (Copies(0, 2), Copies(1), Copies(0, 1)),
    ("rows", "outer", False): (Copies(1), Copies(1), Copies(1)),
    ("lanes", "outer", False): (Copies(1), Copies(1), Copies(1)),
    ("outer", "outer", False): (Copies(1), Copies(1), Copies(1)),
}
