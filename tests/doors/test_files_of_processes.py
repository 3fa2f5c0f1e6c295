"""Arrays in files, of two processes: each writes and reads its own parts, and a failure of one is told by all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from doors.files_child import A

CHILD = Path(__file__).with_name("files_child.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    big = np.lib.format.open_memmap(folder / "big.npy", mode="w+", dtype=np.float32, shape=(8192, 8192))  # 256 MiB
    big[...] = 1
    big.flush()
    command = [sys.executable, "-m", "shardwise", "launch", "-n", "2", "--devices-per-process", "2", str(CHILD), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    os.remove(folder / "big.npy")
    return folder


def test_what_the_processes_save_is_whole(folder):
    np.testing.assert_array_equal(np.load(folder / "a.npy"), A)
    np.testing.assert_array_equal(np.load(folder / "b.npy"), A)


def test_nothing_is_left_beside_the_files(folder):
    names = ["a.npy", "b.npy", "c.safetensors"]
    assert sorted(os.listdir(folder)) == sorted([*names, *(f"{n}.sums" for n in names), "verdict-0.json", "verdict-1.json"])


def test_loading_takes_the_memory_of_the_result_and_one_shard_at_most(folder):
    for process in range(2):
        assert json.loads((folder / f"verdict-{process}.json").read_text()) < 1.3
