"""What each process of `benchmarks.processes` runs, under `shardwise launch`.

process_member.py equations SEED COUNT       random equations against the NumPy oracle
process_member.py capabilities FOLDER        C1 to C9 and D1 to D10, their results into a file
process_member.py differ KIND                two of four do something else
process_member.py rounds COUNT               the same, one kind after the other, again and again
process_member.py load FILE LAYOUT           the memory that loading takes
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np

import shardwise as sw
from benchmarks.equations import grown, random_arrays, random_case, whole
from shardwise.errors import ShardwiseError
from tests.doors.files_child import status


def equations(seed: str, count: str) -> None:
    """Whole numbers, so that equal means equal; the same in every process, since the seed is."""
    sw.distributed.start()
    random, done = Random(int(seed)), 0
    while done < int(count):
        case = random_case(random, elements=2000, factors=(1, 2, 2, 3))
        if case.mesh.size != jax.device_count() or case.summed > 10**4:
            continue
        arrays = random_arrays(random, case, np.dtype("float32"), 3)
        result = sw.einsum(str(case.equation), *arrays, mesh=str(case.mesh), hardware=case.hardware)
        wanted = whole(case.equation, [array.astype(np.int64) for array in arrays])
        if not case.equation.result.layout.unreduced:
            for shard in result.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), grown(wanted, result.shape)[shard.index], str(case))
        done += 1
        print(f"equation {done}", flush=True)


# The capabilities.

MATRIX = "x=4, y=2"
LINE = "x=8"


def _float(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _einsum(equation: str, *shapes: tuple[int, ...], mesh: str = LINE, **options: Any) -> jax.Array:
    return sw.einsum(equation, *(_float(*shape, seed=i) for i, shape in enumerate(shapes)), mesh=mesh, **options)


def _mapped(function: Any, values: np.ndarray, out: Any) -> jax.Array:
    mesh = sw.make_mesh(LINE)
    placed = sw.put(values, "A[I_x, J]", mesh)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=jax.P("x"), out_specs=out))(placed)


A, B = (64, 32), (32, 16)
SQUARE = "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]"
CAPABILITIES: dict[str, Any] = {
    "C1": lambda: _einsum("A[I_x, J] -> A[I, J]", A),
    "C2": lambda: _einsum("A[I, J_x] -> S[I]", A),
    "C3": lambda: _einsum("A[I, J_x] -> S[I_x]", A),
    "C4": lambda: _einsum("A[I_x, J] -> A[I, J_x]", A),
    "C5": lambda: _einsum("A[I_{x,y}, J] -> A[I_{y,x}, J]", A, mesh=MATRIX),
    "C6": lambda: _mapped(lambda a: a + sw.spmd.axis_position("x"), _float(*A), jax.P("x")),
    "C7": lambda: _mapped(lambda a: sw.spmd.var(a, axis=0, over="x"), _float(*A), jax.P()),
    "C8": lambda: _einsum("X[B, D] · W[D_x, F] -> Y[B, F]", A, B, exact=True),
    "C9": lambda: sw.random.normal(jax.random.key(3), "A[I_x, J]", sizes={"I": 64, "J": 32}, mesh=sw.make_mesh(LINE)),
    "D1": lambda: _einsum("A[I_x, J] · B[J, K_y] -> C[I_x, K_y]", A, B, mesh=MATRIX),
    "D2": lambda: _einsum("A[I, J_x] · B[J, K] -> C[I, K]", A, B),
    "D3": lambda: _einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", A, B),
    "D4": lambda: _einsum("A[I_x, J] · B[J, K_x] -> C[I_x, K]", A, B),
    **{f"D5 {out}": lambda out=out: _einsum(f"A[I_x, J_y] · B[J_y, K] -> C[{out}]", A, B, mesh=MATRIX)
       for out in ("I_x, K_y", "I_x, K", "I, K_y")},
    **{f"D6 {form}": lambda form=form: _einsum("A[I_x, J] · B[J, K] -> C[I, K]", A, B, overlap=form)
       for form in (False, "ring", "bidirectional")},
    "D7": lambda: _einsum("A[I_x, J] · Y[P, J, K] -> C[P, I_x, K]", A, (4, 32, 16)),
    "D8": lambda: _einsum("A[I, J_x] · B[J_x, K] -> C[I_x, K]", A, B, overlap=False),
    "D8 ring": lambda: _einsum("A[I, J_x] · B[J_x, K] -> C[I_x, K]", A, B, overlap="scatter"),
    "D10": lambda: _einsum(SQUARE, A, B, mesh="x=2, y=2", overlap=False),
    "D10 rotate": lambda: _einsum(SQUARE, A, B, mesh="x=2, y=2", overlap="rotate"),
}  # fmt: skip


def capabilities(folder: str) -> None:
    """Every shard of every result, by capability and place."""
    sw.distributed.start()
    sw.simulate(8)
    found: dict[str, np.ndarray] = {}
    for name, make in CAPABILITIES.items():
        try:
            result = make()
        except ShardwiseError as error:
            found[f"{name}|{type(error).__name__}: {str(error).splitlines()[0]}"] = np.zeros(())
            continue
        for shard in result.addressable_shards:
            bounds = [part.indices(size)[:2] for part, size in zip(shard.index, result.shape, strict=True)]
            found[f"{name}|{json.dumps(bounds)}"] = np.asarray(shard.data)
    # D9: what was compiled is what was planned.
    mesh = sw.make_mesh(LINE)
    plan = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes={"I": 64, "J": 32, "K": 16}, mesh=mesh, dtype="float32")
    placed = sw.put(_float(*A), "A[I_x, J]", mesh), sw.put(_float(*B), "B[J, K]", mesh)
    sw.audit(plan.function(mesh), *placed).assert_matches(plan)
    found["D9|matches"] = np.zeros(())
    np.savez(Path(folder, f"found-{jax.process_index()}.npz"), **{key.replace("/", "|"): value for key, value in found.items()})


# Differences.


def differ(kind: str) -> None:
    from tests.doors.preflight_child import DIFFER  # which needs four devices

    sw.distributed.start()
    started = time.perf_counter()
    try:
        DIFFER[kind]()
    finally:
        print(f"seconds {time.perf_counter() - started:.3f}", file=sys.stderr, flush=True)


def rounds(count: str) -> None:
    from tests.doors.preflight_child import DIFFER

    sw.distributed.start()
    caught, slowest = dict.fromkeys(DIFFER, 0), 0.0
    for _ in range(int(count)):
        for name, act in DIFFER.items():
            started = time.perf_counter()
            try:
                act()
            except sw.distributed.DistributedError:
                caught[name] += 1
            slowest = max(slowest, time.perf_counter() - started)
    print(json.dumps({"caught": caught, "slowest": slowest}), flush=True)


def load(file: str, layout: str) -> None:
    """The peak of this process while it loads, beside what its own shards and one more need."""
    sw.distributed.start()
    mesh = sw.make_mesh(f"x={jax.device_count()}")
    resting = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    started = time.perf_counter()
    loaded = jax.block_until_ready(sw.put(file, layout, mesh))
    seconds = time.perf_counter() - started
    own, shard = (sum(s.data.nbytes for s in loaded.addressable_shards), loaded.addressable_shards[0].data.nbytes)
    peak = status("VmHWM") - resting
    print(f"{layout}: own shards {own / 2**20:.0f} MiB, peak {peak / 2**20:.0f} MiB, "
          f"{peak / (own + shard):.2f} of the bound, {seconds:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    {"equations": equations, "capabilities": capabilities, "differ": differ, "rounds": rounds, "load": load}[sys.argv[1]](
        *sys.argv[2:]
    )
