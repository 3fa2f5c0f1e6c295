"""The prices of steps as formulas with their numbers filled in, for those who want to reckon along."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.chips import Memory, Switch, Torus
from shardwise.chips.links import Route, Routes, group_in_node
from shardwise.chips.placing import mesh_order, physical_routes
from shardwise.errors import counted
from shardwise.mesh import Mesh
from shardwise.planning.cost import estimate, step_blocks
from shardwise.planning.prices import PLAIN, Blocks, Costs, StepCost, start_seconds, turned_bytes
from shardwise.planning.problem import hardware_on
from shardwise.program import Program
from shardwise.steps import (
    AllReduce,
    Collective,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    RotateEinsum,
    Slice,
    Step,
    consumed,
    kind,
    moved_axes,
    touched,
)
from shardwise.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a price: in symbols, with its numbers, and what it comes to."""

    symbols: str
    numbers: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Priced:
    """A step with its price: the summands, what their letters stand for, and the modelled cost that they add up to."""

    step: Step
    cost: StepCost
    terms: tuple[Term, ...]
    letters: tuple[str, ...] = ()


def costs_on(hardware: str, mesh: Mesh, dtype: str) -> Costs:
    """The prices on a hardware by name, or on a topology as `v5e:2x4`.

    Raises:
        HardwareError: there is none of that name; MeshError: the topology has fewer devices than the mesh.
    """
    chip, topology = hardware_on(hardware, mesh)
    routes: Routes | None = None
    if topology is not None and topology.kind == "tpu":
        routes = physical_routes(topology, mesh_order(topology, mesh), mesh)
    return Costs(chip, mesh, dtype, routes=routes, devices=None if topology is None else topology.size)


def formulas(program: Program, costs: Costs, sizes: Mapping[str, int]) -> tuple[Priced, ...]:
    """Every step of a program with its price as a formula; fused steps have no short one.

    >>> from shardwise.layout import Layout
    >>> from shardwise.steps import AllGather
    >>> mesh = Mesh.parse("x=16")
    >>> program = Program(mesh, (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)), ), "A")
    >>> priced, = formulas(program, costs_on("h100", mesh, "bfloat16"), {"I": 2**30})
    >>> print(priced.terms[0].symbols, "=", priced.terms[0].numbers)
    max(L, V · (n-1)/n / W) = max(4 us, 2.15 GB · 15/16 / 450 GB/s)

    Args:
        sizes: of every dimension, in elements.
    """
    made = estimate(program, costs, sizes)
    states = program.states()
    shape_of = functools.cache(lambda layout: layout.shard_shape(sizes, program.mesh))
    found = []
    for number, (step, cost) in enumerate(zip(program.steps, made.steps, strict=True)):
        before, after = states[number], states[number + 1]
        took = [costs.item_bytes * math.prod(shape_of(before[name])) for name in consumed(step)]
        gives = costs.item_bytes * math.prod(shape_of(after[touched(step)]))
        blocks = step_blocks(step, before, after, shape_of)
        terms, letters = _terms(step, costs, blocks, took, gives, cost)
        last = number == len(program.steps) - 1 and touched(step) == program.output
        copied = last and cost.transfer_seconds and isinstance(step, Collective)
        leaving = costs.leaving(kind(step), moved_axes(step), gives, blocks) if copied else 0.0
        if leaving:
            terms.append(Term("copy of the result", f"{bytes_text(gives)} copied", leaving))
        found.append(Priced(step, cost, tuple(terms), tuple(letters)))
    return tuple(found)


def _terms(
    step: Step, costs: Costs, blocks: Blocks, took: list[float], made: float, cost: StepCost
) -> tuple[list[Term], list[str]]:
    match step:
        case GatherEinsum() | EinsumScatter() | EinsumGather() | RotateEinsum():
            hidden = max(cost.transfer_seconds - cost.exposed_seconds, 0.0)
            said = f"{seconds_text(cost.transfer_seconds)} of transfers, {seconds_text(hidden)} of it behind products"
            return [Term("sum over the blocks of max(multiply, transfer)", "", cost.seconds)], [said]
        case Einsum():
            return _product(costs, cost.flops, sum(took), made)
        case Slice():
            return [Term("copy of the kept part", f"{bytes_text(made)} copied", cost.seconds)], []
        case CollectivePermute() if not cost.seconds:
            return [Term("nothing", "every device keeps what it holds", 0.0)], []
        case _:
            assert isinstance(step, Collective), "the compiler's own has no price before it is compiled"
            terms, letters = _collective(step, costs, took[0], made, costs.is_summed(kind(step), step.axes, made, blocks))
            return [*terms, *_extras(step, costs, took[0], made, blocks)], letters


def _collective(
    step: Collective, costs: Costs, took: float, made: float, is_summed: bool = False
) -> tuple[list[Term], list[str]]:
    links, axes = costs.hardware.links, tuple(axis for axis in step.axes if costs.mesh.axis_size(axis) > 1)
    match links:
        case Torus():
            routes = costs.routes_of("all-reduce" if is_summed else kind(step), axes)
            assert routes is not None
            return _torus(step, links, [routes[axis] for axis in axes], costs, took, made)
        case Switch():
            return _switch(step, links, axes, costs, took, made)
        case Memory():
            return _memory(step, links, costs, took, made)


