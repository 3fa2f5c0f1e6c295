"""From an equation to a ranking of programs: the door of the planning floor."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import LayoutError, PlanError, ProgramError, one_line
from shardwise.layout import splits
from shardwise.mesh import Mesh
from shardwise.notation import Operand
from shardwise.planning.cost import Estimate, estimate
from shardwise.planning.fuse import forms_of, fused_programs, names_of
from shardwise.planning.graph import State, state_of, step_of
from shardwise.planning.overlap import ring_cost
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem, costs_of
from shardwise.planning.search import Found, Joined, Label, Leaf, Moved, Search, trees
from shardwise.program import Program, sums_stay_whole
from shardwise.steps import WAYS, AllGather, AllReduce, Einsum, Fused, GatherEinsum, ReduceScatter, Step, moved_axes

KEPT = 10
WORTH_PRICING = 1.5  # times the fastest so far: fused forms that take longer are not looked at any further


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that solves the equation, and its estimate."""

    program: Program
    estimate: Estimate
    confirmed: Any = None  # the timeline of what a compiler made of it (`sw.plan(..., confirm=...)`)

    @property
    def seconds(self) -> float:
        """The modelled time of the compiled program where it is known, else that of the estimate."""
        return self.estimate.seconds if self.confirmed is None else self.confirmed.step_seconds

    def __str__(self) -> str:
        from shardwise.planning.explain import steps_text

        return "\n".join(map(one_line, steps_text(self)))


def rank(task: Problem) -> tuple[Candidate, ...]:
    """Every candidate program, cheapest first.

    Raises:
        PlanError: no program leads to the wanted layout, or none fits in the memory limit; the reason is said.
    """
    fault: PlanError | None = None
    try:
        plain = _by_stages(task)
    except PlanError as error:
        if task.memory_limit is None or task.overlap is False:
            raise
        plain, fault = (), error
    if task.overlap is False or (plain and task.overlap is True and task.hardware.shared):
        return plain  # where one host's cores do both, transfers hide behind nothing
    # A fused program holds less than the plain one that it stands for: that one need not fit.
    sources = plain if task.memory_limit is None else _by_stages(dataclasses.replace(task, memory_limit=None))
    found = _overlapped(task, plain, (*sources, *_all_gathered(task, sources[0].program)))
    if not found and fault is not None:
        raise fault
    if task.hardware.shared and task.overlap in WAYS:
        # Where transfers hide behind nothing, who asks for a ring is to see the one that gathers and multiplies.
        return tuple(sorted(found, key=lambda each: (not _is_ring(each.program), each.estimate.seconds))[:KEPT])
    return tuple(sorted(found, key=lambda candidate: candidate.estimate.seconds)[:KEPT])


def _is_ring(program: Program) -> bool:
    """Whether operands that are gathered while they are multiplied are all that moves."""
    moving = [step for step in program.steps if moved_axes(step)]
    return bool(moving) and all(isinstance(step, GatherEinsum) for step in moving)


def _by_stages(task: Problem) -> tuple[Candidate, ...]:
    # What stands between arrows must be passed: each stage is planned by itself, the products are the candidates.
    stages = [*task.equation.via, task.equation.result]
    ranked = _rank_stage(task, task.equation.operands, stages[0])
    for stage in stages[1:]:
        passed = list(_continued(task, ranked, stage))
        ranked = tuple(itertools.islice((each for each in passed if _fits(task, each)), KEPT))
        if not ranked:
            would = min(candidate.estimate.peak_memory_bytes for candidate in passed)
            raise PlanError(
                f"no program that goes on to {stage} fits in {task.memory_limit:,.0f} bytes of memory a device: "
                f"{would:,.0f} bytes would do"
            )
    return tuple(sorted(ranked, key=lambda candidate: candidate.estimate.seconds))


def _overlapped(task: Problem, plain: tuple[Candidate, ...], sources: tuple[Candidate, ...]) -> list[Candidate]:
    """The plain candidates and the best fused forms of those that may win by one, or all forms that `overlap` names.

    Raises:
        PlanError: none has what is asked for; those that there are, are named.
    """
    costs = costs_of(task)
    if task.overlap is True:
        fastest = min((candidate.estimate.seconds for candidate in plain), default=math.inf)
        found: dict[Program, Candidate] = {}
        for source in sorted(sources, key=_unhidden_seconds):
            if _unhidden_seconds(source) >= fastest:
                break
            best = _best_fused(task, source, costs, WORTH_PRICING * fastest)
            if best is not None:
                found.setdefault(best.program, best)
                fastest = min(fastest, best.estimate.seconds)
        return [*plain, *found.values()]
    programs = list(dict.fromkeys(form for source in sources for form in _fused_forms(task, source.program)))
    asked = [form for program in programs for form in _named(task, program, costs, str(task.overlap))]
    if not asked:
        fused = (step for program in programs for step in program.steps if isinstance(step, Fused))
        have = sorted({name for step in fused for form in forms_of(step) for name in names_of(form)})
        other = f"it has {', '.join(have)}" if have else "nothing is gathered or scattered beside a product"
        raise PlanError(f"overlap={task.overlap!r}: no program of this equation has it: {other}")
    return asked


