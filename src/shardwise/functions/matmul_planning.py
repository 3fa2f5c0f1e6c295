"""The matmuls of a function at which something moves, each as an equation with the layouts that its arrays have there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardwise.compiled.facts import Line
from shardwise.dataflow import kept_layout, ring_of, takes_parts
from shardwise.errors import ShardwiseError, one_line
from shardwise.functions.background import in_background
from shardwise.functions.joining import Group, Joint, Member, groups, joint_of
from shardwise.functions.matmul_places import MatmulPlace, looks_of
from shardwise.functions.rewriting import Path, makers_of, users_of
from shardwise.functions.sights import Left, Sight, Where, laid, part_of_axis
from shardwise.functions.transposes import Orders, orders_of
from shardwise.intent.flowgraph import Graph, root_of
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand, sizes_padded_on
from shardwise.planning.problem import Problem, costs_of, problem
from shardwise.planning.ranking import Candidate, Ranking, ranking
from shardwise.program import Program
from shardwise.steps import moved_axes

_LETTERS = "IJKLMNPQRSTVWXYZ"  # more than the dimensions of any matmul
_AGAIN = "rematted_computation"  # a part of the forward pass that runs again on the way back
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

    `as_written` is what it poses without the transposes around it, where there are any. `roots` are its operands as variables
    of the jaxpr, and `moved` how they lie at last, where the result of a gradient is summed: what the compiler brings then.
    """

    path: Path
    line: Line | None
    equation: JaxprEqn
    orders: Orders
    posed: _Posed
    as_written: _Posed | None
    roots: tuple[Any, Any]
    moved: tuple[Layout, Layout] | None
    is_gradient: bool
    times: int
    member: Member


@dataclass(frozen=True, slots=True)
class _Given:
    """How a variable lies when a place has gathered it; and along which dimension one ring alone does so, over which axes."""

    axes: tuple[Axes, ...]
    at: int | None
    over: Axes


Given = Mapping[tuple[Path, Any], _Given]


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
    return list(planning.with_brought()), list(planning.left.values())


@dataclass
class _Planning:
    """Places as they are planned: each problem once, and each matmul in one place."""

    mesh: Mesh
    where: Where
    forced: str
    places: dict[object, MatmulPlace] = field(default_factory=dict)
    stand: dict[object, list[tuple[_Seen, ...]]] = field(default_factory=dict)  # each time what is seen there, by the place
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
        if sizes_padded_on(equation, sizes, self.mesh) != sizes or not all(map(joint.divides, planned.programs)):
            return
        self.taken.update(group.paths)
        self._place(seen, posed, planned, joint)

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

    def _place(self, seen: Sequence[_Seen], posed: _Posed, planned: _Planned, joint: Joint | None) -> None:
        looks, paths = tuple(looks_of(each.equation) for each in seen), tuple(each.path for each in seen)
        orders = tuple(each.orders for each in seen)
        key, times = (seen[0].line, looks, orders, posed, seen[0].is_gradient, seen[0].moved, joint), seen[0].times
        self.stand.setdefault(key, []).append(tuple(seen))
        known = self.places.get(key)
        if known is not None:
            stand = known.groups if paths in known.groups else (*known.groups, paths)
            self.places[key] = replace(known, groups=stand, times=known.times + times)
            return
        place = MatmulPlace(
            seen[0].line, (paths,), looks, planned.task, planned.best, planned.programs[0], planned.programs,
            planned.gathering, planned.best.seconds, planned.plain.seconds, times, orders, joint,
        )  # fmt: skip
        self.places[key] = replace(place, as_written=self._as_written(seen[0], place))

    def with_brought(self) -> Iterator[MatmulPlace]:
        """The places, gradients with what they are where others bring operands."""
        before: dict[tuple[Path, Any], _Given] = {}  # by what is no gradient
        beside: dict[tuple[Path, Any], _Given] = {}  # by gradients that are not summed, for those that are
        for key, place in self.places.items():
            for seen in self.stand[key]:
                given = beside if seen[0].is_gradient else before
                for root, gathered in _gathered(place, seen[0]).items() if seen[0].moved is None else ():
                    given.setdefault((seen[0].path[:-1], root), gathered)
        for key, place in self.places.items():
            first = self.stand[key][0][0]
            given = before if first.moved is None else beside | before
            sides = _sides(place, first, given)
            brought = _brought(place, first, sides) if first.is_gradient else None
            moved = None if first.moved is None or place.joint is not None else _with_operands(place, first, first.moved)
            as_brought = () if brought is None else tuple(_in_parts(each, sides) for each in self._as_brought(brought, place))
            as_moved = () if moved is None else tuple(self._as_brought(moved, place))
            yield replace(place, as_brought=as_brought, as_moved=() if brought == moved else as_moved)

    def _as_written(self, each: _Seen, place: MatmulPlace) -> MatmulPlace | None:
        planned = None if each.as_written is None or place.joint is not None else self.planned(each.as_written)
        if not isinstance(planned, _Planned) or not planned.programs:
            return None
        return replace(
            place, task=planned.task, candidate=planned.best, program=planned.programs[0], programs=planned.programs,
            gathering=planned.gathering, seconds=planned.best.seconds, plain_seconds=planned.plain.seconds,
            orders=(each.orders.none,),
        )  # fmt: skip

    def _as_brought(self, posed: _Posed, place: MatmulPlace) -> Iterator[MatmulPlace]:
        """A place with operands as others bring them: what is left to move is behind its own matmul, or what comes next."""
        planned = self.planned(posed)
        if isinstance(planned, str):
            return
        costs = costs_of(planned.task)
        far, apart = (in_background(each.program, posed.sizes, costs, gathers=True) for each in (planned.best, planned.plain))
        for program in dict.fromkeys((far, *planned.programs, apart)):
            if place.joint is not None and not place.joint.divides(program):
                continue
            if program.overlaps or not any(map(moved_axes, program.steps)):
                yield replace(
                    place, task=planned.task, candidate=planned.best, program=program, programs=(program,), gathering=None,
                    seconds=planned.best.seconds, plain_seconds=planned.plain.seconds, is_brought=True, as_written=None,
                )  # fmt: skip


