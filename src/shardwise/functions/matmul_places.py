"""The matmuls of a function at which something moves, each as an equation with the layouts that its arrays have there."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.sharding import AxisType

from shardwise.compiled.facts import Line
from shardwise.compiled.targets.lowering import lower_on
from shardwise.errors import ShardwiseError, one_line
from shardwise.functions.background import in_background
from shardwise.functions.joining import Group, Joint, Member, groups, joint_of
from shardwise.functions.rewriting import Path, Replace, Replacement, Together, rewritten
from shardwise.intent.flowgraph import Graph, Operation, Value, root_of
from shardwise.intent.propagation import intended
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import Candidate, Ranking, ranking
from shardwise.program import Program
from shardwise.runtime.devices import AnyMesh
from shardwise.steps import Einsum, EinsumScatter, Fused

_MARK = "shardwise_matmul_"
_MARKED = re.compile(_MARK + r"(\d+)")
_LETTERS = "IJKLMNPQRSTVWXYZ"  # more than the dimensions of any matmul
NEARLY = 1.25  # times the fastest program's: what a transfer behind a matmul may take alone, since a step waits for all others
Where = Any  # a hardware, by name or as it is; a topology; or where a mesh's devices stand


@dataclass(frozen=True, slots=True)
class Left:
    """A matmul that stays as it is, and why; `times` it runs in one call."""

    line: Line | None
    equation: str
    reason: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Looks:
    """What is seen of a matmul: which dimensions it multiplies, and what it takes. Where it looks otherwise, it is another."""

    dimensions: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


def looks_of(equation: JaxprEqn) -> Looks:
    avals: list[Any] = [var.aval for var in equation.invars]
    return Looks(
        equation.params["dimension_numbers"], tuple(aval.shape for aval in avals), tuple(str(aval.dtype) for aval in avals)
    )


@dataclass(frozen=True, slots=True)
class MatmulPlace:
    """Matmuls of one line that pose the same problem, or several that are one each time, and the program planned for them.

    Attributes:
        groups: where they stand in the function: each alone, or those that are one; `looks` is what they look like there.
        joint: how the arrays of those that are one become those of one matmul.
        candidate: the fastest program for one of them alone, with its estimate.
        program: what takes their place: that program, or the same with its sums by permutes, or its gathers too.
        programs: those of the three that have a transfer behind a matmul, the likeliest first; `gathering` is the last of them
            on chips whose compiler runs an all-gather by itself.
        summing: the same place where only its sum is changed (it `sums_only`): its operands come as the function brings them,
            which others may need there too.
        seconds: of the candidate each time; `plain_seconds` of the best without a transfer behind matmuls. Both modelled.
        times: how often all of them run in one call.
    """

    line: Line | None
    groups: tuple[tuple[Path, ...], ...]
    looks: tuple[Looks, ...]
    task: Problem
    candidate: Candidate = field(repr=False, compare=False)
    program: Program
    programs: tuple[Program, ...] = field(repr=False, compare=False)
    gathering: Program | None = field(repr=False, compare=False)
    seconds: float
    plain_seconds: float
    times: int
    joint: Joint | None = None
    summing: tuple[MatmulPlace, ...] = field(default=(), repr=False, compare=False)
    sums_only: bool = False

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of all of them."""
        return tuple(path for group in self.groups for path in group)

    @property
    def gain(self) -> float:
        return (self.plain_seconds - self.seconds) * self.times

    @property
    def ways(self) -> tuple[MatmulPlace, ...]:
        """Each of the programs in their place."""
        found = tuple(replace(self, program=program) for program in self.programs)
        return (*found, *self.summing)

    @property
    def first(self) -> MatmulPlace | None:
        """The likeliest; none where gathers by permutes are all that there is."""
        return None if self.programs == (self.gathering,) else self.ways[0]

    @property
    def furthest(self) -> MatmulPlace | None:
        """With gathers by permutes, where there are any."""
        return self.first if self.gathering is None else replace(self, program=self.gathering)


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

    `summed` is what it poses with operands as the function brings them, where it is that of a gradient, operands are moved and
    the result is summed: it takes what the forward pass has moved already.
    """

    path: Path
    line: Line | None
    equation: JaxprEqn
    posed: _Posed
    summed: _Posed | None
    times: int
    member: Member


def found_places(
    function: Callable[..., Any], args: tuple[Any, ...], on: str | None, mesh: AnyMesh, where: Where, forced: str = ""
) -> tuple[list[MatmulPlace], list[Left]]:  # fmt: skip
    """Where transfers may run behind matmuls, the most promising first; and what is left alone although something moves.

    Args:
        on: the devices that it is lowered for, as `"v5e:4x4"`; None for those of the mesh.
        where: what is planned for.
        forced: how transfers are to run behind matmuls, as `overlap=` names it, also where another program is faster.

    Raises:
        CompileError: the function cannot be traced; NoPassesError: its layouts cannot be told.
    """
    equations: dict[Path, JaxprEqn] = {}
    jaxprs: dict[Path, Jaxpr] = {}  # by the path of what holds them
    numbers: dict[Path, int] = {}

    def marked(path: Path, equation: JaxprEqn, jaxpr: Jaxpr) -> str:
        equations[path], jaxprs[path[:-1]] = equation, jaxpr
        return f"{_MARK}{numbers.setdefault(path, len(numbers))}"

    lowering = lower_on(rewritten(function, marked), args, on, mesh)
    graph = intended(lowering.module, [each.name for each in lowering.arguments]).graph()
    seen = list(_seen(graph, list(numbers), equations, any(kind == AxisType.Explicit for kind in mesh.axis_types)))
    planning = _Planning(graph.mesh, where, forced)
    counts = Counter(each.path for each in seen)  # one that runs in several places may look otherwise in each
    for path, jaxpr in jaxprs.items():
        here = {each.path: each for each in seen if each.path[:-1] == path and counts[each.path] == 1}
        for group in groups(jaxpr, {path: each.equation for path, each in here.items()}):
            planning.join(group, [here[path] for path in group.paths])
    for each in seen:
        planning.add(each)
    return sorted(planning.places.values(), key=lambda place: -place.gain), list(planning.left.values())


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
        summed = seen[0].summed if joint is None else None
        key, times = (seen[0].line, looks, posed, summed, joint), seen[0].times
        known = self.places.get(key)
        if known is not None:
            stand = known.groups if paths in known.groups else (*known.groups, paths)
            self.places[key] = replace(known, groups=stand, times=known.times + times)
            return
        place = MatmulPlace(
            seen[0].line, (paths,), looks, planned.task, planned.best, planned.programs[0], planned.programs,
            planned.gathering, planned.best.seconds, planned.plain.seconds, times, joint,
        )  # fmt: skip
        summing = () if summed is None else tuple(self._summing(summed, place))
        self.places[key] = replace(place, summing=summing)

    def _summing(self, posed: _Posed, place: MatmulPlace) -> Iterator[MatmulPlace]:
        """A place with no more changed than its sum: behind its own matmul, and behind what comes after it."""
        if _unplanned(posed) is not None:
            return
        given = (posed.equation, posed.sizes, self.mesh, self.where, posed.dtype, posed.accumulated)
        try:
            tasks = [problem(*given, overlap=overlap) for overlap in (True, False)]
            found = [next(filter(_multiplies_first, ranking(task)), None) for task in tasks]
        except ShardwiseError:
            return
        plain, made = found[1], set[Program]()
        for task, each in zip(tasks, found, strict=True):
            if each is None or plain is None:
                continue
            program = in_background(each.program, posed.sizes, posed.accumulated or posed.dtype)
            if _overlaps(program) and program not in made:
                made.add(program)
                yield replace(
                    place, task=task, candidate=each, program=program, seconds=each.seconds, plain_seconds=plain.seconds,
                    sums_only=True,
                )  # fmt: skip


def _seen(graph: Graph, paths: Sequence[Path], equations: Mapping[Path, JaxprEqn], explicit: bool) -> Iterator[_Seen]:
    """The matmuls of a graph at which something moves, in its order.

    Args:
        paths: of the matmuls that are marked, by number.
        explicit: whether layouts are part of the types of arrays: a result then has the layout that its type says.
    """
    users = graph.users()
    for operation in graph.operations:
        match = _MARKED.search(operation.scope) if operation.name == "dot_general" else None
        if match is None or operation.manual:
            continue
        path = paths[int(match[1])]
        equation = equations[path]
        operands = [_before(graph, graph.values[number]) for number in operation.operands]
        made = graph.values[operation.results[0]]
        result = made if explicit else _after(graph, made, users)
        moving = [value for value, number in zip(operands, operation.operands, strict=True) if value.number != number]
        summed = any(user.name == "sum" for user, _ in users.get(made.number, [])) or result.layout != made.layout
        if not (moving or summed):
            continue
        names, order = _named(equation.params["dimension_numbers"], [len(value.shape) for value in operands])
        shapes = operands[0].shape, operands[1].shape
        sizes = {name: size for dims, shape in zip(names, shapes, strict=True) for name, size in zip(dims, shape, strict=True)}
        first, second = (_laid(dims, value) for dims, value in zip(names, operands, strict=True))
        laid = _laid(order, result)
        wanted = equation.params["preferred_element_type"]
        dtype = operands[0].dtype if operands[0].dtype == operands[1].dtype else ""
        accumulated = None if wanted is None or str(wanted) == dtype else str(jax.numpy.dtype(wanted))
        posed = _Posed(Equation((Operand("A", first), Operand("B", second)), Operand("C", laid)), sizes, dtype, accumulated)
        there = tuple(_laid(dims, graph.values[each]) for dims, each in zip(names, operation.operands, strict=True))
        given = Equation((Operand("A", there[0]), Operand("B", there[1])), posed.equation.result)
        gradient = "transpose(" in operation.scope or all(root_of(graph, each).argument is None for each in moving)
        both = replace(posed, equation=given) if moving and summed and gradient else None
        member = Member((tuple(names[0]), tuple(names[1])), tuple(order), shapes, (first, second), laid)
        yield _Seen(path, operation.line, equation, posed, both, operation.trips or 1, member)


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


def _laid(dims: list[str], value: Value) -> Layout:
    return Layout(tuple((name, axes) for name, (_, axes) in zip(dims, value.layout.dims, strict=True)))


def _before(graph: Graph, value: Value) -> Value:
    """The array before it is moved to where the matmul wants it."""
    while (maker := graph.maker(value)) is not None and maker.name == "reshard":
        value = graph.values[maker.operands[0]]
    return value


def _after(graph: Graph, value: Value, users: Mapping[int, list[tuple[Operation, int]]]) -> Value:
    """The result after it was summed and moved to where all that needs it wants it."""
    while len(following := users.get(value.number, [])) == 1 and following[0][0].name in ("sum", "reshard"):
        value = graph.values[following[0][0].results[0]]
    return value


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
    return _Planned(task, best, plain, tuple(filter(_overlaps, dict.fromkeys(found))), gathering)


def _unplanned(posed: _Posed) -> str | None:
    """Why nothing can be planned; None where it can."""
    if not posed.dtype:
        return "its operands have different dtypes"
    arrays = (*posed.equation.operands, posed.equation.result)
    part = next((axis for operand in arrays for axis in operand.layout.axes if ":" in axis), None)
    return None if part is None else f"it is split over a part of a mesh axis, {part}"


def _fastest(found: Ranking) -> Candidate:
    """The fastest program, or one nearly as fast in which a transfer runs behind a matmul: a whole step waits less for that."""
    near = (each for each in found if each.seconds <= NEARLY * found.best.seconds)
    return next((each for each in near if _overlaps(each.program)), found.best)


def _multiplies_first(candidate: Candidate) -> bool:
    return isinstance(candidate.program.steps[0], Einsum | EinsumScatter)


def _overlaps(program: Program) -> bool:
    return any(isinstance(step, Fused) for step in program.steps)


def replacing(places: Sequence[MatmulPlace], mesh: Any) -> Replace:
    """What puts the planned programs in the place of their matmuls, on the mesh in force, or else this one."""
    from shardwise.runtime.execute import planned_function
    from shardwise.runtime.lower import Arithmetic

    chosen = {path: (place, group) for place in places for group in place.groups for path in group}

    def planned(path: Path, equation: JaxprEqn, jaxpr: Jaxpr) -> Replacement | None:
        """The program of the place that a matmul is in, unless it looks otherwise than what was planned."""
        place, group = chosen.get(path, (None, ()))
        if place is None or place.looks[group.index(path)] != looks_of(equation):
            return None
        arithmetic = Arithmetic(equation.params["precision"], equation.params["preferred_element_type"])

        def run(*operands: Any) -> Any:
            in_force = jax.sharding.get_abstract_mesh()
            on = mesh if in_force.empty else in_force
            alone = planned_function(place.task, place.program, on, arithmetic)
            return (alone if place.joint is None else place.joint.computed(alone, on, place.task.mesh))(*operands)

        return run if place.joint is None else Together(group, run)

    return planned
