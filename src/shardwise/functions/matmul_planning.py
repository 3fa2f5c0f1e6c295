"""The matmuls of a function at which something moves, each as an equation with the layouts that its arrays have there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn

from shardwise.compiled.facts import Line
from shardwise.errors import ShardwiseError, one_line
from shardwise.functions.background import in_background
from shardwise.functions.joining import Group, Joint, Member, groups, joint_of
from shardwise.functions.matmul_places import MatmulPlace, looks_of
from shardwise.functions.rewriting import Path, makers_of, users_of
from shardwise.functions.sights import Left, Sight, Where, laid, part_of_axis
from shardwise.functions.transposes import Orders, orders_of
from shardwise.intent.flowgraph import Graph, root_of
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import Candidate, Ranking, ranking
from shardwise.program import Program
from shardwise.steps import Einsum, EinsumScatter

_LETTERS = "IJKLMNPQRSTVWXYZ"  # more than the dimensions of any matmul
NEARLY = 1.25  # times the fastest program's: what a transfer behind a matmul may take alone, since a step waits for all others


@dataclass(frozen=True, slots=True)
class _Posed:
    """The equation that a matmul is, and what else its problem is posed with; `dtype` is empty where operands differ in it."""

    equation: Equation
    sizes: Mapping[str, int] = field(hash=False)
    dtype: str
    accumulated: str | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A matmul at which something moves: where it stands, what it poses, and of which arrays.

    `as_written` is what it poses without the transposes around it, where there are any.
    `summed` is what it poses with operands as the function brings them, where it is that of a gradient, operands are moved and
    the result is summed: it takes what the forward pass has moved already.
    """

    path: Path
    line: Line | None
    equation: JaxprEqn
    orders: Orders
    posed: _Posed
    as_written: _Posed | None
    summed: _Summed | None
    times: int
    member: Member


@dataclass(frozen=True, slots=True)
class _Summed:
    """What a gradient poses with operands as the function brings them; of several that are one, how their arrays are joined."""

    posed: _Posed
    joint: Joint | None = None


def matmul_places(
    graph: Graph, sights: Sequence[Sight], jaxprs: Mapping[Path, Jaxpr], where: Where, forced: str
) -> tuple[list[MatmulPlace], list[Left]]:  # fmt: skip
    """The matmuls at which something moves, and those left alone, of what is seen in a graph.

    Args:
        jaxprs: by the path of what holds them.
        forced: how transfers are to run behind matmuls, as `overlap=` names it, also where another program is faster.
    """
    around = {path: (makers_of(jaxpr), users_of(jaxpr)) for path, jaxpr in jaxprs.items()}
    seen = [each for sight in sights if (each := _seen(graph, sight, *around[sight.path[:-1]])) is not None]
    planning = _Planning(graph.mesh, where, forced)
    counts = Counter(each.path for each in seen)  # one that runs in several places may look otherwise in each
    for path, jaxpr in jaxprs.items():
        here = {each.path: each for each in seen if each.path[:-1] == path and counts[each.path] == 1}
        for group in groups(jaxpr, {path: each.equation for path, each in here.items()}):
            planning.join(group, [here[path] for path in group.paths])
    for each in seen:
        planning.add(each)
    return list(planning.places.values()), list(planning.left.values())


