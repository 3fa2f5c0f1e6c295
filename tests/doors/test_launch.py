"""`shardwise launch` and `sw.distributed.start`, with real processes: scripts, functions and commands, well and failing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shardwise.commands.launch import _is_noise

SCRIPT = """
import os, signal, sys, time
import jax, numpy as np
import shardwise as sw

job = sw.distributed.start()
sw.simulate(4)
me, mode = jax.process_index(), sys.argv[1]
c = sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", np.ones((2, 8), np.float32), np.ones((8, 2), np.float32), mesh="x=4")
print(job.processes, jax.device_count(), jax.local_device_count(), float(c.addressable_data(0)[0, 0]), flush=True)
if mode == "raise" and me == 1:
    raise ValueError("bad batch")
if mode == "stop" and me == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if mode == "collective":
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1000):
        sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", np.ones((2, 8), np.float32), np.ones((8, 2), np.float32), mesh="x=4")
if mode != "well":
    time.sleep(60)
"""


def shardwise(*words: str, folder: Path, timeout: float = 120, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_NUM_", "JAX_PLATFORMS", "TF_"))}
    command = [sys.executable, "-m", "shardwise", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, env=kept | settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def test_a_script_runs_and_process_0_speaks(folder):
    done = shardwise("launch", "-n", "2", "train.py", "well", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 4 2 8.0\n", "")


def test_the_same_script_runs_alone(folder):
    done = subprocess.run([sys.executable, "train.py", "well"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1 4 4 8.0\n"), done.stderr


def test_an_error_is_told_once_with_its_traceback_and_ends_all(folder):
    started = time.monotonic()
    done = shardwise("launch", "-n", "2", "train.py", "raise", folder=folder)
    assert time.monotonic() - started < 30
    assert done.returncode == 1
    assert done.stderr.count("ValueError: bad batch") == 2, done.stderr  # in the traceback, and in the last line
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'train.py", line 12' in lines[1]
    assert lines[-1] == (
        "shardwise launch: process 1 failed: ValueError: bad batch; "
        "it was running what follows einsum A[I, J_x] · B[J_x, K] -> C[I, K]; process 0 ended with it"
    )


def test_a_process_killed_amid_collectives_is_named(folder):
    started = time.monotonic()
    done = shardwise("launch", "-n", "2", "train.py", "collective", folder=folder)
    assert time.monotonic() - started < 30
    assert done.returncode == 137
    assert "shardwise launch: process 1 was killed (SIGKILL" in done.stderr


def test_a_stopped_process_is_named_at_the_stated_time_out(folder):
    started = time.monotonic()
    done = shardwise("launch", "-n", "2", "--silence-seconds", "3", "train.py", "stop", folder=folder)
    assert time.monotonic() - started < 30
    assert done.returncode == 70
    assert "process 1 has not answered for 3 seconds" in done.stderr
    assert "it was stopped by a signal (SIGSTOP, or Ctrl-Z)" in done.stderr


def test_run_works_as_it_is(tmp_path):
    words = ["run", "A[I_x, J] · B[J, K] -> C[I, K]", "--sizes", "I=64,J=32,K=16", "--mesh", "x=4"]
    many = shardwise("launch", "-n", "2", *words, "--json", "--output", "c.npy", folder=tmp_path)
    assert many.returncode == 0, many.stderr
    assert json.loads(many.stdout)["check"]["ok"]
    assert np.load(tmp_path / "c.npy").shape == (64, 16)


def test_what_gloo_prints_as_it_connects_is_left_out_and_nothing_else():
    whole = b"[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
    for line in (whole, b"[Gloo] Rank " + whole, whole[13:]):
        assert _is_noise(line + b"\n"), line
    for line in (b"3", b"", b"1 is connected to 2", b"[Gloo] Rank 0 failed to connect", b"loss 3 peer ranks."):
        assert not _is_noise(line + b"\n"), line


def test_a_users_mistake_is_told_as_by_one_process(tmp_path):
    done = shardwise("launch", "-n", "2", "run", "A[I_x, J_x] -> C[I, J]", "--mesh", "x=4", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("mesh axis x splits both I and J") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "0", "train.py"], "start 1 to 256 processes"),
        (["trian.py"], "is no file, no module:function, and none of run, compare, audit, trace"),
        (["--devices-per-process", "0", "train.py"], "give at least 1"),
    ],
)
def test_mistakes_are_told_before_anything_starts(words, told, folder):
    done = shardwise("launch", *words, folder=folder)
    assert done.returncode == 2
    assert told in done.stderr
