"""What an all-to-all of whole tiles copies on TPUs: by the dimensions that it joins and cuts, and by what stands around it.

A device's blocks have to lie one after the other in memory to be sent, and those that it receives are put side by side. Where
the rows of a matmul or of another collective can do that by themselves, compilers copy nothing for it.

Read off 552 compiled all-to-alls: of matrices and of three dimensions, alone, of what a matmul made, and for one to read, of 4
to 537 MB a device, on five chips (libtpu 0.0.50).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never

from shardwise.chips import Compiler

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


def ragged_copies(deep: bool, around: Around) -> tuple[float, float]:
    """How often an all-to-all copies a shard whose blocks end within a tile: as it is, and so that another runs fastest.

    Medians of 264 compiled ones on five chips, which lie apart by up to three times: of three dimensions all are transposed; a
    matmul that reads a matrix takes most as they come.

    >>> ragged_copies(deep=False, around="read"), ragged_copies(deep=False, around="made")
    ((1.0, 0.0), (0.0, 1.8))
    """
    if around != "read":
        return 0.0, 1.8
    return (0.0, 2.8) if deep else (1.0, 0.0)


def are_transposed(
    joined: Place, cut: Place, deep: bool, narrow: bool, parts: int, as_written: bool, array_bytes: float,
    compiler: Compiler, read: bool,
) -> bool:  # fmt: skip
    """Whether an all-to-all is told of its blocks as a dimension of their own, so that they are transposed, and not spread.

    What is joined along the lanes and cut along another dimension of three arrives in blocks that the compilers spread over
    memory. Transposing them is faster where a matmul reads the result, where they are two, or narrow rows, and on a chip that
    transposes about as fast as it copies. Of 250 compiled ones of 1 to 134 MB on five chips, alone and beside a matmul, those
    that are told so are 1.3 times as fast in the median, at most 3.5 times, the slowest 0.91.

    What is joined along the rows and cut along the lanes is transposed twice else. Of 67 random ones told so 47 are up to 4.6
    times as fast, 1.23 in the geometric mean, the slowest 0.69. Not told are those that memory holds as they are written, on
    chips that transpose about as fast as they copy, and what a matmul reads from the chip's own memory.

    Args:
        as_written: whether memory holds the dimensions in their order.
        read: whether a matmul reads what it makes.
    """
    speed = compiler.copied_bytes_per_s.value / ABOUT
    match joined, cut:
        case ("lanes", "rows" | "outer") if deep:
            return read or parts == 2 or (narrow and cut == "rows") or compiler.transposes(array_bytes) >= speed
        case ("rows", "lanes") if deep and as_written:
            return compiler.transposes(0.0) < speed
        case ("rows", "lanes") if deep:
            return not (read and ROOM * array_bytes <= compiler.kept_bytes.value)
        case _:
            return False


def transposed_copies(cut: Place, narrow: bool, kept: bool, around: Around) -> Copies:
    """What an all-to-all copies that is told of its blocks; `kept` says whether the chip's own memory has room for them.

    >>> transposed_copies("outer", narrow=False, kept=False, around="alone")
    Copies(plain=1, transposed=1, spread=0)
    """
    if around == "read":
        return Copies(1) if cut == "outer" else Copies(1, 1)
    if cut == "outer":
        return Copies(0 if kept else 1, 1) if around == "alone" else Copies(1)
    if around == "alone":
        return Copies(1, 1) if narrow else Copies(0 if kept else 1, 2)
    return Copies(1, 1 if narrow else 2)


ROOM = 4.0  # times its size: what a matmul reads from the chip's own memory, in place
ABOUT = 1.5  # times as fast copies are at most on a chip that transposes about as fast: v5p and v7x copy 1.7 and 2.3 times so
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