@dataclass
class _Planning:
    """Places as they are planned: each problem once, and each matmul in one place."""

    mesh: Mesh
    where: Where
    forced: str
    places: dict[object, MatmulPlace] = field(default_factory=dict)
    left: dict[object, Left] = field(default_factory=dict)
    taken: set[Path] = field(default_factory=set)  # by matmuls that are one
    known: dict[_Posed, _Planned | str] = field(default_factory=dict)

    def planned(self, posed: _Posed) -> _Planned | str:
        if posed not in self.known:
            self.known[posed] = _planned(posed, self.mesh, self.where, self.forced)
        return self.known[posed]

    def join(self, group: Group, seen: Sequence[_Seen]) -> None:
        """Make one of several matmuls, where that takes no longer than each alone."""
        if len({each.times for each in seen}) > 1 or self.taken.intersection(group.paths):
            return
        found = joint_of(group, [each.member for each in seen])
        if found is None:
            return
        equation, sizes, joint = found
        posed = replace(seen[0].posed, equation=equation, sizes=sizes)
        planned, alone = self.planned(posed), [self.planned(each.posed) for each in seen]
        seconds = [math.inf if isinstance(each, str) else each.best.seconds for each in (planned, *alone)]
        if isinstance(planned, str) or not planned.programs or not seconds[0] <= math.fsum(seconds[1:]) < math.inf:
            return
        self.taken.update(group.paths)
        self._place(seen, posed, planned, joint, group)

    def add(self, each: _Seen) -> None:
        """Plan one matmul alone, unless it is part of another."""
        if each.path in self.taken:
            return
        planned = self.planned(each.posed)
        if isinstance(planned, str) or not planned.programs:
            key = (each.line, looks_of(each.equation), each.posed)
            times = each.times + (self.left[key].times if key in self.left else 0)
            reason = planned if isinstance(planned, str) else "no transfer that runs behind its matmul is faster"
            self.left[key] = Left(each.line, str(each.posed.equation), reason, times)
        else:
            self._place([each], each.posed, planned, None)

    def _place(
        self, seen: Sequence[_Seen], posed: _Posed, planned: _Planned, joint: Joint | None, group: Group | None = None
    ) -> None:  # fmt: skip
        looks, paths = tuple(looks_of(each.equation) for each in seen), tuple(each.path for each in seen)
        summed = seen[0].summed if group is None else _summed_together(group, seen)
        orders = tuple(each.orders for each in seen)
        key, times = (seen[0].line, looks, orders, posed, summed, joint), seen[0].times
        known = self.places.get(key)
        if known is not None:
            stand = known.groups if paths in known.groups else (*known.groups, paths)
            self.places[key] = replace(known, groups=stand, times=known.times + times)
            return
        place = MatmulPlace(
            seen[0].line, (paths,), looks, planned.task, planned.best, planned.programs[0], planned.programs,
            planned.gathering, planned.best.seconds, planned.plain.seconds, times, orders, joint,
        )  # fmt: skip
        summing = () if summed is None else tuple(self._summing(summed, place))
        self.places[key] = replace(place, summing=summing, as_written=self._as_written(seen[0], place))

    def _as_written(self, each: _Seen, place: MatmulPlace) -> MatmulPlace | None:
        planned = None if each.as_written is None or place.joint is not None else self.planned(each.as_written)
        if not isinstance(planned, _Planned) or not planned.programs:
            return None
        return replace(
            place, task=planned.task, candidate=planned.best, program=planned.programs[0], programs=planned.programs,
            gathering=planned.gathering, seconds=planned.best.seconds, plain_seconds=planned.plain.seconds,
            orders=(each.orders.none,),
        )  # fmt: skip

    def _summing(self, summed: _Summed, place: MatmulPlace) -> Iterator[MatmulPlace]:
        """A place with no more changed than its sum: behind its own matmul, and behind what comes after it."""
        posed = summed.posed
        if _unplanned(posed) is not None:
            return
        given = (posed.equation, posed.sizes, self.mesh, self.where, posed.dtype, posed.accumulated)
        try:
            tasks = [problem(*given, overlap=overlap) for overlap in (True, False)]
            first = [filter(_multiplies_first, ranking(task)) for task in tasks]
            found = [min(each, key=lambda candidate: candidate.seconds, default=None) for each in first]
        except ShardwiseError:
            return
        plain, made = found[1], set[Program]()
        for task, each in zip(tasks, found, strict=True):
            if each is None or plain is None:
                continue
            program = in_background(each.program, posed.sizes, posed.accumulated or posed.dtype)
            if program.overlaps and program not in made:
                made.add(program)
                yield replace(
                    place, task=task, candidate=each, program=program, seconds=each.seconds, plain_seconds=plain.seconds,
                    joint=summed.joint, sums_only=True,
                )  # fmt: skip


def _seen(
    graph: Graph, sight: Sight, makers: Mapping[Any, JaxprEqn], users: Mapping[Any, Sequence[JaxprEqn | None]]
) -> _Seen | None:  # fmt: skip
    """A matmul at which something moves; None of anything else."""
    operation, equation = sight.operation, sight.equation
    if operation.name != "dot_general" or not (sight.moving or sight.summed):
        return None
    names, order = _named(equation.params["dimension_numbers"], [len(value.shape) for value in sight.operands])
    sizes = {
        name: size
        for dims, value in zip(names, sight.operands, strict=True)
        for name, size in zip(dims, value.shape, strict=True)
    }
    orders = orders_of(equation, makers, users)
    taken = [[dims[place] for place in there] for dims, there in zip(names, orders.operands, strict=True)]
    given = [order[place] for place in orders.result]
    first, second = (
        _reordered(laid(dims, value), there) for dims, value, there in zip(names, sight.operands, taken, strict=True)
    )
    result = _reordered(laid(order, sight.result), given)
    wanted, dtypes = equation.params["preferred_element_type"], [value.dtype for value in sight.operands]
    dtype = dtypes[0] if dtypes[0] == dtypes[1] else ""
    accumulated = None if wanted is None or str(wanted) == dtype else str(jax.numpy.dtype(wanted))
    posed = _Posed(Equation((Operand("A", first), Operand("B", second)), Operand("C", result)), sizes, dtype, accumulated)
    moved = [
        Operand(name, _reordered(laid(dims, graph.values[number]), there))
        for name, dims, number, there in zip("AB", names, operation.operands, taken, strict=True)
    ]
    brought = Equation(tuple(moved), posed.equation.result)
    gradient = "transpose(" in operation.scope or all(root_of(graph, each).argument is None for each in sight.moving)
    both = _Summed(replace(posed, equation=brought)) if sight.moving and sight.summed and gradient else None
    shapes = tuple(tuple(sizes[name] for name in dims) for dims in taken)
    member = Member((tuple(taken[0]), tuple(taken[1])), tuple(given), (shapes[0], shapes[1]), (first, second), result)
    written = Equation(
        tuple(Operand(name, laid(dims, value)) for name, dims, value in zip("AB", names, sight.operands, strict=True)),
        Operand("C", laid(order, sight.result)),
    )
    as_written = None if written == posed.equation else replace(posed, equation=written)
    return _Seen(sight.path, operation.line, equation, orders, posed, as_written, both, sight.times, member)


