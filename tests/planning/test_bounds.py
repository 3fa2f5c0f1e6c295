"""Whatever a user writes, a search looks at so much and no more; what it leaves out it says, and it never claims too much."""

from __future__ import annotations

import dataclasses
import functools
import math
from random import Random

import pytest
from planning.brute import Brute
from planning.test_search import best, drawn

from benchmarks import bounds
from shardwise.errors import PlanError
from shardwise.layout import splits
from shardwise.notation import parse
from shardwise.planning import stages
from shardwise.planning.bounds import einsum_lower_bound, lower_bound_of, moving_lower_bound
from shardwise.planning.explain import facts
from shardwise.planning.graph import Scope, arrangements, moves, moves_into, state_of
from shardwise.planning.orders import Leaf, all_orders, few_orders
from shardwise.planning.problem import costs_of, problem
from shardwise.planning.ranking import Ranking, ranking

FIVE = "x=2, y=2, z=2, w=2, v=2"
MOST = 130_000  # moves and einsums in all the searches of one plan: a few microseconds each
LARGE = {
    "eight dimensions": ("A[I_{x,y}, J_{z,w}, K, L, M, N, O, P_v] -> A[I_{w,v}, J_{y,x}, K, L, M, N_z, O, P]", FIVE, None),
    "stages": ("A[I_x, J_y] -> A[I_{y,x}, J_z] -> A[I, J_{x,w,v}] -> A[I_{v,w,z,y,x}, J]", FIVE, None),
    "four operands, a limit": ("A[I_x, J_y] · B[J_y, K_z] · C[K_w, L] · D[L_v, M] -> E[I_x, M_v]", FIVE, 6e8),
    "six operands": ("A[I_x, J_y] · B[J, K_z] · C[K, L_w] · D[L, M_v] · E[M, N_x] · F[N, O_y] -> G[I_v, O_?]", FIVE, None),
}


def planned(
    equation: str, mesh: str, limit: float | None = None, hardware: str = "h100", overlap: bool | str = True
) -> Ranking:
    made = parse(equation)
    return ranking(problem(made, dict.fromkeys(made.dims, 1024), mesh, hardware, memory_limit=limit, overlap=overlap))


# How much is looked at.


@pytest.mark.parametrize("number", range(40))
def test_a_plan_looks_at_so_much_and_no_more(number):
    task = bounds.drawn(number)
    with bounds.looks() as counted:
        try:
            ranked = ranking(task)
        except PlanError:
            ranked = None
    assert counted[0] <= MOST
    for candidate in ranked or ():
        assert candidate.program.result.names == task.equation.result.dims
        if not task.equation.result.free:
            assert candidate.program.result == task.equation.result.layout
        assert candidate.estimate.seconds >= ranked.floor_seconds * (1 - 1e-9)
        assert task.memory_limit is None or candidate.estimate.peak_memory_bytes <= task.memory_limit


@pytest.mark.parametrize("name", LARGE)
def test_large_problems_are_planned(name):
    with bounds.looks() as counted:
        ranked = planned(*LARGE[name])
    assert 0 < counted[0] <= MOST
    assert len(ranked) > 1


def test_what_is_left_out_is_said():
    ranked = planned(*LARGE["eight dimensions"])
    said = "not all programs were searched: 5 mesh axes and 8 dimensions make too many layouts"
    assert said in str(ranked)
    assert "no program takes less than" in str(ranked)
    assert not ranked.searched_all
    assert facts(ranked)["searched_all"] is False
    assert 0 < facts(ranked)["floor_seconds"] <= ranked.best.estimate.seconds
    small = planned("A[I_x, J] -> A[I, J_x]", "x=4")
    assert "not all" not in str(small)
    assert facts(small)["searched_all"] is True


def test_what_is_refused_for_memory_says_that_not_all_was_searched():
    equation, mesh, _ = LARGE["eight dimensions"]
    made = parse(equation)
    with pytest.raises(PlanError, match="not all were searched, and of these one would do with"):
        ranking(problem(made, dict.fromkeys(made.dims, 8), mesh, "h100", memory_limit=1e6, overlap=False))


# That it finds the best.


@pytest.mark.parametrize("kind", ["one operand, two axes", "two operands, two axes", "three operands, two axes"])
def test_a_search_that_widens_equals_brute_force(kind, monkeypatch):
    """What a narrow search leaves out, one of all that may be faster finds; the narrow one alone never claims too much."""
    monkeypatch.setattr(stages, "AT_ONCE", -1)
    monkeypatch.setattr(stages, "PAIR_AT_ONCE", 0)
    equal = 0
    for number in range(40):
        case, task = drawn(kind, number)
        fastest = Brute(task).best()
        ours = best(task)
        assert (ours is None) == (fastest is None), case
        if ours is None or fastest is None:
            continue
        assert ours.estimate.alone_seconds == pytest.approx(fastest[0], rel=1e-9, abs=0), case
        with monkeypatch.context() as narrowed:
            narrowed.setattr(stages, "BOUNDED", -1)
            narrow = ranking(dataclasses.replace(task, overlap=False))
        assert not narrow.searched_all
        assert narrow.floor_seconds <= fastest[0] * (1 + 1e-9)
        found = min(each.estimate.alone_seconds for each in narrow)
        assert found >= fastest[0] * (1 - 1e-9)
        equal += found <= fastest[0] * (1 + 1e-9)
    assert equal >= 30