def _gathered(place: MatmulPlace, seen: _Seen) -> dict[Any, _Given]:
    """The variables that a place may gather for others, and how they lie then."""
    found: dict[Any, _Given] = {}
    for program in place.programs:
        for (name, _), root, parts in zip(program.inputs, seen.roots, place.joined, strict=True):
            layout = kept_layout(program, name)
            if layout is not None and parts is None and not isinstance(root, Literal):
                ring = ring_of(program, name)
                at, over = (None, ()) if ring is None else (layout.names.index(ring.gather.dim), ring.gather.axes)
                found.setdefault(root, _Given(tuple(axes for _, axes in layout.dims), at, over))
    return found


def _sides(place: MatmulPlace, seen: _Seen, given: Given) -> list[_Given | None]:
    """How other places give each operand of one; None of what they do not."""
    return [
        None if parts is not None or isinstance(root, Literal) else given.get((seen.path[:-1], root))
        for root, parts in zip(seen.roots, place.joined, strict=True)
    ]


def _brought(place: MatmulPlace, seen: _Seen, sides: Sequence[_Given | None]) -> _Posed | None:
    """What a gradient poses with operands as other places give them; None where they give none."""
    layouts = [
        operand.layout if given is None else Layout(tuple(zip(operand.layout.names, given.axes, strict=True)))
        for operand, given in zip(place.task.equation.operands, sides, strict=True)
    ]
    return _with_operands(place, seen, layouts)


def _in_parts(place: MatmulPlace, sides: Sequence[_Given | None]) -> MatmulPlace:
    """With the same place that takes an operand in parts, where a ring may bring it so and each gives a part of the result."""
    for (name, layout), given in zip(place.program.inputs, sides, strict=True):
        if given is None or given.at is None or place.joint is not None or place.is_padded:
            continue
        if takes_parts(place.program, name, layout.names[given.at]) and set(given.over) <= set(place.program.result.axes):
            return replace(place, in_parts=replace(place, parts_of=name))
    return place


def _with_operands(place: MatmulPlace, seen: _Seen, layouts: Sequence[Layout]) -> _Posed | None:
    """What a place poses with its operands laid otherwise; None where they lie so."""
    before = place.task.equation
    operands = tuple(Operand(operand.name, layout) for operand, layout in zip(before.operands, layouts, strict=True))
    if operands == before.operands:
        return None
    return replace(seen.posed, equation=Equation(operands, before.result), sizes=place.task.sizes)


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
    first_moved, second_moved = (
        _reordered(laid(dims, graph.values[number]), there)
        for dims, number, there in zip(names, operation.operands, taken, strict=True)
    )
    unnamed = bool(sight.moving) and all(root_of(graph, each).argument is None for each in sight.moving)
    gradient = ("transpose(" in operation.scope and _AGAIN not in operation.scope) or unnamed
    moved = (first_moved, second_moved) if gradient and sight.moving and sight.summed else None
    left, right = orders.roots(equation, makers)
    shapes = tuple(tuple(sizes[name] for name in dims) for dims in taken)
    member = Member((tuple(taken[0]), tuple(taken[1])), tuple(given), (shapes[0], shapes[1]), (first, second), result)
    written = Equation(
        tuple(Operand(name, laid(dims, value)) for name, dims, value in zip("AB", names, sight.operands, strict=True)),
        Operand("C", laid(order, sight.result)),
    )
    as_written = None if written == posed.equation else replace(posed, equation=written)
    return _Seen(
        sight.path, operation.line, equation, orders, posed, as_written, (left, right), moved, gradient, sight.times, member
    )  # fmt: skip


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
    compiler, costs = task.hardware.compiler, costs_of(task)
    found, gathering = [in_background(best.program, posed.sizes, costs), best.program], None
    if compiler is not None and not compiler.gathers_ahead.value:
        ahead = in_background(best.program, posed.sizes, costs, gathers=True)
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
