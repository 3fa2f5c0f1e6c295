"""`sw.distributed.start` where a cluster tells who is who, and no launcher watches: what is found, how failures are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardwise.distributed.launching import free_port

SCRIPT = """
import os, signal, sys, time
import shardwise as sw
job = sw.distributed.start(silence_seconds=3)
print(job, flush=True)
import jax, numpy as np
mode = sys.argv[1]
mesh = sw.make_mesh("x=3")
a = sw.einsum("A[I_x, J] -> S[J]", np.ones((3, 2), np.float32), mesh=mesh)
print(np.asarray(a.addressable_data(0)).tolist(), flush=True)
if job.process == 2 and mode == "raise":
    raise ValueError("bad batch")
if job.process == 2 and mode == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
if job.process == 0 and mode == "stop 0":
    os.kill(os.getpid(), signal.SIGSTOP)
if job.process == 2 and mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(1000 if mode == "kill" else 0):
    sw.einsum("A[I_x, J] -> S[J]", np.ones((3, 2), np.float32), mesh=mesh)
if mode != "well":
    time.sleep(60)
"""


class Run:
    """Three processes in the environment that SLURM gives its tasks, on one host; their exit statuses and output, by number."""

    def __init__(self, folder: Path, mode: str) -> None:
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDWISE_", "JAX_NUM"))}
        told = {
            "SLURM_JOB_ID": "17",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NTASKS": "3",
            "JAX_COORDINATOR_PORT": str(port),
        }
        began = time.monotonic()
        processes = [
            subprocess.Popen(
                [sys.executable, "train.py", mode], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=kept | told | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "JAX_PLATFORMS": "cpu"},
            )
            for i in range(3)
        ]  # fmt: skip
        try:
            waited = [i for i in range(3) if mode not in (f"stop {i}", "stop" if i == 2 else "")]
            outputs = {i: processes[i].communicate(timeout=60) for i in waited}
        finally:
            self.seconds = time.monotonic() - began
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        self.status = {i: processes[i].returncode for i in waited}
        self.out = {i: output[0] for i, output in outputs.items()}
        self.err = {i: output[1] for i, output in outputs.items()}


def test_what_was_found_is_said_once(tmp_path):
    run = Run(tmp_path, "well")
    assert run.status == {0: 0, 1: 0, 2: 0}, run.err
    assert "shardwise: process 0 of 3 on 1 host, found by SLURM; process 0 is at localhost:" in run.err[0]
    assert "found by" not in run.err[1] + run.err[2]
    assert all("[3.0, 3.0]" in out for out in run.out.values())


def test_an_error_of_one_ends_all_at_once_and_each_log_names_it(tmp_path):
    run = Run(tmp_path, "raise")
    assert run.status == {0: 70, 1: 70, 2: 1}
    assert run.seconds < 30  # JAX alone: 300
    assert "ValueError: bad batch" in run.err[2]
    for i in (0, 1):
        assert f"shardwise: process {i} ends, because process 2 failed: ValueError: bad batch; it was running" in run.err[i]


@pytest.mark.parametrize(("mode", "named"), [("kill", 2), ("stop", 2), ("stop 0", 0)])
def test_a_silent_process_ends_all_at_the_stated_time_out_and_each_log_names_it(mode, named, tmp_path):
    run = Run(tmp_path, mode)
    assert run.seconds < 30
    assert set(run.status) >= {0, 1, 2} - {named}
    for i in {0, 1, 2} - {named}:
        assert run.status[i] == 70
        assert f"shardwise: process {i} ends, because process {named}" in run.err[i]
        assert "has not answered for 3 seconds" in run.err[i]
        assert "if it was only slow, allow more" in run.err[i]
