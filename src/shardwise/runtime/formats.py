"""How arrays lie in .npy and .safetensors files, and how a part of one is read; those in .npz are read by `archives`."""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import mmap
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import ml_dtypes  # also makes its names known to NumPy, from which safetensors asks for "bfloat16"
import numpy as np

from shardwise.errors import FileError, MissingExtraError, did_you_mean, one_line, quoted, shortened
from shardwise.mesh import LARGEST

Index = tuple[slice, ...]
Box = tuple[tuple[int, int], ...]  # where a part begins and ends along each dimension
Opened = tuple[tuple[int, ...], np.dtype, Callable[[Index], np.ndarray]]  # shape, native dtype, how to read a part

# The dtypes of .safetensors, by their codes there.
CODES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.float16, "F32": np.float32, "F64": np.float64, "C64": np.complex64, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
_LONGEST_HEADER = 10_000_000  # bytes, of some hundred thousand arrays; the library takes a hundred times its bytes for it
_ZEROS = 1 << 20  # bytes written at once
PIECE_BYTES = 1 << 25  # of a map that are read before its pages are let go
ALIGNED_BYTES = 64  # XLA's CPU takes host memory that begins at a multiple of these without a copy

SAVE_AGAIN = "copy it again, or save it again"
MOST_HEADER = 10_000  # bytes; NumPy reads no longer ones of files that are not trusted, but asks for them whole
_BEGINNINGS = {b"\x93NUMPY": "a .npy file", b"PK\x03\x04": "a zip archive, as .npz is", b"\x80": "a pickle"}


# Parts.


def box_of(index: Index, shape: tuple[int, ...]) -> Box:
    """The bounds of a part, within the shape.

    >>> box_of((slice(None), slice(2, 9)), (4, 6))
    ((0, 4), (2, 6))
    """
    bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    assert all(step == 1 for _, _, step in bounds), f"parts have no gaps: {index}"
    return tuple((start, max(start, stop)) for start, stop, _ in bounds)


def slices(box: Iterable[tuple[int, int]]) -> Index:
    return tuple(slice(start, stop) for start, stop in box)


@dataclass(frozen=True, slots=True)
class Block:
    """Where the values of an array lie in a file, and how."""

    shape: tuple[int, ...]
    dtype: np.dtype  # as in the file, so of any byte order
    order: str  # "C" or "F"
    offset: int  # bytes

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    @property
    def native(self) -> np.dtype:
        return self.dtype.newbyteorder("=")


def mapped(file: IO[bytes], block: Block) -> Opened:
    """A block as a memory map, of which a part costs only its own bytes."""
    check_possible(block.shape)
    if block.end == block.offset:
        values = np.empty(block.shape, block.native)  # an empty map cannot be made
    else:
        values: np.ndarray = cast("Any", np.memmap)(file, block.dtype, "r", block.offset, block.shape, block.order)
    return block.shape, block.native, functools.partial(_copy, lambda: values)


def check_possible(shape: tuple[int, ...]) -> None:
    """Refuse a shape that no array of NumPy has: one of 65 dimensions, or an empty one beside one of 2**64."""
    try:
        np.broadcast_to(np.int8(0), shape)
    except (ValueError, OverflowError) as error:
        raise FileError(f"NumPy has no arrays of the shape {quoted(shape)} ({error}); save it in another shape") from None


