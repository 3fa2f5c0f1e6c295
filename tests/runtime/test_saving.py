"""`sw.distributed.save` in one process: whole or not at all, checksums beside, resumed where it was interrupted."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.distributed import saving
from shardwise.distributed.saving import Saved
from shardwise.errors import ArrayError, FileError
from shardwise.runtime import sums

A = np.arange(96, dtype=np.float32).reshape(8, 12)


def placed(layout: str, values: np.ndarray = A, mesh: str = "x=4, y=2", **options):
    return sw.put(values, layout, sw.make_mesh(mesh), **options)


@pytest.mark.parametrize("layout", ["I, J", "I_x, J", "I, J_x", "I_x, J_y", "I_{y,x}, J"])
@pytest.mark.parametrize("name", ["a.npy", "a.safetensors", "a.safetensors:layer.0"])
def test_what_is_saved_is_what_is_read_in_any_layout(layout, name, tmp_path):
    sw.distributed.save(placed(layout), tmp_path / name)
    for other in ("I_x, J", "I, J_{x,y}"):
        back = sw.put(str(tmp_path / name), other, sw.make_mesh("x=2, y=2"))
        np.testing.assert_array_equal(np.asarray(back), A)
    stem = name.partition(":")[0]
    assert sorted(os.listdir(tmp_path)) == [stem, f"{stem}.sums"]


def test_each_part_is_written_once_whatever_replicas_there_are(tmp_path):
    assert sw.distributed.save(placed("I_y, J"), tmp_path / "a.npy").written == 2
    assert sw.distributed.save(placed("I, J"), tmp_path / "a.npy").written == 1


def test_bfloat16_goes_to_safetensors_and_is_refused_for_npy(tmp_path):
    array = placed("I_x, J", A.astype(jnp.bfloat16))
    sw.distributed.save(array, tmp_path / "a.safetensors")
    back = sw.put(str(tmp_path / "a.safetensors"), "I, J_x", sw.make_mesh("x=4"))
    np.testing.assert_array_equal(np.asarray(back), np.asarray(array))
    with pytest.raises(FileError, match=r"the format of \.npy has no name for bfloat16"):
        sw.distributed.save(array, tmp_path / "a.npy")


def test_zeros_of_padding_are_left_off(tmp_path):
    sw.distributed.save(placed("I_x, J", A[:7], pad=True), tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), A[:7])


def test_partial_sums_and_what_is_no_array_are_refused(tmp_path):
    partial = sw.einsum("A[I, J_x] -> S[I]{U_x}", placed("I, J_x"))
    with pytest.raises(ArrayError, match="partial sums"):
        sw.distributed.save(partial, tmp_path / "a.npy")
    with pytest.raises(ArrayError, match="is no JAX array"):
        sw.distributed.save(A, tmp_path / "a.npy")


# Interrupted.


class PowerCut(BaseException):
    pass


def cut_after(parts: int, monkeypatch) -> None:
    """The power goes off as the part after so many is summed up."""
    real, left = saving.sum_of, [parts]

    def counted(part: np.ndarray) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut
        return real(part)

    monkeypatch.setattr(saving, "sum_of", counted)


def test_an_interrupted_save_leaves_the_older_file_and_goes_on_where_it_was(tmp_path, monkeypatch):
    target = tmp_path / "a.npy"
    sw.distributed.save(placed("I, J"), target)
    with monkeypatch.context() as patched:
        cut_after(3, patched)
        with pytest.raises(PowerCut):
            sw.distributed.save(placed("I_x, J", 2 * A), target)
    np.testing.assert_array_equal(np.load(target), A)
    np.testing.assert_array_equal(np.asarray(sw.put(str(target), "I_x, J", "x=4")), A)

    assert sw.distributed.save(placed("I_x, J", 2 * A), target) == Saved(str(target), written=1, found=3)
    np.testing.assert_array_equal(np.asarray(sw.put(str(target), "I_x, J", "x=4")), 2 * A)
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "a.npy.sums"]


def test_what_was_written_with_other_values_or_has_changed_since_is_written_again(tmp_path, monkeypatch):
    target = tmp_path / "a.npy"
    with monkeypatch.context() as patched:
        cut_after(3, patched)
        with pytest.raises(PowerCut):
            sw.distributed.save(placed("I_x, J"), target)
    (begun,) = (path for path in tmp_path.iterdir() if path.name.endswith(saving.ENDING))
    flip(begun, 128 + 5)  # in the first part
    changed = A.copy()
    changed[2] += 1  # in the second
    assert sw.distributed.save(placed("I_x, J", changed), target) == Saved(str(target), written=3, found=1)
    np.testing.assert_array_equal(np.asarray(sw.put(str(target), "I_x, J", "x=4")), changed)


def test_an_interrupted_save_in_another_layout_leaves_no_sums_behind(tmp_path, monkeypatch):
    target = tmp_path / "a.npy"
    with monkeypatch.context() as patched:
        cut_after(2, patched)
        with pytest.raises(PowerCut):
            sw.distributed.save(placed("I, J_x", A + 1), target)
    begun = next(path for path in tmp_path.iterdir() if path.name.endswith(saving.ENDING))
    begun.with_name(f"{begun.name}.5").write_text(json.dumps([[[[0, 8], [0, 3]], 1]]))  # of a process there is no more
    sw.distributed.save(placed("I_x, J"), target)
    np.testing.assert_array_equal(np.asarray(sw.put(str(target), "I, J_x", "x=4")), A)
    assert len(json.loads((tmp_path / "a.npy.sums").read_text())["parts"]) == 4


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(saving, "reserve", full)
    with pytest.raises(FileError, match="No space left on device; make room, or name a file on another disk"):
        sw.distributed.save(placed("I_x, J"), tmp_path / "a.npy")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(saving.files.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(FileError, match="the array needs 384 bytes, and the disk has 100 free"):
        sw.distributed.save(placed("I_x, J"), tmp_path / "a.npy")
    assert os.listdir(tmp_path) == []


# Corrupt.


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("at", [128, 128 + 4 * 12 * 3 + 1, -1])
@pytest.mark.parametrize("layout", ["I_x, J", "I, J_x"])
def test_one_bit_that_has_changed_is_refused(layout, at, tmp_path):
    target = tmp_path / "a.npy"
    sw.distributed.save(placed(layout), target)
    flip(target, at)
    with pytest.raises(FileError, match=r"a\.npy: the part \[.*\] is corrupt: .*write it again, or copy it again"):
        sw.put(str(target), "I_x, J", "x=4")


def test_only_the_parts_that_are_read_are_held_against_their_checksums(tmp_path):
    from shardwise.runtime.files import open_source

    target = tmp_path / "a.npy"
    sw.distributed.save(placed("I_x, J"), target)
    flip(target, -1)
    source = open_source(target)
    np.testing.assert_array_equal(source.read((slice(0, 6), slice(None))), A[:6])
    with pytest.raises(FileError, match=r"the part \[6:8, 0:12\] is corrupt"):
        source.read((slice(5, 7), slice(0, 1)))


def test_a_truncated_file_is_refused(tmp_path):
    target = tmp_path / "a.npy"
    sw.distributed.save(placed("I_x, J"), target)
    os.truncate(target, target.stat().st_size - 4)
    with pytest.raises(FileError, match="the file is truncated"):
        sw.put(str(target), "I_x, J", "x=4")


def test_checksums_of_another_array_are_refused_and_how_to_go_on_is_told(tmp_path):
    target = tmp_path / "a.npy"
    sw.distributed.save(placed("I_x, J"), target)
    np.save(target, A[:4])
    with pytest.raises(FileError, match=r"it is float32\[4, 12\], and a.npy.sums is of float32\[8, 12\]; remove that"):
        sw.put(str(target), "I_x, J", "x=4")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"parts": 3}', '{"member": null, "shape": [8], "dtype": "x", "parts": [{}]}'])
def test_damaged_checksums_are_refused(text, tmp_path):
    target = tmp_path / "a.npy"
    np.save(target, A)
    sums.beside(target).write_text(text)
    with pytest.raises(FileError, match=r"its checksums, a\.npy\.sums, are damaged"):
        sw.put(str(target), "I_x, J", "x=4")


def test_an_array_written_over_by_another_command_takes_its_old_checksums_along(tmp_path):
    from shardwise.runtime.files import save

    target = tmp_path / "a.npy"
    sw.distributed.save(placed("I_x, J"), target)
    save(target, A.shape, A.dtype, [((slice(None), slice(None)), A + 1)])
    np.testing.assert_array_equal(np.asarray(sw.put(str(target), "I_x, J", "x=4")), A + 1)
