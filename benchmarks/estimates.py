"""How near estimates come: random problems on slices of TPUs, as estimated and as compiled; nothing runs.

    python -m benchmarks.estimates --count 150

Written to docs/benchmarks/estimates.md and estimates.json, after every problem; those that the JSON holds are not compiled
again, unless with --fresh.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.drawn import Problem
from shardwise import api
from shardwise.planning.explain import summary
from shardwise.steps import Automatic, Fused

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
COUNT = 150


@dataclass(frozen=True, slots=True)
class Tried:
    """One program as estimated and as compiled, in microseconds; of the compiler's own there is no estimate."""

    program: str
    estimate: float | None
    compiled: float
    fused: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One problem: its programs that were compiled, the planner's choice first."""

    problem: str
    held_out: bool
    target: str
    chips: int
    tried: tuple[Tried, ...]
    seconds: float


def measured(problem: Problem) -> Row:
    """Plan a problem, and compile the choice, the runners-up that `confirm` compiles, and the compiler's own."""
    from shardwise.chips.topology import Topology
    from shardwise.compiled.confirming import tried

    began = time.perf_counter()
    plan = api.plan(str(problem.equation), sizes=problem.sizes, mesh=problem.mesh, hardware=problem.target)
    found = []
    for candidate, audit in tried(plan.task, plan.candidates, problem.target):
        steps = candidate.program.steps
        own = any(isinstance(step, Automatic) for step in steps)
        fused = any(isinstance(step, Fused) for step in steps)
        compiled = round(1e6 * audit.timeline().step_seconds, 2)
        estimate = None if own else round(1e6 * candidate.estimate.seconds, 2)
        found.append((candidate.program != plan.best.program, Tried(summary(candidate.program), estimate, compiled, fused)))
    found.sort(key=lambda pair: pair[0])
    rows = tuple(each for _, each in found)
    chips = Topology.parse(problem.target).chips
    return Row(str(problem), problem.held_out, problem.target, chips, rows, round(time.perf_counter() - began, 1))
