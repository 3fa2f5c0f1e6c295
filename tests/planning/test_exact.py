"""`exact=True`: every sum is made on one device at once, whatever that costs; and what cannot be so is refused."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from benchmarks.equations import random_case
from shardwise.api import plan
from shardwise.cli import main
from shardwise.errors import PlanError, ShardwiseError
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import sums_stay_whole
from shardwise.steps import AllReduce, Einsum, EinsumGather, GatherEinsum, ReduceScatter, RotateEinsum

WEIGHTS = "X[B_i, D] · W[D_i, F] -> Y[B_i, F]"
CONTRACTED = "A[I, J_x] · B[J_x, K] -> C[I, K]"
CASES = 120


@pytest.mark.parametrize("part", range(4))
def test_every_program_of_an_exact_plan_makes_its_sums_whole(part: int):
    """Exact plans are those of all plans that add nothing across devices: where the cheapest is one, it stays the cheapest."""
    same = 0
    for number in range(part, CASES, 4):
        random = Random(f"exact {number}")
        case = random_case(random, operands=(1, 2), rank=2, axes=2, elements=10**15, factors=(1, 3, 64), via=0.3, free=0.2)
        stages = (*case.equation.operands, *case.equation.via, case.equation.result)
        if any(operand.layout.unreduced for operand in stages):
            continue
        overlap = random.choice([True, False])
        task = problem(case.equation, case.sizes, case.mesh, case.hardware, "float32", overlap=overlap)
        exact = rank(dataclasses.replace(task, exact=True))
        assert exact, case
        assert all(sums_stay_whole(candidate.program) for candidate in exact), case
        free = rank(task)
        first, *others = (set(operand.dims) for operand in case.equation.operands)
        alone = others and (first ^ others[0]) - set(case.equation.result.dims)  # is summed before it is multiplied, or after
        if sums_stay_whole(free[0].program) and not case.equation.via and not alone:
            same += 1
            assert exact[0].seconds == pytest.approx(free[0].seconds), case
        assert case.equation.via or exact[0].seconds >= free[0].seconds * (1 - 1e-9), case
    assert same > 5


def test_the_size_at_which_another_program_was_chosen():
    sizes = {"B": 2048, "D": 4096, "F": 4096}
    for hardware in ("cpu", "v5e"):
        free, exact = (plan(WEIGHTS, sizes=sizes, mesh="i=8", hardware=hardware, exact=each) for each in (False, True))
        assert all(sums_stay_whole(candidate.program) for candidate in exact)
        assert not all(sums_stay_whole(candidate.program) for candidate in free)
        assert "; exact\n" in str(exact)
    assert not sums_stay_whole(plan(WEIGHTS, sizes=sizes, mesh="i=8", hardware="cpu").best.program)


def test_what_is_split_along_the_sum_is_gathered_first():
    kinds = {
        type(step)
        for hardware in ("cpu", "v5e")
        for candidate in plan(CONTRACTED, sizes={"I": 64, "J": 64, "K": 64}, mesh="x=4", hardware=hardware, exact=True)
        for step in candidate.program.steps
    }
    assert not kinds & {AllReduce, ReduceScatter, RotateEinsum}


def test_rings_along_a_free_dimension_are_exact_and_along_a_summed_one_not():
    sizes = {"I": 8192, "J": 8192, "K": 8192}
    rings = plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes=sizes, mesh="x=8", hardware="v5e", exact=True, overlap="ring")
    kinds = {type(step) for each in rings for step in each.program.steps}
    assert {GatherEinsum, EinsumGather} <= kinds
    assert all(sums_stay_whole(each.program) for each in rings)
    summed = plan("A[I_x, J] · B[J_x, K] -> C[I_x, K]", sizes=sizes, mesh="x=8", hardware="v5e", overlap="ring").best.program
    assert [type(step) for step in summed.steps] == [GatherEinsum]
    assert not sums_stay_whole(summed)


def test_operands_are_multiplied_in_one_order_as_by_jnp_einsum():
    """Also where a mesh makes another order cheaper: it adds up other products."""
    text, sizes = "A[I, J_x] · B[J_x, K] · D[K, L] -> C[I, L]", {"I": 64, "J": 64, "K": 64, "L": 8}

    def orders(exact: bool) -> set[tuple[str, ...]]:
        """What is multiplied first."""
        ranked = plan(text, sizes=sizes, mesh="x=4", exact=exact, overlap=False)
        return {next(step.operands for step in each.program.steps if isinstance(step, Einsum)) for each in ranked}

    assert orders(exact=True) == {("B", "D")}
    assert orders(exact=False) > {("B", "D")}


@pytest.mark.parametrize(
    "text",
    ["A[I]{U_x} -> A[I]", "A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", "A[I, J_x] · B[J_x, K] -> C[I, K]{U_x} -> C[I, K]"],
)
def test_partial_sums_are_refused(text: str):
    dims = {"I": 8, "J": 8, "K": 8}
    sizes = {dim: size for dim, size in dims.items() if dim in text}
    with pytest.raises(PlanError, match=r"exact=True: .*\{U_x\} is partial sums.*write it without \{U"):
        plan(text, sizes=sizes, mesh="x=4", exact=True)
    plan(text, sizes=sizes, mesh="x=4")


def test_no_exact_program_fits_where_one_that_is_not_does():
    sizes = {"I": 64, "J": 65536, "K": 64}
    limit = 1.5 * min(each.estimate.peak_memory_bytes for each in plan(CONTRACTED, sizes=sizes, mesh="x=8", overlap=False))
    with pytest.raises(PlanError, match=r"no program fits in .* the least that would do is"):
        plan(CONTRACTED, sizes=sizes, mesh="x=8", memory_limit=limit, exact=True)


def test_on_the_command_line(capsys):
    line = ["plan", CONTRACTED, "--sizes", "I=64,J=64,K=64", "--mesh", "x=4"]
    assert main([*line, "--exact"]) == 0
    assert "; exact" in (printed := capsys.readouterr().out)
    assert "all-reduce" not in printed
    assert main(line) == 0
    assert "all-reduce" in capsys.readouterr().out


def test_exact_is_true_or_false():
    with pytest.raises(ShardwiseError, match="exact='yes': only True and False are known"):
        plan(CONTRACTED, sizes={"I": 8, "J": 8, "K": 8}, mesh="x=4", exact="yes")
