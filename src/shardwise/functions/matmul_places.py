"""The matmuls of a function at which something moves, each as an equation with the layouts that its arrays have there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import JaxprEqn
from jax.sharding import AxisType

from shardwise.compiled.facts import Line
from shardwise.compiled.targets.lowering import lower_on
from shardwise.errors import ShardwiseError, one_line
from shardwise.functions.rewriting import Path, Replacement, rewritten
from shardwise.intent.flowgraph import Graph, Operation, Value
from shardwise.intent.propagation import intended
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import Candidate, ranking
from shardwise.runtime.devices import AnyMesh
from shardwise.steps import Fused

_MARK = "shardwise_matmul_"
_MARKED = re.compile(_MARK + r"(\d+)")
_LETTERS = "IJKLMNPQRSTVWXYZ"  # more than the dimensions of any matmul
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
    """Matmuls of one line that pose the same problem, and the program planned for them.

    Attributes:
        paths: where they stand in the function; `looks` is what they all look like there.
        seconds: of the program each time; `plain_seconds` of the best without a transfer behind matmuls. Both modelled.
        times: how often all of them run in one call.
    """

    line: Line | None
    paths: tuple[Path, ...]
    looks: Looks
    task: Problem
    candidate: Candidate = field(repr=False, compare=False)
    seconds: float
    plain_seconds: float
    times: int

    @property
    def gain(self) -> float:
        return (self.plain_seconds - self.seconds) * self.times


@dataclass(frozen=True, slots=True)
class _Posed:
    """The equation that a matmul is, and what else its problem is posed with; `dtype` is empty where operands differ in it."""

    equation: Equation
    sizes: Mapping[str, int] = field(hash=False)
    dtype: str
    accumulated: str | None


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
    numbers: dict[Path, int] = {}

    def marked(path: Path, equation: JaxprEqn) -> str:
        equations[path] = equation
        return f"{_MARK}{numbers.setdefault(path, len(numbers))}"

    lowering = lower_on(rewritten(function, marked), args, on, mesh)
    graph = intended(lowering.module, [each.name for each in lowering.arguments]).graph()
    explicit = any(kind == AxisType.Explicit for kind in mesh.axis_types)
    paths, users = list(numbers), graph.users()
    places: dict[object, MatmulPlace] = {}
    left: dict[object, Left] = {}
    for operation in graph.operations:
        match = _MARKED.search(operation.scope) if operation.name == "dot_general" else None
        if match is None or operation.manual:
            continue
        path = paths[int(match[1])]
        posed = _posed(graph, operation, users, equations[path], explicit)
        if posed is None:
            continue
        times, looks = operation.trips or 1, looks_of(equations[path])
        known = places.get(key := (operation.line, looks, posed))
        if known is not None:
            seen = known.paths if path in known.paths else (*known.paths, path)
            places[key] = replace(known, paths=seen, times=known.times + times)
            continue
        if key in left:
            left[key] = replace(left[key], times=left[key].times + times)
            continue
        planned = _planned(posed, graph.mesh, where, forced)
        if isinstance(planned, str):
            left[key] = Left(operation.line, str(posed.equation), planned, times)
        else:
            task, best, plain = planned
            places[key] = MatmulPlace(operation.line, (path,), looks, task, best, best.seconds, plain.seconds, times)
    return sorted(places.values(), key=lambda place: -place.gain), list(left.values())


def _posed(
    graph: Graph, operation: Operation, users: Mapping[int, list[tuple[Operation, int]]], equation: JaxprEqn, explicit: bool
) -> _Posed | None:
    """What a matmul poses, with what is moved before it and after; None where nothing moves.

    Args:
        explicit: whether layouts are part of the types of arrays: a result then has the layout that its type says.
    """
    operands = [_before(graph, graph.values[number]) for number in operation.operands]
    made = graph.values[operation.results[0]]
    result = made if explicit else _after(graph, made, users)
    summed = any(user.name == "sum" for user, _ in users.get(made.number, []))
    stays = all(value.number == number for value, number in zip(operands, operation.operands, strict=True))
    if stays and not summed and result.layout == made.layout:
        return None
    names, order = _named(equation.params["dimension_numbers"], [len(value.shape) for value in operands])
    sizes = {
        name: size for value, dims in zip(operands, names, strict=True) for name, size in zip(dims, value.shape, strict=True)
    }
    one, other = (Operand(array, _laid(dims, value)) for array, dims, value in zip("AB", names, operands, strict=True))
    wanted = equation.params["preferred_element_type"]
    dtype = operands[0].dtype if operands[0].dtype == operands[1].dtype else ""
    accumulated = None if wanted is None or str(wanted) == dtype else str(jax.numpy.dtype(wanted))
    return _Posed(Equation((one, other), Operand("C", _laid(order, result))), sizes, dtype, accumulated)


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


def _planned(posed: _Posed, mesh: Mesh, where: Where, forced: str) -> tuple[Problem, Candidate, Candidate] | str:
    """The problem, its fastest program, and the fastest without a transfer behind a matmul; or why the matmul stays."""
    if not posed.dtype:
        return "its operands have different dtypes"
    arrays = (*posed.equation.operands, posed.equation.result)
    part = next((axis for operand in arrays for axis in operand.layout.axes if ":" in axis), None)
    if part is not None:
        return f"it is split over a part of a mesh axis, {part}"
    given = (posed.equation, posed.sizes, mesh, where, posed.dtype, posed.accumulated)
    try:
        task = problem(*given, overlap=forced or True)
        best, plain = ranking(task).best, ranking(problem(*given, overlap=False)).best
    except ShardwiseError as error:
        return one_line(str(error).split("\n")[0])
    if not any(isinstance(step, Fused) for step in best.program.steps):
        return "no transfer that runs behind its matmul is faster"
    return task, best, plain


def replacing(places: Sequence[MatmulPlace], mesh: Any) -> Callable[[Path, JaxprEqn], Replacement | None]:
    """What puts the planned programs in the place of their matmuls, on the mesh in force, or else this one."""
    from shardwise.runtime.execute import planned_function
    from shardwise.runtime.lower import Arithmetic

    chosen = {path: place for place in places for path in place.paths}

    def planned(path: Path, equation: JaxprEqn) -> Replacement | None:
        place = chosen.get(path)
        if place is None or place.looks != looks_of(equation):
            return None
        arithmetic = Arithmetic(equation.params["precision"], equation.params["preferred_element_type"])

        def run(*operands: Any) -> Any:
            in_force = jax.sharding.get_abstract_mesh()
            on = mesh if in_force.empty else in_force
            return planned_function(place.task, place.candidate.program, on, arithmetic)(*operands)

        return run

    return planned
