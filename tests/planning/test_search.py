"""The planner's search against brute force over all programs: equally fast, as little memory, and refused alike."""

from __future__ import annotations

import dataclasses
import math
import re
from random import Random

import pytest
from planning.brute import Brute
from searches import permutes_keep_their_axes

from benchmarks.equations import Case, random_case
from shardwise.errors import PlanError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.planning.cost import estimate
from shardwise.planning.problem import Problem, costs_of, problem
from shardwise.planning.ranking import Candidate, ranking

CUBE = Mesh.parse("x=2, y=2, z=2")
# Each kind: how many problems, and what is drawn. Sizes need no arrays, so they may be those of real problems.
KINDS = {
    "one operand, two axes": (200, {"operands": (1,), "rank": 3, "axes": 2, "devices": 64}),
    "one operand, three axes": (60, {"operands": (1,), "rank": 2, "mesh": CUBE}),
    "two operands, one axis": (200, {"operands": (2,), "rank": 3, "axes": 1, "devices": 64}),
    "two operands, two axes": (240, {"operands": (2,), "rank": 2, "axes": 2, "devices": 64}),
    "two operands of three dimensions": (80, {"operands": (2,), "rank": 3, "axes": 2}),
    "two operands, three axes": (30, {"operands": (2,), "rank": 2, "mesh": CUBE}),
    "three operands, one axis": (200, {"operands": (3,), "rank": 2, "axes": 1, "devices": 64}),
    "three operands, two axes": (100, {"operands": (3,), "rank": 2, "axes": 2}),
}
LIMITED = 2  # every so many problems are planned under memory limits too


def drawn(kind: str, number: int) -> tuple[Case, Problem]:
    random = Random(f"{kind} {number}")
    case = random_case(random, **KINDS[kind][1], elements=10**15, factors=(1, 2, 3, 64, 512), partial=0.3, free=0.15, via=0.0)
    if random.random() < 0.1:  # partial sums that perhaps nothing can make
        layout = case.equation.result.layout
        idle = [axis for axis in case.mesh.names if axis not in layout.axes]
        result = dataclasses.replace(case.equation.result, layout=Layout(layout.dims, frozenset(idle)))
        case = dataclasses.replace(case, equation=dataclasses.replace(case.equation, result=result))
    dtype, accumulated = random.choice([("bfloat16", None), ("float32", None), ("int8", "int32")])
    return case, problem(case.equation, case.sizes, case.mesh, case.hardware, dtype, accumulated)


def best(task: Problem, limit: float | None = None) -> Candidate | None:
    try:
        found = ranking(dataclasses.replace(task, memory_limit=limit, overlap=False))
        return min(found, key=lambda each: each.estimate.alone_seconds)
    except PlanError:
        return None


def hold(case: Case, task: Problem, brute: Brute, limit: float | None) -> None:
    """The planner and brute force find programs alike under a limit."""
    ours, theirs = best(task, limit), brute.best(math.inf if limit is None else limit)
    assert (ours is None) == (theirs is None), (
        f"{case}, limit {limit}: {ours and ours.program} where all programs give {theirs}"
    )
    if ours is None or theirs is None:
        return
    seconds, program = theirs
    priced = estimate(program, costs_of(task), task.sizes)
    assert priced.alone_seconds == pytest.approx(seconds, rel=1e-9, abs=0), f"brute force misprices:\n{program}"
    assert ours.estimate.alone_seconds == pytest.approx(seconds, rel=1e-9, abs=0), (
        f"{case}, limit {limit}:\n{ours.program}\n{program}"
    )
    if limit is not None:
        assert max(ours.estimate.peak_memory_bytes, priced.peak_memory_bytes) <= limit


def hold_in_least_memory(case: Case, task: Problem, brute: Brute) -> None:
    """What the error calls the least that would do is the least: it does, and a byte less does not."""
    least = brute.least_bytes()
    hold(case, task, brute, least)
    assert best(task, least) is not None, f"{case}: {least} bytes do, and are refused"
    with pytest.raises(PlanError, match="the least that would do") as refused:
        ranking(dataclasses.replace(task, memory_limit=least - 1, overlap=False))
    said = re.search(r"least that would do is ([\d,]+) bytes", str(refused.value))
    assert said is not None
    assert int(said[1].replace(",", "")) == least, f"{case}: {refused.value}"


@pytest.mark.parametrize("kind", KINDS)
@permutes_keep_their_axes()
def test_search_equals_brute_force_over_all_programs(kind):
    limits = 0
    for number in range(KINDS[kind][0]):
        case, task = drawn(kind, number)
        brute = Brute(task)
        hold(case, task, brute, None)
        least = brute.least_bytes()
        if math.isinf(least) or number % LIMITED:
            continue
        hold_in_least_memory(case, task, brute)
        fastest = best(task)
        assert fastest is not None
        roomy = fastest.estimate.peak_memory_bytes
        for limit in sorted({(2 * least + roomy) // 3, (least + roomy) // 2, roomy - 1} - {least}):
            hold(case, task, brute, limit)
            limits += 1
    assert limits


def test_there_are_enough_problems():
    assert sum(count for count, _ in KINDS.values()) >= 300


def test_brute_force_finds_a_program_known_by_hand():
    """A dimension that is summed over is split, and the result is wanted split: multiply, then reduce-scatter."""
    equation = parse("A[I, J_x] · B[J_x, K] -> C[I_x, K]")
    task = problem(equation, {"I": 1024, "J": 1024, "K": 1024}, "x=4", "tpu-v5e")
    found = Brute(task).best()
    assert found is not None
    assert [type(step).__name__ for step in found[1].steps] == ["Einsum", "ReduceScatter"]


def test_a_tie_goes_to_fewer_steps_and_never_to_a_slower_program():
    """Where memory is fast and arrays are tiny, a step's real cost is less than a picosecond: it must still count."""
    task = problem(parse("A[J] · B[J_x, I] · C[I, J] -> R[]"), {"J": 2, "I": 1}, "x=2", "tpu-v5p")
    found = Brute(task).best()
    assert found is not None
    assert ranking(dataclasses.replace(task, overlap=False)).best.estimate.alone_seconds == pytest.approx(
        found[0], rel=1e-9, abs=0
    )


@pytest.mark.parametrize(
    ("equation", "sizes", "hardware", "dtype", "limit"),
    [
        ("A[I_{z,x}] · B[K, J_z]{U_{x,y}} -> R[I_{z,y}]{U_x}", {"I": 2048, "K": 1, "J": 1024}, "h100", "bfloat16", 5120),
        ("A[I_z, J] · B[I_y, J_z] -> R[J_{x,z}]", {"I": 2, "J": 2048}, "tpu-v5e", "float32", 24575),
    ],
)
def test_operands_are_prepared_one_after_the_other(equation, sizes, hardware, dtype, limit):
    """Under a memory limit a faster program may fit if the steps on both operands alternate (2 of 10,700 random problems,
    on three axes). The search does not look for those: what it finds fits, and is not far from the best."""
    task = problem(parse(equation), sizes, CUBE, hardware, dtype, memory_limit=limit)
    found, brute = ranking(dataclasses.replace(task, overlap=False)).best.estimate, Brute(task).best(limit)
    assert brute is not None
    assert found.peak_memory_bytes <= limit
    assert brute[0] * (1 - 1e-9) <= found.alone_seconds < 1.5 * brute[0]
