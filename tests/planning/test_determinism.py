"""A plan depends on the problem alone: processes that plan by themselves must come to the same programs."""

from __future__ import annotations

import os
import subprocess
import sys

PLANS = """
import shardwise as sw
sizes = {"I": 8, "J": 16, "K": 4}
for hardware in ("cpu", "tpu-v5e", "h100"):
    for result in ("C[I, K_y]", "C[I_x, K]", "C[I_?, K_?]"):
        plan = sw.plan(f"A[I_x, J_y] · B[J_y, K] -> {result}", sizes=sizes, mesh="x=2, y=2", hardware=hardware)
        print(*(candidate.program for candidate in plan))
five = "A[I_x, J_y] · B[J_z, K_w] · C[K, L_v] -> D[I_{v,x}, L_?]"
plan = sw.plan(five, sizes=dict.fromkeys("IJKL", 64), mesh="x=2, y=2, z=2, w=2, v=2", hardware="h100", overlap=False)
print(plan.searched_all, *(candidate.program for candidate in plan))
"""


def planned(hash_seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run([sys.executable, "-c", PLANS], env=environment, capture_output=True, encoding="utf-8", check=True)
    return run.stdout


def test_every_process_finds_the_same_programs_in_the_same_order():
    first, *others = map(planned, range(5))
    assert first
    assert all(other == first for other in others)
