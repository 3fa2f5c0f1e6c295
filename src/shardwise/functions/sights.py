"""Matmuls and lookups of a function as propagation sees them: with their arrays before and after what is moved there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.sharding import AxisType

from shardwise.compiled.facts import Line
from shardwise.compiled.targets.lowering import lower_on
from shardwise.functions.rewriting import Path, rewritten
from shardwise.intent.flowgraph import Graph, Operation, Value
from shardwise.intent.propagation import intended
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh

_MARK = "shardwise_place_"
_MARKED = re.compile(_MARK + r"(\d+)")
_LOWERED = {"dot_general": "dot_general", "gather": "gather", "scatter-add": "scatter"}  # what an equation of JAX's becomes
Where = Any  # a hardware, by name or as it is; a topology; or where a mesh's devices stand


@dataclass(frozen=True, slots=True)
class Left:
    """A matmul or a lookup that stays as it is, and why; `times` it runs in one call."""

    line: Line | None
    equation: str
    reason: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Sight:
    """An operation in the graph of a function, and the equation that it is of.

    Attributes:
        operands: before they are moved to where it wants them; `moving` those of them that are.
        result: after it was summed and moved to where all that needs it wants it; `summed` where it was either.
        times: how often it runs in one call.
    """

    path: Path
    equation: JaxprEqn
    operation: Operation
    operands: tuple[Value, ...]
    moving: tuple[Value, ...]
    result: Value
    summed: bool
    times: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A function's graph, all that is seen in it, in its order, and its jaxprs by the path of what holds them."""

    graph: Graph
    sights: tuple[Sight, ...]
    jaxprs: Mapping[Path, Jaxpr]


def seen(function: Callable[..., Any], args: tuple[Any, ...], on: str | None, mesh: AnyMesh) -> Seen:
    """Trace a function, lower it, and follow the layouts to its matmuls and lookups; the bodies of maps by hand are left out.

    Args:
        on: the devices that it is lowered for, as `"v5e:4x4"`; None for those of the mesh.

    Raises:
        CompileError: the function cannot be traced; NoPassesError: its layouts cannot be told.
    """
    equations: dict[Path, JaxprEqn] = {}
    jaxprs: dict[Path, Jaxpr] = {}
    numbers: dict[Path, int] = {}

    def marked(path: Path, equation: JaxprEqn, jaxpr: Jaxpr) -> str:
        equations[path], jaxprs[path[:-1]] = equation, jaxpr
        return f"{_MARK}{numbers.setdefault(path, len(numbers))}"

    lowering = lower_on(rewritten(function, marked), args, on, mesh)
    graph = intended(lowering.module, [each.name for each in lowering.arguments]).graph()
    users, paths = graph.users(), list(numbers)
    explicit = any(kind == AxisType.Explicit for kind in mesh.axis_types)  # results then have the layouts of their types
    sights = []
    for operation in graph.operations:
        match = _MARKED.search(operation.scope)
        path = None if match is None or operation.manual else paths[int(match[1])]
        if path is not None and operation.name == _LOWERED[equations[path].primitive.name]:
            sights.append(_sight(graph, operation, path, equations[path], users, explicit))
    return Seen(graph, tuple(sights), jaxprs)


def laid(dims: Iterable[str], value: Value) -> Layout:
    """The layout of an array by the names of its dimensions."""
    return Layout(tuple((name, axes) for name, (_, axes) in zip(dims, value.layout.dims, strict=True)))


def part_of_axis(layouts: Iterable[Layout]) -> str | None:
    """Why arrays that are split over a part of a mesh axis cannot be planned; None where none is."""
    part = next((axis for layout in layouts for axis in layout.axes if ":" in axis), None)
    return None if part is None else f"it is split over a part of a mesh axis, {part}"


def mesh_in_force(mesh: Any) -> Any:
    """The mesh of the trace, or else this one."""
    in_force = jax.sharding.get_abstract_mesh()
    return mesh if in_force.empty else in_force


def _sight(
    graph: Graph, operation: Operation, path: Path, equation: JaxprEqn,
    users: Mapping[int, Sequence[tuple[Operation, int]]], explicit: bool,
) -> Sight:  # fmt: skip
    operands = tuple(_before(graph, graph.values[number]) for number in operation.operands)
    moving = tuple(value for value, number in zip(operands, operation.operands, strict=True) if value.number != number)
    made = graph.values[operation.results[0]]
    following = [made, *_following(graph, made, users)]
    result = _typed(following, equation.outvars[0].aval, graph.mesh) if explicit else following[-1]
    summed = any(user.name == "sum" for user, _ in users.get(made.number, [])) or result.layout != made.layout
    return Sight(path, equation, operation, operands, moving, result, summed, operation.trips or 1)


def _before(graph: Graph, value: Value) -> Value:
    """The array before it is moved to where an operation wants it."""
    while (maker := graph.maker(value)) is not None and maker.name == "reshard":
        value = graph.values[maker.operands[0]]
    return value


def _following(graph: Graph, value: Value, users: Mapping[int, Sequence[tuple[Operation, int]]]) -> Iterator[Value]:
    """The result as it is summed, and moved to where all that needs it wants it."""
    while len(following := users.get(value.number, [])) == 1 and following[0][0].name in ("sum", "reshard"):
        value = graph.values[following[0][0].results[0]]
        yield value


def _typed(values: Sequence[Value], aval: Any, mesh: Mesh) -> Value:
    """The first of some values that lies as a type says; else the first of all."""
    layout = Layout.from_spec(aval.sharding.spec, values[0].layout.names).on(mesh)
    return next((value for value in values if value.layout.dims == layout.dims), values[0])