def _copy(values: Callable[[], np.ndarray], index: Index) -> np.ndarray:
    whole = values()
    part = whole[*slices(box_of(index, whole.shape)), ...]  # with ... a scalar stays an array
    copy = aligned_empty(part.shape, part.dtype.newbyteorder("="))
    rows = max(1, PIECE_BYTES // max(1, whole[:1].nbytes)) if part.ndim else 1
    for begin in range(0, part.shape[0] if part.ndim else 1, rows):
        piece = slice(begin, begin + rows) if part.ndim else ...
        copy[piece] = part[piece]
        _let_go(whole)
    return copy


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory where JAX's CPU can use an array as it is, instead of copying it once more.

    >>> aligned_empty((3, 2), np.dtype("float32")).ctypes.data % ALIGNED_BYTES
    0
    """
    needed = math.prod(shape) * dtype.itemsize
    room = np.empty(needed + ALIGNED_BYTES, np.uint8)
    begin = -room.ctypes.data % ALIGNED_BYTES
    return room[begin : begin + needed].view(dtype).reshape(shape)


def _let_go(values: np.ndarray) -> None:
    """Count the pages of a map that were read no longer as this process's memory; the system keeps them as long as it likes."""
    held = getattr(values, "_mmap", None)
    if held is not None and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


def shown(box: Iterable[tuple[int, int]]) -> str:
    """
    >>> shown([(0, 4), (2, 6)])
    '[0:4, 2:6]'
    """
    return f"[{', '.join(f'{begin}:{end}' for begin, end in box)}]"


def choose(member: str | None, names: Sequence[str]) -> str:
    """The array that is meant: the one of that name, or the only one."""
    if not names:
        raise FileError("the file holds no array; save one to it")
    if member is None and len(names) > 1:
        raise FileError(f"the file holds {len(names)} arrays; add ':' and one of their names: {listed(names)}")
    if member is not None and member not in names:
        have = f"it holds {listed(names)}"
        raise FileError(f"the file holds no array named {quoted(member)}{did_you_mean(member, names)}; {have}")
    return names[0] if member is None else member


def listed(names: Sequence[str], most: int = 20) -> str:
    told = ", ".join(shortened(one_line(name), 60) for name in names[:most])
    return told + (f", ... ({len(names)} in all)" if len(names) > most else "")


def one_of(suffixes: Sequence[str]) -> str:
    """
    >>> one_of((".npy", ".npz", ".safetensors"))
    '.npy, .npz or .safetensors'
    """
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"


# .npy, as a file or as a member of an .npz


def open_npy(path: Path, member: str | None) -> Opened:
    if member is not None:
        raise FileError(f"an .npy file holds one array, which has no name; leave off {quoted(':' + member)}")
    with path.open("rb") as file:
        return mapped(file, read_header(file, size_bytes(file)))


# The bytes that tell a header's length, and its parser. Version 3 is version 2 with the names of fields in UTF-8 instead
# of Latin-1, and arrays with fields are refused.
_HEADERS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
    (3, 0): (4, np.lib.format.read_array_header_2_0),
}


