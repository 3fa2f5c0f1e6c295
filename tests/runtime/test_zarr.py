"""Arrays in Zarr folders, of both versions, read in parts; needs tensorstore."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import FileError
from shardwise.runtime.files import open_source

A = np.arange(96, dtype=np.float32).reshape(8, 12)


def written(folder: Path, driver: str, values: np.ndarray = A, **more) -> Path:
    import tensorstore

    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(folder)}, **more}
    made = tensorstore.open(spec, create=True, dtype=tensorstore.dtype(values.dtype.name), shape=values.shape).result()
    made.write(values).result()
    return folder


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize("layout", ["I_x, J", "I, J_x", "I, J"])
def test_each_device_is_given_its_part(driver, layout, tmp_path):
    path = written(tmp_path / "a.zarr", driver)
    placed = sw.put(str(path), f"A[{layout}]", sw.make_mesh("x=4"))
    for shard in placed.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), A[shard.index])


def test_only_the_chunks_that_a_part_touches_are_read(tmp_path):
    chunks = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 12]}}}
    path = written(tmp_path / "a.zarr", "zarr3", metadata=chunks)
    (path / "c" / "3" / "0").write_bytes(b"no chunk")
    source = open_source(path)
    np.testing.assert_array_equal(source.read((slice(0, 6), slice(None))), A[:6])
    with pytest.raises(FileError, match=r"a\.zarr: a chunk is corrupt"):
        source.read((slice(5, 7), slice(None)))


def test_an_array_of_a_group_is_named_by_its_path(tmp_path):
    written(tmp_path / "all.zarr" / "layer" / "w", "zarr3")
    (tmp_path / "all.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    np.testing.assert_array_equal(np.asarray(sw.put(f"{tmp_path}/all.zarr:layer/w", "A[I, J]", "x=1")), A)
    with pytest.raises(FileError, match=r"there is no Zarr array here; it holds layer/w: add ':' and the path of one"):
        open_source(tmp_path / "all.zarr")


def test_bfloat16(tmp_path):
    values = A.astype(ml_dtypes.bfloat16)
    source = open_source(written(tmp_path / "a.zarr", "zarr3", values))
    assert source.dtype == values.dtype
    np.testing.assert_array_equal(source.read((slice(None), slice(3, 5))), values[:, 3:5])


def test_a_damaged_description_is_told(tmp_path):
    path = written(tmp_path / "a.zarr", "zarr3")
    (path / "zarr.json").write_text("{")
    with pytest.raises(FileError, match="the array is damaged, or of a kind that is not read"):
        open_source(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("layout", ["I_x, J", "I, J_x", "I, J"])
def test_what_is_saved_is_read_again_and_its_chunks_are_the_shards(layout, dtype, tmp_path):
    values = A.astype(dtype)
    placed = sw.put(values, f"A[{layout}]", "x=4")
    saved = sw.distributed.save(placed, tmp_path / "a.zarr")
    assert saved.written == (4 if "x" in layout else 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "a.zarr.sums"]
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a.zarr")}}
    array = tensorstore.open(spec, open=True).result()
    np.testing.assert_array_equal(np.asarray(array), values)
    assert array.chunk_layout.write_chunk.shape == placed.sharding.shard_shape(values.shape)
    np.testing.assert_array_equal(np.asarray(sw.put(f"{tmp_path}/a.zarr", "A[I_x, J]", "x=2")), values)


def test_an_older_folder_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    sw.distributed.save(sw.put(A, "A[I_x, J]", "x=4"), tmp_path / "a.zarr")
    monkeypatch.setattr("shardwise.distributed.saving.write_sums", lambda *args: None)
    real = os.replace

    def refused(source, target):
        if str(target).endswith("a.zarr") and not str(source).endswith(".older"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(FileError, match="No space left on device"):
        sw.distributed.save(sw.put(A + 1, "A[I_x, J]", "x=4"), tmp_path / "a.zarr")
    np.testing.assert_array_equal(np.asarray(sw.put(f"{tmp_path}/a.zarr", "A[I_x, J]", "x=2")), A)
    monkeypatch.setattr(os, "replace", real)
    again = sw.distributed.save(sw.put(A + 1, "A[I_x, J]", "x=4"), tmp_path / "a.zarr")
    assert (again.written, again.found) == (0, 4)
    np.testing.assert_array_equal(np.asarray(sw.put(f"{tmp_path}/a.zarr", "A[I_x, J]", "x=2")), A + 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_no_folder_of_zarr_is_not_replaced(tmp_path):
    (tmp_path / "a.zarr").write_text("mine")
    with pytest.raises(FileError, match=r"a\.zarr: this is there, and no folder of Zarr: name another"):
        sw.distributed.save(sw.put(A, "A[I_x, J]", "x=4"), tmp_path / "a.zarr")
    assert (tmp_path / "a.zarr").read_text() == "mine"
