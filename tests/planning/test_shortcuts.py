"""Other ways between layouts that a program passes: the same result by fewer moves, or by others."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from benchmarks.drawn import problems
from benchmarks.equations import random_arrays, random_case
from shardwise.dataflow import reader
from shardwise.errors import PlanError
from shardwise.planning import ranking as ranking_module
from shardwise.planning.explain import ranking_rows
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank, ranking
from shardwise.planning.shortcuts import shortcuts
from shardwise.reference import run
from shardwise.steps import AllGather, AllToAll, CollectivePermute, Einsum, Slice

randoms = st.integers(0, 2**32 - 1).map(Random)


@given(randoms)
@settings(max_examples=150)
def test_a_shortcut_computes_the_same(random: Random):
    case = random_case(random, elements=2000, operands=(1, 1, 2, 3), hardware=("tpu-v5e", "tpu-v5p"), partial=0.2)
    try:
        plans = rank(problem(case.equation, case.sizes, case.mesh, case.hardware, overlap=False))
    except PlanError:
        return
    program = random.choice(plans).program
    arrays = random_arrays(random, case)
    found = [each.taken() for each in shortcuts(program)]
    for other in random.sample(found, min(3, len(found))):
        assert (other.inputs, other.result, other.output) == (program.inputs, program.result, program.output)
        assert other.steps != program.steps
        np.testing.assert_array_equal(run(other, *arrays), run(program, *arrays))


def test_what_ends_a_program_is_exchanged_where_that_takes_less():
    """Compiled: 6.0 us with the all-to-all, 9.3 with a gather and a slice, which take less by themselves."""
    plan = sw.plan("A[I, J_x] -> A[I_{y,x}, J]", sizes={"I": 1792, "J": 5888}, mesh="x=4, y=64", hardware="v7x:4x4x8")
    assert [type(step) for step in plan.best.program.steps] == [Slice, AllToAll]


def test_a_permute_that_is_followed_link_by_link_is_found():
    """Compiled: 67 us, and 104 by two all-to-alls: a permute takes less than it does in the search."""
    plan = sw.plan(
        "A[B, I_{y,x}, J] -> A[B, I_x, J]", sizes={"B": 26, "I": 512, "J": 2816}, mesh="x=32, y=4", hardware="v6e:8x16"
    )
    assert [type(step) for step in plan.best.program.steps] == [CollectivePermute, AllGather]


def test_no_best_takes_longer_for_them(monkeypatch):
    tasks = [problem(each.equation, each.sizes, each.mesh, each.target, overlap=False) for each in problems(60, seed=2)]
    shortened = [ranking(task).best.estimate.seconds for task in tasks]
    monkeypatch.setattr(ranking_module, "SHORTENED", 0)
    searched = [ranking(task).best.estimate.seconds for task in tasks]
    pairs = list(zip(shortened, searched, strict=True))
    assert all(one <= other for one, other in pairs)
    assert any(one < 0.97 * other for one, other in pairs)


def test_a_program_that_overlaps_has_to_promise_more_than_its_estimate_errs_by():
    """One that promises 406 us where another promises 424 is not believed, though here they are compiled to 407 and 430: over
    the fitted problems choices are slower without that rule."""
    sizes = {"B": 4, "I": 512, "J": 27136, "K": 1840}
    plan = sw.plan("A[B, I_y, J] · B[B, I, K] -> C[J, K_y]", sizes=sizes, mesh="x=2, y=8", hardware="v7x:2x2x2")
    first = next(each for each in plan if each.program.overlaps)
    assert not plan.best.program.overlaps
    assert first.estimate.seconds < plan.best.estimate.seconds
    rows = ranking_rows(plan)
    assert rows[1][-1] == "chosen"
    assert any(row[-1].endswith("by overlapping: such estimates err by more") for row in rows)


def test_the_reader_of_a_step_is_the_next_that_takes_what_it_makes():
    sizes = {"I": 64, "J": 64, "K": 64}
    plan = sw.plan("A[I_x, J] · B[J, K_x] -> C[I_x, K]", sizes=sizes, mesh="x=4", hardware="v5e", overlap=False)
    program = next(each.program for each in plan if isinstance(each.program.steps[-1], Einsum))
    assert isinstance(reader(program, 0), Einsum)
    assert reader(program, len(program.steps) - 1) is None