def size_bytes(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def read_header(file: IO[bytes], file_bytes: int) -> Block:
    """Reads the header of an .npy file or member, and checks it against its length; no value is read."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version[0]}.{version[1]} of the format is not known")
        shape, fortran_order, dtype, offset = _parse_header(file, version)
    except OSError:
        raise
    except Exception as error:  # the header is Python text, and what its parsers raise on nonsense is not listed
        file.seek(0)
        raise FileError(_bad_header(file.read(8), error)) from None
    check_numeric(dtype)
    counted_wrong = any(isinstance(size, bool) or size < 0 for size in shape)
    if counted_wrong or math.prod(shape) * dtype.itemsize > LARGEST:
        raise FileError(f"the header is corrupt: it gives the shape {quoted(shape)}; {SAVE_AGAIN}")
    block = Block(shape, dtype, "F" if fortran_order else "C", offset)
    if block.end > file_bytes:
        raise FileError(truncated(f"{dtype.name}{shortened(str(list(shape)), 60)}", block.end, file_bytes))
    if block.end < file_bytes:
        asks = f"its header asks for {block.end:,} bytes, and there are {file_bytes:,}"
        raise FileError(f"the file is longer than its array: {asks}; save each array to a file of its own")
    return block


def _parse_header(file: IO[bytes], version: tuple[int, int]) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, dtype, and where the values begin; a header that is too long is not even read."""
    width, parse = _HEADERS[version]
    length = file.read(width)
    said = int.from_bytes(length, "little")
    if said > MOST_HEADER:
        raise ValueError(f"it gives its own length as {said:,} bytes, and up to {MOST_HEADER:,} are read")
    header = length + file.read(said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's about escapes in a text that is none of the user's
        shape, fortran_order, dtype = parse(io.BytesIO(header))
    return shape, fortran_order, dtype, len(np.lib.format.MAGIC_PREFIX) + 2 + len(header)


def _bad_header(beginning: bytes, error: Exception) -> str:
    if beginning[:6] != b"\x93NUMPY"[: len(beginning)]:
        looks = next((f", but {what}" for how, what in _BEGINNINGS.items() if beginning.startswith(how)), "")
        return f"by its first bytes this is not an .npy file{looks}; give it the suffix of its format, or save it again"
    reason = " ".join(str(error).split())[:200]
    if reason.startswith("EOF: "):
        return f"the file is truncated: it ends within its header; {SAVE_AGAIN}"
    return f"the header is corrupt ({reason or type(error).__name__}); {SAVE_AGAIN}"


def truncated(what: str, asked_bytes: int, file_bytes: int) -> str:
    asks = f"its header asks for {asked_bytes:,} bytes, and there are {file_bytes:,}"
    return f"the file is truncated: {f'with {what} ' * bool(what)}{asks}; {SAVE_AGAIN}"


def check_numeric(dtype: np.dtype) -> None:
    """Refuse a dtype of anything but plain numbers.

    Raises:
        FileError: of what it is instead, with the way out.
    """
    if dtype.hasobject:
        why = "it holds Python objects as a pickle, and unpickling can run code, so it is refused"
        raise FileError(f"{why}; save it again with a numeric dtype: np.save(path, array.astype(np.float32))")
    if dtype.names:
        why = f"its dtype is structured, with the fields {listed(dtype.names)}, and an array here holds plain numbers"
        raise FileError(f"{why}; save each field as a file of its own")
    if dtype.subdtype is not None:
        why = f"its dtype {dtype} makes an array of every value, and an array here holds plain numbers"
        raise FileError(f"{why}; save it again as an array of one more dimension")
    if dtype.kind == "V":
        why = f"its values are raw ({dtype.str}): .npy cannot name dtypes such as bfloat16, and keeps only their bytes"
        raise FileError(f"{why}; save it again as float32, or as .safetensors")
    if dtype.kind not in "biufc":
        raise FileError(f"its dtype {dtype} is not numeric; save it again as numbers")


# .safetensors


def open_safetensors(path: Path, member: str | None) -> Opened:
    """An array of a .safetensors file: its shape and dtype by the library, its parts from a memory map.

    Raises:
        FileError: the file is damaged, or holds no such array.
        MissingExtraError: the library is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        why = "reading .safetensors needs the extra 'files'"
        raise MissingExtraError(f"{why}: pip install 'shardwise[files]'") from None
    try:
        _check_header_length(path)
        archive = safe_open(str(path), framework="numpy")
    except SafetensorError as error:
        raise FileError(_bad_safetensors(path, str(error))) from None
    name = choose(member, sorted(archive.keys()))
    view = archive.get_slice(name)
    shape, code = tuple(view.get_shape()), view.get_dtype()
    check_possible(shape)
    if code not in CODES:
        told = f"{one_line(name)} has the dtype {code}, which is not read"
        raise FileError(f"{told}; save it again as one of {listed([*CODES])}")
    dtype = np.dtype(CODES[code])
    with path.open("rb") as file:  # what the library has checked is mapped: it would copy once more
        start, entries = _safetensors_header(file)
        return mapped(file, Block(shape, dtype.newbyteorder("<"), "C", start + entries[name]["data_offsets"][0]))


def _check_header_length(path: Path) -> None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > _LONGEST_HEADER:
        why = f"it gives its own length as {length:,} bytes, and up to {_LONGEST_HEADER:,} are read"
        raise FileError(f"the header is corrupt, or of too many arrays: {why}; {SAVE_AGAIN}")


def _safetensors_header(file: IO[bytes]) -> tuple[int, dict[str, Any]]:
    """Where the data begins, and the entries: 8 bytes of length, that much JSON, then the data.

    The format: https://huggingface.co/docs/safetensors/index#format. Raises ValueError.
    """
    length = int.from_bytes(file.read(8), "little")
    entries = json.loads(file.read(length))
    return 8 + length, {name: entry for name, entry in entries.items() if name != "__metadata__"}


def _bad_safetensors(path: Path, reason: str) -> str:
    """Why the library refuses a file: whether it is too short for its header, and else in the library's words."""
    with path.open("rb") as file:
        file_bytes = size_bytes(file)
        length = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or file_bytes < 8 + length:
            return truncated("", 8 + length if file_bytes >= 8 else 8, file_bytes)
        file.seek(0)
        try:
            start, entries = _safetensors_header(file)
            end = start + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except Exception as error:  # any JSON can stand where the entries should
            return f"the header is corrupt ({error}); {SAVE_AGAIN}"
    if end > file_bytes:
        return truncated(listed([*entries], 5), end, file_bytes)
    return f"the header is corrupt ({reason}); {SAVE_AGAIN}"


def new_safetensors(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A file with one array, as a map to fill. The library writes only arrays that are whole in memory."""
    code = next(code for code, known in CODES.items() if np.dtype(known) == dtype.newbyteorder("="))
    end = math.prod(shape) * dtype.itemsize
    header = json.dumps({name: {"dtype": code, "shape": shape, "data_offsets": [0, end]}}).encode()
    header += b" " * (-len(header) % 8)  # aligned, as the library does
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
    if end == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype.newbyteorder("<"), "r+", 8 + len(header), shape)


# Room on the disk.


def reserve(path: Path, start: int) -> None:
    """Take the room of a file's content on the disk: through a map, a write that finds none ends the process.

    Args:
        start: where the content begins, all zeros yet.

    Raises:
        OSError: the disk is full, or files may not be that large.
    """
    end = path.stat().st_size
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, end)
        except (AttributeError, OSError) as error:  # no such call on this system, or on this file system
            if getattr(error, "errno", None) not in (None, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            file.seek(start)
            for begin in range(start, end, _ZEROS):
                file.write(bytes(min(_ZEROS, end - begin)))
