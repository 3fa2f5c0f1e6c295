"""What makes planning quick changes nothing of what it finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from random import Random

import pytest
from planning.test_search import drawn

from benchmarks.drawn import problems
from benchmarks.equations import random_case
from shardwise.chips import hardware
from shardwise.chips.interconnect import Interconnect
from shardwise.errors import PlanError
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.planning import graph, stages
from shardwise.planning.choosing import Fusing, steps_costs
from shardwise.planning.fuse import checked, fused_programs, fused_steps
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import Ranking, ranking
from shardwise.planning.step_prices import ROUNDING, prices_of
from shardwise.steps import Fused

CHAIN = "A[I_x, J_y] · B[J_y, K] · D[K, L_x] · E[L_x, M_y] -> C[I_x, M_y]"
SIZES = {"I": 8192, "J": 1024, "K": 2048, "L": 4096, "M": 512}


def told(ranked: Ranking) -> list[tuple[str, float]]:
    return [(str(candidate.program), candidate.estimate.seconds) for candidate in ranked]


def tasks() -> list[Problem]:
    some = [drawn("three operands, two axes", number)[1] for number in range(12)]
    chains = [problem(parse(CHAIN), SIZES, "x=4, y=2", name) for name in ("tpu-v5e", "h100", "cpu")]
    return [*some, *chains, dataclasses.replace(chains[0], memory_limit=5e7)]


@pytest.mark.parametrize("task", tasks(), ids=lambda task: f"{task.equation} on {task.mesh}, {task.hardware.name}")
def test_a_bound_from_one_order_leaves_out_no_candidate(task, monkeypatch):
    try:
        bounded = told(ranking(task))
    except PlanError:
        return
    monkeypatch.setattr(stages, "_bound_of_one_order", lambda stage: math.inf)
    assert told(ranking(task)) == bounded


def test_a_graph_that_grew_too_large_is_made_anew(monkeypatch):
    task = problem(parse("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]"), {"I": 64, "J": 64, "K": 64}, "x=4, y=2", "h100")
    before, found = graph.graph_of(("x", "y")), told(ranking(task))
    monkeypatch.setattr(graph, "MOST_KEPT", 0)
    graph.graph_of(("x", "y"))
    assert graph.graph_of(("x", "y")) is not before
    assert told(ranking(task)) == found


@pytest.mark.parametrize("name", hardware.names())
def test_a_collective_costs_the_same_in_whatever_order_its_axes_are_named(name):
    """So that the search prices those of a set of axes once."""
    costs = Costs(Interconnect(hardware(name), Mesh.parse("x=2, y=4, z=2")), "bfloat16")
    for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all"):
        for axes in itertools.chain(itertools.combinations("xyz", 2), itertools.combinations("xyz", 3)):
            prices = {costs.collective(kind, order, 2.0**20, 2.0**24) for order in itertools.permutations(axes)}
            assert max(prices) == pytest.approx(min(prices), rel=1e-12)


@pytest.mark.parametrize("number", range(40))
def test_no_fused_program_is_faster_than_what_it_takes_unplayed(number):
    random = Random(number)
    case = random_case(random, elements=10**9, factors=(1, 8, 64, 512), hardware=("tpu-v5e", "tpu-v5p", "tpu-v7x", "h100"))
    task = problem(case.equation, case.sizes, case.mesh, case.hardware, overlap=False)
    fusing = Fusing(task, prices_of(task))
    for source in ranking(task):
        kept = steps_costs(source)
        for steps in fused_steps(source.program, task.sizes):
            program = checked(source.program, steps)
            if program is not None:
                played = fusing.fastest_forms(program)
                assert fusing.unplayed(steps, kept) <= fusing.at_least(program, played, kept)


def on_slices_and_behind_switches() -> list[Problem]:
    targets = ("tpu-v5e", "tpu-v5p", "h100", "b200")
    cases = [random_case(Random(number), elements=10**9, factors=(1, 8, 24, 512), hardware=targets) for number in range(30)]
    drawn_cases = [(each.equation, each.sizes, each.mesh, each.target) for each in problems(30, seed=5)]
    drawn_cases += [(each.equation, each.sizes, each.mesh, each.hardware) for each in cases]
    return [problem(*each, overlap=False) for each in drawn_cases]


@pytest.mark.parametrize("task", on_slices_and_behind_switches(), ids=lambda task: f"{task.equation} on {task.hardware.name}")
def test_no_form_of_a_fused_step_is_faster_than_it_is_said_to_be_at_least(task):
    fusing, slowdown = Fusing(task, prices_of(task)), task.hardware.slowdown
    for source in ranking(task):
        for program in fused_programs(source.program, task.sizes):
            for place, step in enumerate(program.steps):
                if isinstance(step, Fused):
                    known = fusing.prices.of(step, fusing.prices.standing(program, place))
                    forms = list(fusing.forms(step))
                    seconds = [known.play(form).seconds for form in forms]
                    for form, played in zip(forms, seconds, strict=True):
                        assert known.forms.at_least(form, slowdown) <= played * (1 + ROUNDING)
                    assert known.play(known.fastest_of(forms, slowdown)).seconds == min(seconds)
