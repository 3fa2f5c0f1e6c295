"""How arrays lie in .npz files: members that are stored are mapped, compressed ones stream by, part by part."""

from __future__ import annotations

import math
import os
import struct
import threading
import weakref
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from shardwise.errors import FileError, quoted
from shardwise.runtime.formats import (
    SAVE_AGAIN,
    Block,
    Box,
    Index,
    Opened,
    box_of,
    check_possible,
    choose,
    listed,
    mapped,
    read_header,
    size_bytes,
    slices,
    truncated,
)

BUFFER_BYTES = 1 << 20  # of a stream that are in memory at a time, beside the part that is read
# Deflate writes at least one bit for every 129 bytes: a pair of codes of one bit for a match of 258.
MOST_DEFLATED = 1032


def open_npz(path: Path, member: str | None) -> Opened:
    """An array of an .npz; no value is read yet."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entry = _entry(archive, member)
            _check_sizes(entry)
            with archive.open(entry) as opened:
                block = read_header(opened, entry.file_size)
            if entry.compress_type == zipfile.ZIP_STORED:
                return mapped(file, _in_file(file, entry, block))
            check_possible(block.shape)
            # Kept open: a file that replaces this one later is not mixed in.
            return block.shape, block.native, _Streamed(path, os.fdopen(os.dup(file.fileno()), "rb"), entry, block).read
    except (FileError, OSError, MemoryError):
        raise
    except Exception as error:  # what zipfile and its decompressors raise on nonsense is not listed
        _refuse_zip(path, error)


def _entry(archive: zipfile.ZipFile, member: str | None) -> zipfile.ZipInfo:
    entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
    if not entries and archive.infolist():
        holds = listed(archive.namelist(), 5)
        raise FileError(f"this zip is no .npz: none of its members is an .npy file ({holds}); use np.savez")
    names = Counter(entry.filename.removesuffix(".npy") for entry in entries)
    name = choose(member, list(names))
    if names[name] > 1:
        twins = f"the file holds {names[name]} arrays named {quoted(name)}"
        raise FileError(f"{twins}, and nothing says which is meant; {SAVE_AGAIN}")
    return next(entry for entry in entries if entry.filename.removesuffix(".npy") == name)


def _check_sizes(entry: zipfile.ZipInfo) -> None:
    """Refuse a member that cannot have the length that the directory gives."""
    stored, deflated = entry.compress_type == zipfile.ZIP_STORED, entry.compress_type == zipfile.ZIP_DEFLATED
    too_long = deflated and entry.file_size > MOST_DEFLATED * (entry.compress_size + 1)
    if too_long or (stored and entry.file_size != entry.compress_size):
        why = f"it gives {entry.file_size:,} bytes for {entry.compress_size:,} in the file"
        raise FileError(f"the archive is corrupt ({why}); {SAVE_AGAIN}")


def _in_file(file: IO[bytes], entry: zipfile.ZipInfo, block: Block) -> Block:
    """A block of an uncompressed member as a block of the whole file.

    Before a member's data stand 30 bytes, its name and an extra field; the lengths of both are in bytes 26 to 29
    (APPNOTE 6.3.10, section 4.3.7). The directory's copy of the extra field may have another length.
    """
    file.seek(entry.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    start = entry.header_offset + 30 + name_bytes + extra_bytes
    found = Block(block.shape, block.dtype, block.order, start + block.offset)
    if found.end > size_bytes(file):
        raise FileError(truncated(listed([entry.filename]), found.end, size_bytes(file)))
    return found


@dataclass(eq=False)
class _Streamed:
    """A compressed member, of which only the part that is asked for is kept while the rest streams by.

    A stream goes forward alone: parts that are asked for in the order of the file cost one pass together, any other one
    begins anew. The first read goes on to the end, where the checksum is compared.
    """

    path: Path
    file: IO[bytes]
    entry: zipfile.ZipInfo
    block: Block
    stream: IO[bytes] | None = None
    at: int = 0  # bytes of the member that have streamed by
    checked: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    def read(self, index: Index) -> np.ndarray:
        block = self.block
        box = box_of(index, block.shape)
        part = np.empty([end - begin for begin, end in box], block.native)
        with self.lock:
            try:
                # In Fortran order the last dimension is the slowest in the file, as the first one is in C order.
                if block.order == "F":
                    self.fill(part.T, block.shape[::-1], box[::-1], block.offset)
                else:
                    self.fill(part, block.shape, box, block.offset)
                if not self.checked:
                    self.pass_by(self.entry.file_size)
                    self.checked = True
            except (FileError, OSError, MemoryError):
                raise
            except Exception as error:  # what zipfile and its decompressors raise on nonsense is not listed
                self.stream = None
                _refuse_zip(self.path, error)
        return part

    def fill(self, part: np.ndarray, shape: tuple[int, ...], box: Box, offset: int) -> None:
        """Fill a part of an array in C order that begins at an offset, some rows at a time."""
        if part.size == 0:
            return
        row_bytes = math.prod(shape[1:]) * self.block.dtype.itemsize
        if not shape:
            part[...] = np.frombuffer(self.bytes_at(offset, row_bytes), self.block.dtype)[0]
        elif row_bytes > BUFFER_BYTES:
            for place in range(*box[0]):
                self.fill(part[place - box[0][0]], shape[1:], box[1:], offset + place * row_bytes)
        else:
            for begin, end in _pieces(*box[0], BUFFER_BYTES // row_bytes):
                rows = np.frombuffer(self.bytes_at(offset + begin * row_bytes, (end - begin) * row_bytes), self.block.dtype)
                rows = rows.reshape(end - begin, *shape[1:])
                part[begin - box[0][0] : end - box[0][0]] = rows[:, *slices(box[1:])]

    def bytes_at(self, offset: int, count: int) -> bytes:
        if self.stream is None or offset < self.at:
            self.begin()
        self.pass_by(offset)
        return self.take(count)

    def begin(self) -> None:
        with zipfile.ZipFile(self.file) as archive:
            self.stream, self.at = archive.open(self.entry), 0

    def pass_by(self, offset: int) -> None:
        """Let all before an offset stream by."""
        if self.stream is None:
            self.begin()
        while self.at < offset:
            self.take(min(BUFFER_BYTES, offset - self.at))

    def take(self, count: int) -> bytes:
        assert self.stream is not None
        taken = self.stream.read(count)
        self.at += len(taken)
        if len(taken) < count:
            raise EOFError(f"{self.at:,} of {self.entry.file_size:,} bytes are there")
        return taken


def _pieces(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    for start in range(begin, end, most):
        yield start, min(start + most, end)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _refuse_zip(path: Path, error: Exception) -> NoReturn:
    if zipfile.is_zipfile(path):
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        why = f"the archive is corrupt, or uses what is not supported ({reason}); {SAVE_AGAIN}"
    elif _beginning(path) == b"PK\x03\x04":
        why = f"the file is truncated: the directory at the end of an .npz is missing; {SAVE_AGAIN}"
    else:
        why = "this is no .npz, which is a zip archive; give it the suffix of its format"
    raise FileError(why) from None
