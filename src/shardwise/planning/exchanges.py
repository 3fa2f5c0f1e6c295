"""What an all-to-all of whole tiles copies on TPUs: by the dimensions that it joins and cuts, and by what stands around it.

A device's blocks have to lie one after the other in memory to be sent, and those that it receives are put side by side. Where
the rows of a matmul or of another collective can do that by themselves, compilers copy nothing for it.

Read off 552 compiled all-to-alls: of matrices and of three dimensions, alone, of what a matmul made, and for one to read, of 4
to 537 MB a device, on five chips (libtpu 0.0.50).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never

# Where a dimension lies in memory: the one that runs fastest is along a tile's lanes, the next along its rows.
Place = Literal["outer", "rows", "lanes"]
# What an all-to-all takes and makes: a program's input and its result; or a matmul makes what it takes, or reads what it makes.
Around = Literal["alone", "made", "read"]


class Copies(NamedTuple):
    """How often all of a shard is copied: as it is, so that another dimension runs fastest, or with its blocks spread."""

    plain: int = 0
    transposed: int = 0
    spread: int = 0


def copies_of(joined: Place, cut: Place, deep: bool, narrow: bool, around: Around) -> Copies:
    """What an all-to-all copies that joins its blocks along one dimension and cuts them along another.

    >>> [copies_of("lanes", "rows", deep=False, narrow=False, around=each) for each in ("alone", "made")]
    [Copies(plain=0, transposed=2, spread=0), Copies(plain=1, transposed=0, spread=0)]

    Args:
        deep: whether dimensions of more than one element lie before the last two.
        narrow: whether a block's rows would not fill tiles as lanes: then no compiler transposes a matrix.
    """
    key = joined, cut, deep
    alone, made, read = _COPIES_OF_NARROW[key] if narrow and key in _COPIES_OF_NARROW else _COPIES[key]
    match around:
        case "alone":
            return alone
        case "made":
            return made
        case "read":
            return read
        case _:
            assert_never(around)


_Each = tuple[Copies, Copies, Copies]  # alone, made, read
_ONE, _TWO, _TRANSPOSED_TWICE, _SPREAD = Copies(1), Copies(2), Copies(0, 2), Copies(0, 0, 1)
_COPIES: dict[tuple[Place, Place, bool], _Each] = {
    ("rows", "lanes", False): (_TWO, _TWO, _TRANSPOSED_TWICE),
    ("lanes", "rows", False): (_TRANSPOSED_TWICE, _ONE, Copies(0, 1)),
    ("outer", "rows", True): (_TWO, _TWO, _ONE),
    ("outer", "lanes", True): (_TWO, _TWO, _ONE),
    ("rows", "outer", True): (_ONE, _ONE, _ONE),
    ("lanes", "outer", True): (_SPREAD, _ONE, _SPREAD),
    ("rows", "lanes", True): (_TRANSPOSED_TWICE, _TRANSPOSED_TWICE, _TRANSPOSED_TWICE),
    ("lanes", "rows", True): (Copies(1, 0, 1), _SPREAD, Copies(1, 0, 1)),
    ("outer", "outer", True): (_ONE, _ONE, _ONE),
    # Of an outer dimension of one element before, or after:
    ("outer", "rows", False): (_ONE, _ONE, _ONE),
    ("outer", "lanes", False): (_TRANSPOSED_TWICE, _ONE, Copies(0, 1)),
    ("rows", "outer", False): (_ONE, _ONE, _ONE),
    ("lanes", "outer", False): (_ONE, _ONE, _ONE),
    ("outer", "outer", False): (_ONE, _ONE, _ONE),
}
_COPIES_OF_NARROW: dict[tuple[Place, Place, bool], _Each] = {
    ("rows", "lanes", False): (_TWO, _TWO, _ONE),
    ("lanes", "rows", False): (_ONE, _ONE, _ONE),
    ("lanes", "rows", True): (Copies(1, 0, 1), Copies(1, 0, 1), Copies(1, 0, 1)),
}
