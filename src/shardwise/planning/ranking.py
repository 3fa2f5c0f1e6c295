"""From an equation to a ranking of programs: the door of the planning floor."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise import views
from shardwise.errors import LayoutError, PlanError, ProgramError
from shardwise.layout import Layout
from shardwise.notation import Operand
from shardwise.planning.cost import Estimate, estimate
from shardwise.planning.fuse import forms_of, fused_programs, names_of
from shardwise.planning.fused_cost import ring_cost
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem, costs_of
from shardwise.planning.stages import Programs, programs_of
from shardwise.planning.timelines import estimated_timeline
from shardwise.program import Program, sums_stay_whole
from shardwise.schedule.timeline import Timeline
from shardwise.steps import (
    WAYS,
    AllGather,
    AllReduce,
    Automatic,
    Einsum,
    Fused,
    GatherEinsum,
    ReduceScatter,
    Step,
    moved_axes,
    product_of,
)

KEPT = 10
REMEMBERED = 32  # problems; of thousands of devices a ranking may take megabytes
MOST_FUSED = 200  # fused programs of one problem are looked at, and of any list of them so many of the fastest priced:
MOST_PRICED = 40
WORTH_PRICING = 1.5  # times the fastest so far: fused forms that take longer are not looked at any further


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that solves the equation, and its estimate."""

    program: Program
    estimate: Estimate
    confirmed: Timeline | None = None  # of what a compiler made of it (`sw.plan(..., confirm=...)`)
    task: Problem | None = field(default=None, compare=False, repr=False)  # that it was priced for

    @property
    def seconds(self) -> float:
        """The modelled time of the compiled program where it is known, else that of the estimate."""
        return self.estimate.seconds if self.confirmed is None else self.confirmed.step_seconds

    @property
    def is_compilers_own(self) -> bool:
        """Whether the compiler chooses what moves."""
        return any(isinstance(step, Automatic) for step in self.program.steps)

    def timeline(self) -> Timeline:
        """When compute and transfers run, as estimated; `confirmed` is that of the compiled program, once there is one.

        Raises:
            PlanError: it is the compiler's own program, which has no steps to be played.
        """
        if self.task is None or self.is_compilers_own:
            raise PlanError("the compiler's own choice has no timeline before it is compiled: take that of `confirmed`")
        return estimated_timeline(self.program, self.estimate, self.task)

    __str__ = views.text


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

    Raises:
        PlanError: as `rank`.
    """
    onward: Onward = {}
    if task.overlap is False or (task.overlap is True and task.hardware.shared and task.memory_limit is None):
        return _by_stages(task, onward)  # where one host's cores do both, transfers hide behind nothing
    # A fused program holds less than the plain one that it stands for: that one need not fit.
    sources = _by_stages(dataclasses.replace(task, memory_limit=None), onward)
    plain, fault = _limited(task, sources, onward) if task.overlap is True else (sources, None)
    if plain.candidates and task.overlap is True and task.hardware.shared:
        return plain
    found = _overlapped(task, plain.candidates, (*sources, *_all_gathered(task, sources.best.program)))
    if not found and fault is not None:
        raise fault
    # Where transfers hide behind nothing, who asks for a ring is to see the one that gathers and multiplies.
    first = _is_ring if task.hardware.shared and task.overlap in WAYS else lambda _: True
    best = tuple(sorted(found, key=lambda each: (not first(each.program), each.estimate.seconds))[:KEPT])
    return Ranking(task, best, plain.searched_all and sources.searched_all, min(plain.floor_seconds, sources.floor_seconds))


def _is_ring(program: Program) -> bool:
    """Whether operands that are gathered while they are multiplied are all that moves."""
    moving = [step for step in program.steps if moved_axes(step)]
    return bool(moving) and all(isinstance(step, GatherEinsum) for step in moving)


def _limited(task: Problem, free: Ranking, onward: Onward) -> tuple[Ranking, PlanError | None]:
    """Of the programs without a memory limit those within it; and if there are none, why."""
    fitting = tuple(candidate for candidate in free if _fits(task, candidate))
    if task.memory_limit is None or (not free.searched_all and fitting[:1] == free.candidates[:1]):
        return Ranking(task, fitting, free.searched_all, free.floor_seconds), None  # none is faster that fits
    try:
        return _by_stages(task, onward), None
    except PlanError as error:
        return Ranking(task, (), free.searched_all, free.floor_seconds), error


Onward = dict[tuple[Operand, Layout], Programs]  # the programs that lead to a stage from a layout


def _by_stages(task: Problem, onward: Onward) -> Ranking:
    # What stands between arrows must be passed: each stage is planned by itself, the products are the candidates.
    stages = [*task.equation.via, task.equation.result]
    first = programs_of(task, task.equation.operands, stages[0], KEPT)
    # A runner-up may pass through the given layout once more, which the search counts as held by the caller.
    priced = (_price(program, costs_of(task), task) for program in first.found)
    ranked = tuple(candidate for candidate in priced if _fits(task, candidate))
    whole, floor = first.whole, first.floor_seconds
    for stage in stages[1:]:
        ways = {
            layout: _onward(task, layout, stage, onward) for layout in dict.fromkeys(each.program.result for each in ranked)
        }
        whole &= all(programs.whole for programs in ways.values())
        floor += min(programs.floor_seconds for programs in ways.values())
        passed = list(_continued(task, ranked, ways))
        ranked = tuple(itertools.islice((each for each in passed if _fits(task, each)), KEPT))
        if not ranked:
            would = min(candidate.estimate.peak_memory_bytes for candidate in passed)
            raise PlanError(
                f"no program that goes on to {stage} fits in {task.memory_limit:,.0f} bytes of memory a device: "
                f"{would:,.0f} bytes would do"
            )
    return Ranking(task, tuple(sorted(ranked, key=lambda candidate: candidate.estimate.seconds)), whole, floor)


def _overlapped(task: Problem, plain: tuple[Candidate, ...], sources: tuple[Candidate, ...]) -> list[Candidate]:
    """The plain candidates and the best fused forms of those that may win by one, or all forms that `overlap` names.

    Raises:
        PlanError: none has what is asked for; those that there are, are named.
    """
    fusing = _Fusing(task, costs_of(task))
    if task.overlap is True:
        fastest = min((candidate.estimate.seconds for candidate in plain), default=math.inf)
        found: dict[Program, Candidate] = {}
        for source in sorted(sources, key=_unhidden_seconds):
            if _unhidden_seconds(source) >= fastest:
                break
            best = _best_fused(fusing, source, WORTH_PRICING * fastest)
            if best is not None:
                found.setdefault(best.program, best)
                fastest = min(fastest, best.estimate.seconds)
        return [*plain, *found.values()]
    forms: dict[Program, Candidate] = {}
    for source in sources:
        for form in _programs(fusing, source):
            forms.setdefault(form, source)
    asked = _asked(fusing, forms, str(task.overlap))
    if not asked:
        fused = (step for program in forms for step in program.steps if isinstance(step, Fused))
        have = sorted({name for step in fused for form in forms_of(step) for name in names_of(form)})
        other = f"it has {', '.join(have)}" if have else "nothing is gathered or scattered beside a product"
        raise PlanError(f"overlap={task.overlap!r}: no program of this equation has it: {other}")
    return asked


@dataclass(slots=True)
class _Fusing:
    """The prices of fused steps of one problem: the same step stands in many programs. `left` is how many more are made."""

    task: Problem
    costs: Costs
    left: int = MOST_FUSED
    _known: dict[Any, float] = field(default_factory=dict)

    def seconds(self, step: Fused, before: Mapping[str, Layout]) -> float:
        product = product_of(step)
        assert product is not None
        key = (step, tuple(before[name] for name in product.operands))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = ring_cost(step, self.costs, self.task.sizes, before, 0.0).seconds
        return known

    def fastest(self, program: Program, place: int, forms: Iterable[Fused]) -> Fused:
        """The fastest of some forms of the step at a place."""
        before = program.states()[place]
        return min(forms, key=lambda form: self.seconds(form, before))

    def at_least(self, program: Program, steps: tuple[Step, ...], source: Candidate) -> float:
        """The seconds of a program with its fused steps in these forms: at least, one that is new has no price yet."""
        kept = dict(zip(source.program.steps, source.estimate.steps, strict=True))
        fused = (self.seconds(step, program.states()[at]) for at, step in enumerate(steps) if isinstance(step, Fused))
        return math.fsum((*(kept[step].seconds for step in steps if step in kept), *fused))


def _programs(fusing: _Fusing, source: Candidate) -> Iterator[Program]:
    for program in itertools.islice(fused_programs(source.program, fusing.task.sizes), fusing.left):
        fusing.left -= 1
        if not fusing.task.exact or sums_stay_whole(program):
            yield program


def _unhidden_seconds(candidate: Candidate) -> float:
    """What no fused form of a candidate is faster than: all steps but those that may hide behind a product."""
    hiding = (AllGather, ReduceScatter, AllReduce)
    steps = zip(candidate.program.steps, candidate.estimate.steps, strict=True)
    return math.fsum(cost.seconds for step, cost in steps if not isinstance(step, hiding))


def _best_fused(fusing: _Fusing, source: Candidate, within: float) -> Candidate | None:
    """The fastest fused form of a candidate that fits, if it takes no longer than `within`."""
    forms: list[tuple[float, tuple[Step, ...]]] = []
    for program in _programs(fusing, source):
        steps = _with(program, {place: fusing.fastest(program, place, forms_of(step)) for place, step in _fused(program)})
        forms.append((fusing.at_least(program, steps, source), steps))
    return next(iter(_cheapest(fusing, [(seconds, source.program, steps) for seconds, steps in forms], within, 1)), None)


def _asked(fusing: _Fusing, forms: Mapping[Program, Candidate], name: str) -> list[Candidate]:
    """The cheapest fused programs with one step after the other in its best form of a name, and the rest in their best."""
    found = []
    for program, source in forms.items():
        best = {place: fusing.fastest(program, place, forms_of(step)) for place, step in _fused(program)}
        for place, step in _fused(program):
            named = [form for form in forms_of(step) if name in names_of(form)]
            if named:
                steps = _with(program, {**best, place: fusing.fastest(program, place, named)})
                found.append((fusing.at_least(program, steps, source), program, steps))
    return _cheapest(fusing, found, math.inf, len(found) if fusing.task.hardware.shared else KEPT)


def _cheapest(
    fusing: _Fusing, forms: list[tuple[float, Program, tuple[Step, ...]]], within: float, most: int
) -> list[Candidate]:  # fmt: skip
    """The first few of some fused programs that fit, of those that take no longer than `within`.

    Each comes with seconds that it takes at least: it is priced only if it may be among them.
    """
    found: dict[Program, Candidate] = {}
    for seconds, like, steps in sorted(forms, key=lambda form: form[0])[:MOST_PRICED]:
        worst = sorted(each.estimate.seconds for each in found.values())[most - 1] if len(found) >= most else within
        if seconds > worst:
            break
        program = Program(like.mesh, like.inputs, steps, like.output)
        priced = found.get(program) or _price(program, fusing.costs, fusing.task)
        if _fits(fusing.task, priced):
            found[program] = priced
    return sorted(found.values(), key=lambda candidate: candidate.estimate.seconds)[:most]


def _fused(program: Program) -> list[tuple[int, Fused]]:
    return [(place, step) for place, step in enumerate(program.steps) if isinstance(step, Fused)]


def _with(program: Program, changes: Mapping[int, Step]) -> tuple[Step, ...]:
    return tuple(changes.get(place, step) for place, step in enumerate(program.steps))


def _all_gathered(task: Problem, like: Program) -> Iterator[Candidate]:
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
        yield _price(program, costs_of(task), task)


def _fits(task: Problem, candidate: Candidate) -> bool:
    return task.memory_limit is None or candidate.estimate.peak_memory_bytes <= task.memory_limit


def _onward(task: Problem, layout: Layout, stage: Operand, known: Onward) -> Programs:
    """The programs that lead from a layout that candidates end in to a stage."""
    if (stage, layout) not in known:
        # The steps that follow act on the product, so the dtype is that of products.
        later = dataclasses.replace(task, dtype=task.accumulated or task.dtype, accumulated=None, memory_limit=None)
        known[stage, layout] = programs_of(later, (Operand(stage.name, layout),), stage, 3)
    return known[stage, layout]


def _continued(task: Problem, ranked: tuple[Candidate, ...], ways: Mapping[Layout, Programs]) -> Iterator[Candidate]:
    costs = costs_of(task)
    for candidate in ranked:
        for program in ways[candidate.program.result].found:
            steps = tuple(_renamed(step, program.output, candidate.program.output) for step in program.steps)
            joined = Program(task.mesh, candidate.program.inputs, candidate.program.steps + steps, candidate.program.output)
            yield _price(joined, costs, task)


def _renamed(step: Any, old: str, new: str) -> Step:
    return dataclasses.replace(step, array=new) if step.array == old else step


def _price(program: Program, costs: Costs, task: Problem) -> Candidate:
    return Candidate(program, estimate(program, costs, task.sizes), task=task)


@dataclass(frozen=True)
class Ranking:
    """The programs that solve one equation, ranked by estimate on one hardware; iterable, cheapest first.

    `searched_all`: whether no plain program is faster than the fastest plain one here; if not, layouts were too many to look
    at them all. No program at all takes less than `floor_seconds`.
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
