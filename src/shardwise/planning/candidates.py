"""A candidate: a program that solves an equation, and what it is estimated to cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise import views
from shardwise.errors import PlanError
from shardwise.planning.cost import Estimate, estimated
from shardwise.planning.problem import Problem
from shardwise.planning.step_prices import StepPrices
from shardwise.program import Program
from shardwise.schedule.timeline import Timeline
from shardwise.steps import Automatic

KEPT = 10  # programs of one problem are ranked


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that solves the equation, and its estimate."""

    program: Program
    estimate: Estimate
    confirmed: Timeline | None = None  # of what a compiler made of it (`sw.plan(..., confirm=...)`)
    measured_seconds: float | None = None  # the median of its runs (`sw.plan(..., confirm="here")`)
    options: tuple[tuple[str, str], ...] = ()  # of the compiler, with which it is the fastest that was `confirmed`
    task: Problem | None = field(default=None, compare=False, repr=False)  # that it was priced for

    @property
    def seconds(self) -> float:
        """The time of its runs where it is known, or the modelled one of the compiled program, else that of the estimate."""
        if self.measured_seconds is not None:
            return self.measured_seconds
        return self.estimate.seconds if self.confirmed is None else self.confirmed.step_seconds

    @property
    def is_estimated(self) -> bool:
        """Whether its time is no more than an estimate."""
        return self.confirmed is None and self.measured_seconds is None

    @property
    def is_compilers_own(self) -> bool:
        """Whether the compiler chooses what moves."""
        return any(isinstance(step, Automatic) for step in self.program.steps)

    def timeline(self) -> Timeline:
        """When compute and transfers run, as estimated; `confirmed` is that of the compiled program, once there is one.

        Raises:
            PlanError: it is the compiler's own program, which has no steps to be played.
        """
        from shardwise.planning.timelines import estimated_timeline

        if self.task is None or self.is_compilers_own:
            raise PlanError("the compiler's own choice has no timeline before it is compiled: take that of `confirmed`")
        return estimated_timeline(self.program, self.estimate, self.task)

    __str__ = views.text


def priced(program: Program, prices: StepPrices, task: Problem) -> Candidate:
    return Candidate(program, estimated(program, prices), task=task)


def fits(task: Problem, candidate: Candidate) -> bool:
    return task.memory_limit is None or candidate.estimate.peak_memory_bytes <= task.memory_limit
