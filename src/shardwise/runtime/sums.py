"""Checksums beside an array's file, of each part that was written: a part that has changed since is refused when it is read."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise import writing
from shardwise.errors import FileError, one_line
from shardwise.runtime.formats import PIECE_BYTES, Box, Index, box_of, shown, slices

ENDING = ".sums"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Sums:
    """The parts of an array and the CRC-32 of each, over its values in C order and the byte order of the file's host."""

    member: str | None
    shape: tuple[int, ...]
    dtype: str
    parts: tuple[tuple[Box, int], ...]


def beside(target: Path) -> Path:
    """The file of the checksums of another.

    >>> beside(Path("c.npy")).name
    'c.npy.sums'
    """
    return target.with_name(target.name + ENDING)


def sum_of(part: np.ndarray) -> int:
    """The checksum of a part.

    >>> sum_of(np.arange(3, dtype=np.int32)) == zlib.crc32(np.arange(3, dtype=np.int32).tobytes())
    True
    """
    found = 0
    for piece in _pieces(box_of((slice(None),) * part.ndim, part.shape), part.dtype.itemsize):
        found = zlib.crc32(np.ascontiguousarray(part[slices(piece)]).reshape(-1).view(np.uint8).data, found)
    return found


def write_sums(target: Path, sums: Sums) -> None:
    """Write the checksums of a file beside it."""
    parts = [{"part": box, "crc32": crc} for box, crc in sums.parts]
    said = {"version": VERSION, "member": sums.member, "shape": sums.shape, "dtype": sums.dtype, "parts": parts}
    writing.write(beside(target), json.dumps(said, indent=1) + "\n")


def drop_sums(target: Path) -> None:
    """Remove the checksums of a file, which is about to be another."""
    beside(target).unlink(missing_ok=True)


def read_sums(target: Path) -> Sums | None:
    """The checksums of a file; None where none were written.

    Raises:
        FileError: they are damaged.
    """
    path = beside(target)
    if not path.is_file():
        return None
    try:
        said = json.loads(writing.read(path))
        parts = tuple((tuple((int(a), int(b)) for a, b in each["part"]), int(each["crc32"])) for each in said["parts"])
        return Sums(said["member"], tuple(said["shape"]), said["dtype"], parts)
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise FileError(f"its checksums, {one_line(path.name)}, are damaged; {_way_out(path)}") from None


def checked(read: Callable[[Index], np.ndarray], sums: Sums, target: Path) -> Callable[[Index], np.ndarray]:
    """Read as before, each part that a slice touches held against its checksum the first time."""
    known: set[Box] = set()

    def check(index: Index) -> np.ndarray:
        wanted = box_of(index, sums.shape)
        for box, crc in sums.parts:
            if box not in known and _meet(box, wanted):
                if _sum_read(read, box, np.dtype(sums.dtype).itemsize) != crc:
                    raise FileError(
                        f"the part {shown(box)} is corrupt: it has another checksum than when it was written; "
                        f"{_way_out(beside(target))}"
                    )
                known.add(box)
        return read(index)

    return check


def _way_out(path: Path) -> str:
    return f"write it again, or copy it again; if it was replaced on purpose, remove {one_line(path.name)}"


def _meet(one: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


def _sum_read(read: Callable[[Index], np.ndarray], box: Box, item_bytes: int) -> int:
    found = 0
    for piece in _pieces(box, item_bytes):
        found = zlib.crc32(read(slices(piece)).reshape(-1).view(np.uint8).data, found)
    return found


def _pieces(box: Box, item_bytes: int) -> Iterator[Box]:
    """A part as rows along its first dimension, of which some are in memory at a time."""
    if not box:
        yield box
        return
    (begin, end), *rest = box
    rows = max(1, PIECE_BYTES // max(1, item_bytes * math.prod(b - a for a, b in rest)))
    for start in range(begin, end, rows):
        yield ((start, min(start + rows, end)), *rest)
