"""Two processes with two devices each: the same public calls as in one, and each process holds its own shards alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from doors.process_child import PROCESSES, SECTIONS, A

CHILD = Path(__file__).with_name("process_child.py")
TIMEOUT_SECONDS = 240
GRACE_SECONDS = 10  # for the other process, once one has failed


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(port: int, process: int, folder: Path) -> subprocess.Popen:
    with (folder / f"output-{process}").open("w") as output:
        return subprocess.Popen(
            [sys.executable, str(CHILD), str(port), str(process), str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
        )


def wait(children: list[subprocess.Popen]) -> None:
    """Until all have ended; when one has failed, or time is up, the others are killed."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while any(child.poll() is None for child in children) and time.monotonic() < deadline:
            if any(child.poll() for child in children):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            time.sleep(0.05)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> list[dict[str, float]]:
    """What each process passed, with the seconds it took; the output of both where one did not end well."""
    folder = tmp_path_factory.mktemp("processes")
    np.save(folder / "a.npy", A)
    port = free_port()
    children = [start(port, process, folder) for process in range(PROCESSES)]
    wait(children)
    if any(child.returncode for child in children):
        told = [
            f"process {process} ended with {child.returncode} and printed:\n{(folder / f'output-{process}').read_text()}"
            for process, child in enumerate(children)
        ]
        pytest.fail("\n".join(told), pytrace=False)
    for told in ("plan", "confirmed"):
        texts = {(folder / f"{told}-{process}").read_text() for process in range(PROCESSES)}
        assert len(texts) == 1, f"{told}: the processes say otherwise:\n" + "\n\n".join(texts)
    return [json.loads((folder / f"verdict-{process}.json").read_text()) for process in range(PROCESSES)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_process_passes(section, verdicts):
    assert all(section in verdict for verdict in verdicts)