def _unhidden_seconds(candidate: Candidate) -> float:
    """What no fused form of a candidate is faster than: all steps but those that may hide behind a product."""
    hiding = (AllGather, ReduceScatter, AllReduce)
    steps = zip(candidate.program.steps, candidate.estimate.steps, strict=True)
    return math.fsum(cost.seconds for step, cost in steps if not isinstance(step, hiding))


def _best_fused(task: Problem, source: Candidate, costs: Costs, within: float) -> Candidate | None:
    """The fastest fused form of a candidate that fits, if it takes no longer than `within`."""
    kept = dict(zip(source.program.steps, source.estimate.steps, strict=True))
    forms: list[tuple[float, tuple[Step, ...]]] = []
    for program in _fused_forms(task, source.program):
        best = [_fastest(task, costs, program, place, forms_of(step)) for place, step in _fused(program)]
        plain = (kept[step].seconds for step in program.steps if step in kept)  # at least: one that is new has no price yet
        forms.append((math.fsum((*plain, *(seconds for seconds, _ in best))), _with(program, dict(step for _, step in best))))
    found: Candidate | None = None
    for seconds, steps in sorted(forms, key=lambda form: form[0]):
        if seconds > (within if found is None else found.estimate.seconds):
            break
        priced = _price(Program(task.mesh, source.program.inputs, steps, source.program.output), costs, task)
        if _fits(task, priced) and (found is None or priced.estimate.seconds < found.estimate.seconds):
            found = priced
    return found


def _named(task: Problem, program: Program, costs: Costs, name: str) -> Iterator[Candidate]:
    """A fused program with one step after the other in its best form of that name, and the rest in their best."""
    best = dict(_fastest(task, costs, program, place, forms_of(step))[1] for place, step in _fused(program))
    for place, step in _fused(program):
        forms = [form for form in forms_of(step) if name in names_of(form)]
        if forms:
            chosen = {**best, **dict([_fastest(task, costs, program, place, forms)[1]])}
            made = Program(program.mesh, program.inputs, _with(program, chosen), program.output)
            priced = _price(made, costs, task)
            if _fits(task, priced):
                yield priced


def _fused_forms(task: Problem, program: Program) -> Iterator[Program]:
    forms = fused_programs(program, task.sizes)
    return (form for form in forms if sums_stay_whole(form)) if task.exact else forms


def _fused(program: Program) -> list[tuple[int, Fused]]:
    return [(place, step) for place, step in enumerate(program.steps) if isinstance(step, Fused)]


def _with(program: Program, changes: Mapping[int, Step]) -> tuple[Step, ...]:
    return tuple(changes.get(place, step) for place, step in enumerate(program.steps))


def _fastest(
    task: Problem, costs: Costs, program: Program, place: int, forms: Iterable[Fused]
) -> tuple[float, tuple[int, Fused]]:  # fmt: skip
    """The seconds of the fastest of some forms of the step at a place, and where it stands."""
    before = program.states()[place]
    priced = [(ring_cost(form, costs, task.sizes, before, 0.0).seconds, form) for form in forms]
    seconds, form = min(priced, key=lambda found: found[0])
    return seconds, (place, form)


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


def _continued(task: Problem, ranked: tuple[Candidate, ...], stage: Operand) -> Iterator[Candidate]:
    for candidate in ranked:
        here = Operand(stage.name, candidate.program.result)
        # The steps that follow act on the product, so the dtype is that of products.
        later = dataclasses.replace(task, dtype=task.accumulated or task.dtype, accumulated=None, memory_limit=None)
        for onward in _rank_stage(later, (here,), stage)[:3]:
            steps = tuple(_renamed(step, onward.program.output, candidate.program.output) for step in onward.program.steps)
            joined = Program(task.mesh, candidate.program.inputs, candidate.program.steps + steps, candidate.program.output)
            yield _price(joined, costs_of(task), task)


def _renamed(step: Any, old: str, new: str) -> Step:
    return dataclasses.replace(step, array=new) if step.array == old else step


def _price(program: Program, costs: Costs, task: Problem) -> Candidate:
    return Candidate(program, estimate(program, costs, task.sizes))