def test_candidates_are_the_same_whether_searched_at_once_or_within_a_bound(monkeypatch):
    for kind in ("one operand, three axes", "two operands, three axes", "three operands, two axes"):
        for number in range(12):
            _, task = drawn(kind, number)
            task = dataclasses.replace(task, overlap=False)
            try:
                whole = sorted(candidate.estimate.alone_seconds for candidate in ranking(task))
            except PlanError:
                continue
            with monkeypatch.context() as bounded:
                bounded.setattr(stages, "AT_ONCE", -1)
                bounded.setattr(stages, "PAIR_AT_ONCE", 0)
                again = sorted(candidate.estimate.alone_seconds for candidate in ranking(task))
                assert again == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("kind", ["one operand, two axes", "one operand, three axes"])
def test_no_change_of_layout_is_faster_than_its_floor(kind):
    for number in range(60):
        case, task = drawn(kind, number)
        operand, result = task.equation.operands[0], task.equation.result
        if operand.dims != result.dims or result.free:
            continue
        fastest = Brute(task).best()
        costs = costs_of(task)
        floor = moving_lower_bound(costs, task.sizes, operand.dims, state_of(operand.layout), state_of(result.layout))
        assert fastest is None or floor <= fastest[0] * (1 + 1e-9), case


# Its parts.


@pytest.mark.parametrize("scoped", [False, True])
def test_moves_into_a_state_are_the_moves_that_lead_there(scoped):
    axes = (("x", 2), ("y", 2), ("z", 4))
    names = tuple(name for name, _ in axes)
    sequences = ((), ("x",), ("y",), ("x", "y"), ("x", "y", "z"))
    scope = Scope((sequences, sequences[:3])) if scoped else None
    dims = list(scope.splits(("x", "y", "z"))) if scope else splits(2, ("x", "y", "z"))
    sums = [(), ("x",), ("y",), ("x", "y")]
    states = [(split, u) for split in dims for u in sums if not {a for s in split for a in s} & set(u)]
    forward = {(before, move) for before in states for move in moves(before, names, scope) if move.after in states}
    backward = {(before, move) for after in states for move, before in moves_into(after, names, scope, ("x", "y"))}
    assert forward == {(before, move) for before, move in backward if before in states}
    for state in states:
        assert all(state[0] in arrangements((other, state[1]), axes, scope) for other in arrangements(state, axes, scope))


def test_the_few_orders_hold_the_cheapest_of_all():
    """Where nothing has to be moved, the cheapest of all orders is kept."""
    for number in range(30):
        random = Random(number)
        dims = "IJKLM"
        names = [tuple(random.sample(dims, 2)) for _ in range(4)]
        sizes = {dim: random.choice((2, 64, 4096)) for dim in sorted({dim for each in names for dim in each})}
        equation = " · ".join(f"{array}[{', '.join(each)}]" for array, each in zip("ABCD", names, strict=True))
        result = tuple(sorted({dim for each in names[:2] for dim in each}))
        task = problem(parse(f"{equation} -> R[{', '.join(result)}]"), sizes, "x=2", "tpu-v5e")
        leaves = [Leaf(at, operand.dims, state_of(operand.layout)) for at, operand in enumerate(task.equation.operands)]
        few = few_orders(leaves, result, sizes, functools.partial(einsum_lower_bound, sizes=sizes, costs=costs_of(task)))
        every = all_orders(leaves, result)
        floors = [lower_bound_of(orders, task.equation.result, sizes, costs_of(task)).seconds for orders in (few, every)]
        assert floors[0] == pytest.approx(floors[1], rel=1e-12)
        assert len(few.values) <= len(every.values)


def test_a_limit_just_above_the_least_is_met_where_not_all_is_searched(monkeypatch):
    """With programs left out, what is found fits; and what is refused needs more."""
    monkeypatch.setattr(stages, "AT_ONCE", -1)
    monkeypatch.setattr(stages, "PAIR_AT_ONCE", 0)
    monkeypatch.setattr(stages, "BOUNDED", -1)
    for number in range(20):
        case, task = drawn("two operands, two axes", number)
        least = Brute(task).least_bytes()
        if math.isinf(least):
            continue
        for limit in (least * 1.5, least, least - 1):
            found = best(task, limit)
            assert found is None or least <= found.estimate.peak_memory_bytes <= limit, case
