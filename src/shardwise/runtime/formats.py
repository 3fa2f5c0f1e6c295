"""How arrays lie in .npy, .npz and .safetensors files, and how a part of one is read."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import ml_dtypes  # also makes its names known to NumPy, from which safetensors asks for "bfloat16"
import numpy as np

from shardwise.errors import FileError, MissingExtraError, did_you_mean

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
_LONGEST_HEADER = 100_000_000  # bytes; the library refuses more
_ZEROS = 1 << 20  # bytes written at once

SAVE_AGAIN = "copy it again, or save it again"
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
class _Block:
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


def _mapped(file: IO[bytes], block: _Block) -> Opened:
    """A block as a memory map, of which a part costs only its own bytes."""
    try:
        if block.end == block.offset:
            values = np.empty(block.shape, block.native)  # an empty map cannot be made
        else:
            values: np.ndarray = cast("Any", np.memmap)(file, block.dtype, "r", block.offset, block.shape, block.order)
    except (ValueError, OverflowError) as error:  # 65 dimensions, or an empty one beside one of 2**64
        raise FileError(f"NumPy has no arrays of the shape {block.shape} ({error}); save it in another shape") from None
    return block.shape, block.native, functools.partial(_copy, lambda: values)


def _copy(values: Callable[[], np.ndarray], index: Index) -> np.ndarray:
    whole = values()
    part = whole[*slices(box_of(index, whole.shape)), ...]  # with ... a scalar stays an array
    return np.array(part, part.dtype.newbyteorder("="), order="C")


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
        raise FileError(f"the file holds no array named {member!r}{did_you_mean(member, names)}; {have}")
    return names[0] if member is None else member


def listed(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def one_of(suffixes: Sequence[str]) -> str:
    """
    >>> one_of((".npy", ".npz", ".safetensors"))
    '.npy, .npz or .safetensors'
    """
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"


# .npy and .npz


def open_npy(path: Path, member: str | None) -> Opened:
    if member is not None:
        raise FileError(f"an .npy file holds one array, which has no name; leave off ':{member}'")
    with path.open("rb") as file:
        return _mapped(file, _read_header(file, _size_bytes(file)))


# Version 3 is version 2 with the names of fields in UTF-8 instead of Latin-1, and arrays with fields are refused.
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}


def _size_bytes(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _read_header(file: IO[bytes], file_bytes: int) -> _Block:
    """Reads the header of an .npy file or member, and checks it against its length; no value is read."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version[0]}.{version[1]} of the format is not known")
        shape, fortran_order, dtype = _HEADERS[version](file)
        block = _Block(shape, dtype, "F" if fortran_order else "C", file.tell())
    except OSError:
        raise
    except Exception as error:  # the header is Python text, and what its parsers raise on nonsense is not listed
        file.seek(0)
        raise FileError(_bad_header(file.read(8), error)) from None
    check_numeric(dtype)
    if any(size < 0 for size in shape):
        raise FileError(f"the header is corrupt: it gives the shape {shape}; {SAVE_AGAIN}")
    if block.end > file_bytes:
        raise FileError(_truncated(f"{dtype.name}{list(shape)}", block.end, file_bytes))
    return block


def _bad_header(beginning: bytes, error: Exception) -> str:
    if beginning[:6] != b"\x93NUMPY"[: len(beginning)]:
        looks = next((f", but {what}" for how, what in _BEGINNINGS.items() if beginning.startswith(how)), "")
        return f"by its first bytes this is not an .npy file{looks}; give it the suffix of its format, or save it again"
    reason = " ".join(str(error).split())[:200]
    if reason.startswith("EOF: "):
        return f"the file is truncated: it ends within its header; {SAVE_AGAIN}"
    return f"the header is corrupt ({reason or type(error).__name__}); {SAVE_AGAIN}"


def _truncated(what: str, asked_bytes: int, file_bytes: int) -> str:
    asks = f"its header asks for {asked_bytes:,} bytes, and there are {file_bytes:,}"
    return f"the file is truncated: {f'with {what} ' * bool(what)}{asks}; {SAVE_AGAIN}"


