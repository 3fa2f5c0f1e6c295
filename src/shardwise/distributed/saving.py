"""`sw.distributed.save`: every process writes its own shards into one file, which appears whole, with checksums, or not at all.

The processes must see one file system. Parts go to a file beside the target; what is on the disk is noted, so that a save that
was interrupted goes on where it was. Then process 0 puts the file in its place.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import writing
from shardwise.distributed import reporting
from shardwise.distributed.preflights import compared, digest, meet
from shardwise.errors import ArrayError, FileError, one_line
from shardwise.runtime import files
from shardwise.runtime.formats import Box, box_of, new_safetensors, reserve, slices
from shardwise.runtime.padding import true_shape
from shardwise.runtime.sums import Sums, drop_sums, sum_of, write_sums
from shardwise.runtime.zarr_arrays import is_zarr, new_zarr, require_tensorstore, zarr_to_fill

ENDING = ".shardwise-part"


@dataclass(frozen=True, slots=True)
class Saved:
    """What this process did of a save: how many of its parts it wrote, and how many an interrupted save had written already."""

    path: str
    written: int
    found: int


def save(array: Any, path: str | Path) -> Saved:
    """Write an array to an .npy or .safetensors file, or a folder of Zarr, and its checksums beside it.

    Every process that holds a part calls it.

    Each part is written by one of the processes that hold it, straight from its device's memory. The file takes its place at
    the end, once every process has written: a failure leaves no half-written file, and an older one as it was. After a
    failure the same call goes on: parts that are on the disk, with the same values, are not written again. `sw.put` compares
    what it reads with the checksums.

    >>> import numpy as np, tempfile, shardwise as sw
    >>> a = sw.put(np.arange(8.0, dtype=np.float32), "A[I_x]", "x=4")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = save(a, f"{folder}/a.npy")
    ...     saved.written, np.load(f"{folder}/a.npy").tolist(), sorted(os.listdir(folder))
    (4, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], ['a.npy', 'a.npy.sums'])

    Args:
        array: a JAX array; zeros of padding are left off.
        path: `"a.npy"`, `"a.safetensors"`, `"a.safetensors:name"` or `"a.zarr"`, whose chunks are the shards; in all processes
            the same, on a file system that all see.

    Raises:
        FileError: a process cannot write, the disk is full, or the format cannot hold the dtype; in all processes.
        DistributedError: the processes save different arrays, or one does not come.
        ArrayError: the array is partial sums.
        MissingExtraError: Zarr is written with tensorstore, which is not installed.
    """
    import jax

    if not isinstance(array, jax.Array):
        raise ArrayError(f"a {type(array).__name__} is no JAX array: place it with sw.put, or save it with np.save")
    if getattr(getattr(array.sharding, "spec", None), "unreduced", None):
        raise ArrayError("the array is partial sums, of which no file can hold all: move it first, with sw.reshard")
    if Path(os.fsdecode(path)).suffix.lower() == ".zarr":
        require_tensorstore("writing")
    chunk = array.sharding.shard_shape(array.shape)
    what = _Save(os.fsdecode(path), tuple(true_shape(array)), np.dtype(array.dtype), chunk)
    processes = tuple(sorted({device.process_index for device in array.sharding.device_set}))
    reporting.now_doing(f"saving {what.name}")
    _stage(what, processes, json.dumps({"path": what.name, "shape": str(what.shape), "dtype": what.dtype.name}), compared)
    first = jax.process_index() == processes[0]
    _stage(what, processes, _error(lambda: _begin(what)) if first else "")
    saved: list[Saved] = []
    _stage(what, processes, _error(lambda: saved.append(_write_own(what, array, jax.process_index()))))
    _stage(what, processes, _error(lambda: _finish(what, processes)) if first else "")
    return saved[0]


@dataclass(frozen=True, slots=True)
class _Save:
    """What is saved: where the user said, and with which shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: tuple[int, ...]

    @property
    def is_zarr(self) -> bool:
        return self.target.suffix.lower() == ".zarr"

    @property
    def target(self) -> Path:
        return Path(os.path.realpath(files.split(self.name)[0]))

    @property
    def member(self) -> str | None:
        return files.split(self.name)[1]

    @property
    def array(self) -> str | None:
        """The name that the array has in the file; .npy has none."""
        return None if self.target.suffix.lower() in (".npy", ".zarr") else self.member or self.target.stem

    @property
    def beside(self) -> Path:
        """The file that is filled; the same for every save of an array like this one to that target."""
        same = digest(f"{self.shape} {self.dtype.name} {self.member} {self.chunk if self.is_zarr else ''}")
        return self.target.with_name(f".{self.target.name}.{same}{ENDING}")

    def note(self, process: int) -> Path:
        """Where a process notes what it has written."""
        return self.beside.with_name(f"{self.beside.name}.{process}")


def _stage(what: _Save, processes: tuple[int, ...], told: str, compare: Callable[[dict[int, str]], str] | None = None) -> None:
    """Meet after a stage; where one process has failed, all do."""
    verdict = meet(f"saving {what.name}", told, processes, compare or _first_error)
    if verdict and compare is None:
        raise FileError(verdict)


def _first_error(told: dict[int, str]) -> str:
    return next((f"{text} (process {process})" if len(told) > 1 else text for process, text in told.items() if text), "")


