"""Arrays in files, read and written part by part, so that each device needs only its shard."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from shardwise import writing
from shardwise.errors import FileError, MissingExtraError, did_you_mean, one_line
from shardwise.runtime.archives import open_npz
from shardwise.runtime.formats import (
    CODES,
    SAVE_AGAIN,
    Box,
    Index,
    box_of,
    check_numeric,
    listed,
    new_safetensors,
    one_of,
    open_npy,
    open_safetensors,
    reserve,
    shown,
    slices,
)
from shardwise.runtime.sums import checked, drop_sums, read_sums
from shardwise.runtime.zarr_arrays import is_zarr, open_zarr

READ = (".npy", ".npz", ".safetensors")
WRITTEN = (".npy", ".safetensors")


@dataclass(frozen=True, slots=True)
class Source:
    """An array in a file: its shape and dtype are known, its values are read part by part.

    `read` takes one slice with step 1 for each dimension and gives that part as a new array in memory, in native byte
    order and C-contiguous. The file stays open as it was, so that one that replaces it later is not mixed in.
    """

    name: str  # as the user wrote it
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray] = field(repr=False)


def open_source(text: str | os.PathLike[str]) -> Source:
    """Open an array in a file; no value is read yet.

    `"a.npy"`, `"a.npz:name"`, `"a.safetensors:name"`; the name may be left off where a file holds exactly one array. So is a
    folder of Zarr, `"a.zarr"` or `"a.zarr:path/in/group"`, whose chunks that a part touches are read by tensorstore.
    Parts come through memory maps: beside the copy of a part, only the system's cache holds it, which gives it up when
    memory runs short. Nothing is ever unpickled. A compressed member of an .npz streams by, and only the part that is asked
    for is kept. Its checksum is compared at the first read, which goes to its end; those of members that are not
    compressed are not, since they could only be had by reading everything. The length of every array is held against
    the bytes that are there. Where checksums stand beside the file, as `sw.distributed.save` writes them, what a part touches
    is compared with them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/a.npy", np.arange(6.0).reshape(2, 3))
    ...     source = open_source(f"{folder}/a.npy")
    >>> source.shape, source.dtype, source.read((slice(1, 2), slice(0, 2)))
    ((2, 3), dtype('float64'), array([[3., 4.]]))

    Raises:
        FileError: the file is missing, damaged, of another format or not of numbers, or its array unclear.
        MissingExtraError: .safetensors is read with the library safetensors, Zarr with tensorstore, which is not installed.
    """
    name = os.fsdecode(text)
    with _naming(name):
        path, member = split(name)
        _check_file(path)
        match ".zarr" if is_zarr(path) else path.suffix.lower():
            case ".zarr":
                shape, dtype, read = open_zarr(path, member)
            case ".npy":
                shape, dtype, read = open_npy(path, member)
            case ".npz":
                shape, dtype, read = open_npz(path, member)
            case ".safetensors":
                shape, dtype, read = open_safetensors(path, member)
            case suffix:
                raise FileError(f"files that end in {one_line(suffix) or 'nothing'} are not read; {one_of(READ)} are")

    with _naming(name):
        sums = read_sums(path)
        if sums is not None and member in (None, sums.member):
            if (sums.shape, sums.dtype) != (tuple(shape), dtype.name):
                raise FileError(
                    f"it is {dtype.name}{list(shape)}, and {path.name}.sums is of {sums.dtype}{list(sums.shape)}; remove that, "
                    "if the file was replaced on purpose"
                )
            read = checked(read, sums, path)

    def named_read(index: Index) -> np.ndarray:
        with _naming(name):
            return read(index)

    return Source(name, shape, dtype, named_read)


def save(
    path: str | os.PathLike[str],
    shape: Sequence[int],
    dtype: DTypeLike,
    parts: Iterable[tuple[Index, np.ndarray]],
) -> None:
    """Write an array to an .npy or .safetensors file part by part, of which one at a time need be in memory.

    The parts go to a file beside the target, which replaces it at the end (`writing.replacing`): a failure leaves no
    half-written file, and an older one as it was. Parts may repeat or overlap, and must fill the array. In
    `"c.safetensors:name"` the array gets that name, and else that of the file. bfloat16 needs .safetensors: the format of
    .npy has no name for it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = [((slice(i, i + 1), slice(0, 3)), np.full((1, 3), i)) for i in range(2)]
    ...     save(f"{folder}/c.npy", (2, 3), int, rows)
    ...     np.load(f"{folder}/c.npy")
    array([[0, 0, 0],
           [1, 1, 1]])

    Raises:
        FileError: the format cannot hold the dtype, the folder is missing, the disk is full, or the parts do not
            have the shapes of their places, have another dtype, or leave a gap.
    """
    name, shape, dtype = os.fsdecode(path), tuple(shape), np.dtype(dtype)
    with _naming(name):
        target, member = split(name)
        _check_form(target, member, dtype)
    check_room(name, target, math.prod(shape) * dtype.itemsize)
    with writing.replacing(target) as beside, _naming(name):
        if target.suffix.lower() == ".npy":
            values = np.lib.format.open_memmap(beside, mode="w+", dtype=dtype, shape=shape)
        else:
            values = new_safetensors(beside, member or target.stem, shape, dtype)
        if isinstance(values, np.memmap):
            reserve(beside, values.offset)
        _fill(values, parts)
        if not writing.streams(target):
            drop_sums(target)  # of an older file


def check_target(path: str | os.PathLike[str], shape: Sequence[int], dtype: DTypeLike) -> None:
    """Say early what `save` would say of its target.

    Raises:
        FileError: the format cannot hold the dtype, the folder is missing, or the disk is full.
    """
    name, dtype = os.fsdecode(path), np.dtype(dtype)
    with _naming(name):
        target, member = split(name)
        _check_form(target, member, dtype)
    check_room(name, target, math.prod(shape) * dtype.itemsize)


def check_place(path: str | os.PathLike[str]) -> None:
    """Say early what `save` would say of its target, of which shape and dtype are not known yet.

    Raises:
        FileError: the system refuses it, or its name says no format that is written.
    """
    name = os.fsdecode(path)
    target, _ = split(name)
    writing.check(target if name else "")
    with _naming(name):
        _check_suffix(target)


# Names and files.


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Puts the name that the user wrote before the reason."""
    try:
        yield
    except (FileError, MissingExtraError) as error:
        raise type(error)(f"{one_line(name)}: {error}") from None
    except OSError as error:
        raise FileError(f"{one_line(name)}: {error.strerror or error}; check the file's permissions and its disk") from None


