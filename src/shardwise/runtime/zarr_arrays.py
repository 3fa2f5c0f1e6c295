"""How arrays lie in Zarr folders, read and written in parts by the library tensorstore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from shardwise.errors import FileError, MissingExtraError, one_line
from shardwise.runtime.formats import (
    SAVE_AGAIN,
    Index,
    Opened,
    aligned_empty,
    box_of,
    check_numeric,
    check_possible,
    listed,
    slices,
)

DRIVERS = {"zarr.json": "zarr3", ".zarray": "zarr"}  # by the file that describes an array


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr array, or a group of them."""
    return path.is_dir() and (path.suffix.lower() == ".zarr" or any((path / name).is_file() for name in DRIVERS))


def open_zarr(path: Path, member: str | None) -> Opened:
    """An array of Zarr version 2 or 3, or one of a group by its path within; no value is read yet.

    A chunk that was never written holds the array's fill value: so Zarr wants it, and no reader can tell it from a lost one.

    Raises:
        FileError: there is no array, or it is damaged, or not of numbers.
        MissingExtraError: tensorstore is not installed.
    """
    tensorstore = require_tensorstore("reading")
    folder = path / member if member else path
    driver = next((driver for name, driver in DRIVERS.items() if _describes_an_array(folder / name)), None)
    if driver is None:
        every = (each for name in DRIVERS for each in path.rglob(name) if _describes_an_array(each))
        found = sorted(str(each.parent.relative_to(path)) for each in every)
        raise FileError(f"there is no Zarr array here; it holds {listed(found) or 'none'}: add ':' and the path of one")
    try:
        array = tensorstore.open(_spec(folder, driver), open=True, read=True).result()
    except (ValueError, OSError, RuntimeError) as error:
        raise FileError(f"the array is damaged, or of a kind that is not read ({_said(error)}); {SAVE_AGAIN}") from None
    shape, dtype = tuple(array.shape), np.dtype(array.dtype.numpy_dtype)
    check_possible(shape)
    if dtype.kind != "V" or dtype.isbuiltin != 2:  # dtypes of ml_dtypes are numbers, whatever NumPy says of them
        check_numeric(dtype)

    def read(index: Index) -> np.ndarray:
        box = box_of(index, shape)
        part = aligned_empty(tuple(b - a for a, b in box), dtype)
        try:
            tensorstore.array(part).write(array[slices(box)]).result()
        except (ValueError, OSError, RuntimeError) as error:
            raise FileError(f"a chunk is corrupt ({_said(error)}); {SAVE_AGAIN}") from None
        return part

    return shape, dtype, read


def new_zarr(path: Path, shape: Sequence[int], dtype: np.dtype, chunk: Sequence[int]) -> Any:
    """A new array of Zarr version 3, whose chunks hold their own checksums; parts are assigned to it.

    Args:
        chunk: the sizes of what is written at once: processes that write whole chunks do not meet in one.

    Raises:
        FileError: Zarr has no name for the dtype.
        MissingExtraError: tensorstore is not installed.
    """
    tensorstore = require_tensorstore("writing")
    kept = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = [kept if dtype.itemsize > 1 else {"name": "bytes"}, {"name": "crc32c"}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [max(size, 1) for size in chunk]}}
    spec = {**_spec(path, "zarr3"), "metadata": {"codecs": codecs, "chunk_grid": grid}}
    try:
        named = tensorstore.dtype(dtype.name)
        return tensorstore.open(spec, create=True, dtype=named, shape=list(shape)).result()
    except (TypeError, ValueError) as error:
        raise FileError(f"Zarr holds no {dtype.name} ({_said(error)})") from None


def zarr_to_fill(path: Path) -> Any:
    """An array of Zarr that was begun, to be read and assigned to.

    Raises:
        MissingExtraError: tensorstore is not installed.
    """
    return require_tensorstore("writing").open(_spec(path, "zarr3"), open=True).result()


def _spec(path: Path, driver: str) -> dict[str, Any]:
    return {"driver": driver, "kvstore": {"driver": "file", "path": str(path.absolute())}}


def require_tensorstore(doing: str) -> ModuleType:
    """The library that reads and writes Zarr.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import tensorstore  # pyrefly: ignore[missing-import]
    except ImportError:
        raise MissingExtraError(f"{doing} Zarr needs the extra 'zarr': pip install 'shardwise[zarr]'") from None
    return tensorstore


def _describes_an_array(path: Path) -> bool:
    """Whether a file says what an array is: in version 3 groups have a file of the same name."""
    return path.is_file() and (path.name == ".zarray" or b'"group"' not in path.read_bytes())


def _said(error: Exception) -> str:
    return one_line(str(error).partition(" [")[0])[:300]