def check_numeric(dtype: np.dtype) -> None:
    if dtype.hasobject:
        why = "it holds Python objects as a pickle, and unpickling can run code, so it is refused"
        raise FileError(f"{why}; save it again with a numeric dtype: np.save(path, array.astype(np.float32))")
    if dtype.names:
        why = f"its dtype is structured, with the fields {listed(dtype.names)}, and an array here holds plain numbers"
        raise FileError(f"{why}; save each field as a file of its own")
    if dtype.kind == "V":
        why = f"its values are raw ({dtype.str}): .npy cannot name dtypes such as bfloat16, and keeps only their bytes"
        raise FileError(f"{why}; save it again as float32, or as .safetensors")
    if dtype.kind not in "biufc":
        raise FileError(f"its dtype {dtype} is not numeric; save it again as numbers")


def open_npz(path: Path, member: str | None) -> Opened:
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = {i.filename.removesuffix(".npy"): i for i in archive.infolist() if i.filename.endswith(".npy")}
            if not entries and archive.infolist():
                holds = listed(archive.namelist(), 5)
                raise FileError(f"this zip is no .npz: none of its members is an .npy file ({holds}); use np.savez")
            entry = entries[choose(member, list(entries))]
            with archive.open(entry) as opened:
                block = _read_header(opened, entry.file_size)
            if entry.compress_type == zipfile.ZIP_STORED:
                return _mapped(file, _in_zip(file, entry, block))
    except (FileError, OSError):
        raise
    except Exception as error:  # what zipfile and its decompressors raise on nonsense is not listed
        _refuse_zip(path, error)
    decompressed = functools.cache(lambda: _decompress(path, entry.filename, block))
    return block.shape, block.native, functools.partial(_copy, decompressed)


def _in_zip(file: IO[bytes], entry: zipfile.ZipInfo, block: _Block) -> _Block:
    """A block of an uncompressed member as a block of the whole file.

    Before a member's data stand 30 bytes, its name and an extra field; the lengths of both are in bytes 26 to 29
    (APPNOTE 6.3.10, section 4.3.7). The directory's copy of the extra field may have another length.
    """
    file.seek(entry.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    start = entry.header_offset + 30 + name_bytes + extra_bytes
    found = _Block(block.shape, block.dtype, block.order, start + block.offset)
    if found.end > _size_bytes(file):
        raise FileError(_truncated(entry.filename, found.end, _size_bytes(file)))
    return found


def _decompress(path: Path, filename: str, block: _Block) -> np.ndarray:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(filename) as opened:
            values = np.lib.format.read_array(opened, allow_pickle=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        _refuse_zip(path, error)
    if (values.shape, values.dtype) != (block.shape, block.dtype):
        raise FileError("the file has been replaced by another since it was opened; open it again")
    return values


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


# .safetensors


def open_safetensors(path: Path, member: str | None) -> Opened:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        why = "reading .safetensors needs the extra 'files'"
        raise MissingExtraError(f"{why}: pip install 'shardwise[files]'") from None
    try:
        archive = safe_open(str(path), framework="numpy")
    except SafetensorError as error:
        raise FileError(_bad_safetensors(path, str(error))) from None
    name = choose(member, sorted(archive.keys()))
    view = archive.get_slice(name)
    shape, code = tuple(view.get_shape()), view.get_dtype()
    if code not in CODES:
        raise FileError(f"{name} has the dtype {code}, which is not read; save it again as one of {listed([*CODES])}")
    dtype = np.dtype(CODES[code])
    if code.startswith("F8"):
        # With framework="numpy" the library looks these up in NumPy, which lacks them. bfloat16 it knows by itself.
        with path.open("rb") as file:
            start, entries = _safetensors_header(file)
            return _mapped(file, _Block(shape, dtype.newbyteorder("<"), "C", start + entries[name]["data_offsets"][0]))

    def read(index: Index) -> np.ndarray:
        box = box_of(index, shape)
        if any(begin == end for begin, end in box):
            return np.empty([end - begin for begin, end in box], dtype)  # the library refuses empty slices
        return np.asarray(view[slices(box)], dtype, order="C")

    return shape, dtype, read


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
        file_bytes = _size_bytes(file)
        length = int.from_bytes(file.read(8), "little")
        if length > _LONGEST_HEADER:
            return f"the header is corrupt: it gives its own length as {length:,} bytes; {SAVE_AGAIN}"
        if file_bytes < 8 or file_bytes < 8 + length:
            return _truncated("", 8 + length if file_bytes >= 8 else 8, file_bytes)
        file.seek(0)
        try:
            start, entries = _safetensors_header(file)
            end = start + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except Exception as error:  # any JSON can stand where the entries should
            return f"the header is corrupt ({error}); {SAVE_AGAIN}"
    if end > file_bytes:
        return _truncated(listed([*entries], 5), end, file_bytes)
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
