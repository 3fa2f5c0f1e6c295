"""One of four processes that differ, two and two, in one thing after the other; writes what the preflight said of each.

shardwise launch -n 4 preflight_child.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import shardwise as sw
from shardwise.distributed import jobs

OTHER = jax.process_index() >= 2
A, B = np.arange(64, dtype=np.float32).reshape(8, 8), np.eye(8, dtype=np.float32)
MATMUL = "A[I_x, J] · B[J, K] -> C[I, K]"
MESH = sw.make_mesh("x=4", axis_types=jax.sharding.AxisType.Auto)


def equation() -> None:
    sw.einsum("A[I_x, J] · B[K, J] -> C[I, K]" if OTHER else MATMUL, A, B, mesh=MESH)


def mesh_order() -> None:
    devices = jax.devices()
    sw.einsum(MATMUL, A, B, mesh=sw.make_mesh("x=4", devices=devices[::-1] if OTHER else devices))


def version() -> None:
    was = jobs.common
    jobs.common = lambda: was() | ({"jax": "0.0.1"} if OTHER else {})
    try:
        sw.einsum("A[I_x, J] · B[J, K] -> C[I_x, K]", A, B, mesh=MESH)
    finally:
        jobs.common = was


def shape() -> None:
    sw.einsum(MATMUL, np.ones((16, 8) if OTHER else (8, 8), np.float32), B, mesh=MESH)


def dtype() -> None:
    sw.einsum(MATMUL, A.astype(np.int8 if OTHER else np.float32), B, mesh=MESH)


def plan() -> None:
    sw.einsum(MATMUL, A, B, mesh=MESH, overlap="ring" if OTHER else False)


def put() -> None:
    sw.put(A.astype(np.int16), "A[I, J_x]" if OTHER else "A[I_x, J]", MESH)


def function() -> None:
    x = sw.put(B, "A[I_x, J]", MESH)
    sw.distributed.preflight(jax.jit((lambda x: x @ x) if OTHER else (lambda x: x.T @ x)), x)


def check() -> None:
    x = sw.put(B, "A[I_x, J]", MESH)
    sw.check(lambda x: x, lambda x: x, x, gradients=bool(OTHER))


DIFFER: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (equation, mesh_order, version, shape, dtype, plan, put, function, check)
}


def main(folder: str) -> None:
    said = {}
    for name, differ in DIFFER.items():
        started = time.perf_counter()
        try:
            differ()
            said[name] = "nothing", time.perf_counter() - started
        except sw.distributed.DistributedError as error:
            said[name] = str(error), time.perf_counter() - started
    # What all have alike goes on after a difference that was caught; and a mesh of one process asks nobody.
    same = sw.einsum(MATMUL, A, B, mesh=MESH)
    np.testing.assert_array_equal(np.asarray(same.addressable_data(0)), A)
    if jax.process_index() == 1:
        sw.einsum("A[I_x, J] -> S[I_x]", A, mesh=sw.make_mesh("x=1", devices=jax.local_devices()))
    found = sw.distributed.preflight(jax.jit(lambda x: x.T @ x), sw.put(B, "A[I_x, J]", MESH))
    said["agreed"] = str(found), 0.0
    Path(folder, f"said-{jax.process_index()}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