def _summed_together(group: Group, seen: Sequence[_Seen]) -> _Summed | None:
    """What several gradients that are one pose with operands as the function brings them; None where one is none."""
    members, posed = [], None
    for each in seen:
        if each.summed is None:
            return None
        posed = each.summed.posed
        first, second = posed.equation.operands
        members.append(replace(each.member, layouts=(first.layout, second.layout)))
    found = joint_of(group, members)
    if found is None or posed is None:
        return None
    equation, sizes, joint = found
    return _Summed(replace(posed, equation=equation, sizes=sizes), joint)


def _named(dimensions: Any, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The letters of the dimensions of both operands, and of the result: batches, then what is left of one and the other.

    >>> _named((((1,), (0,)), ((), ())), [2, 2])
    ([['J', 'I'], ['I', 'K']], ['J', 'K'])
    """
    (left, right), (left_batch, right_batch) = dimensions
    names: list[list[str]] = [[""] * rank for rank in ranks]
    letters = iter(_LETTERS)
    for first, second in (*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)):
        names[0][first] = names[1][second] = next(letters)
    order = [names[0][dim] for dim in left_batch]
    for dims in names:
        for place, known in enumerate(dims):
            if not known:
                dims[place] = next(letters)
                order.append(dims[place])
    return names, order


def _reordered(layout: Layout, dims: Sequence[str]) -> Layout:
    return Layout(tuple((dim, layout.axes_of(dim)) for dim in dims))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A problem, its fastest program, the fastest without a transfer behind a matmul, and what may take the matmul's place.

    There are no `programs` where no transfer of them would run behind anything; `gathering` is that with gathers by permutes.
    """

    task: Problem
    best: Candidate
    plain: Candidate
    programs: tuple[Program, ...]
    gathering: Program | None


def _planned(posed: _Posed, mesh: Mesh, where: Where, forced: str) -> _Planned | str:
    """What is planned; or why nothing can be."""
    if (why := _unplanned(posed)) is not None:
        return why
    given = (posed.equation, posed.sizes, mesh, where, posed.dtype, posed.accumulated)
    try:
        task = problem(*given, overlap=forced or True)
        best, plain = _fastest(ranking(task)), ranking(problem(*given, overlap=False)).best
    except ShardwiseError as error:
        return one_line(str(error).split("\n")[0])
    compiler, dtype = task.hardware.compiler, posed.accumulated or posed.dtype
    found, gathering = [in_background(best.program, posed.sizes, dtype), best.program], None
    if compiler is not None and not compiler.gathers_ahead.value:
        ahead = in_background(best.program, posed.sizes, dtype, gathers=True)
        gathering = ahead if ahead not in found else None
        found.append(ahead)
    return _Planned(task, best, plain, tuple(each for each in dict.fromkeys(found) if each.overlaps), gathering)


def _unplanned(posed: _Posed) -> str | None:
    """Why nothing can be planned; None where it can."""
    if not posed.dtype:
        return "its operands have different dtypes"
    return part_of_axis(operand.layout for operand in (*posed.equation.operands, posed.equation.result))


def _fastest(found: Ranking) -> Candidate:
    """The fastest program, or one nearly as fast in which a transfer runs behind a matmul: a whole step waits less for that."""
    near = (each for each in found if each.seconds <= NEARLY * found.best.seconds)
    return next((each for each in near if each.program.overlaps), found.best)


def _multiplies_first(candidate: Candidate) -> bool:
    return isinstance(candidate.program.steps[0], Einsum | EinsumScatter)
