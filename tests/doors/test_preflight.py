"""The preflight in four processes, of which two do something else: all are told, with the processes on either side, in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("preflight_child.py")
ABOUT = {
    "equation": "equation\n  processes 0, 1: A[I_x, J] · B[J, K] -> C[I, K]\n  processes 2, 3: A[I_x, J] · B[K, J] -> C[I, K]",
    "mesh_order": "mesh\n  processes 0, 1: x=4 (Explicit) on devices",
    "version": "jax\n  processes 0, 1:",
    "shape": "arrays\n  processes 0, 1: float32[8, 8], float32[8, 8]\n  processes 2, 3: float32[16, 8], float32[8, 8]",
    "dtype": "arrays\n  processes 0, 1: float32[8, 8], float32[8, 8]\n  processes 2, 3: int8[8, 8], float32[8, 8]",
    "plan": "plan\n  processes 0, 1: A[I_x, J]; B[J, K];",
    "put": "layout\n  processes 0, 1: A[I_x, J]\n  processes 2, 3: A[I, J_x]",
    "function": "lowered\n  processes 0, 1:",
    "check": "gradients\n  processes 0, 1: False\n  processes 2, 3: True",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> list[dict[str, tuple[str, float]]]:
    folder = tmp_path_factory.mktemp("preflight")
    command = [sys.executable, "-m", "shardwise", "launch", "-n", "4", str(CHILD), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONWARNINGS": "default"})
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"said-{process}.json").read_text()) for process in range(4)]


@pytest.mark.parametrize("what", ABOUT)
def test_what_differs_is_told_to_all_with_both_sides(what, said):
    for process in said:
        told, seconds = process[what]
        assert "about to run different things, and nothing was run" in told
        assert ABOUT[what] in told
        assert seconds < 10


def test_only_what_differs_is_told(said):
    told, _ = said[3]["mesh_order"]
    assert [line for line in told.splitlines() if line in ("equation", "arrays", "plan", "jax", "mesh")] == ["mesh"]


def test_what_all_agree_on_is_told_with_its_collectives(said):
    told, _ = said[0]["agreed"]
    assert "preflight: processes 0-3 would run the same" in told
    assert "all-reduce x1" in told
