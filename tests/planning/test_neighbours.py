"""Steps of one program on one clock: what of a transfer runs beside the steps around it, and on which chips."""

from __future__ import annotations

import pytest

from shardwise.layout import Layout
from shardwise.notation import parse
from shardwise.planning.candidates import Candidate, priced
from shardwise.planning.problem import problem
from shardwise.planning.step_prices import prices_of
from shardwise.program import Program
from shardwise.schedule.timeline import COMPUTE
from shardwise.steps import AllGather, AllReduce, Einsum, GatherEinsum

SIZES = {"B": 8192, "D": 4096, "F": 8192, "E": 4096}
RING = GatherEinsum(AllGather("X", "B", ("y",)), Einsum(("X", "V"), "H", ("B", "F")), "ring", 1)
FIRST, LAST = Einsum(("X", "V"), "H", ("B", "F")), Einsum(("H", "W"), "Y", ("B", "E"))
WEIGHT, WITHIN = AllGather("W", "F", ("x",)), GatherEinsum(AllGather("W", "F", ("x",)), LAST, "ring", 1)


def made(steps, on: str = "v5e:4x4", x: str = "B, D", v: str = "D, F", **sizes: int) -> Candidate:
    task = problem(parse(f"X[{x}] · V[{v}] · W[F_x, E] -> Y[B, E]"), SIZES | sizes, "x=4, y=4", on, dtype="bfloat16")
    inputs = (("X", Layout.parse(x)), ("V", Layout.parse(v)), ("W", Layout.parse("F_x, E")))
    return priced(Program(task.mesh, inputs, steps, "Y"), prices_of(task), task)


def test_a_gather_runs_beside_the_matmuls_that_do_not_need_it():
    """Both before what needs it, whether its step stands before them or after; none of it twice."""
    for steps in ((WEIGHT, FIRST, LAST), (FIRST, WEIGHT, LAST)):
        found = made(steps).estimate
        cost = found.steps[steps.index(WEIGHT)]
        assert found.exposed_seconds == cost.seconds == 0
        assert cost.saved_seconds == pytest.approx(cost.transfer_seconds)
        assert cost.beside is not None
        assert cost.beside.number == steps.index(FIRST)
        assert found.alone_seconds == pytest.approx(found.seconds + sum(step.saved_seconds for step in found.steps))


def test_a_gather_runs_beside_a_ring_over_another_axis():
    """The first transfer of this program is behind the matmuls of its second step, in the timeline too."""
    candidate = made((WEIGHT, RING, LAST), x="B_y, D")
    assert candidate.estimate.exposed_seconds == 0
    line = candidate.timeline()
    gather = next(span for span in line.spans if span.lane == "x")
    work = [span for span in line.spans if span.lane == COMPUTE and span.kind == "matmul"]
    assert gather.seconds == pytest.approx(candidate.estimate.steps[0].transfer_seconds)
    beside = [span for span in work if span.start_seconds < gather.start_seconds + gather.seconds]
    assert len(beside) > 1
    assert all("step 2" in span.line for span in beside)
    assert line.step_seconds == pytest.approx(max(span.start_seconds + span.seconds for span in work))
    assert "beside step 2" in str(candidate)


def test_a_gather_does_not_run_beside_what_has_its_links_or_needs_it_or_another_collective():
    same = GatherEinsum(AllGather("X", "B", ("x",)), FIRST, "ring", 1)
    found = made((WEIGHT, same, LAST), x="B_x, D").estimate
    assert found.steps[0].beside is None
    found = made((AllGather("X", "B", ("y",)), FIRST, WEIGHT, LAST), x="B_y, D").estimate
    assert found.steps[0].beside is None
    assert found.steps[2].beside is not None


def test_where_the_compiler_runs_gathers_by_themselves_none_is_beside_anything():
    for on in ("v6e:4x4", "v5p:4x4x1"):
        found = made((WEIGHT, FIRST, LAST), on).estimate
        assert found.seconds == found.alone_seconds
        assert found.steps[0].exposed_seconds == found.steps[0].transfer_seconds


@pytest.mark.parametrize("on", ["v5e:4x4", "v6e:4x4", "v5p:4x4x1"])
def test_the_first_hops_of_a_ring_start_beside_a_collective_over_another_axis(on):
    """What it waits for its first block at the beginning is over by then, and no more."""
    candidate = made((FIRST, AllReduce("H", ("y",)), WITHIN), on, x="B, D_y", v="D_y, F", B=512)
    *before, ring = candidate.estimate.steps
    assert ring.ahead_seconds == pytest.approx(sum(cost.seconds for cost in before))
    assert 0 < ring.saved_seconds <= ring.transfer_seconds / 3 * (1 + 1e-9)
    sent = [span for span in candidate.timeline().spans if span.kind == "transfer" and span.lane.startswith("x")]
    assert sent[0].start_seconds < sum(cost.seconds for cost in before)


def test_a_ring_that_starts_ahead_still_waits_for_the_inputs_that_are_fetched():
    """What its matmuls wait for is in its seconds, by whose end the timeline's last matmul is over."""
    candidate = made((AllGather("W", "F", ("x",)), RING, LAST), "v6e:4x4", x="B_y, D", B=2048, F=4096, E=256)
    _, ring, _ = candidate.estimate.steps
    assert ring.ahead_seconds
    assert ring.fetched_seconds
    line = candidate.timeline()
    for number, cost in enumerate(candidate.estimate.steps, 1):
        lane = [span for span in line.spans if span.lane == COMPUTE and span.line.startswith(f"step {number}")]
        assert sum(span.seconds for span in lane) == pytest.approx(cost.seconds)


def test_two_gathers_share_the_matmul_that_they_run_beside():
    sizes = SIZES | {"G": 65536}
    task = problem(
        parse("X[B, D] · V[D, F] · W[F_x, E] · U[E_x, G] -> Y[B, G]"), sizes, "x=4, y=4", "v5e:4x4", dtype="bfloat16"
    )
    inputs = tuple((name, Layout.parse(laid)) for name, laid in zip("XVWU", ("B, D", "D, F", "F_x, E", "E_x, G"), strict=True))
    small = Einsum(("X", "V"), "H", ("B", "F"))
    steps = (
        small,
        WEIGHT,
        AllGather("U", "E", ("x",)),
        Einsum(("H", "W"), "Z", ("B", "E")),
        Einsum(("Z", "U"), "Y", ("B", "G")),
    )
    found = priced(Program(task.mesh, inputs, steps, "Y"), prices_of(task), task).estimate
    beside = [cost.beside for cost in found.steps if cost.beside is not None]
    assert len(beside) == 2
    room = found.steps[0].seconds + found.steps[3].seconds
    assert sum(each.seconds for each in beside) <= room * (1 + 1e-9)
