"""What a program costs on a hardware: seconds, FLOPs, bytes on the wire, peak memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.chips import Hardware, Memory
from shardwise.chips.links import Pricer, memory_seconds, pricer, wire_bytes
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.program import (
    AllGather,
    AllToAll,
    CollectivePermute,
    Einsum,
    Program,
    ReduceScatter,
    Slice,
    Step,
    consumed,
    kind,
    touched,
)

ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step of a program: its modelled seconds, and what it computes, sends and holds on each device."""

    seconds: float
    flops: float = 0.0
    wire_bytes: float = 0.0
    live_bytes: float = 0.0


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
    def total_wire_bytes(self) -> float:
        return sum(self.wire_bytes.values())


@dataclass(frozen=True, slots=True)
class Costs:
    """The prices of steps for one problem: hardware, mesh and dtype are fixed.

    `accumulated` is the dtype of products, where it is another (`preferred_element_type`).
    """

    hardware: Hardware
    mesh: Mesh
    dtype: str
    accumulated: str | None = None
    _prices: dict[tuple[str, Axes], Pricer] = field(default_factory=dict, compare=False, repr=False)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def product_bytes(self) -> int:
        return ITEM_BYTES[self.accumulated or self.dtype]

    def collective(self, kind: str, axes: Axes, in_bytes: float, out_bytes: float, turned_bytes: float = 0.0) -> float:
        """Seconds of a collective that makes shards of `out_bytes` from shards of `in_bytes`.

        `turned_bytes` are those whose blocks are moved in memory, where that costs (see `turned_bytes`).
        """
        price = self._prices.get((kind, axes))
        if price is None:
            price = self._prices[kind, axes] = pricer(kind, self.hardware, self.mesh, axes)
        seconds = price(in_bytes, out_bytes)
        if turned_bytes and isinstance(self.hardware.links, Memory):
            links = self.hardware.links
            seconds += self.mesh.size * turned_bytes / links.turned_bytes_per_s.value
            seconds += memory_seconds(links, self.mesh, 0.0, turned_bytes)
        return seconds

    def slice(self, out_bytes: float) -> float:
        """Seconds to copy the kept part."""
        return self._launch() + self._memory(out_bytes, out_bytes)

    def einsum(self, flops: float, in_bytes: float, out_bytes: float) -> float:
        """Seconds of a local einsum: the roofline, max(FLOPs / peak, bytes / memory bandwidth)."""
        arithmetic = flops / self.hardware.flops(self.dtype, self.mesh)
        if isinstance(self.hardware.links, Memory):
            # The product is computed before its pages are first written: both are paid.
            return self._launch() + max(arithmetic, self._memory(in_bytes, 0.0)) + self._memory(0.0, out_bytes)
        return max(arithmetic, self._memory(in_bytes, out_bytes))

    def _launch(self) -> float:
        links = self.hardware.links
        return self.mesh.size * links.local_seconds.value if isinstance(links, Memory) else 0.0

    def _memory(self, read_bytes: float, written_bytes: float) -> float:
        match self.hardware.links:
            case Memory() as memory:
                return memory_seconds(memory, self.mesh, read_bytes, written_bytes)
            case _:
                return (read_bytes + written_bytes) / self.hardware.memory_speed(self.mesh)


def turned_bytes(kind: str, dim: int, target: int, in_bytes: float, out_bytes: float) -> float:
    """The bytes of a shard whose blocks are moved in memory, for a collective along the dimension at a position.

    Simulated devices' collectives work on the first dimension: along another one, what is gathered is put in order
    afterwards, and what is scattered before. An all-to-all gathers along `dim` and scatters along `target`.
    """
    match kind:
        case "all-gather":
            return out_bytes if dim else 0.0
        case "reduce-scatter":
            return in_bytes if dim else 0.0
        case "all-to-all":
            return (out_bytes if dim else 0.0) + (in_bytes if target else 0.0)
        case _:
            return 0.0


def einsum_flops(operands: Sequence[Sequence[str]], dims: Iterable[str], sizes: Mapping[str, int]) -> float:
    """The FLOPs of a local einsum: what one operand alone sums is summed before the product.

    >>> einsum_flops(["IJ", "JK"], "IK", {"I": 2, "J": 3, "K": 5})
    60.0
    """
    kept = set(dims)
    flops, multiplied = 0.0, set[str]()
    for index, names in enumerate(operands):
        others = {dim for other, theirs in enumerate(operands) if other != index for dim in theirs}
        private = [dim for dim in names if dim not in kept and dim not in others]
        if private:
            flops += math.prod(sizes[dim] for dim in names)
        multiplied |= set(names) - set(private)
    if len(operands) > 1:
        flops += (2.0 if multiplied - kept else 1.0) * math.prod(sizes[dim] for dim in multiplied)
    return flops