def split(text: str) -> tuple[Path, str | None]:
    """The path and, after a colon, the array's name: the last colon with a file, or one's suffix, before it.

    >>> [member for path, member in map(split, ["a.npz:layer:0", "runs:1/a.npy"])]
    ['layer:0', None]
    """
    colons = [] if os.path.isfile(text) else [i for i, letter in enumerate(text) if letter == ":"]
    for colon in reversed(colons):
        path = Path(text[:colon])
        if os.path.isfile(path) or path.suffix.lower() in (".npz", ".safetensors", ".zarr"):
            return path, text[colon + 1 :]
    return Path(text), None


def _check_file(path: Path) -> None:
    if is_zarr(path):
        return
    if path.is_dir():
        here = sorted(p.name for p in path.iterdir() if p.suffix.lower() in READ)
        raise FileError(f"this is a folder, not a file; name a file in it: {listed(here) or f'none is {one_of(READ)}'}")
    if not path.exists():
        if path.is_symlink():
            raise FileError("this is a link to nothing, or to itself; check where it points")
        raise _missing(path)
    if not path.is_file():
        raise FileError(f"this is no regular file, and cannot be read in parts; copy it to an {one_of(READ)} file")
    if path.stat().st_size == 0:
        raise FileError(f"the file is empty (0 bytes), so nothing was ever written to it; {SAVE_AGAIN}")


