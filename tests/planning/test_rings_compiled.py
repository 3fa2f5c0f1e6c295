"""Rings as estimates have them, beside what compilers made of them: of random shapes, compiled once, in microseconds."""

from __future__ import annotations

import pytest

from shardwise.notation import parse
from shardwise.planning.cost import estimate
from shardwise.planning.problem import costs_of, problem
from shardwise.program import Program
from shardwise.schedule.fused import least_read_again
from shardwise.steps import AllGather, Einsum, EinsumGather, EinsumScatter, GatherEinsum, ReduceScatter, Slice, Step

MATMUL, BATCHED = Einsum(("A", "B"), "C", ("I", "K")), Einsum(("A", "B"), "C", ("B", "I", "K"))
GRADIENT = Einsum(("A", "B"), "C", ("J", "K"))
COMPILED = {  # rings as they were compiled for sixteen chips, x=4 and y=4, in microseconds
    "an operand that was fetched is read there": (
        "v6e:4x4", "A[I_x, J] · B[K, J] -> C[I, K]", {"I": 512, "J": 6528, "K": 5632},
        GatherEinsum(AllGather("A", "I", ("x",)), MATMUL, "bidirectional", 2), 166),
    "and for what is sent on": (
        "v6e:4x4", "A[I_x, J] · B[J, K] -> C[I, K]", {"I": 1296, "J": 7552, "K": 3744},
        EinsumGather(MATMUL, AllGather("C", "I", ("x",)), "ring", 4), 166),
    "what arrives is written, not copied, and lies as the result": (
        "v6e:4x4", "A[B, I, J] · B[B, J, K_x] -> C[B, I, K]", {"B": 12, "I": 1536, "J": 512, "K": 7088},
        EinsumGather(BATCHED, AllGather("C", "K", ("x",)), "ring", 2), 2259),
    "two matmuls at least are left beside a transfer": (
        "v5p:2x2x4", "A[I, J_x] · B[J_x, K] -> C[I, K_x]", {"I": 1488, "J": 1792, "K": 4368},
        EinsumScatter(MATMUL, ReduceScatter("C", "K", ("x",)), "bidirectional", 2), 78),
    "a sum is read after the multiplications": (
        "v4:2x2x4", "A[I, J] · B[J_x, K] -> C[I, K]", {"I": 7296, "J": 4608, "K": 4480},
        GatherEinsum(AllGather("B", "J", ("x",)), MATMUL, "bidirectional", 2), 2008),
    "what is summed as one dimension is not transposed": (
        "v6e:4x4", "A[B, I_x, J] · B[B, I_x, K] -> C[J, K_x]", {"B": 20, "I": 512, "J": 1664, "K": 7936},
        EinsumScatter(GRADIENT, ReduceScatter("C", "K", ("x",)), "ring"), 350),
    "a slice of three dimensions is copied for a ring": (
        "v6e:4x4", "A[B, I, J] · B[J, K_x] -> C[B, I_y, K]", {"B": 16, "I": 2048, "J": 1024, "K": 6656},
        (Slice("A", "I", ("y",)), EinsumGather(BATCHED, AllGather("C", "K", ("x",)), "ring", 4)), 1020),
    "so is one along the first of dimensions that are taken as one": (
        "v6e:4x4", "A[B, I_x, J] · B[B_y, I_x, K] -> C[J_x, K]{U_y}", {"B": 32, "I": 2560, "J": 7168, "K": 2048},
        (Slice("A", "B", ("y",)), EinsumScatter(GRADIENT, ReduceScatter("C", "J", ("x",)), "ring")), 625),
}  # fmt: skip


def estimated(chip: str, mesh: str, equation: str, sizes: dict[str, int], *steps: Step) -> float:
    """The seconds of a program of these steps."""
    task = problem(parse(equation), sizes, mesh, chip)
    inputs = tuple((operand.name, operand.layout) for operand in task.equation.operands)
    return estimate(Program(task.mesh, inputs, steps, "C"), costs_of(task), task.sizes).seconds


@pytest.mark.parametrize(("rows", "again"), [(24072, False), (1000, True)])
def test_parts_that_read_an_operand_again_cost_so(rows: int, again: bool):
    """24,072 rows are cut as 24,576 are, where tiles end (compiled: 1.4 ms; along K, 3.8 ms); of 1,000, parts are too small."""
    step = EinsumGather(Einsum(("A", "B"), "C", ("I", "K")), AllGather("C", "K", ("x",)), "folded", 8)
    one, other = (
        estimated("v5e:4x8", "x=4, y=8", "A[I, J] · B[J, K_{y,x}] -> C[I, K_y]", {"I": size, "J": 4352, "K": 12032}, step)
        / size
        for size in (rows, 24576)
    )
    assert (one > 2 * other) == again
    assert again or one == pytest.approx(other, rel=0.02)


@pytest.mark.parametrize("cause", COMPILED)
def test_rings_take_what_compilers_made_of_them(cause):
    chip, equation, sizes, step, microseconds = COMPILED[cause]
    steps = step if isinstance(step, tuple) else (step,)
    assert estimated(chip, "x=4, y=4", equation, sizes, *steps) == pytest.approx(microseconds * 1e-6, rel=0.2)


