"""Which fused programs are worth it: those of plain candidates whose transfers matmuls may overlap."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import PlanError
from shardwise.planning.candidates import KEPT, Candidate, fits, priced
from shardwise.planning.fuse import checked, forms_of, fused_steps, names_of
from shardwise.planning.fused_cost import moving_seconds
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem
from shardwise.planning.step_cost import StepCost
from shardwise.planning.step_prices import ROUNDING, StepPrices
from shardwise.program import Program, sums_stay_whole
from shardwise.steps import (
    WAYS,
    AllGather,
    AllReduce,
    Collective,
    Fused,
    ReduceScatter,
    Step,
    collectives_of,
    einsum_of,
    goes_along_sides,
    moved_axes,
)

MOST_FUSED = 200  # fused programs of one problem are looked at, and of any list of them so many of the fastest priced:
MOST_PRICED = 40
WORTH_PRICING = 1.5  # times the fastest so far: fused forms that take longer are not looked at any further


def overlapped(fusing: Fusing, plain: tuple[Candidate, ...], sources: tuple[Candidate, ...]) -> list[Candidate]:
    """The plain candidates and the best fused forms of those that may win by one, or all forms that `overlap` names.

    Raises:
        PlanError: none has what is asked for; those that there are, are named.
    """
    task = fusing.task
    if task.overlap is True:
        fastest = min((candidate.estimate.seconds for candidate in plain), default=math.inf)
        found: dict[Program, Candidate] = {}
        for source in sorted(sources, key=_unhidden_seconds):
            if _unhidden_seconds(source) >= fastest:
                break
            ranked = sorted(candidate.estimate.seconds for candidate in (*plain, *found.values()))
            best = _best_fused(fusing, source, min([WORTH_PRICING * fastest, *ranked[KEPT - 1 : KEPT]]))
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
        have = sorted({name for step in fused for form in fusing.forms(step) for name in names_of(form)})
        other = f"it has {', '.join(have)}" if have else "nothing is gathered or scattered beside a matmul"
        raise PlanError(f"overlap={task.overlap!r}: no program of this equation has it: {other}")
    return asked


@dataclass(slots=True)
class Fusing:
    """The fused programs of one problem; `left` is how many more are made."""

    task: Problem
    prices: StepPrices
    left: int = MOST_FUSED

    @property
    def costs(self) -> Costs:
        return self.prices.costs

    def checked(self, program: Program, steps: tuple[Step, ...]) -> Program | None:
        """A fused program with these steps, if it is legal, as exact as is asked for, and one may still be made."""
        fused = checked(program, steps) if self.left else None
        if fused is None:
            return None
        self.left -= 1
        return fused if not self.task.exact or sums_stay_whole(fused) else None

    def fastest_forms(self, program: Program) -> tuple[Step, ...]:
        """The steps of a program, the fused ones in their fastest forms."""
        return _with(program, {place: self.fastest(program, place, step) for place, step in _fused(program)})

    def fastest(self, program: Program, place: int, step: Fused) -> Fused:
        """The fastest form of a step of a program."""
        known = self.prices.of(step, self.prices.standing(program, place))
        if known.fastest is None:
            known.fastest = known.fastest_of(forms_of(step, self.costs.ways(moved_axes(step))), self.task.hardware.slowdown)
        return known.fastest

    def fastest_of(self, forms: Iterable[Fused], program: Program, place: int) -> Fused:
        """The fastest of some forms of a step of a program."""
        forms = list(forms)
        return self.prices.of(forms[0], self.prices.standing(program, place)).fastest_of(forms, self.task.hardware.slowdown)

    def forms(self, step: Fused) -> Iterator[Fused]:
        """A step in every form that it may be asked for."""
        return forms_of(step, (*WAYS, *self.costs.sides(moved_axes(step))))

    def unplayed(self, steps: tuple[Step, ...], kept: Mapping[Step, StepCost]) -> float:
        """The seconds of a candidate with some steps fused at least: of those the matmul alone, or the transfers alone."""
        seconds = [kept[step].seconds if step in kept else self._least(step, kept) for step in steps]
        return math.fsum(seconds) * (1 - ROUNDING)

    def _least(self, step: Step, kept: Mapping[Step, StepCost]) -> float:
        compiler, einsum = self.task.hardware.compiler, einsum_of(step)
        if einsum is None:
            return 0.0  # a gather that is new
        sooner = 0.0 if compiler is None else compiler.start_seconds.value  # parts of a matmul may start one behind the other
        moving = (self._moving(part, kept) for part in collectives_of(step))
        item = min(1.0, self.costs.item_bytes / self.costs.made_item_bytes)  # rings are priced as if no operand were a result
        alone = min(kept[einsum].seconds, kept[einsum].seconds + kept[einsum].saved_seconds)  # a ring may start ahead of it
        if compiler is not None:  # and read what was fetched, or leave sums where they are
            alone = min(alone, self.costs.einsum(kept[einsum].flops, 0.0, 0.0))
        return item * max(alone - sooner, *moving)

    def _moving(self, part: Collective, kept: Mapping[Step, StepCost]) -> float:
        """How long a collective moves as a ring that goes both ways."""
        first_half = part not in kept  # of a sum
        sent = kept[AllReduce(part.array, part.axes)].wire_bytes / 2 if first_half else kept[part].wire_bytes
        block = sent / (self.task.mesh.extent(part.axes) - 1)
        return min(moving_seconds(self.costs, part.axes, way, block) for way in self.costs.ways(part.axes))

    def at_least(self, program: Program, steps: tuple[Step, ...], kept: Mapping[Step, StepCost]) -> float:
        """The seconds of a program with its fused steps in these forms: at least, one that is new has no price yet."""
        fused = (self.prices.seconds(step, program, at) for at, step in enumerate(steps) if isinstance(step, Fused))
        return math.fsum((*(kept[step].seconds for step in steps if step in kept), *fused))


def by_rings(fusing: Fusing, candidate: Candidate) -> list[Candidate]:
    """A candidate with the fastest rings in place of what goes along all sides of a torus, if it fits.

    Its matmuls are fewer and larger, and its transfers longer: which is the faster one only a compiler can tell.
    """
    program = candidate.program
    steps = {
        place: fusing.fastest_of(forms_of(step, ("ring", "bidirectional")), program, place)
        for place, step in _fused(program)
        if goes_along_sides(step)
    }
    rings = fusing.checked(program, _with(program, steps))
    found = [] if rings is None else [priced(rings, fusing.prices, fusing.task)]
    return [each for each in found if fits(fusing.task, each)]


def _programs(fusing: Fusing, source: Candidate) -> Iterator[Program]:
    for steps in fused_steps(source.program, fusing.task.sizes):
        program = fusing.checked(source.program, steps)
        if program is not None:
            yield program


def steps_costs(candidate: Candidate) -> dict[Step, StepCost]:
    return dict(zip(candidate.program.steps, candidate.estimate.steps, strict=True))


def _unhidden_seconds(candidate: Candidate) -> float:
    """What no fused form of a candidate is faster than: all steps but those that a matmul may overlap."""
    hiding = (AllGather, ReduceScatter, AllReduce)
    steps = zip(candidate.program.steps, candidate.estimate.steps, strict=True)
    return math.fsum(cost.seconds for step, cost in steps if not isinstance(step, hiding))


def _best_fused(fusing: Fusing, source: Candidate, within: float) -> Candidate | None:
    """The fastest fused form of a candidate that fits, if it takes no longer than `within`.

    Forms wait in a queue, by the seconds that they take at least: with nothing played, with the rings played, and as they
    are estimated. One is looked at more closely only when none is left that may be faster.
    """
    kept = steps_costs(source)
    queue: list[tuple[float, int, int, Any]] = [
        (fusing.unplayed(steps, kept), 0, number, steps)
        for number, steps in enumerate(fused_steps(source.program, fusing.task.sizes))
    ]
    heapq.heapify(queue)
    while queue:
        seconds, looks, number, form = heapq.heappop(queue)
        if looks == 2:
            return form
        if seconds > within:
            continue
        if looks == 0:
            program = fusing.checked(source.program, form)
            if program is not None:
                steps = fusing.fastest_forms(program)
                heapq.heappush(queue, (fusing.at_least(program, steps, kept), 1, number, steps))
            continue
        candidate = priced(source.program.with_steps(form), fusing.prices, fusing.task)
        if fits(fusing.task, candidate):
            within = math.inf
            heapq.heappush(queue, (candidate.estimate.seconds, 2, number, candidate))
    return None


def _asked(fusing: Fusing, forms: Mapping[Program, Candidate], name: str) -> list[Candidate]:
    """The cheapest fused programs with one step after the other in its best form of a name, and the rest in their best."""
    found = []
    for program, source in forms.items():
        kept = steps_costs(source)
        best = fusing.fastest_forms(program)
        for place, step in _fused(program):
            named = [form for form in fusing.forms(step) if name in names_of(form)]
            if named:
                form = fusing.fastest_of(named, program, place)
                steps = (*best[:place], form, *best[place + 1 :])
                found.append((fusing.at_least(program, steps, kept), program, steps))
    return _cheapest(fusing, found, math.inf, len(found) if fusing.task.hardware.shared else KEPT)


def _cheapest(
    fusing: Fusing, forms: list[tuple[float, Program, tuple[Step, ...]]], within: float, most: int
) -> list[Candidate]:  # fmt: skip
    """The first few of some fused programs that fit, of those that take no longer than `within`.

    Each comes with seconds that it takes at least: it is priced only if it may be among them.
    """
    found: dict[Program, Candidate] = {}
    for seconds, like, steps in sorted(forms, key=lambda form: form[0])[:MOST_PRICED]:
        worst = sorted(each.estimate.seconds for each in found.values())[most - 1] if len(found) >= most else within
        if seconds > worst:
            break
        program = like.with_steps(steps)
        candidate = found.get(program) or priced(program, fusing.prices, fusing.task)
        if fits(fusing.task, candidate):
            found[program] = candidate
    return sorted(found.values(), key=lambda candidate: candidate.estimate.seconds)[:most]


def _fused(program: Program) -> list[tuple[int, Fused]]:
    return [(place, step) for place, step in enumerate(program.steps) if isinstance(step, Fused)]


def _with(program: Program, changes: Mapping[int, Step]) -> tuple[Step, ...]:
    return tuple(changes.get(place, step) for place, step in enumerate(program.steps))
