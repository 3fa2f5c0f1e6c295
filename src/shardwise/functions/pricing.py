"""What movements cost on a hardware, by the planner's own programs; and what a whole function multiplies and holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.chips import Hardware
from shardwise.chips.links import collective_seconds, wire_bytes
from shardwise.chips.topology import Topology
from shardwise.errors import ShardwiseError
from shardwise.intent.flowgraph import Graph, Operation
from shardwise.intent.movements import Movement, movements
from shardwise.layout import Axes, Layout, padded_size
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import hardware_on, problem
from shardwise.planning.ranking import ranking
from shardwise.steps import collectives_of, kind

Where = str | Hardware | None


@dataclass(frozen=True, slots=True)
class Price:
    """What one movement costs each time: the collectives of the cheapest program, bytes on the wire of a device, seconds.

    `known` is False where the layouts use parts of mesh axes, or the planner has no program: bytes are an upper bound then.
    """

    collectives: tuple[tuple[str, Axes], ...]
    wire_bytes: float
    seconds: float
    known: bool = True


@functools.lru_cache(maxsize=4096)
def relayout_price(before: Layout, after: Layout, shape: tuple[int, ...], dtype: str, mesh: Mesh, where: Where) -> Price:
    """The price of a change of layout; sizes that their axes do not divide are padded first, as the partitioner does."""
    item = dtype if dtype in ITEM_BYTES else "int8"
    sizes = {
        dim: padded_size(max(size, 1), math.lcm(*(_extent(mesh, axes) for _, axes in (before.dims[place], after.dims[place]))))
        for place, (dim, size) in enumerate(zip(before.names, shape, strict=True))
    }
    try:
        equation = Equation((Operand("A", before),), Operand("A", after))
        best = ranking(problem(equation, sizes, mesh, where, item, overlap=False)).best
    except ShardwiseError:
        whole = math.prod(sizes.values()) * ITEM_BYTES[item]
        return Price(
            (("unread", tuple(dict.fromkeys((*before.axes, *sorted(before.unreduced))))),), float(whole), 0.0, known=False
        )
    made = tuple((kind(part), part.axes) for step in best.program.steps for part in collectives_of(step))
    return Price(made, best.estimate.total_wire_bytes, best.estimate.seconds)


def _extent(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.axis_size(axis) for axis in axes if axis in mesh.names)


def price(movement: Movement, mesh: Mesh, where: Where) -> Price:
    """What a movement costs each time it runs."""
    if not movement.kind:
        return relayout_price(movement.before, movement.after, movement.shape, movement.dtype, mesh, where)
    chip, _ = hardware_on(where, mesh)
    held = math.prod(movement.shape) * ITEM_BYTES.get(movement.dtype, 1)
    axes = tuple(axis for axis in movement.axes if axis in mesh.names)
    grown = mesh.extent(axes)
    after = held * grown if movement.kind == "all-gather" else held / grown if movement.kind == "reduce-scatter" else held
    name: object = movement.kind
    sent = wire_bytes(name, mesh, axes, held, after) if axes else 0.0  # type: ignore[arg-type]
    seconds = collective_seconds(name, chip, mesh, axes, held, after) if axes else 0.0  # type: ignore[arg-type]
    return Price(((movement.kind, movement.axes),), sent, seconds, known=axes == movement.axes and bool(axes))


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole function costs one device in one call, as far as Shardy's layouts say it.

    Attributes:
        moving_seconds, wire_bytes: of all movements, one after the other.
        multiplying_seconds: of all matmuls at the chip's peak, those that replicas repeat counted for each.
        writing_seconds: of every array that an operation makes, written once at the speed of the memory: it grows when work is
            repeated or arrays are held whole. Fused operations write less, so that it is an upper bound.
        argument_bytes: what one device holds of the arguments.
    """

    moving_seconds: float
    wire_bytes: float
    multiplying_seconds: float
    writing_seconds: float
    argument_bytes: float

    @property
    def seconds(self) -> float:
        """All of it one after the other: by this ways out are compared."""
        return self.moving_seconds + self.multiplying_seconds + self.writing_seconds


def totals(graph: Graph, where: Where, moved: Sequence[Movement] | None = None) -> Totals:
    """The totals of a graph."""
    priced = [(each.trips or 1, price(each, graph.mesh, where)) for each in (movements(graph) if moved is None else moved)]
    chip, _ = hardware_on(where, graph.mesh)
    flops = sum(flops_of(graph, each) * (each.trips or 1) for each in graph.operations if each.name == "dot_general")
    made = sum(
        local_bytes(graph, number) * (each.trips or 1)
        for each in graph.operations
        if each.name not in ("reshard", "sum", "constant") and not each.manual
        for number in each.results
    )
    return Totals(
        math.fsum(trips * each.seconds for trips, each in priced),
        math.fsum(trips * each.wire_bytes for trips, each in priced),
        flops / chip.flops("bfloat16", graph.mesh),
        made / chip.memory_speed(graph.mesh),
        sum(local_bytes(graph, number) for number in graph.arguments),
    )


def local_bytes(graph: Graph, number: int) -> float:
    """The bytes of one device's part of a value."""
    value = graph.values[number]
    return math.prod(value.shape) * ITEM_BYTES.get(value.dtype, 1) / _extent(graph.mesh, value.layout.axes)


def flops_of(graph: Graph, operation: Operation) -> float:
    """The FLOPs of a matmul on one device."""
    rule = operation.rule
    if rule is None:
        return 0.0
    flops = 2.0 * math.prod(rule.sizes.values())
    axes: dict[str, Axes] = {}
    for factors, number in zip((*rule.operands, *rule.results), (*operation.operands, *operation.results), strict=False):
        for dim, (_, split) in zip(factors, graph.values[number].layout.dims, strict=False):
            for factor in dim[:1]:
                axes[factor] = max(axes.get(factor, ()), split, key=len)
    return flops / _extent(graph.mesh, tuple(dict.fromkeys(axis for split in axes.values() for axis in split)))


def hardware_for(on: str | None, hardware: Where) -> Where:
    """What is estimated with: the hardware named, or that of the devices named, or None for the catalogue's default."""
    if hardware is not None:
        return hardware
    if on is None:
        return None
    topology = Topology.parse(on)
    return None if topology.chip is None else topology.chip