def _torus(
    step: Collective, links: Torus, routes: list[Route], costs: Costs, took: float, made: float
) -> tuple[list[Term], list[str]]:
    hops = sum(route.hops for route in routes)
    latency = links.hop_seconds.value * hops
    count = math.prod(route.size for route in routes)
    speed = sum(route.bytes_per_s for route in routes)
    far = f"L = {counted(hops, 'hop')} of {seconds_text(links.hop_seconds.value)}"
    name = kind(step)
    if name == "all-to-all":
        slow = max(routes, key=lambda route: route.size / route.bytes_per_s)
        numbers = f"{bytes_text(took)} · {slow.size}/4 / {_speed(slow.bytes_per_s)}"
        term = _longer(latency, "S · n/4 / W", numbers, took * slow.size / 4 / slow.bytes_per_s)
        return [term], [f"S = bytes of a shard, n = {slow.size} devices", f"W = {_speed(slow.bytes_per_s)} ({slow.says})", far]
    if name == "collective-permute":
        link = links.bytes_per_s.value / costs.hardware.devices_per_chip
        crowd = max(1.0, hops / 2)
        numbers = f"{seconds_text(latency)} + {bytes_text(took)} · {crowd:g} / {_speed(link)}"
        term = Term("L + S · c / W", numbers, latency + took * crowd / link)
        return [term], ["S = bytes of a shard", f"c = {crowd:g} shards share a link, W = {_speed(link)} a link", far]
    says = "; ".join(route.says for route in routes)
    numbers = f"{bytes_text(_whole(step, took, made))} · {count - 1}/{count} / {_speed(speed)}"
    transfer = _whole(step, took, made) * (count - 1) / count / speed
    return [_reduced(step, latency, "V · (n-1)/n / W", numbers, transfer)], [
        f"V = bytes when gathered, n = {count} devices",
        f"W = {_speed(speed)} ({says})",
        far,
    ]


def _switch(
    step: Collective, links: Switch, axes: tuple[str, ...], costs: Costs, took: float, made: float
) -> tuple[list[Term], list[str]]:
    mesh, node = costs.mesh, int(links.node_devices.value)
    count, inside = mesh.extent(axes), group_in_node(mesh, axes, node)
    nodes = count // inside
    egress, network = links.bytes_per_s.value, links.node_bytes_per_s.value * inside / min(node, mesh.size)
    latency = links.hop_seconds.value * math.ceil(math.log2(count))
    far = f"L = {counted(math.ceil(math.log2(count)), 'hop')} of {seconds_text(links.hop_seconds.value)}"
    within = f"W = {_speed(egress)} out of a device"
    between = f"W = {_speed(network)} of its node's network, m = {nodes} nodes"
    name = kind(step)
    if name == "collective-permute":
        slow = network / inside if nodes > 1 and inside / network > 1 / egress else egress
        numbers = f"{seconds_text(latency)} + {bytes_text(took)} / {_speed(slow)}"
        told = within if slow == egress else f"W = {_speed(slow)}, its share of the node's network"
        return [Term("L + S / W", numbers, latency + took / slow)], ["S = bytes of a shard", told, far]
    if name == "all-to-all":
        inner, outer = (count - 1) / count / egress, inside * (count - inside) / count / network
        if inner >= outer:
            numbers = f"{bytes_text(took)} · {count - 1}/{count} / {_speed(egress)}"
            return [_longer(latency, "S · (n-1)/n / W", numbers, took * inner)], [
                f"S = bytes of a shard, n = {count} devices", within, far,
            ]  # fmt: skip
        numbers = f"{bytes_text(took)} · {inside} · {count - inside}/{count} / {_speed(network)}"
        return [_longer(latency, "S · d · (n-d)/n / W", numbers, took * outer)], [
            f"S = bytes of a shard, n = {count} devices, d = {inside} of them in a node", between, far,
        ]  # fmt: skip
    whole = bytes_text(_whole(step, took, made))
    inner = (count - 1) / count / egress if inside > 1 else 0.0
    outer = (nodes - 1) / nodes / network
    if inner >= outer:
        numbers = f"{whole} · {count - 1}/{count} / {_speed(egress)}"
        term = _reduced(step, latency, "V · (n-1)/n / W", numbers, _whole(step, took, made) * inner)
        return [term], [f"V = bytes when gathered, n = {count} devices", within, far]
    numbers = f"{whole} · {nodes - 1}/{nodes} / {_speed(network)}"
    term = _reduced(step, latency, "V · (m-1)/m / W", numbers, _whole(step, took, made) * outer)
    return [term], ["V = bytes when gathered", between, far]


