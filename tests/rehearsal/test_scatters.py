"""Scatters as TPU compilers make them, beside what their estimates say of them."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.chips.topology import Topology
from shardwise.compiled.audit import Audit
from shardwise.compiled.confirming import rehearsed
from shardwise.planning.cost import estimate
from shardwise.planning.problem import costs_of
from shardwise.steps import AllGather, Einsum, ReduceScatter

pytestmark = [pytest.mark.usefixtures("kept_texts"), pytest.mark.needs("tpu")]
MATMUL = Einsum(("A", "B"), "C", ("I", "K"))


def scattered(dim: str, sizes: dict[str, int], mesh: str, target: str, dtype: str = "bfloat16") -> tuple[Audit, float]:
    """A matmul and the scatter of its sum as compiled, and the estimate of both in seconds."""
    result = "C[I_x, K]" if dim == "I" else "C[I, K_x]"
    plan = sw.plan(f"A[I, J_x] · B[J_x, K] -> {result}", sizes=sizes, mesh=mesh, hardware=target, overlap=False, dtype=dtype)
    program = dataclasses.replace(plan.best.program, steps=(MATMUL, ReduceScatter("C", dim, ("x",))))
    audit = rehearsed(plan.task, program, Topology.parse(target))
    return audit, estimate(program, costs_of(plan.task), plan.task.sizes).seconds


@pytest.mark.parametrize(
    ("target", "columns"), [("v5e:2x4", 128), ("v6e:2x4", 640), ("v5p:2x2x2", 384), ("v4:2x2x2", 128), ("v5e:2x4", 1182)]
)
def test_blocks_of_columns_are_not_summed(target: str, columns: int):
    """An odd number of tiles, or part of one: of a tiled scatter the compiler makes an all-reduce, and a slice."""
    audit, _ = scattered("K", {"I": 512, "J": 256, "K": 4 * columns}, "x=4, y=2", target)
    kinds = [each.kind for each in audit.collectives]
    assert "reduce-scatter" in kinds
    assert "all-reduce" not in kinds


@pytest.mark.parametrize("target", ["v5e:2x4", "v6e:2x4", "v5p:2x2x2", "v4:2x2x2"])
@pytest.mark.parametrize("size", [1152, 40960, 1000])
def test_vectors_are_scattered_as_rows_of_tiles(target: str, size: int):
    """Of 1000 there are none: these are summed, as all vectors are of which the compiler is not told so."""
    plan = sw.plan("S[I]{U_x} -> S[I_x]", sizes={"I": 4 * size}, mesh="x=4, y=2", hardware=target, overlap=False)
    program = dataclasses.replace(plan.best.program, steps=(ReduceScatter("S", "I", ("x",)),))
    audit = rehearsed(plan.task, program, Topology.parse(target))
    assert [each.kind for each in audit.collectives] == ["all-reduce" if size == 1000 else "reduce-scatter"]
    if size == 40960:
        seconds = estimate(program, costs_of(plan.task), plan.task.sizes).seconds
        assert seconds / audit.timeline().step_seconds == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("target", "mesh", "extent", "rows", "columns", "dtype"),
    [
        ("v6e:8x8", "x=8, y=8", 8, 2048, 1664, "bfloat16"),
        ("v5p:2x2x4", "x=4, y=4", 4, 992, 5120, "bfloat16"),
        ("v4:2x2x4", "x=4, y=4", 4, 1176, 3712, "bfloat16"),
        ("v5e:4x8", "x=8, y=4", 8, 832, 832, "float32"),
        ("v5e:4x4", "x=4, y=4", 4, 2044, 1920, "bfloat16"),
    ],
)
def test_padded_blocks_take_as_long_as_estimated(target: str, mesh: str, extent: int, rows: int, columns: int, dtype: str):
    audit, seconds = scattered("I", {"I": extent * rows, "J": 64 * extent, "K": columns}, mesh, target, dtype)
    assert [each.kind for each in audit.collectives] == ["reduce-scatter", "collective-permute"]
    assert seconds / audit.timeline().step_seconds == pytest.approx(1, abs=0.1)


CUBE = ("x", "y", "z")


@pytest.mark.parametrize(
    ("axes", "rows", "columns", "micros"),
    [
        (("x", "y"), 50, 640, 12),  # tiled 34 us: round one ring, and the pads are moved
        (CUBE, 6, 3072, 18),  # 212
        (CUBE, 128, 1024, 250),  # 128 tiles cannot be shared out among three sides: one ring
        (CUBE, 96, 1024, 80),
    ],
)
def test_on_chips_of_two_cores_scatters_of_any_rows_go_along_all_sides(
    axes: tuple[str, ...], rows: int, columns: int, micros: float
):
    n = {("x", "y"): 16, CUBE: 128}[axes]
    over = f"{{{','.join(axes)}}}"
    plan = sw.plan(
        f"A[I, J_{over}] · B[J_{over}, K] -> C[I_{over}, K]", sizes={"I": n * rows, "J": 64 * n, "K": columns},
        mesh="x=4, y=4, z=8", hardware="v7x:4x4x4", overlap=False,
    )  # fmt: skip
    program = dataclasses.replace(plan.best.program, steps=(MATMUL, ReduceScatter("C", "I", axes)))
    audit = rehearsed(plan.task, program, Topology.parse("v7x:4x4x4"))
    assert [each.kind for each in audit.collectives] == ["reduce-scatter"]
    seconds = estimate(program, costs_of(plan.task), plan.task.sizes).seconds
    assert audit.timeline().step_seconds < micros * 1e-6
    assert seconds / audit.timeline().step_seconds == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("equation", "sizes", "mesh", "target", "micros"),
    [  # as the second takes one block for a row of a tile: 366, 930, 965 and 1925 us
        ("A[I, J_x] · B[J_x, K_y] -> C[I_x, K]", {"I": 730, "J": 1280, "K": 17344}, "x=2, y=8", "v7x:2x2x2", 130),
        ("A[I, J_x] · B[J_x, K_y] -> C[I_x, K]", {"I": 7648, "J": 11520, "K": 3380}, "x=2, y=4", "v6e:2x4", 580),
        ("A[I_y, J_x] · B[J_x, K] -> C[I, K_x]", {"I": 3720, "J": 5632, "K": 6736}, "x=2, y=4", "v4:2x2x2", 690),
        ("A[I_y, J_x] · B[J_x, K] -> C[I, K_x]", {"I": 6204, "J": 3840, "K": 5888}, "x=2, y=4", "v5e:2x4", 1300),
    ],
)
def test_a_gather_behind_a_scatter_of_blocks_takes_what_is_left_as_it_stands(
    equation: str, sizes: dict[str, int], mesh: str, target: str, micros: float
):
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, hardware=target, overlap=False)
    taken, kept = ("K", "I") if "I_x" in equation else ("I", "K")
    steps = (MATMUL, ReduceScatter("C", kept, ("x",)), AllGather("C", taken, ("y",)))
    program = dataclasses.replace(plan.best.program, steps=steps)
    audit = rehearsed(plan.task, program, Topology.parse(target))
    assert audit.timeline().step_seconds < micros * 1e-6
    seconds = estimate(program, costs_of(plan.task), plan.task.sizes).seconds
    assert seconds / audit.timeline().step_seconds == pytest.approx(1, abs=0.25)


def test_what_is_summed_is_not_brought_in_front_before():
    """Of a tiled scatter over the second of three dimensions the compiler makes an all-reduce, and two copies: 266 us."""
    plan = sw.plan(
        "A[B, I, J_x] · B[J_x, K] -> C[B, I_x, K]", sizes={"B": 4, "I": 128 * 99, "J": 8192, "K": 128}, mesh="x=128",
        hardware="v6e:8x16", overlap=False,
    )  # fmt: skip
    program = dataclasses.replace(
        plan.best.program, steps=(Einsum(("A", "B"), "C", ("B", "I", "K")), ReduceScatter("C", "I", ("x",)))
    )
    audit = rehearsed(plan.task, program, Topology.parse("v6e:8x16"))
    assert [each.kind for each in audit.collectives] == ["all-reduce"]
    seconds = estimate(program, costs_of(plan.task), plan.task.sizes).seconds
    assert audit.timeline().step_seconds < 125e-6
    assert seconds / audit.timeline().step_seconds == pytest.approx(1, abs=0.15)
