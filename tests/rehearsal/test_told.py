"""Matmuls and rings as TPU compilers make them of what they are told, beside what their estimates say."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.chips.topology import Topology
from shardwise.compiled.confirming import rehearsed
from shardwise.planning.cost import estimate
from shardwise.planning.problem import costs_of
from shardwise.steps import AllGather, AllToAll, Einsum, EinsumScatter, GatherEinsum, ReduceScatter, Slice, Step

pytestmark = [pytest.mark.usefixtures("kept_texts"), pytest.mark.needs("tpu")]

MATMUL, BATCHES, GRADIENT = (Einsum(("A", "B"), "C", dims) for dims in (("I", "K"), ("B", "I", "K"), ("J", "K")))
COLUMNS = AllGather("B", "K", ("x",))
RINGS = {  # the limit in microseconds, and what the same rings took before they were told
    "columns on a chip of two cores: 164 us": (
        "v7x:2x2x1", "x=2, y=4", "A[I, J] · B[K_x, J] -> C[I, K]", {"I": 5888, "J": 768, "K": 4608},
        GatherEinsum(COLUMNS, MATMUL, "bidirectional", 2), 110),
    "columns of batches: 2,880 us": (
        "v6e:2x2", "x=2, y=2", "A[B, I, J] · B[J, K_x] -> C[B, I, K]", {"B": 12, "I": 768, "J": 4864, "K": 13056},
        GatherEinsum(COLUMNS, BATCHES, "ring"), 2000),
    "a weight's gradient: 1,197 us": (
        "v5p:2x2x4", "x=4, y=4", "A[B, I_x, J] · B[B, I_x, K] -> C[J_x, K]", {"B": 32, "I": 1280, "J": 1664, "K": 4224},
        EinsumScatter(GRADIENT, ReduceScatter("C", "J", ("x",)), "bidirectional"), 550),
    "rows of batches, transposed for every part: 3,357 us": (
        "v4:2x2x1", "x=4", "A[B, I, J_x] · B[B, J_x, K] -> C[B, I_x, K]", {"B": 48, "I": 512, "J": 6944, "K": 640},
        EinsumScatter(BATCHES, ReduceScatter("C", "I", ("x",)), "ring", 2), 800),
    "the same of larger ones: 8,795 us": (
        "v5p:2x2x2", "x=4, y=2", "A[B, I, J_x] · B[B, J_x, K] -> C[B, I_x, K]", {"B": 48, "I": 1536, "J": 6816, "K": 1920},
        EinsumScatter(BATCHES, ReduceScatter("C", "I", ("x",)), "ring", 2), 3400),
    "a ring cut along batches that lie in the lanes: 5,173 us": (
        "v5p:2x2x2", "x=4, y=2", "A[B, I, J_x] · B[B, J_x, K] -> C[B, I_x, K]", {"B": 120, "I": 160, "J": 2624, "K": 432},
        EinsumScatter(BATCHES, ReduceScatter("C", "I", ("x",)), "bidirectional", 4), 800),
    "one cut along batches that lie in the rows: 516 us": (
        "v4:2x2x1", "x=4", "A[B, I, J_x] · B[B, J_x, K] -> C[B, I, K_x]", {"B": 68, "I": 42, "J": 9024, "K": 320},
        EinsumScatter(BATCHES, ReduceScatter("C", "K", ("x",)), "bidirectional", 2), 200),
    "what a gathered weight is multiplied with: 2,144 us": (
        "v5e:2x4", "x=8", "A[B, I, J] · B[J_x, K] -> C[B, I, K]", {"B": 9, "I": 384, "J": 27136, "K": 384},
        GatherEinsum(AllGather("B", "J", ("x",)), BATCHES, "bidirectional"), 560),
}  # fmt: skip


@pytest.mark.parametrize("ring", RINGS)
def test_no_operand_or_block_is_transposed_for_every_part(ring: str):
    target, mesh, equation, sizes, step, limit = RINGS[ring]
    compiled, estimated = seconds_of(equation, sizes, mesh, target, step)
    assert compiled < limit * 1e-6
    assert estimated / compiled == pytest.approx(1, abs=0.25)


def test_a_matmul_that_ends_a_program_is_made_as_its_result_lies():
    """1,914 us before it was told: 1,260 of these transposed 226 MB."""
    compiled, estimated = seconds_of(
        "A[B_x, I, J_y] · B[J_y, K] -> C[B, I, K]", {"B": 4, "I": 3072, "J": 768, "K": 9216}, "x=4, y=4", "v6e:4x4",
        AllToAll("A", "B", "J", ("x",)), AllGather("A", "J", ("y", "x")), Slice("B", "J", ("x",)),
        AllGather("B", "J", ("y", "x")), BATCHES,
    )  # fmt: skip
    assert compiled < 700e-6
    assert estimated / compiled == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("equation", "sizes", "mesh", "target", "micros"),
    [  # made in the order of an operand, and transposed at last: 1583 and 231 us
        ("A[I_y, J_x] · B[K_x, J] -> C[I_y, K_x]", {"I": 18432, "J": 4864, "K": 10752}, "x=2, y=2", "v6e:2x2", 1150),
        ("A[J_x, I_y] · B[J, K_x] -> C[I_y, K_x]", {"J": 1728, "I": 15360, "K": 16384}, "x=2, y=8", "v7x:2x2x2", 125),
    ],
)
def test_the_sum_of_a_ring_is_made_as_the_result_lies(
    equation: str, sizes: dict[str, int], mesh: str, target: str, micros: float
):
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, hardware=target)
    ring = next(
        each
        for each in plan.candidates
        if [type(step) for step in each.program.steps] == [GatherEinsum] and each.program.steps[0].gather.dim == "J"
    )
    timeline = rehearsed(plan.task, ring.program, Topology.parse(target)).timeline()
    assert timeline.step_seconds < micros * 1e-6
    assert ring.estimate.seconds / timeline.step_seconds == pytest.approx(1, abs=0.2)


def test_a_ring_leaves_its_links_to_what_its_matmuls_wait_for():
    """218 us when the ring's blocks were sent first, and the all-to-all after them."""
    compiled, estimated = seconds_of(
        "A[I, J_y] · B[K_y, J] -> C[I_y, K]", {"I": 2304, "J": 512, "K": 7680}, "x=2, y=2", "v5e:2x2",
        AllToAll("A", "J", "I", ("y",)), GatherEinsum(AllGather("B", "K", ("y",)), MATMUL, "ring", 2),
    )  # fmt: skip
    assert compiled < 150e-6
    assert estimated / compiled == pytest.approx(1, abs=0.15)


def seconds_of(equation: str, sizes: dict[str, int], mesh: str, target: str, *steps: Step) -> tuple[float, float]:
    """A program's seconds as compiled, and as estimated."""
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, hardware=target, overlap=False)
    program = dataclasses.replace(plan.best.program, steps=steps)
    audit = rehearsed(plan.task, program, Topology.parse(target))
    return audit.timeline().step_seconds, estimate(program, costs_of(plan.task), sizes).seconds