def _memory(step: Collective, links: Memory, costs: Costs, took: float, made: float) -> tuple[list[Term], list[str]]:
    n = costs.mesh.size
    speed = links.bytes_per_s.value
    write = links.fresh_bytes_per_s.value if made >= links.fresh_from_bytes.value else speed
    terms = [Term("n · start", f"{n} · {seconds_text(links.launch_seconds.value)}", n * links.launch_seconds.value)]
    if kind(step) in ("reduce-scatter", "all-reduce"):
        terms.append(Term("n · read / speed", f"{n} · {bytes_text(took)} / {_speed(speed)}", n * took / speed))
    terms.append(Term("n · written / speed", f"{n} · {bytes_text(made)} / {_speed(write)}", n * made / write))
    return terms, [f"n = {n} simulated devices, which share one host's memory"]


def _extras(step: Collective, costs: Costs, took: float, made: float, blocks: Blocks = PLAIN) -> Iterator[Term]:
    """What the compiler, or the host, adds to what is on the wire."""
    name, links = kind(step), costs.hardware.links
    if costs.is_summed(name, step.axes, made, blocks):
        terms, _ = _collective(step, costs, took, made, is_summed=True)
        how = "an all-reduce of blocks among zeros" if name == "all-gather" else "an all-reduce and a slice"
        yield Term(f"sent again: this compiler makes it {how}", "", math.fsum(term.seconds for term in terms))
    if not isinstance(links, Memory):
        laying = costs.laying(name, step.axes, took, made, blocks)
        if laying:
            laid = made if name == "all-gather" else took
            yield Term("blocks laid out in memory", f"{bytes_text(laid)} moved", laying)
        return
    turned = turned_bytes(name, blocks, took, made)
    if turned:
        n, write = costs.mesh.size, links.fresh_bytes_per_s.value
        write = write if turned >= links.fresh_from_bytes.value else links.bytes_per_s.value
        turning = n * turned / links.turned_bytes_per_s.value + n * turned / write
        yield Term("blocks put in order", f"{n} · {bytes_text(turned)} moved", turning)


def _product(costs: Costs, flops: float, took: float, made: float) -> tuple[list[Term], list[str]]:
    """The roofline of a local product; its FLOP/s are those that large products reach."""
    hardware, mesh = costs.hardware, costs.mesh
    compiler, links = hardware.compiler, hardware.links
    peak = hardware.flops(costs.dtype, mesh) * (compiler.efficiency.value if compiler is not None else 1.0)
    memory = hardware.memory_speed(mesh)
    letters = [f"peak: {compiler.efficiency.value:.0%} of the chip's figure"] if compiler else []
    if isinstance(links, Memory):
        return list(_on_the_host(links, costs, (flops, peak), took, made)), letters
    symbols, numbers, seconds = "FLOPs / peak", f"{flops:.3g} FLOPs / {peak:.3g} FLOP/s", flops / peak
    if compiler is not None and flops:
        leave = compiler.results_per_s.value / hardware.sharers(mesh)
        results = made / costs.product_bytes
        if results / leave > seconds:
            symbols, numbers, seconds = "results / rate", f"{results:.3g} / {leave:.3g}", results / leave
        start = start_seconds(compiler, seconds)
        symbols, numbers, seconds = f"start + {symbols}", f"{seconds_text(start)} + {numbers}", start + seconds
    moved = (took + made) / memory
    numbers = f"max({numbers}, {bytes_text(took + made)} / {_speed(memory)})"
    return [Term(f"max({symbols}, bytes / memory)", numbers, max(seconds, moved))], letters


def _on_the_host(links: Memory, costs: Costs, work: tuple[float, float], took: float, made: float) -> Iterator[Term]:
    n, (flops, peak) = costs.mesh.size, work
    speed = links.bytes_per_s.value
    write = links.fresh_bytes_per_s.value if made >= links.fresh_from_bytes.value else speed
    yield Term("n · start", f"{n} · {seconds_text(links.local_seconds.value)}", n * links.local_seconds.value)
    if flops / peak >= n * took / speed:
        yield Term("FLOPs / peak", f"{flops:.3g} FLOPs / {peak:.3g} FLOP/s", flops / peak)
    else:
        yield Term("n · read / speed", f"{n} · {bytes_text(took)} / {_speed(speed)}", n * took / speed)
    yield Term("n · written / speed", f"{n} · {bytes_text(made)} / {_speed(write)}", n * made / write)


def _reduced(step: Collective, latency: float, symbols: str, numbers: str, transfer: float) -> Term:
    """An all-reduce is a reduce-scatter and an all-gather: twice the same."""
    one = _longer(latency, symbols, numbers, transfer)
    return Term(f"2 · {one.symbols}", f"2 · {one.numbers}", 2 * one.seconds) if isinstance(step, AllReduce) else one


def _longer(latency: float, symbols: str, numbers: str, transfer: float) -> Term:
    return Term(f"max(L, {symbols})", f"max({seconds_text(latency)}, {numbers})", max(latency, transfer))


def _whole(step: Collective, took: float, made: float) -> float:
    return made if kind(step) == "all-gather" else took


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_text(bytes_per_s)}/s"
