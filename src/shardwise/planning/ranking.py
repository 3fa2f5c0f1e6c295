"""From an equation to a ranking of programs: the door of the planning floor."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise import views
from shardwise.errors import LayoutError, PlanError, ProgramError
from shardwise.layout import Layout
from shardwise.notation import Operand
from shardwise.planning.candidates import KEPT, Candidate, fits, priced
from shardwise.planning.choosing import Fusing, by_rings, overlapped
from shardwise.planning.cost import Shards, result_copied
from shardwise.planning.problem import Problem, costs_of
from shardwise.planning.shortcuts import Shortcut, shortcuts
from shardwise.planning.stages import LackingMemoryError, Programs, programs_of
from shardwise.planning.step_prices import StepPrices, prices_of
from shardwise.program import Program
from shardwise.steps import TORUS, WAYS, AllGather, Einsum, GatherEinsum, Step, goes_along_sides, moved_axes, touched

# Of 870 random problems on five TPUs the choice takes 3.2 % longer than the best that was compiled if estimates alone say which
# is first; 2.7 % so, and twelve take more than 1.5 times as long, or eight. Estimates of what overlaps err more.
OVERLAPPED = 1.08
SHORTENED = 3  # of the first programs that a search finds, those of which shorter ones are looked at
REMEMBERED = 32  # problems; of thousands of devices a ranking may take megabytes


def rank(task: Problem) -> tuple[Candidate, ...]:
    """Every candidate program, cheapest first.

    Raises:
        PlanError: no program leads to the wanted layout, or none fits in the memory limit; the reason is said.
    """
    return ranked(task).candidates


@functools.lru_cache(maxsize=REMEMBERED)
def ranked(task: Problem) -> Ranking:
    """`ranking`, remembered: what has been planned is often run, shown or reported next."""
    return ranking(task)


def ranking(task: Problem) -> Ranking:
    """Every candidate program, cheapest first; and whether all programs were searched.

    Those that overlap stand as if they took `OVERLAPPED` times as long, on chips whose compiler is known.

    Raises:
        PlanError: as `rank`.
    """
    prices, onward = prices_of(task), dict[tuple[Operand, Layout], Programs]()
    # A fused program holds less than the plain one that it stands for: that one need not fit.
    sources = _by_stages(dataclasses.replace(task, memory_limit=None), prices, onward)
    plain, fault = _limited(task, sources, prices, onward) if task.overlap in (True, False) else (sources, None)
    if task.overlap is False and fault is not None:
        raise fault
    if task.overlap is False or (plain.candidates and task.overlap is True and task.hardware.shared):
        return plain  # where one host's cores do both, transfers hide behind nothing
    fusing = Fusing(task, prices)
    found = overlapped(fusing, plain.candidates, (*sources, *_all_gathered(task, prices, sources.best.program)))
    if not found and fault is not None:
        raise fault
    along = [each for each in found if any(map(goes_along_sides, each.program.steps))]
    if along and task.overlap is True:
        found += by_rings(fusing, min(along, key=lambda each: each.estimate.seconds))
    # Where transfers hide behind nothing, who asks for a ring is to see the one that gathers and multiplies.
    first = _is_ring if task.hardware.shared and task.overlap in (*WAYS, TORUS) else lambda _: True
    best = tuple(sorted(found, key=lambda each: (not first(each.program), promised(each, task)))[:KEPT])
    return Ranking(task, best, plain.searched_all and sources.searched_all, min(plain.floor_seconds, sources.floor_seconds))


def promised(candidate: Candidate, task: Problem) -> float:
    """The seconds by which a candidate is ranked: one that overlaps has to promise more than its estimates are often off by."""
    wary = task.hardware.compiler is not None and candidate.program.overlaps
    return candidate.estimate.seconds * (OVERLAPPED if wary else 1.0)


def _is_ring(program: Program) -> bool:
    """Whether operands that are gathered while they are multiplied are all that moves."""
    moving = [step for step in program.steps if moved_axes(step)]
    return bool(moving) and all(isinstance(step, GatherEinsum) for step in moving)


def _limited(task: Problem, free: Ranking, prices: StepPrices, onward: Onward) -> tuple[Ranking, PlanError | None]:
    """Of the programs without a memory limit those within it; and if there are none, why."""
    fitting = tuple(candidate for candidate in free if fits(task, candidate))
    found = Ranking(task, fitting, free.searched_all, free.floor_seconds)
    if task.memory_limit is None or (not free.searched_all and fitting[:1] == free.candidates[:1]):
        return found, None  # none is faster that fits
    try:
        limited = _by_stages(task, prices, onward)
    except LackingMemoryError as error:
        least = min(error.lacking.least_bytes, *(candidate.estimate.peak_memory_bytes for candidate in free))
        fault = PlanError(str(dataclasses.replace(error.lacking, least_bytes=least)))
        return found, None if fitting else fault
    except PlanError as error:
        return found, None if fitting else error
    both = {candidate.program: candidate for candidate in (*limited, *fitting)}.values()
    best = tuple(sorted(both, key=lambda candidate: candidate.estimate.seconds)[:KEPT])
    return Ranking(task, best, limited.searched_all, limited.floor_seconds), None


Onward = dict[tuple[Operand, Layout], Programs]  # the programs that lead to a stage from a layout


def _by_stages(task: Problem, prices: StepPrices, onward: Onward) -> Ranking:
    # What stands between arrows must be passed: each stage is planned by itself, the combinations are the candidates.
    stages = [*task.equation.via, task.equation.result]
    first = programs_of(task, prices.costs, task.equation.operands, stages[0], KEPT)
    # A runner-up may pass through the given layout once more, which the search counts as held by the caller.
    every = [priced(program, prices, task) for program in first.found]
    if task.hardware.compiler is not None and not task.exact:  # else a step takes as long as by itself
        every += _shortened(task, prices, every)
    ranked = tuple(candidate for candidate in every if fits(task, candidate))
    whole, floor = first.whole, first.floor_seconds
    for stage in stages[1:]:
        ways = {
            layout: _onward(task, layout, stage, onward) for layout in dict.fromkeys(each.program.result for each in ranked)
        }
        whole &= all(programs.whole for programs in ways.values())
        floor += min(programs.floor_seconds for programs in ways.values())
        passed = list(_continued(task, prices, ranked, ways))
        ranked = tuple(itertools.islice((each for each in passed if fits(task, each)), KEPT))
        if not ranked:
            would = min(candidate.estimate.peak_memory_bytes for candidate in passed)
            raise PlanError(
                f"no program that goes on to {stage} fits in {task.memory_limit:,.0f} bytes of memory a device: "
                f"{would:,.0f} bytes would do"
            )
    return Ranking(task, tuple(sorted(ranked, key=lambda candidate: candidate.estimate.seconds)[:KEPT]), whole, floor)


def _shortened(task: Problem, prices: StepPrices, found: Sequence[Candidate]) -> Iterator[Candidate]:
    """The first programs of a search with shortcuts, where they may be among the first by what steps take alone."""
    seconds = {each.program: each.estimate.alone_seconds for each in found if fits(task, each)}
    ways = [(least, way) for each in found[:SHORTENED] for least, way in _with_seconds(task, prices, each)]
    for least, way in sorted(ways, key=lambda each: each[0]):
        if len(seconds) >= KEPT and least > sorted(seconds.values())[KEPT - 1]:
            return
        program = way.taken()
        if program not in seconds:
            candidate = priced(program, prices, task)
            if fits(task, candidate):
                seconds[program] = candidate.estimate.alone_seconds
                yield candidate


def _with_seconds(task: Problem, prices: StepPrices, candidate: Candidate) -> Iterator[tuple[float, Shortcut]]:
    """The shortcuts of a program, each with the seconds that its steps take at least, one after the other.

    A slice may take none: a matmul reads it where it is. What a matmul made is copied to where the result must stand.
    """
    program, shards, passed = candidate.program, Shards(candidate.program, prices), 0
    least, states = prices.costs.einsum, program.states()
    kept = [least(each.flops, 0.0, 0.0) if each.flops else each.transfer_seconds for each in candidate.estimate.steps]
    ends = any(isinstance(step, Einsum) and step.result == program.output for step in program.steps)
    whole = list(map(Shards(program, prices).alone, program.steps, states, states[1:])) if ends else []
    for way in shortcuts(program):
        for number in range(passed, way.first):
            shards.alone(program.steps[number], states[number], states[number + 1])
        passed, array = way.first, touched(way.steps[0])
        layouts = [{array: layout} for layout in way.layouts]
        moved = list(map(shards.alone, way.steps, layouts, layouts[1:]))
        last, steps = (moved, way.steps) if way.last == len(program.steps) else (whole, program.steps)
        copied = result_copied(steps[-1], prices.costs, last[-1][0]) if ends else 0.0
        yield math.fsum((*kept[: way.first], *[cost.transfer_seconds for _, cost in moved], *kept[way.last :], copied)), way


def _all_gathered(task: Problem, prices: StepPrices, like: Program) -> Iterator[Candidate]:
    """The program that gathers what is summed of every operand and multiplies, where that makes the result as wanted.

    It may cost too much to be among the candidates; a rotation is its fused form, and costs less.
    """
    dims, names = task.equation.result.dims, tuple(name for name, _ in like.inputs)
    gathers = [
        AllGather(name, dim, layout.on(task.mesh).axes_of(dim))
        for name, layout in like.inputs
        for dim in layout.names
        if dim not in dims and layout.on(task.mesh).axes_of(dim)
    ]
    if task.equation.via or len(names) != 2 or len(gathers) != 2:
        return
    try:
        program = Program(task.mesh, like.inputs, (*gathers, Einsum(names, like.output, dims)), like.output)
    except (ProgramError, LayoutError):
        return
    if program.result == like.result:
        yield priced(program, prices, task)


def _onward(task: Problem, layout: Layout, stage: Operand, known: Onward) -> Programs:
    """The programs that lead from a layout that candidates end in to a stage."""
    if (stage, layout) not in known:
        # The steps that follow act on what is multiplied, so the dtype is that of matmuls.
        later = dataclasses.replace(task, dtype=task.accumulated or task.dtype, accumulated=None, memory_limit=None)
        known[stage, layout] = programs_of(later, costs_of(later), (Operand(stage.name, layout),), stage, 3)
    return known[stage, layout]


def _continued(
    task: Problem, prices: StepPrices, ranked: tuple[Candidate, ...], ways: Mapping[Layout, Programs]
) -> Iterator[Candidate]:
    for candidate in ranked:
        for program in ways[candidate.program.result].found:
            steps = tuple(_renamed(step, program.output, candidate.program.output) for step in program.steps)
            joined = Program(task.mesh, candidate.program.inputs, candidate.program.steps + steps, candidate.program.output)
            yield priced(joined, prices, task)


def _renamed(step: Any, old: str, new: str) -> Step:
    return dataclasses.replace(step, array=new) if step.array == old else step


@dataclass(frozen=True)
class Ranking:
    """The programs that solve one equation, ranked by estimate on one hardware; iterable, cheapest first.

    `searched_all`: whether no plain program is faster than the fastest plain one here, steps taken one after the other; if not,
    layouts were too many to look at them all. No program at all takes less than `floor_seconds`.
    """

    task: Problem
    candidates: tuple[Candidate, ...]
    searched_all: bool = True
    floor_seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    def explain(self) -> str:
        """Every candidate with its cost, what the ones not chosen lose, and the best one step by step."""
        return views.text(self)

    __str__ = __repr__ = explain
    _repr_html_ = views.html