def _missing(path: Path) -> FileError:
    """Says which part of a path is the first that does not exist, and what is like it."""
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    if not path.parent.is_dir():
        return FileError("there is no such file; check the path")
    what = "file" if path.suffix.lower() in READ else "file or folder"
    near = did_you_mean(path.name, sorted(p.name for p in path.parent.iterdir()))
    where = one_line(str(path.parent.absolute()))
    return FileError(f"there is no {what} {one_line(path.name)} in {where}{near}; check the path")


# Writing


def _check_suffix(target: Path) -> None:
    suffix = target.suffix.lower()
    if suffix not in WRITTEN:
        raise FileError(f"files that end in {suffix or 'nothing'} are not written; {one_of(WRITTEN)} are")


def _check_form(target: Path, member: str | None, dtype: np.dtype) -> None:
    _check_suffix(target)
    if target.suffix.lower() == ".npy":
        if member is not None:
            raise FileError(f"an .npy file holds one array, which has no name; leave off ':{member}'")
        if dtype.isbuiltin == 2:  # a dtype that another package has added to NumPy's own
            way_out = f"save to {target.stem}.safetensors, or convert to float32 first"
            raise FileError(f"the format of .npy has no name for {dtype.name}; {way_out}")
        check_numeric(dtype)
    elif member == "__metadata__":
        raise FileError("the format of .safetensors keeps the name __metadata__ for itself; choose another")
    elif dtype.newbyteorder("=") not in map(np.dtype, CODES.values()):
        raise FileError(f"the format of .safetensors has no name for {dtype.name}; convert to float32 first")


def check_room(name: str, target: Path, need_bytes: int) -> None:
    writing.check(target)
    passed_on = writing.streams(target)  # from a temporary file
    free_bytes = shutil.disk_usage(tempfile.gettempdir() if passed_on else target.resolve().parent).free
    if need_bytes > free_bytes:
        need = f"the array needs {need_bytes:,} bytes, and the disk has {free_bytes:,} free"
        raise FileError(f"{name}: {need}; choose another disk, or make room")


def _fill(values: np.ndarray, parts: Iterable[tuple[Index, np.ndarray]]) -> None:
    boxes: set[Box] = set()
    dtype = values.dtype.newbyteorder("=")
    for index, part in parts:
        box = box_of(index, values.shape)
        part = np.asarray(part)
        want = tuple(end - begin for begin, end in box)
        if (part.shape, part.dtype.newbyteorder("=")) != (want, dtype):
            place = f"{dtype.name}{list(want)} belongs at {shown(box)}"
            raise FileError(f"{place}, and the part given is {part.dtype.name}{list(part.shape)}; convert it first")
        values[*slices(box), ...] = part
        boxes.add(box)
    _check_filled(boxes, values.shape)
    if isinstance(values, np.memmap):
        values.flush()


def _check_filled(boxes: set[Box], shape: tuple[int, ...]) -> None:
    """Cuts the array wherever a box begins or ends; then each cell is within a box or outside it."""
    cuts = [sorted({0, size, *(cut for box in boxes for cut in box[d])}) for d, size in enumerate(shape)]
    places = [{cut: place for place, cut in enumerate(along)} for along in cuts]
    filled = np.zeros([len(along) - 1 for along in cuts], bool)
    for box in boxes:
        filled[tuple(slice(p[begin], p[end]) for p, (begin, end) in zip(places, box, strict=True))] = True
    if not filled.all():
        cell = np.argwhere(~filled)[0]
        gap = [(along[i], along[i + 1]) for along, i in zip(cuts, cell, strict=True)]
        raise FileError(f"no part given fills {shown(gap)}; give parts for the whole array")
