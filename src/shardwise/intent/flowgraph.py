"""A whole function as Shardy leaves it, without MLIR: values with layouts, operations with rules, and what is moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardwise.compiled.facts import Line
from shardwise.intent.rules import Rule
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh

SourceKind = Literal["argument", "result", "constraint", "map", "unknown"]
# Operations through which an array stays the same array, seen otherwise: what it is called passes through them.
SAME = frozenset({
    "reshape", "transpose", "convert", "copy", "dynamic_slice", "slice", "reshard", "sum", "optimization_barrier",
    "broadcast_in_dim", "sharding_constraint", "custom_call", "call",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """Where an axis of a layout comes from: an argument or a result of the function, a constraint, or a `jax.shard_map`.

    `number`: of the argument, result or constraint, from 0; `name` what users call it; `line` where it is asked for.
    """

    kind: SourceKind
    number: int = 0
    name: str = ""
    line: Line | None = None

    def __str__(self) -> str:
        at = f" at {self.line.short}" if self.line else ""
        match self.kind:
            case "argument":
                return f"the layout of argument {self.name}"
            case "result":
                return f"the layout asked for of {self.name}"
            case "constraint":
                return f"the constraint{at}"
            case "map":
                return f"the specs of the shard_map{at}"
            case _:
                return "no annotation that can be named"


@dataclass(frozen=True, slots=True)
class Value:
    """An array inside of a function: its shape over all devices, its layout, and where each axis of that comes from.

    Attributes:
        layout: dimensions are named I, J, K ... in order; the axes are those of the mesh, or parts of them as `x:(1)2`.
        maker: the operation that makes it; None for an argument.
        argument: the argument that it is, if it is one.
        same: the value that it is in other clothes: what enters a loop or a function.
        carried: it is what a loop carries from turn to turn: `same` is what it was before the first.
    """

    number: int
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    sources: tuple[tuple[str, Source], ...] = ()
    maker: int | None = None
    argument: int | None = None
    same: int | None = None
    carried: bool = False

    def source(self, axis: str) -> Source:
        return dict(self.sources).get(axis, Source("unknown"))


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: what it takes and makes, its rule, and where the user wrote it.

    Attributes:
        name: as StableHLO names it; `reshard`, `sum` and the collectives of manual maps among them.
        scope: JAX's name of it, as `jit(step)/jvp()/while/body/dot_general`.
        trips: how often it runs in one call; None where a loop's trips cannot be read (it is counted once then).
        constraint: the number of the constraint that a reshard is, if it is one.
        axes: of a sum, or of a collective inside of a `jax.shard_map`, the mesh axes.
        target: of a custom call, what is called.
        manual: whether it stands inside of a `jax.shard_map`.
        lowered: its number in the function as it was lowered, by which changes name it; None of what a pass made.
        wanted: the layouts that its results are meant to have; they are made otherwise where the operands do not allow it.
    """

    number: int
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule | None
    line: Line | None
    scope: str
    trips: int | None
    constraint: int | None = None
    axes: Axes = ()
    target: str = ""
    manual: bool = False
    lowered: int | None = None
    wanted: tuple[Layout, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of the function: what it asks for, of what shape, and where."""

    number: int
    shape: tuple[int, ...]
    layout: Layout
    line: Line | None
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A function after propagation, flat: bodies of loops and calls stand where they run, with their trips.

    Attributes:
        arguments: the values that the function takes, in order; `names` is what users call them.
        results: the values that it returns, in order; `returned` is what they are called, as `result['w']`.
        unread: what could not be read.
    """

    mesh: Mesh
    values: tuple[Value, ...] = field(repr=False)
    operations: tuple[Operation, ...] = field(repr=False)
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    names: tuple[str, ...]
    constraints: tuple[Constraint, ...] = ()
    unread: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def users(self) -> dict[int, list[tuple[Operation, int]]]:
        """For each value the operations that take it, and as which operand; inside of loops and functions too."""
        found: dict[int, list[tuple[Operation, int]]] = {}
        for operation in self.operations:
            for place, number in enumerate(operation.operands):
                found.setdefault(number, []).append((operation, place))
        for value in reversed(self.values):
            if value.same is not None and value.number in found:
                known = found.setdefault(value.same, [])
                known += [each for each in found[value.number] if each not in known]
        return found

    def maker(self, value: Value) -> Operation | None:
        return None if value.maker is None else self.operations[value.maker]


def root_of(graph: Graph, value: Value) -> Value:
    """The value that an array is before views, converts, loops and calls: an argument, or what computes it."""
    for _ in range(len(graph.values)):
        if value.carried:
            return value
        if value.same is not None:
            value = graph.values[value.same]
            continue
        maker = graph.maker(value)
        if maker is None or maker.name not in SAME or not maker.operands:
            return value
        place = maker.results.index(value.number) if len(maker.results) == len(maker.operands) else 0
        value = graph.values[maker.operands[place]]
    return value