def estimate(program: Program, costs: Costs, sizes: Mapping[str, int]) -> Estimate:
    """Price a program step by step; steps run one after another.

    Args:
        sizes: the size of every dimension, in elements.
    """
    states = program.states()
    products: set[str] = set()  # made so far; a result may bear the name of an input that it consumed

    def shard_bytes(name: str, layout: Layout) -> float:
        item = costs.product_bytes if name in products else costs.item_bytes
        return item * math.prod(layout.shard_shape(sizes, program.mesh))

    inputs = sum(shard_bytes(name, layout) for name, layout in states[0].items())
    priced: list[StepCost] = []
    wire: dict[tuple[str, Axes], float] = {}
    given = dict(states[0])  # inputs that are still as the caller gave them: held, but no temporaries
    for step, before, after in zip(program.steps, states, states[1:], strict=False):
        held = {name: shard_bytes(name, layout) for name, layout in before.items() if name not in given}
        took = [shard_bytes(name, before[name]) for name in consumed(step)]
        if isinstance(step, Einsum):
            products.add(step.result)
        made = shard_bytes(touched(step), after[touched(step)])
        priced.append(_priced(step, costs, sizes, before, took, made, inputs + sum(held.values()) + made))
        if priced[-1].wire_bytes:
            key = (kind(step), step.axes) if not isinstance(step, Einsum) else ("einsum", ())
            wire[key] = wire.get(key, 0.0) + priced[-1].wire_bytes
        for name in consumed(step):
            given.pop(name, None)
    moving = math.fsum(
        cost.seconds for step, cost in zip(program.steps, priced, strict=True) if not isinstance(step, Slice | Einsum)
    )
    total = math.fsum(cost.seconds for cost in priced)
    flops = sum(cost.flops for cost in priced)
    needed = sum(_whole_flops(step, before, sizes) for step, before in zip(program.steps, states, strict=False))
    return Estimate(
        seconds=total,
        compute_seconds=total - moving,
        communication_seconds=moving,
        flops=flops,
        wire_bytes=wire,
        peak_memory_bytes=max([inputs, *(cost.live_bytes for cost in priced)]),
        exposed_fraction=1.0 if moving else 0.0,
        redundancy=flops * program.mesh.size / needed if needed else 1.0,
        steps=tuple(priced),
    )


def _places(step: Step, names: tuple[str, ...]) -> tuple[int, int]:
    match step:
        case AllGather(_, dim, _) | ReduceScatter(_, dim, _):
            return names.index(dim), 0
        case AllToAll(_, source_dim, target_dim, _):
            return names.index(source_dim), names.index(target_dim)
        case _:
            return 0, 0


def _whole_flops(step: Step, before: Mapping[str, Layout], sizes: Mapping[str, int]) -> float:
    if not isinstance(step, Einsum):
        return 0.0
    return einsum_flops([before[name].names for name in step.operands], step.dims, sizes)


def _priced(
    step: Step, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout],
    took: list[float], made: float, live: float,
) -> StepCost:  # fmt: skip
    match step:
        case Einsum(operands, _, dims):
            local = {d: s // costs.mesh.extent(a) for n in operands for d, a in before[n].dims for s in [sizes[d]]}
            flops = einsum_flops([before[name].names for name in operands], dims, local)
            return StepCost(costs.einsum(flops, sum(took), made), flops=flops, live_bytes=live)
        case Slice():
            return StepCost(costs.slice(made), live_bytes=live)
        case CollectivePermute(_, _, pairs, _) if all(source == target for source, target in pairs):
            return StepCost(0.0, live_bytes=live)
        case _:
            name = kind(step)
            turned = turned_bytes(name, *_places(step, before[step.array].names), took[0], made)
            seconds = costs.collective(name, step.axes, took[0], made, turned)
            sent = wire_bytes(name, costs.mesh, step.axes, took[0], made)
            return StepCost(seconds, wire_bytes=sent, live_bytes=live)
