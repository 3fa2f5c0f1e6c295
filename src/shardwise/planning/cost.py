"""What a program costs on a hardware: seconds, FLOPs, bytes on the wire, peak memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from shardwise.chips.links import wire_bytes
from shardwise.dataflow import makes_result
from shardwise.layout import Axes, Layout
from shardwise.planning.copies import Footprint, fetched_bytes, with_copies
from shardwise.planning.neighbours import on_one_clock
from shardwise.planning.prices import Costs
from shardwise.planning.step_cost import StepCost, einsum_flops
from shardwise.planning.step_prices import StepPrices
from shardwise.planning.tiles import PLAIN, Blocks, Order, blocks_of
from shardwise.program import Program
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    Collective,
    CollectivePermute,
    Einsum,
    Fused,
    ReduceScatter,
    Slice,
    Step,
    consumed,
    einsum_of,
    kind,
    moved_axes,
    touched,
)

LEAVES = AllGather | AllToAll | CollectivePermute  # these make a result elsewhere than where it must stand


@dataclass(frozen=True, slots=True)
class Estimate:
    """The modelled cost of a program; FLOPs and bytes are those of one device.

    `wire_bytes` holds the bytes sent, by collective and axes. `peak_memory_bytes` counts the inputs throughout (the
    caller holds them), and every temporary while it lives. `exposed_fraction` is the share of the communication that
    nothing hides, `redundancy` how often the FLOPs of the whole are done (1: no replica repeats another's work).
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    flops: float
    wire_bytes: Mapping[tuple[str, Axes], float]
    peak_memory_bytes: float
    exposed_fraction: float
    redundancy: float
    steps: tuple[StepCost, ...]

    @property
    def exposed_seconds(self) -> float:
        """The communication that nothing hides."""
        return self.exposed_fraction * self.communication_seconds

    @property
    def alone_seconds(self) -> float:
        """The seconds of its steps one after the other, as the search for programs adds them up."""
        return self.seconds + math.fsum(step.saved_seconds for step in self.steps)

    @property
    def total_wire_bytes(self) -> float:
        return sum(self.wire_bytes.values())

    @property
    def network_bytes(self) -> float:
        """Those that leave a node, or a slice."""
        return sum(step.network_bytes for step in self.steps)


def estimate(program: Program, costs: Costs, sizes: Mapping[str, int]) -> Estimate:
    """Price a program step by step; steps run one after another, but for what the compiler runs beside neighbours.

    Args:
        sizes: the size of every dimension, in elements.
    """
    return estimated(program, StepPrices(costs, sizes))


def estimated(program: Program, prices: StepPrices) -> Estimate:
    """Price a program with what is known of the steps of its problem."""
    costs, sizes = prices.costs, prices.sizes
    states, shards = program.states(), Shards(program, prices)
    held = {name: shards.bytes_of(name, layout) for name, layout in states[0].items()}  # by live arrays
    inputs = sum(held.values())
    priced: list[StepCost] = []
    given = dict(states[0])  # inputs that are still as the caller gave them: held, but no temporaries
    given_bytes = dict(held)
    moved: list[Footprint] = []
    for number, (step, before, after) in enumerate(zip(program.steps, states, states[1:], strict=False)):
        makes = touched(step)
        footprint, cost = shards.alone(step, before, after)
        size = shards.bytes_of(makes, after[makes])
        live = inputs + sum(bytes_ for name, bytes_ in held.items() if name not in given) + size
        cost = prices.fused_cost(program, number, live) if isinstance(step, Fused) else cost._replace(live_bytes=live)
        moved.append(footprint)
        if isinstance(step, LEAVES) and cost.transfer_seconds and costs.hardware.compiler and makes_result(program, number):
            cost = _as_result(step, cost, costs, footprint, makes in given, fetched_bytes(program, given_bytes, costs))
        priced.append(cost)
        for name in consumed(step):
            given.pop(name, None)
            held.pop(name, None)
        held[makes] = size
    priced = with_copies(program, priced, moved, given_bytes, costs, sizes)
    priced = on_one_clock(program, priced, prices)
    exposed = math.fsum(cost.exposed_seconds for cost in priced)
    moving = math.fsum(cost.transfer_seconds for cost in priced)
    total = math.fsum(cost.seconds for cost in priced) + (costs.dispatch if priced else 0.0)
    flops = sum(cost.flops for cost in priced)
    needed = sum([_whole_flops(step, before, prices) for step, before in zip(program.steps, states, strict=False)])
    return Estimate(
        seconds=total,
        compute_seconds=total - exposed,
        communication_seconds=moving,
        flops=flops,
        wire_bytes=_sent(program.steps, priced),
        peak_memory_bytes=max([inputs, *(cost.live_bytes for cost in priced)]),
        exposed_fraction=exposed / moving if moving else 0.0,
        redundancy=flops * program.mesh.size / needed if needed else 1.0,
        steps=tuple(priced),
    )


class Shards:
    """What devices hold of a program's arrays: the bytes, and how these lie in memory, as steps pass one after the other."""

    def __init__(self, program: Program, prices: StepPrices) -> None:
        self.program, self.prices, self.costs = program, prices, prices.costs
        self._items = {name: self.costs.item_bytes for name, _ in program.inputs}
        self._orders = {name: self.costs.order(prices.shape_of(layout)) for name, layout in program.states()[0].items()}

    def bytes_of(self, name: str, layout: Layout) -> int:
        return self._items[name] * math.prod(self.prices.shape_of(layout))

    def alone(self, step: Step, before: Mapping[str, Layout], after: Mapping[str, Layout]) -> tuple[Footprint, StepCost]:
        """What a step moves, and what it takes by itself; a fused one has no price but where it stands.

        A matmul makes its array anew: of its own dtype, in the order of a result, if it makes that, or as written.
        """
        reads, makes = consumed(step), touched(step)
        item, order = self._items.get(makes), self._orders.get(makes)
        key = step, item, order, tuple([(before[name], self._items[name]) for name in reads])
        known = self.prices.alone.get(key)
        took = 0 if known else sum([self.bytes_of(name, before[name]) for name in reads])
        if einsum_of(step) is not None:
            is_result = makes == self.program.output
            self._items[makes] = self.costs.made_item_bytes
            self._orders[makes] = self.costs.order(self.prices.shape_of(self.program.result)) if is_result else None
        if known is None:
            known = self.prices.alone[key] = self._priced(step, before, after, took)
        return known

    def _priced(
        self, step: Step, before: Mapping[str, Layout], after: Mapping[str, Layout], took_bytes: int
    ) -> tuple[Footprint, StepCost]:  # fmt: skip
        makes, tiled = touched(step), self.costs.hardware.compiler is not None
        took, made = _named(step, took_bytes, self.bytes_of(makes, after[makes]), self.costs)
        blocks = step_blocks(step, before, after, self.prices.shape_of, self._orders, self._items[makes], tiled)
        if isinstance(step, Fused):
            return Footprint(took, made, blocks), StepCost(0.0)
        return Footprint(took, made, blocks), _priced(step, self.costs, self.prices.sizes, before, took, made, blocks)


def _sent(steps: Sequence[Step], priced: Sequence[StepCost]) -> dict[tuple[str, Axes], float]:
    """The bytes sent, by collective and axes."""
    wire: dict[tuple[str, Axes], float] = {}
    for step, cost in zip(steps, priced, strict=True):
        if cost.wire_bytes:
            key = (kind(step) if einsum_of(step) is None else "collective-permute", moved_axes(step))
            wire[key] = wire.get(key, 0.0) + cost.wire_bytes
    return wire


def _as_result(
    step: Step, cost: StepCost, costs: Costs, footprint: Footprint, given: bool, beside: float
) -> StepCost:  # fmt: skip
    """The cost of a step that ends a program, with the copy of what it gathered or exchanged to where the result must stand."""
    copied, label = result_copied(step, costs, footprint, given, beside), "copy of the result"
    return cost._replace(seconds=cost.seconds + costs.arithmetic.name("", copied, "s", label)) if copied else cost


def result_copied(step: Step, costs: Costs, moved: Footprint, given: bool = False, beside: float = 0.0) -> float:
    """Seconds to copy to where a result must stand what the last step gathered or exchanged; none of what a matmul makes."""
    return (
        costs.leaving(kind(step), moved_axes(step), moved.made, moved.blocks, given, beside)
        if isinstance(step, LEAVES)
        else 0.0
    )


def step_blocks(
    step: Step, before: Mapping[str, Layout], after: Mapping[str, Layout], shape_of: Callable[[Layout], tuple[int, ...]],
    orders: Mapping[str, Order | None], item_bytes: int, tiled: bool,
) -> Blocks:  # fmt: skip
    """How the blocks lie that a step joins along one dimension, and cuts along another or the same, by its shards' shapes."""
    match step:
        case AllGather(array, dim, _) | ReduceScatter(array, dim, _) | Slice(array, dim, _):
            source, target = dim, dim
        case AllToAll(array, source, target, _):
            pass
        case _:
            return PLAIN
    names = before[array].names
    took, made = (shape_of(layouts[array]) for layouts in (before, after))
    return blocks_of(kind(step), (names.index(source), names.index(target)), took, made, orders[array], item_bytes, tiled)


def _named(step: Step, took: float, made: float, costs: Costs) -> tuple[float, float]:
    """The bytes that a step takes and makes on a device, as letters: V of what is gathered, S of a shard."""
    name = costs.arithmetic.name
    match step:
        case Einsum():
            return name("read", took, "B"), name("written", made, "B")
        case AllGather():
            return name("S", took, "B", "bytes of a shard"), name("V", made, "B", "bytes when gathered")
        case AllReduce():
            return name("V", took, "B", "bytes when gathered"), name("V", made, "B", "bytes when gathered")
        case ReduceScatter():
            return name("V", took, "B", "bytes when gathered"), name("S", made, "B", "bytes of a shard")
        case _:
            return name("S", took, "B", "bytes of a shard"), name("S", made, "B", "bytes of a shard")


def _whole_flops(step: Step, before: Mapping[str, Layout], prices: StepPrices) -> float:
    einsum = einsum_of(step)
    if einsum is None:
        return 0.0
    key = einsum.dims, tuple([before[name].names for name in einsum.operands])
    found = prices.flops.get(key)
    if found is None:
        found = prices.flops[key] = einsum_flops(key[1], einsum.dims, prices.sizes)
    return found


def _priced(
    step: Collective | Slice | Einsum | Automatic, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout],
    took: float, made: float, blocks: Blocks,
) -> StepCost:  # fmt: skip
    match step:
        case Einsum(operands, _, dims):
            local = {d: s // costs.mesh.extent(a) for n in operands for d, a in before[n].dims for s in [sizes[d]]}
            flops = einsum_flops([before[name].names for name in operands], dims, local)
            done = costs.arithmetic.name("FLOPs", flops, "FLOPs")
            return StepCost(costs.einsum(done, took, made), flops)
        case Slice():
            return StepCost(costs.slice(made, blocks))
        case CollectivePermute(_, _, pairs, _) if all(source == target for source, target in pairs):
            return StepCost(0.0)
        case AllGather() | ReduceScatter() | AllReduce() | AllToAll() | CollectivePermute():
            name, saved = kind(step), 0.0
            part = made if isinstance(step, CollectivePermute) else took
            seconds = costs.collective(name, step.axes, part, made, blocks)
            if isinstance(step, CollectivePermute):
                followed = costs.interconnect.permute(step.axes, step.pairs, part)
                saved, seconds = float(seconds - followed), followed
                seconds = seconds + (costs.cut_out(made, blocks) if part < took else 0.0)
            sent = wire_bytes(name, costs.mesh, step.axes, part, made)
            slow = costs.interconnect.network_bytes(name, step.axes, part, made)
            return StepCost(seconds, 0.0, sent, 0.0, seconds, seconds, slow, saved_seconds=saved)
        case Automatic():
            raise AssertionError("the compiler's own has no price before it is compiled")
        case _:
            assert_never(step)