LATE = {  # of compiled rings: in the same order one transfer is left with one matmul beside it, or is started earlier
    "v4": (
        "v4:2x2x2", "x=4, y=2", "A[J, I_x] · B[J, K_x] -> C[I_x, K]", {"I": 9216, "J": 5120, "K": 16384},
        GatherEinsum(AllGather("B", "K", ("x",)), MATMUL, "bidirectional", 2), 2591),
    "v4, with a slice of 33 MB in two": (
        "v4:2x2x2", "x=4, y=2", "A[I_x, J] · B[J, K_x] -> C[I_x, K]", {"I": 13312, "J": 3072, "K": 21504},
        GatherEinsum(AllGather("B", "K", ("x",)), MATMUL, "bidirectional", 2), 2304),
    "v4, started early": (
        "v4:2x2x1", "x=4", "A[I_x, J] · B[J, K_x] -> C[I, K_x]", {"I": 11264, "J": 2560, "K": 6144},
        GatherEinsum(AllGather("A", "I", ("x",)), MATMUL, "bidirectional", 2), 664),
    "v5p": (
        "v5p:2x2x1", "x=4", "A[I_x, J] · B[J, K_x] -> C[I, K_x]", {"I": 7168, "J": 5120, "K": 9216},
        GatherEinsum(AllGather("A", "I", ("x",)), MATMUL, "bidirectional", 2), 599),
    "v5p, whole blocks": (
        "v5p:2x2x2", "x=8", "A[I_x, J] · B[J, K_x] -> C[I, K_x]", {"I": 4096, "J": 5120, "K": 16384},
        GatherEinsum(AllGather("A", "I", ("x",)), MATMUL, "bidirectional"), 358),
    "v6e": (
        "v6e:2x2", "x=4", "A[I_x, J] · B[J, K_x] -> C[I_x, K]", {"I": 9216, "J": 5120, "K": 10240},
        GatherEinsum(AllGather("B", "K", ("x",)), MATMUL, "bidirectional", 2), 750),
    "sums on v4": (
        "v4:2x2x2", "x=4, y=2", "A[J_x, I] · B[J_x, K] -> C[I_x, K]", {"I": 10240, "J": 8192, "K": 5120},
        EinsumScatter(MATMUL, ReduceScatter("C", "I", ("x",)), "bidirectional", 2), 1621),
    "sums on v5p": (
        "v5p:2x2x1", "x=4", "A[J_x, I] · B[J_x, K] -> C[I_x, K]", {"I": 14336, "J": 5120, "K": 3072},
        EinsumScatter(MATMUL, ReduceScatter("C", "I", ("x",)), "bidirectional", 2), 656),
}  # fmt: skip


@pytest.mark.parametrize("ring", LATE)
def test_transfers_start_as_late_as_compilers_start_them(ring):
    chip, mesh, equation, sizes, step, microseconds = LATE[ring]
    assert estimated(chip, mesh, equation, sizes, step) == pytest.approx(microseconds * 1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("chip", "mesh", "sizes", "way", "chunks", "microseconds"),
    [
        ("v6e:8x8", "x=64", {"J": 12800, "I": 1920, "K": 30720}, "bidirectional", 2, 1495),
        ("v4:4x4x4", "x=64", {"J": 4096, "I": 1920, "K": 30720}, "bidirectional", 2, 1985),
        ("v5e:4x8", "x=32", {"J": 4096, "I": 1920, "K": 15360}, "bidirectional", 2, 1002),
        ("v5p:2x2x1", "x=2, y=2", {"J": 2048, "I": 6912, "K": 11648}, "ring", 8, 1071),
        ("v5p:2x2x1", "x=4", {"J": 5264, "I": 14368, "K": 29184}, "bidirectional", 8, 6183),
        ("v6e:2x4", "x=2, y=4", {"J": 1048, "I": 11104, "K": 8064}, "ring", 8, 1045),
    ],
)
def test_parts_that_end_within_lanes_are_transposed_where_a_ring_is_a_loop(chip, mesh, sizes, way, chunks, microseconds):
    """The whole result at last; where all is unrolled a part is put where it belongs as it is."""
    step = EinsumGather(MATMUL, AllGather("C", "K", ("x",)), way, chunks)
    assert estimated(chip, mesh, "A[I, J] · B[J, K_x] -> C[I, K]", sizes, step) == pytest.approx(microseconds * 1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("sizes", "dim", "parts", "along"),
    [
        ({"B": 32, "I": 1000, "J": 1546, "K": 128}, "K", 4, "I"),  # parts of 32 lanes: compiled 10.4 ms, of 250 rows 5.4
        ({"B": 26, "I": 16, "J": 608, "K": 768}, "I", 4, "K"),  # of 4 rows: 247 us, of 192 lanes 171
        ({"B": 6, "I": 174, "J": 3072, "K": 2032}, "I", 2, "I"),  # of 87 rows, six times: 1.8 ms
        ({"B": 61, "I": 53, "J": 768, "K": 1024}, "K", 4, "K"),  # of whole tiles
    ],
)
def test_a_block_is_cut_into_parts_wide_enough(sizes: dict[str, int], dim: str, parts: int, along: str):
    terms = [[["B", "I", "J"], ["J", "K"]]]
    assert least_read_again(("B", "I", "K"), terms, sizes, dim, parts) == along
