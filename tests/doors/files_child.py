"""One of two processes with two devices each that save and load one array, with a failure in one of them in between.

shardwise launch -n 2 --devices-per-process 2 files_child.py FOLDER
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import shardwise as sw
from shardwise.distributed import saving
from shardwise.errors import FileError

ME = jax.process_index()
A = np.arange(96, dtype=np.float32).reshape(8, 12)


def assert_holds(array: jax.Array, whole: np.ndarray) -> None:
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])


def fails_in_one(folder: Path, array: jax.Array) -> None:
    """A full disk in process 1 is told in both, and the parts of process 0 need not be written again."""
    real = saving.sum_of

    def full(part: np.ndarray) -> int:
        if ME == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(part)

    saving.sum_of = full
    try:
        with pytest.raises(FileError, match=r"No space left on device; make room.*\(process 1\)"):
            sw.distributed.save(array, folder / "b.npy")
    finally:
        saving.sum_of = real
    assert not (folder / "b.npy").exists()
    done = sw.distributed.save(array, folder / "b.npy")
    assert (done.written, done.found) == ((0, 2) if ME == 0 else (2, 0)), done


def differ(folder: Path, array: jax.Array) -> None:
    with pytest.raises(sw.distributed.DistributedError, match=r"path\n  process 0: .*\n  process 1: "):
        sw.distributed.save(array, folder / f"{ME}.npy")


def peak_memory(folder: Path) -> float:
    """How much more memory this process takes as it loads, as a part of what its own shards and one more need."""
    resting = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as peaks:
        peaks.write("5")  # the peak begins anew
    loaded = jax.block_until_ready(sw.put(str(folder / "big.npy"), "A[I, J_x]", sw.make_mesh("x=4")))
    own = sum(shard.data.nbytes for shard in loaded.addressable_shards)
    return (status("VmHWM") - resting) / (own + loaded.addressable_shards[0].data.nbytes)


def status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def main(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")
    array = sw.put(A, "A[I_x, J]", mesh)
    saved = sw.distributed.save(array, folder / "a.npy")
    assert (saved.written, saved.found) == (2, 0)
    replicated = sw.distributed.save(sw.put(A, "A[I, J]", mesh), folder / "c.safetensors")
    assert replicated.written == (1 if ME == 0 else 0)
    for name in ("a.npy", "c.safetensors"):
        for layout in ("A[I_x, J]", "A[I, J_x]", "A[I, J]"):
            assert_holds(sw.put(str(folder / name), layout, mesh), A)
    fails_in_one(folder, array)
    differ(folder, array)
    ratio = peak_memory(folder)
    (folder / f"verdict-{ME}.json").write_text(json.dumps(ratio))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