def _rank_stage(task: Problem, operands: tuple[Operand, ...], result: Operand) -> tuple[Candidate, ...]:
    costs = costs_of(task)
    leaves = [Leaf(index, operand.dims, state_of(operand.layout)) for index, operand in enumerate(operands)]
    inputs = sum(costs.item_bytes * math.prod(operand.layout.shard_shape(task.sizes, task.mesh)) for operand in operands)
    limit = task.memory_limit
    budget = math.inf if limit is None else limit - inputs
    wanted = wanted_states(result, task)
    names = _unique([operand.name for operand in operands])
    found: list[tuple[Found, Any]] = []
    searched = list(trees(leaves, result.dims, task.sizes, task.mesh, task.exact))
    for tree in searched:
        search = Search(costs, task.sizes, budget, limit is not None, task.exact)
        found += [(each, tree) for each in search.candidates(tree, wanted)]
    if not found:
        _fail(task, costs, operands, result, searched, wanted, inputs)
    found.sort(key=lambda pair: pair[0].seconds)
    programs: dict[Program, None] = {}
    for each, tree in found:
        programs.setdefault(write(each, tree, operands, names, result, task.mesh))
        if len(programs) == KEPT:
            break
    # A runner-up may pass through the given layout once more, which the search counts as held by the caller.
    priced = (_price(program, costs, task) for program in programs)
    return tuple(each for each in priced if limit is None or each.estimate.peak_memory_bytes <= limit)


def wanted_states(result: Operand, task: Problem) -> list[State]:
    """The layouts that the result may end in: the one written, or all that agree with it where it says `_?`."""
    state = state_of(result.layout)
    if not result.free:
        return [state]
    idle = tuple(
        name for name, size in task.mesh.axes if size > 1 and name not in {*result.layout.axes, *result.layout.unreduced}
    )
    free = [i for i, dim in enumerate(result.dims) if dim in result.free]
    found = []
    for chosen in splits(len(free), idle):
        dims = list(state[0])
        for i, axes in zip(free, chosen, strict=True):
            dims[i] = axes
        if all(task.sizes[d] % task.mesh.extent(a) == 0 for d, a in zip(result.dims, dims, strict=True)):
            found.append((tuple(dims), state[1]))
    return found


def _unique(names: list[str]) -> list[str]:
    taken: list[str] = []
    for name in names:
        while name in taken:
            name += "'"
        taken.append(name)
    return taken


def _fail(
    task: Problem, costs: Costs, operands: tuple[Operand, ...], result: Operand, searched: list[Any],
    wanted: list[State], inputs: float,
) -> None:  # fmt: skip
    if task.memory_limit is not None:
        least = min(Search(costs, task.sizes, frontier=True, exact=task.exact).least_memory(tree, wanted) for tree in searched)
        if math.isfinite(least):
            onward = f" as far as {result}" if task.equation.via else ""
            raise PlanError(
                f"no program fits in {task.memory_limit:,.0f} bytes of memory a device{onward}: the least that would do is "
                f"{inputs + least:,.0f} bytes (the inputs alone are {inputs:,.0f})"
            )
    why = ""
    if result.layout.unreduced:
        why = ": partial sums come only from a sum over a dimension that is split; ask for the result without {U...}"
    raise PlanError(f"no program leads to {result}{why}")


# Writing a program down.


def write(found: Found, root: Any, operands: tuple[Operand, ...], names: list[str], result: Operand, mesh: Mesh) -> Program:
    """Turn what the search found into a program."""
    taken = list(names)
    steps: list[Step] = []

    def forward(label: Label, state: State, node: Any, wish: str) -> str:
        path: list[tuple[Moved, State]] = []
        while isinstance(label.link, Moved):
            path.append((label.link, state))
            label, state = label.link.label, label.link.before
        name = names[node.index] if isinstance(node, Leaf) else joined(label.link, wish)
        for moved, _ in reversed(path):
            steps.append(step_of(moved.move, moved.before, name, node.names, mesh))
        return name

    def joined(link: Joined, wish: str) -> str:
        order = list(range(len(link.states)))
        if link.first:
            order.reverse()
        sides = {k: forward(link.labels[k], link.states[k], link.node.children[k], "") for k in order}
        sources = tuple(sides[k] for k in range(len(sides)))
        name = wish or ("".join(sources) if len(sources) > 1 else f"{sources[0]}'")
        while name in set(taken) - set(sources):
            name += "'"
        taken.append(name)
        steps.append(Einsum(sources, name, link.node.names))
        return name

    output = forward(found.forward, found.state, root, result.name)
    rest = found.backward
    while isinstance(rest.link, Moved):
        steps.append(step_of(rest.link.move, rest.link.before, output, result.dims, mesh))
        rest = rest.link.label
    inputs = tuple((name, operand.layout) for name, operand in zip(names, operands, strict=True))
    return Program(mesh, inputs, tuple(steps), output)


@dataclass(frozen=True)
class Ranking:
    """The programs that solve one equation, ranked by estimate on one hardware; iterable, cheapest first."""

    task: Problem
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    def explain(self) -> str:
        """Every candidate with its cost, what the ones not chosen lose, and the best one step by step."""
        from shardwise.planning.explain import explain

        return explain(self.task, self.candidates)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return self.explain()
