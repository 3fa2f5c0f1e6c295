"""One of two processes with two devices each: runs every section below with the public names, and writes its verdict.

    python process_child.py PORT PROCESS FOLDER

A section is a function of a folder that holds the inputs. Both processes must run the same sections in the same order,
since they meet in collectives.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.measure import autotuning

PROCESSES = 2
A = np.arange(128, dtype=np.float32).reshape(8, 16)
B = np.arange(64, dtype=np.float32).reshape(16, 4)
SECTIONS: dict[str, Callable[[Path], None]] = {}


def section(function: Callable[[Path], None]) -> Callable[[Path], None]:
    SECTIONS[function.__name__] = function
    return function


def assert_holds(array: jax.Array, layout: str, whole: np.ndarray) -> None:
    """This process's shards are those of the layout, and hold their parts of the whole."""
    assert not array.is_fully_addressable
    assert array.shape == whole.shape, (array.shape, whole.shape)
    wanted = sw.Layout.parse(layout)
    assert sw.Layout.from_spec(array.sharding.spec, wanted.names) == wanted, (array.sharding.spec, layout)
    assert len(array.addressable_shards) == jax.local_device_count()
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@section
def devices(folder: Path) -> None:
    assert jax.process_count() == PROCESSES
    assert jax.device_count() == 4
    assert jax.local_device_count() == 2
    mesh = sw.make_mesh("x=2, y=2")
    assert {device.process_index for device in mesh.devices.flat} == {0, 1}