def _error(act: Callable[[], object]) -> str:
    """Why an act failed; nothing where it did not."""
    try:
        act()
    except FileError as error:
        return str(error)
    except OSError as error:
        named = f"{one_line(os.fsdecode(error.filename))}: " if error.filename else ""
        return f"{named}{error.strerror or error}; make room, or name a file on another disk that every process may write"
    return ""


def _begin(what: _Save) -> None:
    """Have the file that is filled, with its room on the disk."""
    if what.is_zarr:
        if what.member is not None:
            raise FileError(f"{one_line(what.name)}: one array is written to a folder of Zarr: name the folder alone")
        if what.target.exists() and not is_zarr(what.target):
            raise FileError(f"{one_line(what.name)}: this is there, and no folder of Zarr: name another")
        files.check_room(what.name, what.note(0), math.prod(what.shape) * what.dtype.itemsize)
    else:
        files.check_target(what.name, what.shape, what.dtype)
        if writing.streams(what.target):
            raise FileError(f"{one_line(what.name)}: a pipe or a device takes no parts: name a file")
    if what.beside.exists():
        with contextlib.suppress(OSError, ValueError):
            if what.is_zarr or _values(what).nbytes == math.prod(what.shape) * what.dtype.itemsize:
                return  # of a save that was interrupted
    _sweep(what)
    if what.is_zarr:
        new_zarr(what.beside, what.shape, what.dtype, what.chunk)
        return
    if what.target.suffix.lower() == ".npy":
        values = np.lib.format.open_memmap(what.beside, mode="w+", dtype=what.dtype, shape=what.shape)
    else:
        values = new_safetensors(what.beside, what.array or "", what.shape, what.dtype)
    assert isinstance(values, np.memmap)
    try:
        reserve(what.beside, values.offset)
    except OSError:
        _sweep(what)
        raise


def _values(what: _Save) -> Any:
    """The file that is filled, as a map; or the folder of Zarr."""
    if what.is_zarr:
        return zarr_to_fill(what.beside)
    if what.target.suffix.lower() == ".npy":
        return np.lib.format.open_memmap(what.beside, mode="r+")
    with what.beside.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
    return np.memmap(what.beside, what.dtype.newbyteorder("<"), "r+", 8 + length, what.shape)


def _write_own(what: _Save, array: Any, process: int) -> Saved:
    """Write this process's parts that are not on the disk yet, and note them."""
    if not what.beside.exists():
        raise FileError(f"{one_line(what.name)}: this process does not see the file that process 0 has begun: save to a file "
                        "system that all processes share")  # fmt: skip
    values = _values(what)
    before = _noted(what)
    sums: dict[Box, int] = {}
    found = 0
    for box, part in _own(array, what.shape):
        crc = sum_of(part)
        place = values[*slices(box), ...]
        if before.get(box) == crc and _holds(place, crc):
            found += 1
        else:
            place[...] = part
            if isinstance(values, np.memmap):
                values.flush()  # what is noted is on the disk
        sums[box] = crc
        writing.write(what.note(process), json.dumps([[box, crc] for box, crc in sums.items()]))
    return Saved(what.name, len(sums) - found, found)


def _holds(place: Any, crc: int) -> bool:
    """Whether a part on the disk has a checksum; one whose chunk is damaged has none."""
    try:
        return sum_of(np.asarray(place)) == crc
    except ValueError:
        return False


def _own(array: Any, shape: tuple[int, ...]) -> Iterator[tuple[Box, np.ndarray]]:
    """The parts that this process is the one to write, without padding: of replicas the first writes."""
    for shard in array.addressable_shards:
        if shard.replica_id:
            continue
        box = tuple((min(a, n), min(b, n)) for (a, b), n in zip(box_of(shard.index, array.shape), shape, strict=True))
        if all(a < b for a, b in box):
            yield box, np.asarray(shard.data)[tuple(slice(b - a) for a, b in box)]


def _noted(what: _Save, processes: tuple[int, ...] | None = None) -> dict[Box, int]:
    """What the notes of these processes, or of all there ever were, say is on the disk."""
    found: dict[Box, int] = {}
    every = what.beside.parent.glob(f"{_escaped(what.beside.name)}.*")
    for path in every if processes is None else map(what.note, processes):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found |= {tuple((int(a), int(b)) for a, b in box): int(crc) for box, crc in json.loads(path.read_text())}
    return found


def _finish(what: _Save, processes: tuple[int, ...]) -> None:
    """Put the file in its place; in between it has no checksums, and is never held against those of another."""
    parts = tuple(sorted(_noted(what, processes).items()))
    with contextlib.suppress(OSError):
        os.chmod(what.beside, stat.S_IMODE(os.stat(what.target).st_mode))
    drop_sums(what.target)
    if what.is_zarr:
        _replace_folder(what)
    else:
        with open(what.beside, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(what.beside, what.target)
    write_sums(what.target, Sums(what.array, what.shape, what.dtype.name, parts))
    _sweep(what)


def _replace_folder(what: _Save) -> None:
    """Put a folder in the place of an older one, which is moved away first, and back where that fails."""
    older = what.beside.with_name(f"{what.beside.name}.older")
    if what.target.exists():
        os.replace(what.target, older)
    try:
        os.replace(what.beside, what.target)
    except OSError:
        if older.exists():
            os.replace(older, what.target)
        raise


def _sweep(what: _Save) -> None:
    """Remove what saves to this target have left beside it."""
    for path in what.target.parent.glob(f".{_escaped(what.target.name)}.*{ENDING}*"):
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _escaped(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)
