"""Plans confirmed by the clock: the first candidates, and the compiler's own, run in turn on the devices of a mesh."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import jax

from shardwise.compiled.compiling import audit
from shardwise.compiled.confirming import arguments, compilers_own, first_of
from shardwise.measure.probes import Trial, arrays_of
from shardwise.measure.rounds import agreement
from shardwise.measure.timing import done, interleaved
from shardwise.planning.candidates import fits
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import Candidate
from shardwise.runtime.execute import planned_function

SECONDS = 4.0  # of runs in turn, all programs together
FEWEST, MOST = 5, 200  # runs of each


def tuned(task: Problem, candidates: Sequence[Candidate], mesh: jax.sharding.Mesh) -> tuple[Candidate, ...]:
    """Run the first candidates in turn; those that ran come first, fastest first by the medians of their runs.

    >>> import shardwise as sw
    >>> found = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes={"I": 64, "J": 64, "K": 64}, mesh="x=4", confirm="here")
    >>> found.best.measured_seconds == min(each.measured_seconds for each in found if each.measured_seconds)
    True

    What they run on is numbers of the task's dtype; in several processes all agree on the longest of their times.

    Raises:
        MeasureError: a program raises while it is run.
    """
    first = candidates[0].program
    given = arguments(task, mesh)
    own = compilers_own(task, first, lambda program: audit(planned_function(task, program, mesh), *given, mesh=mesh))
    tried = [*first_of(candidates), *(candidate for candidate, _ in own if fits(task, candidate))]
    arrays = arrays_of(Trial("program", "the operands", first, dict(task.sizes), task.dtype), mesh)
    functions = [planned_function(task, candidate.program, mesh) for candidate in tried]
    calls = {f"candidate {number}": lambda f=function: f(*arrays) for number, function in enumerate(functions, 1)}
    for name, call in calls.items():
        done(name, call)
    began = time.perf_counter()
    for name, call in calls.items():
        done(name, call)
    agree = agreement(mesh)
    once = agree([time.perf_counter() - began])[0]
    runs = min(max(math.floor(SECONDS / (2 * once)), FEWEST), MOST)  # as many in each process: all take part in each
    seconds = agree([timing.median_seconds for timing in interleaved(calls, runs).values()])
    measured = [
        dataclasses.replace(candidate, confirmed=None, measured_seconds=median)
        for candidate, median in zip(tried, seconds, strict=True)
    ]
    ran = {candidate.program for candidate in tried}
    return (*sorted(measured, key=lambda each: each.seconds), *(each for each in candidates if each.program not in ran))