@section
def put_from_the_host(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    for layout in ("I_x, J_y", "I_y, J", "I, J_{y,x}", "I, J"):
        assert_holds(sw.put(A, f"A[{layout}]", mesh), layout, A)
        assert_holds(sw.put(jnp.asarray(A), f"A[{layout}]", mesh), layout, A)
    padded = sw.put(A[:7], "A[I_{x,y}, J]", mesh, pad=True)
    assert_holds(padded, "I_{x,y}, J", np.pad(A[:7], ((0, 1), (0, 0))))


@section
def put_from_a_file(folder: Path) -> None:
    """Each process reads the parts of its own devices, and nothing else."""
    from shardwise.runtime import arrays
    from shardwise.runtime.files import Source, open_source

    parts = []

    def recorded(path: str) -> Source:
        source = open_source(path)

        def read(index: tuple[slice, ...]) -> np.ndarray:
            parts.append(tuple((part.start, part.stop) for part in index))
            return source.read(index)

        return Source(source.name, source.shape, source.dtype, read)

    arrays.open_source = recorded
    try:
        placed = sw.put(str(folder / "a.npy"), "A[I_x, J_y]", sw.make_mesh("x=2, y=2"))
    finally:
        arrays.open_source = open_source
    assert_holds(placed, "I_x, J_y", A)
    own = {tuple(p.indices(n)[:2] for p, n in zip(s.index, A.shape, strict=True)) for s in placed.addressable_shards}
    assert len(own) == 2
    assert set(parts) == own, (parts, own)


@section
def put_sends_nothing(folder: Path) -> None:
    """A process need only know its own parts: each gives other values for those of the other process."""
    mesh = sw.make_mesh("x=4")
    own = slice(4 * jax.process_index(), 4 * jax.process_index() + 4)
    known = np.full_like(A, jax.process_index())
    known[own] = A[own]
    for array in (known, jnp.asarray(known)):
        assert_holds(sw.put(array, "A[I_x, J]", mesh), "I_x, J", A)


@section
def einsum_D5(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    a, b = sw.put(str(folder / "a.npy"), "A[I_x, J_y]", mesh), sw.put(B, "B[J_y, K]", mesh)
    for result in ("I_x, K_y", "I_x, K", "I, K_y"):
        c = sw.einsum(f"A[I_x, J_y] · B[J_y, K] -> C[{result}]", a, b)
        assert_holds(c, result, A @ B)
    assert_holds(sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]", A, B, mesh=mesh), "I_x, K_y", A @ B)
    assert_holds(sw.einsum("ij,jk->ik", a, b, out="i_x, k_y"), "I_x, K_y", A @ B)


@section
def plan_D5(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    a, b = sw.put(A, "A[I_x, J_y]", mesh), sw.put(B, "B[J_y, K]", mesh)
    for result in ("I_x, K_y", "I_x, K", "I, K_y"):
        plan = sw.plan(f"A[I_x, J_y] · B[J_y, K] -> C[{result}]", sizes={"I": 8, "J": 16, "K": 4}, mesh=mesh, dtype="float32")
        for candidate in plan:
            assert_holds(plan.function(mesh, candidate)(a, b), result, A @ B)


@section
def unreduced_D5(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    partial = sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}", A, B, mesh=mesh)
    for shard in partial.addressable_shards:
        x, y = divmod(mesh.devices.flatten().tolist().index(shard.device), 2)
        columns = slice(8 * y, 8 * y + 8)
        np.testing.assert_array_equal(np.asarray(shard.data), A[4 * x : 4 * x + 4, columns] @ B[columns])
    assert_holds(sw.reshard(partial, "C[I_x, K]{U_y} -> C[I_x, K_y]"), "I_x, K_y", A @ B)


@section
def einsum_D6(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")
    a, b = random(64, 16), random(16, 8, seed=1)
    equation = "A[I_x, J] · B[J, K] -> C[I, K]"
    plan = sw.plan(equation, sizes={"I": 64, "J": 16, "K": 8}, mesh=mesh, dtype="float32")
    placed = sw.put(a, "A[I_x, J]", mesh), sw.put(b, "B[J, K]", mesh)
    for c in (
        sw.einsum(equation, *placed),
        jax.jit(lambda a, b: sw.einsum(equation, a, b))(*placed),
        plan.function(mesh)(a, b),
    ):
        assert len(c.addressable_shards) == 2
        for shard in c.addressable_shards:
            assert shard.data.shape == (64, 8)
            np.testing.assert_allclose(np.asarray(shard.data), a @ b, rtol=1e-5, atol=1e-5)


@section
def every_process_plans_the_same(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    plan = sw.plan("A[I_x, J_y] · B[J_x, K_y] -> C[I_?, K_?]", sizes={"I": 64, "J": 64, "K": 64}, mesh=mesh)
    (folder / f"plan-{jax.process_index()}").write_text(plan.explain())


@section
def every_process_confirms_the_same(folder: Path) -> None:
    """By the clock, which runs otherwise in each process: all agree on the times."""
    sizes = {"I": 16, "J": 8, "K": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autotuning, "SECONDS", 0.05)
        plan = sw.plan(
            "A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=sizes, mesh=sw.make_mesh("x=4"), dtype="float32", confirm="here"
        )
    told = repr([(str(candidate.program), candidate.measured_seconds) for candidate in plan])
    (folder / f"confirmed-{jax.process_index()}").write_text(told)
    assert plan.best.measured_seconds is not None


@section
def padded(folder: Path) -> None:
    a, b = random(7, 10), random(10, 6, seed=1)
    c = sw.einsum("A[I_x, J] · B[J, K] -> C[I_x, K]", a, b, mesh="x=4", pad=True)
    assert c.shape == (8, 6)
    whole = np.pad(a @ b, ((0, 1), (0, 0)))
    for shard in c.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), whole[shard.index], rtol=1e-5, atol=1e-5)


@section
def reshard(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    a = sw.put(A, "A[I_x, J_y]", mesh)
    for before, after in [
        ("I_x, J_y", "I, J"), ("I, J", "I_{x,y}, J"), ("I_{x,y}, J", "I_{y,x}, J"), ("I_{y,x}, J", "I, J_{y,x}"),
        ("I, J_{y,x}", "I_y, J_x"), ("I_y, J_x", "I_x, J_y"),
    ]:  # fmt: skip
        a = sw.reshard(a, f"A[{before}] -> A[{after}]")
        assert_holds(a, after, A)


@section
def check(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    a, b = sw.put(random(8, 16), "A[I_x, J_y]", mesh), sw.put(random(16, 4, seed=1), "B[J_y, K]", mesh)

    def product(a, b):
        return sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]", a, b)

    outcome = sw.check(product, np.matmul, a, b)
    assert outcome, str(outcome)
    outcome = sw.check(product, lambda a, b: a @ b, a, b, gradients=True)
    assert outcome, str(outcome)
    assert [leaf.name for leaf in outcome.leaves] == ["output", "gradient[0]", "gradient[1]"]
    outcome = sw.check(product, lambda a, b: a @ b + 1, a, b)
    assert not outcome, str(outcome)


@section
def check_with_arrays_of_the_host(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")

    def product(a, b):
        return sw.einsum("A[I_x, J] · B[J, K] -> C[I, K]", a, b, mesh=mesh)

    outcome = sw.check(product, lambda a, b: a @ b, random(64, 16), random(16, 8, seed=1), gradients=True)
    assert outcome, str(outcome)


@section
def check_finds_replicas_that_differ_between_processes(folder: Path) -> None:
    """Two processes with a replica each: neither sees the other's, and both must say that they differ."""
    mesh = sw.make_mesh("x=2, y=2")
    split = sw.Layout.parse("I_y")
    differ = jax.shard_map(
        lambda x: x + sw.spmd.axis_position("x"), mesh=mesh, in_specs=split.spec, out_specs=split.spec, check_vma=False
    )
    for dtype in ("float32", "bfloat16", "complex64", "int8", "bool"):
        x = sw.put(np.arange(4).astype(jnp.dtype(dtype)), "A[I_y]", mesh)
        equal = sw.check(lambda x: x, lambda x: x, x)
        assert equal, str(equal)
        assert equal.leaves[0].replicas_equal
        if dtype != "bool":
            outcome = sw.check(differ, lambda x: x, x)
            assert not outcome.leaves[0].replicas_equal, (dtype, str(outcome))
            assert "replicas differ" in str(outcome)


@section
def show(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    shown = sw.show(sw.put(A, "A[I_x, J_y]", mesh))
    assert shown.devices == tuple(device.id for device in mesh.devices.flat)
    assert [part[0].start for _, part in shown.shards()] == [0, 0, 4, 4]


@section
def gradients(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")
    x, w = random(8, 16), random(16, 4, seed=1)

    def loss(w, x):
        return jnp.sum(sw.einsum("X[B_x, D] · W[D_x, F] -> Y[B_x, F]", x, w) ** 2)

    gradient = jax.jit(jax.grad(loss))(sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh))
    wanted = 2 * x.T @ (x @ w)
    for shard in gradient.addressable_shards:
        assert shard.data.shape == (4, 4)
        np.testing.assert_allclose(np.asarray(shard.data), wanted[shard.index], rtol=1e-4, atol=1e-4)


@section
def random_arrays_are_those_of_one_process(folder: Path) -> None:
    mesh = sw.make_mesh("x=2, y=2")
    replicated = jax.jit(lambda: jax.random.key(3), out_shardings=jax.NamedSharding(mesh, jax.P()))()
    for key in (jax.random.key(3), replicated):
        array = sw.random.normal(key, "A[I_x, J_y]", sizes={"I": 8, "J": 16}, mesh=mesh)
        assert_holds(array, "I_x, J_y", np.asarray(jax.random.normal(jax.random.key(3), (8, 16))))


@section
def statistics_across_processes(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")
    variance = jax.shard_map(lambda x: sw.spmd.var(x, axis=0, over="x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    found = variance(sw.put(A, "A[I_x, J]", mesh))
    np.testing.assert_allclose(np.asarray(found.addressable_data(0)), A.var(axis=0), rtol=1e-6)


@section
def each_process_prints_of_its_devices(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")

    def local(x):
        sw.spmd.device_print(x, label="here", values=True)
        return x

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        x = sw.put(np.float32([0, 1, 2, 3]), "A[I_x]", mesh)
        jax.block_until_ready(jax.jit(jax.shard_map(local, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))(x))
        jax.effects_barrier()
        deadline = time.monotonic() + 60
        while not printed.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    mine = [at for at, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    lines = [f"device {at}  x={at}  float32[1]  [{at}]" for at in mine]
    assert printed.getvalue().splitlines() == ["here on mesh x=4", *lines]


@section
def errors_come_alike_in_every_process(folder: Path) -> None:
    mesh = sw.make_mesh("x=4")
    a = sw.put(A, "A[I_x, J]", mesh)
    for wrong, reason in [
        (lambda: sw.einsum("A[I, J_x] -> A[I, J]", a), "is laid out as A[I_x, J]"),
        (lambda: sw.put(a, "A[I, J_x]", mesh), "is placed already: move it with sw.reshard"),
        (lambda: sw.put(A[:7], "A[I_x, J]", mesh), "does not divide"),
        (lambda: sw.make_mesh("x=8"), "needs 8 devices, and there are 4"),
    ]:
        with pytest.raises(sw.ShardwiseError, match=re.escape(reason)):
            wrong()


@section
def calibration(folder: Path) -> None:
    """Both processes run the same programs, agree on what these took, and fit the same figures; one of them writes the file."""
    from shardwise.measure import calibrating, fitted_hardware, rates, rounds
    from shardwise.measure.probes import KIB, axis_trials, copy_trial, matmul_trial

    rounds.SLOWER = rates.SCATTERED = fitted_hardware.NOISE = 1e9  # whatever else runs here
    calibrating.LEAST_SECONDS, rounds.FEWEST = 2.0, 1
    calibrating.local_trials = lambda grid: [matmul_trial(grid, (64, 64, 64)), copy_trial(grid, 64 * KIB)]
    calibrating.axis_trials = lambda grid, sizes: axis_trials(grid, (4 * KIB, 64 * KIB))
    mesh, path = sw.make_mesh("x=2, y=2"), folder / "mine.toml"
    found = sw.calibrate(mesh, seconds=2, output=str(path))
    assert found.calibration is not None
    assert found.calibration.host.endswith("2 processes")
    assert {(rate.devices, rate.apart) for rate in found.rates} == {(2, 2), (2, 1), (4, 1)}
    assert len(found.rates) == 15
    same = float(hash(tuple(figure.value for _, figure in found.figures())) % 1000)
    assert rounds.agreement(mesh)([same, -same]) == [same, -same]
    if jax.process_index() == 0:
        assert sw.hardware(str(path)) == found


def main(port: str, process: str, folder: str) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, int(process))
    passed = {}
    for name, function in SECTIONS.items():
        print(name, flush=True)
        started = time.perf_counter()
        function(Path(folder))
        passed[name] = time.perf_counter() - started
    Path(folder, f"verdict-{process}.json").write_text(json.dumps(passed))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
